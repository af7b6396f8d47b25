//! A disk whose requests end when the test says so.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cenote_block::disk::{Disk, Extent, Queue};
use cenote_block::ram::RamDisk;
use cenote_volume::{Done, Request};

/// A RAM disk behind gates: each queue holds at most `depth` requests, and a
/// request ends only when [`Gate::let_through`] allows one more.
pub struct Gate {
    inner: RamDisk,
    depth: usize,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    allowed: AtomicUsize,
    waiting: AtomicUsize,
    bells: Mutex<Vec<UnixStream>>,
}

impl Gate {
    pub fn new(size_bytes: u64, depth: usize) -> Arc<Self> {
        Arc::new(Self {
            inner: RamDisk::new(size_bytes),
            depth,
            shared: Arc::default(),
        })
    }

    pub fn let_through(&self, count: usize) {
        self.shared.allowed.fetch_add(count, Ordering::SeqCst);
        for mut bell in self.shared.bells.lock().unwrap().iter() {
            match bell.write_all(&[1]) {
                // A worker without requests ends first when the server is stopped.
                Err(gone) if gone.kind() == io::ErrorKind::BrokenPipe => {}
                rung => rung.unwrap(),
            }
        }
    }

    /// Requests inside the queues.
    pub fn waiting(&self) -> usize {
        self.shared.waiting.load(Ordering::SeqCst)
    }
}

impl Disk for Gate {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        let (bell, ear) = UnixStream::pair()?;
        ear.set_nonblocking(true)?;
        self.shared.bells.lock().unwrap().push(bell);
        Ok(Box::new(GateQueue {
            inner: self.inner.queue()?,
            depth: self.depth,
            shared: Arc::clone(&self.shared),
            held: VecDeque::new(),
            ear,
        }))
    }

    /// Everything counts as written, so that every READ reaches the queue.
    fn extents(&self, _offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        out.push(Extent {
            len_bytes,
            allocated: true,
        });
    }

    fn description(&self) -> String {
        "gated".to_owned()
    }
}

struct GateQueue {
    inner: Box<dyn Queue>,
    depth: usize,
    shared: Arc<Shared>,
    held: VecDeque<Request>,
    ear: UnixStream,
}

impl Queue for GateQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        if self.held.len() == self.depth {
            return Err(request);
        }
        self.held.push_back(request);
        self.shared.waiting.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        while matches!((&self.ear).read(&mut [0; 64]), Ok(count) if count > 0) {}
        while !self.held.is_empty() {
            let allowed = &self.shared.allowed;
            let took = allowed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |allowed| {
                allowed.checked_sub(1)
            });
            if took.is_err() {
                break;
            }
            let request = self.held.pop_front().unwrap();
            self.shared.waiting.fetch_sub(1, Ordering::SeqCst);
            self.inner.submit(request).unwrap();
            self.inner.poll(done);
        }
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        out.push(self.ear.as_raw_fd());
    }

    fn deadline(&self) -> Option<Duration> {
        // One that came behind the bell.
        let is_due = !self.held.is_empty() && self.shared.allowed.load(Ordering::SeqCst) > 0;
        is_due.then_some(Duration::ZERO)
    }
}
