//! Memory of unmodified programs: a thread that answers the faults of other processes.
//!
//! A program's library (`cenote-preload`) introduces an address space at a socket. One thread, the
//! **keeper**, serves all that there are, in one bound of resident pages, from one volume.

mod ids;
mod kernel;
mod slots;
mod socket;
mod space;
mod store;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_preload::wire;
use cenote_volume::{Done, PAGE_BYTES, Volume};

use crate::counters::Counters;
use crate::handler::{AbortOnPanic, Bell, SPIN};
use crate::region::RegionError;
use crate::shares;
use socket::Packet;
use space::{Layout, Space};
use store::{Store, untag};

/// Address spaces at once; more are refused, and stay in this machine's memory.
const SPACES_MAX: usize = 1024;
/// Who has connected and not said why.
const STRANGERS_MAX: usize = 128;
/// How often pages are divided again, and ends looked for, while there is a reason.
const PERIOD: Duration = Duration::from_millis(50);
/// Pages of each address space that may be on their way out, beyond its room.
const LEAVING_MAX: u32 = 2 * wire::RANGES_MAX as u32;
/// Slots that are free again before pages go out again, after there was none.
const SLACK: u32 = 1024;
/// Least that may be resident: room for pages on their way, and for some that are not.
pub const SERVED_RESIDENT_MIN_BYTES: u64 = 4 << 20;

/// What happened, in all address spaces together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Served {
    /// Faults, reads, writes.
    pub counters: Counters,
    /// Address spaces that there were: programs that had much memory, and their children.
    pub spaces: u64,
    /// Most bytes that were resident.
    pub resident_max_bytes: u64,
    /// Bytes of the volume that are in use.
    pub stored_bytes: u64,
}

/// The thread that serves programs. It ends when it is told to and no address space is left.
pub struct Keeper {
    is_ending: Arc<AtomicBool>,
    bell: Arc<Bell>,
    thread: JoinHandle<Served>,
}

impl Keeper {
    /// Listens at `socket` and begins to serve, with at most so many bytes resident.
    ///
    /// # Errors
    /// [`RegionError::Resident`], no worker, or what the system says.
    pub fn start(
        volume: &Volume,
        socket: &Path,
        resident_max_bytes: u64,
    ) -> Result<Self, RegionError> {
        if resident_max_bytes < SERVED_RESIDENT_MIN_BYTES {
            return Err(RegionError::Resident(resident_max_bytes));
        }
        let os = |what| move |source| RegionError::Os { what, source };
        let listener = socket::listen(socket).map_err(os("listen for programs"))?;
        let bell = Arc::new(Bell::new().map_err(os("make an eventfd"))?);
        let is_ending = Arc::new(AtomicBool::new(false));
        let room = u32::try_from(resident_max_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let mut work = Work {
            listener,
            strangers: Vec::new(),
            spaces: BTreeMap::new(),
            store: Store::new(volume.worker()?),
            room,
            next_look: Duration::ZERO,
            served: Served::default(),
            done: Vec::new(),
        };
        let (rung, told) = (Arc::clone(&bell), Arc::clone(&is_ending));
        let thread = std::thread::Builder::new()
            .name("cenote-keeper".to_owned())
            .spawn(move || {
                let _guard = AbortOnPanic;
                work.run(&rung, &told)
            })
            .map_err(os("start a thread"))?;
        Ok(Self {
            is_ending,
            bell,
            thread,
        })
    }

    /// Serves until no address space is left, and tells what happened.
    #[must_use]
    pub fn finish(self) -> Served {
        self.is_ending.store(true, Ordering::SeqCst);
        self.bell.ring();
        self.thread
            .join()
            .expect("a keeper that panics ends the process")
    }
}

struct Work {
    listener: OwnedFd,
    strangers: Vec<OwnedFd>,
    spaces: BTreeMap<u32, Space>,
    store: Store,
    room: u32,
    next_look: Duration,
    served: Served,
    done: Vec<Done>,
}

impl Work {
    fn run(&mut self, bell: &Bell, is_ending: &AtomicBool) -> Served {
        let mut busy_until = Instant::now();
        loop {
            if self.turn() {
                busy_until = Instant::now() + SPIN;
            } else if is_ending.load(Ordering::SeqCst) && self.spaces.is_empty() {
                return self.served;
            } else if Instant::now() < busy_until {
                std::hint::spin_loop();
            } else {
                self.sleep(bell);
            }
        }
    }

    fn turn(&mut self) -> bool {
        let mut is_busy = self.welcome();
        for space in self.spaces.values_mut() {
            is_busy |= space.turn(&mut self.store);
        }
        is_busy |= self.take_ends();
        self.adopt();
        if self.store.now() >= self.next_look {
            self.look();
        }
        is_busy
    }

    fn take_ends(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.store.ends(&mut done);
        let is_busy = !done.is_empty();
        for end in done.drain(..) {
            let (id, page, purpose) = untag(end.tag);
            let space = self.spaces.get_mut(&id);
            let space = space.expect("an address space stays while something is under way for it");
            space.end(page, purpose, end, &mut self.store);
        }
        self.done = done;
        is_busy
    }

    /// Takes in who introduces an address space.
    fn welcome(&mut self) -> bool {
        let mut is_busy = false;
        while self.strangers.len() < STRANGERS_MAX {
            let Some(stranger) = socket::accept(&self.listener) else {
                break;
            };
            self.strangers.push(stranger);
            is_busy = true;
        }
        for stranger in std::mem::take(&mut self.strangers) {
            let mut hello = [0; wire::HELLO_WORDS];
            match socket::receive(&stranger, &mut hello) {
                Packet::Nothing => self.strangers.push(stranger),
                Packet::Words(wire::HELLO_WORDS, fds) if hello[0] == wire::MAGIC => {
                    is_busy = true;
                    if let Err(error) = self.introduce(stranger, &hello, fds) {
                        tracing::warn!(%error, "memory of a program stays in this machine");
                    }
                }
                Packet::End | Packet::Words(..) => is_busy = true,
            }
        }
        is_busy
    }

