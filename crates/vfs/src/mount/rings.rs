//! The kernel's requests over io_uring: threads that each serve the queue of one processor.
//!
//! The kernel puts a request into the queue of the processor that asks. A thread has one request at
//! a time, so each queue has as many threads as requests of its processor run at a time; one that
//! takes long holds nobody up who could be served. What is read is put where the kernel takes it
//! from, and what is written is taken from where the kernel put it: no copy in between.
//! FORGET comes over `/dev/fuse` even so, where one thread would fall behind many that make and
//! delete files, and deleted ones take space until it is read: who is asked to make or delete a name
//! takes what is there first.
//! Invariant: rings are made before the mount, and the kernel is told of all of them or the mount is
//! given up: it sends nothing before every queue has one.
//! Elsewhere: the transport (`cenote_fuse`), FORGET and INTERRUPT (`device`).

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use cenote_fuse::request::Operation;
use cenote_fuse::{Device, Ring, Slot};

use super::device;
use super::kernel::{Answer, Kernel};
use super::server::{self, EndOnPanic};
use super::session::REQUEST_BYTES_MAX;

/// The threads, each with a ring, waiting for a connection.
pub(super) struct Rings {
    threads: Vec<Thread>,
}

/// What a thread serves.
#[derive(Clone)]
pub(super) struct Connection {
    /// An open `/dev/fuse` of it.
    pub(super) device: Arc<OwnedFd>,
    /// The same, to be opened once more.
    pub(super) forgets: Arc<Device>,
    pub(super) kernel: Arc<Kernel>,
}

struct Thread {
    /// Dropped: there will be no connection.
    begin: mpsc::SyncSender<Connection>,
    /// That it has its ring, then that the kernel has.
    news: mpsc::Receiver<io::Result<()>>,
    handle: JoinHandle<()>,
}

/// How many threads there are, and what each has.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Shape {
    queue_count: u16,
    thread_count: u16,
    /// Longest request and reply.
    pub(super) payload_bytes: u32,
}

impl Shape {
    /// For this many of the kernel's queues and at least `thread_count` threads; `None` when there are
    /// too many.
    pub(super) fn new(queue_count: u16, thread_count: usize) -> Option<Self> {
        if queue_count == 0 || queue_count > QUEUES_MAX {
            return None;
        }
        let thread_count = thread_count.min(usize::from(QUEUES_MAX)) as u16;
        let thread_count = thread_count.max(queue_count);
        let share = MEMORY_BYTES / u32::from(thread_count.next_power_of_two());
        Some(Self {
            queue_count,
            thread_count,
            payload_bytes: share.clamp(PAYLOAD_BYTES_MIN, REQUEST_BYTES_MAX),
        })
    }

    /// Threads, each with a ring.
    pub(super) fn thread_count(&self) -> usize {
        self.thread_count.into()
    }

    /// The queue of a thread.
    fn queue(&self, thread: u16) -> u16 {
        thread % self.queue_count
    }
}

impl Rings {
    /// Starts the threads, each with its ring.
    ///
    /// # Errors
    /// When the system refuses threads or rings.
    pub(super) fn prepare(shape: Shape) -> io::Result<Self> {
        let mut threads = Vec::with_capacity(usize::from(shape.thread_count));
        for index in 0..shape.thread_count {
            let (begin, told) = mpsc::sync_channel(1);
            let (tell, news) = mpsc::sync_channel(2);
            let live = move || live(shape, index, &told, &tell);
            // Dropping the others' ends has them end.
            let handle = server::start(&format!("cenote-ring-{index}"), live)?;
            threads.push(Thread {
                begin,
                news,
                handle,
            });
        }
        hear(threads.iter().map(|thread| &thread.news))?;
        Ok(Self { threads })
    }

    /// Gives every ring to the kernel. The threads end with the connection.
    ///
    /// # Errors
    /// When the kernel refused one; the connection is of no use then, and has to be ended.
    pub(super) fn register(self, connection: &Connection) -> (Vec<JoinHandle<()>>, io::Result<()>) {
        let mut news = Vec::with_capacity(self.threads.len());
        let mut handles = Vec::with_capacity(self.threads.len());
        for thread in self.threads {
            // One that has ended says so by its news.
            drop(thread.begin.send(connection.clone()));
            news.push(thread.news);
            handles.push(thread.handle);
        }
        let registered = hear(&news);
        (handles, registered)
    }
}

/// The next word of each thread.
fn hear<'a>(news: impl IntoIterator<Item = &'a mpsc::Receiver<io::Result<()>>>) -> io::Result<()> {
    let gone = || io::Error::other("a serving thread ended early");
    news.into_iter()
        .try_for_each(|news| news.recv().unwrap_or_else(|_| Err(gone())))
}

