//! What a block opening serves: the backing of one export and its queues.
//!
//! A front end asks its [`Disk`] for one [`Queue`] per worker thread, submits
//! requests to it and polls for their ends; nothing here blocks and a queue is
//! never shared. An acknowledged write is as safe as it will ever be, so there
//! is no flush in this interface.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use cenote_volume::{Done, Request};

/// The backing of one export.
pub trait Disk: Send + Sync + 'static {
    /// Size now; it may grow while the disk is served.
    fn size_bytes(&self) -> u64;

    /// A queue for the exclusive use of one worker thread.
    ///
    /// # Errors
    /// When the backing has no endpoints or memory for another worker.
    fn queue(&self) -> io::Result<Box<dyn Queue>>;

    /// Appends runs that cover `offset .. offset + len_bytes` in order and
    /// without gaps. The range lies inside the disk and is not empty.
    fn extents(&self, offset: u64, len_bytes: u64, out: &mut Vec<Extent>);

    /// A line for people, shown in export lists.
    fn description(&self) -> String;

    /// Whether the next read of a page that was read is faster for it.
    fn reads_bring_nearer(&self) -> bool {
        false
    }

    /// Whether all that the backing holds can be read now, as far as it knows. If not, reads may fail
    /// while the bytes are still there.
    fn is_in_reach(&self) -> bool {
        true
    }

    /// Memory that this machine has to spare now, as far as the backing hears of it; 0: none.
    fn spare_bytes(&self) -> u64 {
        0
    }

    /// Takes note of how many bytes of the disk could come back into this machine's memory.
    fn note_away(&self, _bytes: u64) {}
}

/// Requests in flight of one worker thread.
pub trait Queue: Send {
    /// Starts `request`.
    ///
    /// # Errors
    /// Gives the request back when the queue is full; poll, then try again.
    fn submit(&mut self, request: Request) -> Result<(), Request>;

    /// Moves the requests in flight on and appends those that ended. Never blocks.
    fn poll(&mut self, done: &mut Vec<Done>);

    /// Appends the descriptors that become readable when [`Queue::poll`] would
    /// make progress. None: everything ends inside `submit` and `poll`.
    fn wait_fds(&self, out: &mut Vec<RawFd>);

    /// `poll` is due again within this time even when no descriptor is readable.
    fn deadline(&self) -> Option<Duration>;
}

/// A run of bytes in one state.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Extent {
    /// Length in bytes, not 0.
    pub len_bytes: u64,
    /// Whether memory holds it; if not, it reads as zeros.
    pub allocated: bool,
}
