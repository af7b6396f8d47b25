//! What the server threads share: where things are, and the way to each other.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

use cenote_fabric::Waker;
use cenote_proc::executor::{Ended, Shelf};
use cenote_proc::service::{DOUBTS_MAX, Doubt, Told, WriteState};
use cenote_proc::{CacheId, Library, Life, Machine, Response};

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
    /// Every thread goes by a word of this thread's.
    Taken(u64, Heed),
    /// A slab of a cache is doubtful, since a store by the entry of this generation, into this
    /// life.
    Doubt(CacheId, usize, u64, Life),
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
    heed: Mutex<Heed>,
    thread: usize,
    word: u64,
}

/// What threads make of a word.
#[derive(Clone, Default)]
pub(super) struct Heed {
    /// Slabs of which they know better: all of them hear the same in the same order.
    pub late: u32,
    /// How far they are with writing, the furthest.
    pub state: WriteState,
    /// Slabs that are doubtful. With more than an answer has room for, not all of them.
    pub doubts: BTreeSet<Doubt>,
}

impl Taken {
    pub(super) fn new(thread: usize, word: u64) -> Self {
        Self(Arc::new(Pending {
            left: AtomicUsize::new(1),
            heed: Mutex::default(),
            thread,
            word,
        }))
    }

    /// A thread took a notice in.
    pub(super) fn note(
        &self,
        shared: &Shared,
        (late, state): (u32, WriteState),
        doubts: impl Iterator<Item = Doubt>,
    ) {
        let mut heed = self.0.heed.lock().unwrap_or_else(PoisonError::into_inner);
        heed.late = heed.late.max(late);
        heed.state = heed.state.max(state);
        for doubt in doubts {
            if heed.doubts.len() > DOUBTS_MAX {
                break;
            }
            heed.doubts.insert(doubt);
        }
        drop(heed);
        self.told(shared);
    }

    /// Whoever makes it has told all, or a thread has taken it in.
    pub(super) fn told(&self, shared: &Shared) {
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut heed = self.0.heed.lock().unwrap_or_else(PoisonError::into_inner);
            let letter = Letter::Taken(self.0.word, std::mem::take(&mut heed));
            shared.post(self.0.thread, letter);
        }
    }
}

impl Shared {
    pub(super) fn post(&self, thread: usize, letter: Letter) {
        self.posts[thread].send(letter);
    }

    pub(super) fn post_to_others(&self, but: usize, letter: impl Fn() -> Letter) {
        for (thread, post) in self.posts.iter().enumerate() {
            if thread != but {
                post.send(letter());
            }
        }
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
