//! One queue of a device: the thread that takes requests from the kernel and runs them on a disk.
//!
//! Each tag of the queue has one buffer. The kernel copies what is written into it before it hands
//! the request over, and takes what was read out of it when the request is ended; ending one
//! request asks for the tag's next, so a request costs no system call of its own where others are
//! under way.
//! Invariants: a buffer is the kernel's from the command that names it to the next completion of
//! its tag, and nobody here touches it meanwhile; nothing on the path of a request allocates once
//! buffers have had their longest request.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::sync::Arc;

use cenote_volume::{Done, IoError, Op, Request};
use io_uring::{IoUring, opcode, types};

use super::abi::{self, QueueCommand, SECTOR_BYTES, operation};
use super::descriptors::Descriptors;
use crate::disk::Queue;
use crate::nbd::sys;

/// The state of one queue's thread.
pub(super) struct Worker {
    // Dropped first: afterwards the kernel touches no buffer.
    ring: IoUring,
    device: Arc<File>,
    number: u16,
    descriptors: Descriptors,
    /// By tag; without a buffer while the disk has it.
    buffers: Vec<Vec<u8>>,
    disk: Box<dyn Queue>,
    /// Requests that the disk had no room for.
    held: VecDeque<Request>,
    /// Requests that the disk has.
    in_flight: usize,
    /// Tags whose next request the kernel owes.
    fetching: usize,
    done: Vec<Done>,
    fds: Vec<RawFd>,
    poll_fds: Vec<libc::pollfd>,
}

impl Worker {
    /// Opens queue `number` of a device and asks for the first request of each of its tags. To be
    /// called on the thread that calls [`Worker::run`]: the driver knows a queue by its thread.
    pub(super) fn open(
        device: Arc<File>,
        number: u16,
        depth: u16,
        request_bytes_max: u32,
        disk: Box<dyn Queue>,
    ) -> io::Result<Self> {
        let descriptors = Descriptors::map(&device, number, depth)?;
        // No interrupt for a completion: this thread enters the kernel by itself, to wait.
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .build(u32::from(depth).next_power_of_two())?;
        let depth = usize::from(depth);
        let mut worker = Self {
            ring,
            device,
            number,
            descriptors,
            buffers: (0..depth)
                .map(|_| Vec::with_capacity(request_bytes_max as usize))
                .collect(),
            disk,
            held: VecDeque::with_capacity(depth),
            in_flight: 0,
            fetching: 0,
            done: Vec::with_capacity(depth),
            fds: Vec::new(),
            poll_fds: Vec::new(),
        };
        for tag in 0..depth {
            worker.ask(abi::queue::FETCH, tag as u16, 0)?;
        }
        worker.ring.submit()?;
        // The driver answers at once what it refuses.
        let answer = worker.ring.completion().next();
        match answer {
            Some(refused) if refused.result() < 0 => {
                Err(io::Error::from_raw_os_error(-refused.result()))
            }
            Some(_) => Err(io::Error::other("a request before the device was started")),
            None => Ok(worker),
        }
    }

    /// Serves until the kernel takes the queue back.
    pub(super) fn run(mut self) -> io::Result<()> {
        while self.fetching > 0 || self.in_flight > 0 || !self.held.is_empty() {
            self.take_requests()?;
            self.submit_held();
            self.end_requests()?;
            self.wait()?;
        }
        Ok(())
    }

    /// Adds a command for a tag, with its buffer.
    fn ask(&mut self, number: u32, tag: u16, result: i32) -> io::Result<()> {
        let command = QueueCommand {
            queue: self.number,
            tag,
            result,
            address: self.buffers[usize::from(tag)].as_mut_ptr() as u64,
        };
        let entry = opcode::UringCmd16::new(types::Fd(self.device.as_raw_fd()), number)
            .cmd(command.bytes())
            .build()
            .user_data(u64::from(tag));
        // SAFETY: the device is open while `self` is; the buffer has the room that the device's
        // longest request takes, and stays where it is until the tag's next completion.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)?;
        self.fetching += 1;
        Ok(())
    }

