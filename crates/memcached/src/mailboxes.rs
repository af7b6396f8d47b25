//! Mailboxes, by which other threads reach a worker.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::strangers::Source;
use crossbeam_queue::ArrayQueue;
use mio::Waker;

use super::batch::Batch;
use super::connections::ConnectionFacts;
use super::transport::Transport;

/// Messages that may lie in a mailbox. Who finds it full keeps what it has and tries again.
const MESSAGES_MAX: usize = 1024;

/// What is sent to a worker.
#[derive(Debug)]
pub(super) enum Message {
    /// A new client.
    Client(Box<NewClient>),
    /// Requests for its partitions.
    Asks(Batch),
    /// Answers to its requests.
    Answers(Batch),
}

/// A client that has just been accepted.
#[derive(Debug)]
pub(super) struct NewClient {
    pub(super) transport: Transport,
    pub(super) facts: Arc<ConnectionFacts>,
    /// Whose share of the memory for clients it has.
    pub(super) source: Source,
}

#[cfg(test)]
impl NewClient {
    /// One of a test's own, over a stream.
    pub(super) fn over(stream: std::os::unix::net::UnixStream) -> Self {
        let facts = ConnectionFacts {
            id: 0,
            number: 7,
            address: String::new(),
            listener: None,
            last_request: 0.into(),
            state: 0.into(),
            place: std::sync::OnceLock::new(),
        };
        Self {
            transport: Transport::Unix(mio::net::UnixStream::from_std(stream)),
            facts: Arc::new(facts),
            source: Source::User(0),
        }
    }
}

/// Where a worker is reached.
#[derive(Debug)]
pub(super) struct Mailbox {
    queue: ArrayQueue<Message>,
    waker: Waker,
    /// The worker may be asleep without having looked into the queue.
    sleeps: AtomicBool,
}

impl Mailbox {
    pub(super) fn new(waker: Waker) -> Self {
        Self {
            queue: ArrayQueue::new(MESSAGES_MAX),
            waker,
            sleeps: AtomicBool::new(false),
        }
    }

    /// Leaves a message; gives it back if there is no room.
    pub(super) fn send(&self, message: Message) -> Result<(), Message> {
        let sent = self.queue.push(message);
        self.wake();
        sent
    }

    /// Wakes the worker if it sleeps.
    pub(super) fn wake(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            self.waker.wake().expect("an eventfd takes a number");
        }
    }

    pub(super) fn receive(&self) -> Option<Message> {
        self.queue.pop()
    }

    /// The worker goes to sleep, unless there is something to do.
    pub(super) fn may_sleep(&self) -> bool {
        self.sleeps.store(true, Ordering::SeqCst);
        let may = self.queue.is_empty();
        if !may {
            self.sleeps.store(false, Ordering::SeqCst);
        }
        may
    }

    /// The worker is up.
    pub(super) fn is_up(&self) {
        self.sleeps.store(false, Ordering::SeqCst);
    }
}
