//! Memory of a program, most of which is in a volume.

use std::ops::Range;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use cenote_preload::stripes::Stripes;
use cenote_volume::{PAGE_BYTES, Volume, VolumeError, Waker};

use crate::counters::Counters;
use crate::handler::{Command, Handler, Peers};
use crate::handlers::Handlers;
use crate::memory::{Memory, MemoryError, Shard};
use crate::pages::Pages;
use crate::rooms::{ROOM_MIN, Rooms};

/// Least that a region keeps resident, in bytes.
pub const RESIDENT_MIN_BYTES: u64 = 64 * PAGE_BYTES as u64;

// The bound may become the least there is, however many handlers there are.
const _: () =
    assert!(Handlers::MAX as u64 * ROOM_MIN as u64 * PAGE_BYTES as u64 <= RESIDENT_MIN_BYTES);

/// What a region is to be.
#[derive(Clone, Copy, Debug)]
pub struct RegionConfig {
    /// Where it begins in the volume: a multiple of the page.
    pub offset: u64,
    /// Its size: a multiple of the page, not 0, inside the volume.
    pub len_bytes: u64,
    /// Most bytes of it in this machine's memory: at least [`RESIDENT_MIN_BYTES`].
    pub resident_max_bytes: u64,
    /// Threads that answer its faults; fewer where less than [`RESIDENT_MIN_BYTES`] would be resident
    /// for each.
    pub handlers: Handlers,
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// Not whole pages, nothing, or beyond the volume's end.
    #[error(
        "a region of {len_bytes} bytes at {offset} is not some whole pages of a volume of \
         {volume_bytes}"
    )]
    Range {
        /// As in the configuration.
        offset: u64,
        /// As in the configuration.
        len_bytes: u64,
        /// The volume's size.
        volume_bytes: u64,
    },
    /// Too little would be resident.
    #[error("a region keeps at least {RESIDENT_MIN_BYTES} bytes resident, not {0}")]
    Resident(u64),
    /// No memory whose faults can be answered.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// The volume has no worker for it.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}

/// What is resident, and what happened so far.
#[derive(Clone, Copy, Debug)]
pub struct RegionStatus {
    /// Bytes that are resident, or on their way.
    pub resident_bytes: u64,
    /// Bytes that may be.
    pub room_bytes: u64,
    /// Faults, reads, writes.
    pub counters: Counters,
}

/// A range of memory that is as large as a part of a volume and takes as much of this machine as it
/// is given.
///
/// It begins as zeros, whatever the volume has there, and leaves the volume's part undefined when
/// it is dropped. A child of `fork` does not have it. Bytes that the volume lost raise SIGBUS in
/// the thread that touches them. Whoever borrows it may pass its bytes to system calls, but not to a
/// device that writes them by itself: `O_DIRECT`, and buffers registered with io_uring or an RDMA
/// adapter. The kernel holds such a page for the device, and a page that went meanwhile gets nothing
/// of it.
///
/// ```no_run
/// # fn open() -> cenote_volume::Volume { unimplemented!() }
/// use cenote_pager::{Handlers, Region, RegionConfig};
///
/// let volume = open();
/// let mut region = Region::new(&volume, RegionConfig {
///     offset: 0,
///     len_bytes: 1 << 30,
///     resident_max_bytes: 256 << 20,
///     handlers: Handlers::default(),
/// })?;
/// region.bytes_mut()[123_456_789] = 1;
/// # Ok::<(), cenote_pager::RegionError>(())
/// ```
pub struct Region {
    memory: Arc<Memory>,
    stripes: Stripes,
    peers: Arc<Peers>,
    /// One for each shard.
    commands: Vec<Sender<Command>>,
    handlers: Vec<JoinHandle<()>>,
}