    /// Takes what the kernel has handed over.
    fn take_requests(&mut self) -> io::Result<()> {
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else {
                return Ok(());
            };
            self.fetching -= 1;
            match entry.result() {
                0 => self.start(entry.user_data() as u16)?,
                // The device stops: the tag's last completion.
                error if error == -libc::ENODEV => {}
                error => return Err(io::Error::from_raw_os_error(error.abs())),
            }
        }
    }

    /// Starts the request of a tag.
    fn start(&mut self, tag: u16) -> io::Result<()> {
        let request = self.descriptors.read(tag);
        let len = request.sectors as usize * SECTOR_BYTES as usize;
        let buffer = &mut self.buffers[usize::from(tag)];
        let op = match request.operation_flags & 0xff {
            operation::READ | operation::WRITE if len > buffer.capacity() => {
                return self.end(tag, -libc::EIO);
            }
            operation::READ => {
                let mut buffer = std::mem::take(buffer);
                buffer.resize(len, 0);
                Op::Read(buffer)
            }
            operation::WRITE => {
                let mut buffer = std::mem::take(buffer);
                // SAFETY: the kernel has written that many bytes to its start, which is within
                // its capacity by the check above.
                unsafe { buffer.set_len(len) };
                Op::Write(buffer)
            }
            operation::DISCARD | operation::WRITE_ZEROES => Op::Discard {
                len_bytes: len as u64,
            },
            // What is acknowledged is as safe as it will ever be.
            operation::FLUSH => return self.end(tag, 0),
            _ => return self.end(tag, -libc::EOPNOTSUPP),
        };
        self.held.push_back(Request {
            tag: u64::from(tag),
            offset: request.first_sector * SECTOR_BYTES,
            op,
        });
        Ok(())
    }

    /// Gives requests to the disk, in order, until it takes no more.
    fn submit_held(&mut self) {
        while let Some(request) = self.held.pop_front() {
            if let Err(request) = self.disk.submit(request) {
                return self.held.push_front(request);
            }
            self.in_flight += 1;
        }
    }

    /// Ends what the disk has done.
    fn end_requests(&mut self) -> io::Result<()> {
        if self.rests() {
            return Ok(());
        }
        let mut done = std::mem::take(&mut self.done);
        self.disk.poll(&mut done);
        for done in done.drain(..) {
            self.in_flight -= 1;
            let tag = done.tag as u16;
            let mut result = 0;
            if let Op::Read(buffer) | Op::Write(buffer) = done.op {
                result = buffer.len() as i32;
                self.buffers[usize::from(tag)] = buffer;
            }
            match done.result {
                Ok(()) => self.end(tag, result)?,
                Err(error) => {
                    tracing::warn!(%error, queue = self.number, tag, "a request failed");
                    self.end(tag, errno_of(error))?;
                }
            }
        }
        self.done = done;
        Ok(())
    }

    /// Whether nothing of the disk's needs to be moved on: also no write that was acknowledged and has not
    /// landed everywhere, for which those of other queues wait.
    fn rests(&self) -> bool {
        self.in_flight == 0 && self.disk.deadline().is_none()
    }

    fn end(&mut self, tag: u16, result: i32) -> io::Result<()> {
        self.ask(abi::queue::COMMIT_AND_FETCH, tag, result)
    }

    /// Hands over what has ended, and waits until there is something to do.
    fn wait(&mut self) -> io::Result<()> {
        if self.rests() && self.held.is_empty() {
            // One call for both.
            let wanted = usize::from(self.fetching > 0);
            return ignore_passing(self.ring.submit_and_wait(wanted).map(drop));
        }
        ignore_passing(self.ring.submit().map(drop))?;
        if !self.ring.completion().is_empty() {
            return Ok(());
        }
        self.fds.clear();
        self.disk.wait_fds(&mut self.fds);
        if self.fds.is_empty() && self.in_flight > 0 {
            // Nothing will announce the disk's progress.
            return Ok(());
        }
        self.fds.push(self.ring.as_raw_fd());
        sys::poll_readable(&self.fds, &mut self.poll_fds, self.disk.deadline())
    }
}

/// What the ring refuses for the moment is asked for again in the next turn: the kernel may be short of the
/// memory that this device is to make room for.
fn ignore_passing(outcome: io::Result<()>) -> io::Result<()> {
    const PASSING: [i32; 3] = [libc::EINTR, libc::EAGAIN, libc::EBUSY];
    outcome.or_else(|error| match error.raw_os_error() {
        Some(number) if PASSING.contains(&number) => Ok(()),
        _ => Err(error),
    })
}

fn errno_of(error: IoError) -> i32 {
    match error {
        IoError::NoSpace => -libc::ENOSPC,
        _ => -libc::EIO,
    }
}