    fn introduce(&mut self, agent: OwnedFd, hello: &[u64], fds: Vec<OwnedFd>) -> io::Result<()> {
        let malformed = || io::Error::from_raw_os_error(libc::EPROTO);
        let mut fds = fds.into_iter();
        if hello[1] == wire::HELLO_CHILD {
            let id = u32::try_from(hello[2]).map_err(|_| malformed())?;
            let space = self.spaces.get_mut(&id).filter(|space| !space.is_bounded());
            let (Some(space), Some(memory)) = (space, fds.next()) else {
                return Err(malformed());
            };
            let answer = [wire::MAGIC, 0, hello[2]];
            space.introduce(File::from(memory));
            if socket::send(&agent, &answer, Some(space.uffd())) {
                space.bound_by(agent);
            }
            return Ok(());
        }
        let (Some(uffd), Some(memory)) = (fds.next(), fds.next()) else {
            return Err(malformed());
        };
        let pages = |word: u64| u32::try_from(word).map_err(|_| malformed());
        let layout = Layout {
            doorbell: hello[2],
            arena_pages: pages(hello[3])?,
            heap: hello[4],
            heap_pages: pages(hello[5])?,
        };
        let total = u64::from(layout.arena_pages) + u64::from(layout.heap_pages);
        // The tables are made at once: a page of the volume may be one of mappings and one of a heap.
        let most = (2 * u64::from(self.store.slots.count())).min(u64::from(u32::MAX - 8));
        if self.spaces.len() >= SPACES_MAX || total > most {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let id = self.store.ids.take();
        let mut space = Space::begin(id, uffd, File::from(memory), layout)
            .inspect_err(|_| self.store.ids.release(id))?;
        if socket::send(&agent, &[wire::MAGIC, 0, u64::from(id)], None) {
            space.bound_by(agent);
        }
        self.spaces.insert(id, space);
        self.served.spaces += 1;
        self.look();
        Ok(())
    }

    /// Takes in children that were forked.
    fn adopt(&mut self) {
        let mut born = Vec::new();
        for space in self.spaces.values_mut() {
            born.append(&mut space.children);
        }
        for child in born {
            self.served.spaces += 1;
            self.spaces.insert(child.id, child);
        }
    }

    /// Lets go what is over, and divides the room between the others.
    fn look(&mut self) {
        self.next_look = self.store.now() + PERIOD;
        let watched = self.spaces.values_mut().filter(|space| space.is_watched());
        watched.for_each(|space| space.probe(&mut self.store));
        let over: Vec<u32> = (self.spaces.iter())
            .filter(|(_, space)| space.is_over())
            .map(|(id, _)| *id)
            .collect();
        let resident: u64 = (self.spaces.values())
            .map(|space| u64::from(space.resident()))
            .sum();
        let resident_bytes = resident * PAGE_BYTES as u64;
        self.served.resident_max_bytes = self.served.resident_max_bytes.max(resident_bytes);
        let stored_bytes = u64::from(self.store.slots.used()) * PAGE_BYTES as u64;
        self.served.stored_bytes = self.served.stored_bytes.max(stored_bytes);
        for id in over {
            if let Some(mut space) = self.spaces.remove(&id) {
                space.leave(&mut self.store);
                self.served.counters += space.counters();
            }
        }
        self.store.is_full &= self.store.slots.used() + SLACK > self.store.slots.count();
        let bounded: Vec<u32> = (self.spaces.values())
            .filter(|space| space.is_bounded())
            .map(Space::resident)
            .collect();
        let room = self.room.saturating_sub(LEAVING_MAX * bounded.len() as u32);
        let mut shares = shares::divide(room, &bounded).into_iter();
        for space in self.spaces.values_mut().filter(|space| space.is_bounded()) {
            let share = shares.next().expect("one for each");
            // Nothing can go where nothing has room: better here than nowhere.
            let share = if self.store.is_full { u32::MAX } else { share };
            space.set_room(share, &mut self.store);
        }
    }

    /// Sleeps until something happens.
    fn sleep(&mut self, bell: &Bell) {
        let wait = |fd: RawFd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        let (worker, listener) = (self.store.worker.fd(), self.listener.as_raw_fd());
        let mut fds = vec![wait(bell.fd()), wait(worker), wait(listener)];
        fds.extend(self.strangers.iter().map(|fd| wait(fd.as_raw_fd())));
        let now = self.store.now();
        let mut deadline = self.store.worker.deadline();
        let is_looked_at = self.spaces.len() > 1 || self.spaces.values().any(Space::is_watched);
        if is_looked_at {
            deadline = Some(deadline.unwrap_or(PERIOD).min(PERIOD));
        }
        for space in self.spaces.values_mut() {
            space.flush();
            if space.is_told() {
                return;
            }
            fds.push(wait(space.uffd()));
            if space.is_bounded() {
                fds.extend(space.agent().map(wait));
            }
            deadline = deadline.into_iter().chain(space.deadline(now)).min();
        }
        // Rounded up, so that a deadline below a millisecond does not spin.
        let timeout_ms = deadline.map_or(-1, |left| {
            left.as_nanos().div_ceil(1_000_000).min(1 << 30) as libc::c_int
        });
        // SAFETY: `fds` is a live array of its length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        if fds[0].revents != 0 {
            bell.clear();
        }
    }
}
