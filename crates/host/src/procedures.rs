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
mod shared;
mod uploads;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

use cenote_fabric::calls::Spin;
use cenote_fabric::{Connector, Waker, Windows};
use cenote_proc::Library;
use cenote_proc::executor::{Executor, Limits};

use crate::Result;
use crate::owners::Owners;
use depot::Depot;
use directory::{Directory, ME};
use peers::Peers;
pub(crate) use shared::Shared;
use shared::{Letter, Post};
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
) -> Result<(Arc<Shared>, Vec<Worker>)> {
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
    let called = move |thread: usize, token, end| to_call[thread].send(Letter::Called(token, end));
    let told = move |thread: usize, connection, told| {
        to_tell[thread].send(Letter::Told(connection, told));
    };
    let library = Arc::new(Library::new());
    let depot = modules.map(Depot::new);
    let expected = depot.as_ref().map(|depot| depot.expect_all(&library));
    let executors: Vec<_> = (0..posts.len())
        .map(|_| Executor::new(ME, running.limits))
        .collect();
    let shared = Arc::new(Shared {
        directory: Directory::new(windows.clone(), owners.clone()),
        peers: Peers::start(name, connector, Box::new(called), Box::new(gone))?,
        compiler: uploads::start(
            Arc::clone(&library),
            depot.clone(),
            expected.unwrap_or_default(),
            Box::new(told),
        )?,
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
        .map(|(index, (executor, inbox))| Worker::new(index, Arc::clone(&shared), executor, inbox))
        .collect();
    Ok((shared, workers))
}
