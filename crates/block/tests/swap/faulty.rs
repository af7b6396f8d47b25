//! A disk that fails when it is told to.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use cenote_block::disk::{Disk, Extent, Queue};
use cenote_block::ram::RamDisk;
use cenote_volume::{Done, IoError, Op, Request};

use super::PAGE;

/// Refuses, once broken, to read every 64th page; once slow, takes a millisecond for each read;
/// once stuck, never returns from a write.
pub struct FaultyDisk {
    inner: RamDisk,
    pub state: Arc<Faults>,
}

#[derive(Default)]
pub struct Faults {
    pub broken: AtomicBool,
    pub is_slow: AtomicBool,
    pub is_stuck: AtomicBool,
    /// Memory to spare, and where the file `near` says that every page can be read now. A file
    /// `asked` is made whenever somebody wants to know.
    pub spare: OnceLock<(u64, PathBuf)>,
    pub refused: Mutex<BTreeSet<u64>>,
}

impl FaultyDisk {
    pub fn new(inner: RamDisk) -> Self {
        Self {
            inner,
            state: Arc::default(),
        }
    }
}

impl Disk for FaultyDisk {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn queue(&self) -> io::Result<Box<dyn Queue>> {
        Ok(Box::new(FaultyQueue {
            inner: self.inner.queue()?,
            state: Arc::clone(&self.state),
            under_way: Vec::new(),
        }))
    }

    fn extents(&self, offset: u64, len_bytes: u64, out: &mut Vec<Extent>) {
        self.inner.extents(offset, len_bytes, out);
    }

    fn description(&self) -> String {
        "faulty".to_owned()
    }

    fn is_in_reach(&self) -> bool {
        self.state.spare.get().is_none_or(|(_, dir)| {
            std::fs::write(dir.join("asked"), "").unwrap();
            dir.join("near").exists()
        })
    }

    fn spare_bytes(&self) -> u64 {
        self.state.spare.get().map_or(0, |(bytes, _)| *bytes)
    }
}

struct FaultyQueue {
    inner: Box<dyn Queue>,
    state: Arc<Faults>,
    /// Tag and offset of each request.
    under_way: Vec<(u64, u64)>,
}

impl Queue for FaultyQueue {
    fn submit(&mut self, request: Request) -> Result<(), Request> {
        // The first page is the area's header, without which it would not be swapped to.
        let is_page = request.offset > 0 && matches!(request.op, Op::Write(_));
        while is_page && self.state.is_stuck.load(Ordering::Relaxed) {
            std::thread::park();
        }
        let is_read = matches!(request.op, Op::Read(_));
        if is_read && self.state.is_slow.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let (tag, offset) = (request.tag, request.offset);
        self.inner.submit(request)?;
        self.under_way.push((tag, offset));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>) {
        let first = done.len();
        self.inner.poll(done);
        for done in &mut done[first..] {
            let known = self.under_way.iter().position(|one| one.0 == done.tag);
            let (_, offset) = self.under_way.swap_remove(known.expect("a request's end"));
            let Op::Read(buffer) = &mut done.op else {
                continue;
            };
            if !self.state.broken.load(Ordering::Relaxed) {
                continue;
            }
            let pages = offset / PAGE as u64..(offset + buffer.len() as u64) / PAGE as u64;
            let bad: Vec<u64> = pages.filter(|page| page % 64 == 0).collect();
            if !bad.is_empty() {
                buffer.fill(0xee);
                done.result = Err(IoError::Lost);
                let mut refused = self.state.refused.lock().unwrap();
                refused.extend(bad);
            }
        }
    }

    fn wait_fds(&self, out: &mut Vec<RawFd>) {
        self.inner.wait_fds(out);
    }

    fn deadline(&self) -> Option<Duration> {
        self.inner.deadline()
    }
}