impl Region {
    /// Makes a region and starts its handlers.
    ///
    /// # Errors
    /// As [`RegionError`] says.
    pub fn new(volume: &Volume, config: RegionConfig) -> Result<Self, RegionError> {
        let page = PAGE_BYTES as u64;
        let RegionConfig {
            offset,
            len_bytes,
            resident_max_bytes,
            handlers,
        } = config;
        let volume_bytes = volume.size_bytes();
        let is_whole = offset.is_multiple_of(page) && len_bytes.is_multiple_of(page);
        let end = offset.checked_add(len_bytes);
        let page_count = u32::try_from(len_bytes / page).ok();
        let page_count = page_count.filter(|count| *count > 0 && *count < u32::MAX);
        let (Some(page_count), true) = (
            page_count,
            is_whole && end.is_some_and(|end| end <= volume_bytes),
        ) else {
            return Err(RegionError::Range {
                offset,
                len_bytes,
                volume_bytes,
            });
        };
        if resident_max_bytes < RESIDENT_MIN_BYTES {
            return Err(RegionError::Resident(resident_max_bytes));
        }
        let os = |what| move |source| RegionError::Os { what, source };
        let room = u32::try_from(resident_max_bytes / page).unwrap_or(u32::MAX);
        let shard_count = handlers.within(resident_max_bytes, RESIDENT_MIN_BYTES);
        let stripes = Stripes::new(page_count as usize, shard_count);
        let counts: Vec<u32> = (0..shard_count).map(|at| stripes.len(at) as u32).collect();
        let rooms = Rooms::new(room, &counts);
        let granted: Vec<u32> = (0..shard_count).map(|at| rooms.granted(at)).collect();
        let mut region = Self {
            memory: Arc::new(Memory::new(page_count)?),
            stripes,
            peers: Arc::new(Peers {
                rooms: Mutex::new(rooms),
                bells: Peers::bells(shard_count)?,
            }),
            commands: Vec::new(),
            handlers: Vec::new(),
        };
        for (index, (count, room)) in counts.into_iter().zip(granted).enumerate() {
            let (commands, inbox) = channel();
            let handler = Handler::new(
                (Shard::new(&region.memory, stripes, index)?, index),
                Pages::new(count, room),
                volume.worker()?,
                offset,
                inbox,
                Arc::clone(&region.peers),
            );
            let thread = std::thread::Builder::new()
                .name(format!("cenote-pager-{index}"))
                .spawn(move || handler.run())
                .map_err(os("start a thread"))?;
            region.commands.push(commands);
            region.handlers.push(thread);
        }
        Ok(region)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping lives as long as self, is readable throughout, and no handler
        // changes a byte of it: a page that comes back is as it went.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr(), self.memory.len()) }
    }

    /// Its bytes, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.base().as_ptr(), self.memory.len()) }
    }

    /// Where it begins, for threads that share it by their own rules.
    #[must_use]
    pub fn base(&self) -> std::ptr::NonNull<u8> {
        self.memory.base()
    }

    /// Makes whole pages zeros again and gives their memory back, here and in the cluster.
    ///
    /// # Panics
    /// If the range passes the end.
    pub fn discard(&mut self, pages: Range<u32>) {
        self.forget(pages);
    }

    /// As [`Region::discard`], for who has the pages by other means than the borrow.
    pub(crate) fn forget(&self, pages: Range<u32>) {
        assert!(pages.start <= pages.end && pages.end as usize * PAGE_BYTES <= self.memory.len());
        let pages = pages.start as usize..pages.end as usize;
        let (answer, answered) = sync_channel(self.commands.len());
        for shard in 0..self.commands.len() {
            let part = self.stripes.part(shard, pages.clone());
            if !part.is_empty() {
                let part = part.start as u32..part.end as u32;
                self.ask(shard, Command::Discard(part, answer.clone()));
            }
        }
        drop(answer);
        // Until all have answered, or the process ends.
        answered.iter().for_each(drop);
    }

    /// Changes how many bytes may be resident; pages go at once, as fast as the volume takes them.
    ///
    /// # Errors
    /// [`RegionError::Resident`].
    pub fn set_resident_max(&self, bytes: u64) -> Result<(), RegionError> {
        if bytes < RESIDENT_MIN_BYTES {
            return Err(RegionError::Resident(bytes));
        }
        let room = u32::try_from(bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        self.peers.rooms().set_total(room);
        for shard in 0..self.commands.len() {
            self.ask(shard, Command::Settle);
        }
        Ok(())
    }

    /// What is resident, and what happened so far.
    #[must_use]
    pub fn status(&self) -> RegionStatus {
        let (answer, answered) = sync_channel(self.commands.len());
        for shard in 0..self.commands.len() {
            self.ask(shard, Command::Status(answer.clone()));
        }
        drop(answer);
        let total = self.peers.rooms().total();
        let mut all = RegionStatus {
            resident_bytes: 0,
            room_bytes: u64::from(total) * PAGE_BYTES as u64,
            counters: Counters::default(),
        };
        for one in answered {
            all.resident_bytes += one.resident_bytes;
            all.counters += one.counters;
        }
        all
    }

    fn ask(&self, shard: usize, command: Command) {
        let sent = self.commands[shard].send(command);
        sent.expect("the handler lives as long as the region");
        self.peers.bells[shard].wake();
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        self.commands.clear();
        self.peers.bells.iter().for_each(Waker::wake);
        for handler in self.handlers.drain(..) {
            // A handler that panicked has ended the process.
            handler.join().ok();
        }
    }
}
