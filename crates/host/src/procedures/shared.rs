//! What the server threads share: where things are, and the way to each other.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use cenote_fabric::Waker;
use cenote_proc::executor::{Ended, Shelf};
use cenote_proc::service::Told;
use cenote_proc::{Library, Machine, Response};

use super::depot::Depot;
use super::directory::{Directory, Notice};
use super::peers::{Called, Peers};
use super::uploads;
use crate::side_thread::SideThread;

/// See the [module](self).
pub(crate) struct Shared {
    pub(super) directory: Directory,
    pub(super) library: Arc<Library>,
    pub(super) depot: Option<Depot>,
    pub(super) peers: Peers,
    pub(super) compiler: SideThread<uploads::Job>,
    pub(super) posts: Arc<[Post]>,
    pub(super) shelves: Vec<Arc<Shelf>>,
    pub(super) idle: Vec<AtomicBool>,
    pub(super) helps: bool,
}

/// The way to one thread.
pub(super) struct Post {
    pub(super) sender: Sender<Letter>,
    pub(super) waker: Waker,
}

/// What threads are told by others.
pub(super) enum Letter {
    /// A word of an owner.
    Notice(Notice, Taken),
    /// Every thread goes by a word of this thread's, but for so many slabs.
    Taken(u64, u32),
    /// Steps that another thread took.
    Ended(Vec<Ended>),
    /// What became of requests that went away, by their tickets.
    Answers(Vec<Response>),
    /// A call to another machine ended.
    Called(u64, Called),
    /// The connection to a machine ended.
    Gone(Machine),
    /// A module was compiled, or refused.
    Told(u64, Told),
}

/// How many threads have not taken a word in. Whoever makes one holds it until all are told.
#[derive(Clone)]
pub(super) struct Taken(Arc<Pending>);

struct Pending {
    /// Notices that threads have not read, and one for who makes it.
    left: AtomicUsize,
    /// Slabs of which a thread knows better: all of them hear the same in the same order.
    late: AtomicU32,
    thread: usize,
    word: u64,
}

impl Taken {
    pub(super) fn new(thread: usize, word: u64) -> Self {
        Self(Arc::new(Pending {
            left: AtomicUsize::new(1),
            late: AtomicU32::new(0),
            thread,
            word,
        }))
    }

    /// A thread took a notice in, in which it knows better of `late` slabs.
    pub(super) fn note(&self, shared: &Shared, late: u32) {
        self.0.late.fetch_max(late, Ordering::AcqRel);
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let late = self.0.late.load(Ordering::Acquire);
            shared.post(self.0.thread, Letter::Taken(self.0.word, late));
        }
    }
}

impl Shared {
    pub(super) fn post(&self, thread: usize, letter: Letter) {
        self.posts[thread].send(letter);
    }

    pub(super) fn tell_all(&self, notice: &Notice, taken: &Taken) {
        taken.0.left.fetch_add(self.posts.len(), Ordering::AcqRel);
        for post in self.posts.iter() {
            post.send(Letter::Notice(notice.clone(), taken.clone()));
        }
    }

    /// Says whether a thread sleeps, for those that have much to do.
    pub(crate) fn set_idle(&self, thread: usize, is_idle: bool) {
        self.idle[thread].store(is_idle, Ordering::SeqCst);
    }

    /// Whether threads help each other.
    pub(crate) fn helps(&self) -> bool {
        self.helps
    }

    pub(super) fn wake_an_idle(&self, busy: usize) {
        if !self.helps {
            return;
        }
        for (thread, idle) in self.idle.iter().enumerate() {
            if thread != busy && idle.swap(false, Ordering::SeqCst) {
                return self.posts[thread].waker.wake();
            }
        }
    }
}

impl Post {
    pub(super) fn send(&self, letter: Letter) {
        // A thread that has ended needs nothing any more.
        drop(self.sender.send(letter));
        self.waker.wake();
    }
}
