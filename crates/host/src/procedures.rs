//! Procedures on a host: run by its server threads, beside batches, on the slabs that it lends.
//!
//! Each thread has an executor and tables of its own ([`worker`]); idle ones help busy ones. Owners
//! of caches say where slabs are ([`directory`]), and are answered when every thread goes by it.
//! Requests and bytes that are elsewhere are reached by calls to other hosts ([`peers`],
//! [`journeys`]); modules come in pieces and are compiled by a thread of their own ([`uploads`]).
//!
//! Modules outlive the process where the host has a folder for them ([`depot`]); nothing else does. Paper: \[compucache\]; decisions 76, 77, 86, 87.

mod depot;
mod desk;
mod directory;
mod journeys;
mod peers;
mod uploads;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use cenote_fabric::calls::Spin;
use cenote_fabric::{Connector, Waker, Windows};
use cenote_proc::executor::{Ended, Executor, Limits, Shelf};
use cenote_proc::service::Told;
use cenote_proc::{Library, Machine, Response};

use crate::Result;
use crate::cache_threads::Owners;
use crate::side_thread::SideThread;
use depot::Depot;
use directory::{Directory, ME, Notice};
use peers::{Called, Peers};
pub(crate) use worker::Worker;

/// How a host's server threads run, and procedures on them.
#[derive(Clone, Copy, Debug)]
pub struct Running {
    /// What a client and a request may take.
    pub limits: Limits,
    /// Whether idle server threads help busy ones.
    pub helps: bool,
    /// How long a server thread looks for work before it blocks.
    pub spin: Spin,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            limits: Limits {
                client_requests: cenote_proc::remote::REQUESTS_MAX,
                retry: std::time::Duration::from_millis(5),
                ..Limits::default()
            },
            helps: true,
            spin: Spin::default(),
        }
    }
}

/// What the server threads share.
pub(crate) struct Shared {
    directory: Directory,
    library: Arc<Library>,
    depot: Option<Depot>,
    peers: Peers,
    compiler: SideThread<uploads::Job>,
    posts: Arc<[Post]>,
    shelves: Vec<Arc<Shelf>>,
    idle: Vec<AtomicBool>,
    helps: bool,
}

/// The way to one thread.
struct Post {
    sender: Sender<Letter>,
    waker: Waker,
}

/// What threads are told by others.
enum Letter {
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
struct Taken(Arc<Pending>);

struct Pending {
    /// Notices that threads have not read, and one for who makes it.
    left: AtomicUsize,
    /// Slabs of which a thread knows better: all of them hear the same in the same order.
    late: AtomicU32,
    thread: usize,
    word: u64,
}

impl Taken {
    fn new(thread: usize, word: u64) -> Self {
        Self(Arc::new(Pending {
            left: AtomicUsize::new(1),
            late: AtomicU32::new(0),
            thread,
            word,
        }))
    }

    /// A thread took a notice in, in which it knows better of `late` slabs.
    fn note(&self, shared: &Shared, late: u32) {
        self.0.late.fetch_max(late, Ordering::AcqRel);
        if self.0.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            let late = self.0.late.load(Ordering::Acquire);
            shared.post(self.0.thread, Letter::Taken(self.0.word, late));
        }
    }
}

impl Shared {
    /// Makes the workers of threads that `wakers` wake. To other hosts this one is `name`.
    ///
    /// # Errors
    /// `Os`: the system has no thread left.
    pub(crate) fn start(
        wakers: Vec<Waker>,
        windows: &Windows,
        owners: &Owners,
        running: Running,
        (name, connector): (&str, Box<dyn Connector>),
        modules: Option<PathBuf>,
    ) -> Result<(Arc<Self>, Vec<Worker>)> {
        let (mut posts, mut inboxes) = (Vec::new(), Vec::new());
        for waker in wakers {
            let (sender, inbox) = channel();
            posts.push(Post { sender, waker });
            inboxes.push(inbox);
        }
        let posts: Arc<[Post]> = posts.into();
        let (to_call, to_tell) = (Arc::clone(&posts), Arc::clone(&posts));
        let to_all = Arc::clone(&posts);
        let gone = move |machine| {
            to_all
                .iter()
                .for_each(|post| post.send(Letter::Gone(machine)))
        };
        let called =
            move |thread: usize, token, end| to_call[thread].send(Letter::Called(token, end));
        let told = move |thread: usize, connection, told| {
            to_tell[thread].send(Letter::Told(connection, told));
        };
        let library = Arc::new(Library::new());
        let depot = modules.map(Depot::new);
        if let Some(depot) = &depot {
            depot.load_all(&library);
        }
        let executors: Vec<_> = (0..posts.len())
            .map(|_| Executor::new(ME, running.limits))
            .collect();
        let shared = Arc::new(Self {
            directory: Directory::new(windows.clone(), owners.clone()),
            peers: Peers::start(name, connector, Box::new(called), Box::new(gone))?,
            compiler: uploads::start(Arc::clone(&library), depot.clone(), Box::new(told))?,
            library,
            depot,
            shelves: executors.iter().map(Executor::shelf).collect(),
            idle: (0..posts.len()).map(|_| AtomicBool::new(false)).collect(),
            posts,
            helps: running.helps,
        });
        let workers = executors
            .into_iter()
            .zip(inboxes)
            .enumerate()
            .map(|(index, (executor, inbox))| {
                Worker::new(index, Arc::clone(&shared), executor, inbox)
            })
            .collect();
        Ok((shared, workers))
    }

    fn post(&self, thread: usize, letter: Letter) {
        self.posts[thread].send(letter);
    }

    fn tell_all(&self, notice: &Notice, taken: &Taken) {
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

    fn wake_an_idle(&self, busy: usize) {
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
    fn send(&self, letter: Letter) {
        // A thread that has ended needs nothing any more.
        drop(self.sender.send(letter));
        self.waker.wake();
    }
}