/// The life of a thread: makes its ring, waits for the connection, serves it.
fn live(
    shape: Shape,
    index: u16,
    told: &mpsc::Receiver<Connection>,
    tell: &mpsc::SyncSender<io::Result<()>>,
) {
    let _end = EndOnPanic;
    let made = Ring::new(&cenote_fuse::Options {
        queues: vec![shape.queue(index)],
        depth: 1,
        payload_bytes_max: shape.payload_bytes as usize,
    });
    let (said, ring) = match made {
        Ok(ring) => (Ok(()), Some(ring)),
        Err(error) => (Err(error), None),
    };
    let is_heard = tell.send(said).is_ok();
    let Some(mut ring) = ring.filter(|_| is_heard) else {
        return;
    };
    // The start went no further.
    let Ok(connection) = told.recv() else { return };
    let forgets = connection.forgets.another_that_never_waits();
    let registered = forgets.and_then(|device| {
        ring.register(connection.device)?;
        Ok(device::Server::new(device))
    });
    let (said, forgets) = match registered {
        Ok(forgets) => (Ok(()), Some(forgets)),
        Err(error) => (Err(error), None),
    };
    let is_heard = tell.send(said).is_ok();
    let Some(mut forgets) = forgets.filter(|_| is_heard) else {
        return;
    };
    if let Err(error) = serve(&mut ring, &connection.kernel, &mut forgets) {
        server::end_process(&error);
    }
}

/// Serves until the connection is over.
fn serve(ring: &mut Ring, kernel: &Kernel, forgets: &mut device::Server) -> io::Result<()> {
    // Replies but those of reads: where they would go, the request's names still are.
    let mut room = vec![0; ring.payload_bytes_max()];
    while !ring.is_over() {
        while let Some(next) = ring.next_request() {
            // An error: whoever asked waits for a reply that is lost.
            let slot = next?;
            if is_of_names(ring, slot) {
                forgets.serve(kernel)?;
            }
            answer(ring, slot, kernel, &mut room)?;
        }
        // One call hands the reply over and waits.
        ring.submit_and_wait()?;
    }
    Ok(())
}

/// Whether a request makes a name or takes one away.
fn is_of_names(ring: &Ring, slot: Slot) -> bool {
    matches!(
        ring.request(slot).operation(),
        Ok(Operation::Create { .. }
            | Operation::Mknod { .. }
            | Operation::Mkdir { .. }
            | Operation::Symlink { .. }
            | Operation::Unlink(_)
            | Operation::Rmdir(_)
            | Operation::Rename { .. })
    )
}

fn answer(ring: &mut Ring, slot: Slot, kernel: &Kernel, room: &mut [u8]) -> io::Result<()> {
    let request = ring.request(slot);
    let ino = request.inode();
    let answer = match request.operation() {
        Ok(Operation::Read { offset, len_bytes })
            if len_bytes as usize <= ring.payload_bytes_max() =>
        {
            let mut payload = ring.take_payload(slot, len_bytes as usize);
            let answer = kernel.read(ino, offset, &mut payload);
            ring.put_payload(slot, payload);
            answer
        }
        _ => {
            let answer = kernel.answer(&request, room);
            if let Answer::Bytes(len) = answer {
                ring.write_payload(slot, &room[..len]);
            }
            answer
        }
    };
    ring.reply(
        slot,
        match answer {
            Answer::Bytes(len) => Ok(len),
            Answer::Errno(errno) => Err(errno),
            Answer::Nothing => Ok(0),
        },
    )
}

/// Processors at most; more of them would take too much memory. Arbitrary.
const QUEUES_MAX: u16 = 512;
/// What all payloads take together, unless there are so many that each has the least. Arbitrary.
const MEMORY_BYTES: u32 = 32 << 20;
/// What the kernel wants at least: its 32 pages of a request.
const PAYLOAD_BYTES_MIN: u32 = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_a_thread_and_there_are_as_many_as_were_asked_for() {
        for (queues, threads) in [(1, 2), (2, 8), (3, 8), (64, 5), (64, 64), (2, 0), (512, 8)] {
            let shape = Shape::new(queues, threads).expect("not too many");
            let mut served = vec![0; usize::from(queues)];
            for thread in 0..shape.thread_count {
                served[usize::from(shape.queue(thread))] += 1;
            }
            let (least, most) = (served.iter().min(), served.iter().max());
            assert!(least >= Some(&1), "{shape:?}");
            assert!(
                most.zip(least)
                    .is_some_and(|(most, least)| most - least <= 1)
            );
            assert!(usize::from(shape.thread_count) >= threads, "{shape:?}");
        }
        assert_eq!(Shape::new(513, 8), None);
        assert_eq!(Shape::new(0, 8), None);
    }

    #[test]
    fn requests_are_as_long_as_memory_allows() {
        let payload = |queues, threads| {
            let shape = Shape::new(queues, threads).expect("not too many");
            shape.payload_bytes
        };
        assert_eq!(payload(2, 8), 1 << 20);
        assert_eq!(payload(32, 8), 1 << 20);
        assert_eq!(payload(64, 8), 512 << 10);
        assert_eq!(payload(512, 8), 128 << 10);
    }
}
