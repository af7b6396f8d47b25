//! Memory of unmodified programs: a thread that answers the faults of other processes.
//!
//! A program's library (`cenote-preload`) introduces an address space at the sockets of the
//! **keeper**, whose handlers serve all that there are, in one bound of resident pages, from one
//! volume. Each handler has a shard of every address space; they share the bound and the volume's
//! slots, and nothing else.

mod descriptors;
mod ids;
mod kernel;
mod layout;
mod slots;
mod socket;
mod space;
mod store;
mod strangers;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_preload::wire;
use cenote_volume::{Done, PAGE_BYTES, Volume, Waker};

use crate::counters::Counters;
use crate::handler::{AbortOnPanic, Demand, Peers, SETTLE_PERIOD};
use crate::handlers::Handlers;
use crate::region::RegionError;
use crate::reports;
use crate::rooms::{Held, Next, Rooms};
use crate::shares::{self, Share};
use descriptors::{is_memory, is_userfaultfd};
use layout::Layout;
use slots::Slots;
use socket::Packet;
use space::Space;
use store::{Store, untag};
use strangers::Strangers;

/// Address spaces at once, or fewer where there are descriptors for fewer. More programs stay in
/// this machine's memory; more children are ended, since what they have of their parents is served.
const SPACES_MAX: usize = 1024;
/// Address spaces that there have to be descriptors for. Arbitrary: a program with some children.
const SPACES_MIN: usize = 16;
/// Connections that are accepted before others are served again.
const ACCEPTS_MAX: usize = 16;
/// How often those are let in who come, and those listened to who were silent when they came, while
/// the handler is awake: to look costs as much as a fault, since the kernel makes a socket before it
/// finds that nobody is there.
const HEARING_PERIOD: Duration = Duration::from_millis(1);
/// How often pages are divided again, and ends looked for, while there is a reason.
const PERIOD: Duration = SETTLE_PERIOD;
/// Least that may be resident of a handler's: room for pages on their way, and for some that are not.
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

/// The threads that serve programs. They end when they are told to and no address space is left,
/// the first one first.
pub struct Keeper {
    is_ending: Arc<AtomicBool>,
    peers: Arc<Peers>,
    socket: PathBuf,
    threads: Vec<JoinHandle<Served>>,
}

impl Keeper {
    /// Open files that this process has to be allowed to serve programs. With fewer a fork may wait
    /// for the end of another process.
    #[must_use]
    pub fn open_files_min(resident_max_bytes: u64, handlers: Handlers) -> u64 {
        let handlers = handlers.within(resident_max_bytes, SERVED_RESIDENT_MIN_BYTES);
        descriptors::needed(SPACES_MIN, handlers)
    }

    /// Listens at `socket`, of which each handler adds its number, and begins to serve, with at most
    /// so many bytes resident. There are fewer handlers where there is less than
    /// [`SERVED_RESIDENT_MIN_BYTES`] for each.
    ///
    /// # Errors
    /// [`RegionError::Resident`], no worker, or what the system says.
    pub fn start(
        volume: &Volume,
        socket: &Path,
        resident_max_bytes: u64,
        handlers: Handlers,
    ) -> Result<Self, RegionError> {
        if resident_max_bytes < SERVED_RESIDENT_MIN_BYTES {
            return Err(RegionError::Resident(resident_max_bytes));
        }
        let os = |what| move |source| RegionError::Os { what, source };
        let count = handlers.within(resident_max_bytes, SERVED_RESIDENT_MIN_BYTES);
        let room = u32::try_from(resident_max_bytes / PAGE_BYTES as u64).unwrap_or(u32::MAX);
        let peers = Arc::new(Peers {
            rooms: Mutex::new(Rooms::new(room, &vec![u32::MAX; count])),
            bells: Peers::bells(count)?,
        });
        let slots = Arc::new(Mutex::new(Slots::of_volume(volume.size_bytes())));
        let mut keeper = Self {
            is_ending: Arc::new(AtomicBool::new(false)),
            peers: Arc::clone(&peers),
            socket: socket.to_owned(),
            threads: Vec::new(),
        };
        let all_spaces_max = SPACES_MAX.min(descriptors::spaces_max(count)).max(1);
        let mut works = Vec::new();
        for index in 0..count {
            let mut path = socket.as_os_str().to_owned();
            path.push(format!(".{index}"));
            let listener = socket::listen(path.as_ref());
            // The first handler is asked first. What it lets in is there for all, though another may
            // know later that others are gone.
            let spaces_max = match index {
                0 => all_spaces_max,
                _ => 2 * all_spaces_max,
            };
            works.push(Work {
                index,
                peers: Arc::clone(&peers),
                listener: listener.map_err(os("listen for programs"))?,
                strangers: Strangers::new(),
                next_hearing: Duration::ZERO,
                next_accept: Duration::ZERO,
                spaces: BTreeMap::new(),
                ready: None,
                store: Store::new(volume.worker()?, Arc::clone(&slots), spaces_max),
                next_look: Duration::ZERO,
                next: Next::Nothing,
                demand: Demand::default(),
                served: Served::default(),
                done: Vec::new(),
            });
        }
        let has_first_ended = Arc::new(AtomicBool::new(false));
        for mut work in works {
            let is_first = work.index == 0;
            let first_end = Arc::clone(&has_first_ended);
            // Whom the first lets in the others have to let in, too.
            let told = match is_first {
                true => Arc::clone(&keeper.is_ending),
                false => Arc::clone(&has_first_ended),
            };
            let thread = std::thread::Builder::new()
                .name(format!("cenote-keeper-{}", work.index))
                .spawn(move || {
                    let _guard = AbortOnPanic;
                    let served = work.run(&told);
                    if is_first {
                        first_end.store(true, Ordering::SeqCst);
                        work.peers.bells.iter().for_each(Waker::wake);
                    }
                    served
                });
            match thread {
                Ok(thread) => keeper.threads.push(thread),
                Err(error) => {
                    // Nobody knows of those that run: they end at once.
                    let Served { .. } = keeper.finish();
                    return Err(os("start a thread")(error));
                }
            }
        }
        Ok(keeper)
    }

    /// What a program is to find in [`wire::VARIABLE`], to have so many bytes of mappings and of heap
    /// served.
    #[must_use]
    pub fn settings(&self, arena_bytes: u64, heap_bytes: u64) -> OsString {
        let handlers = self.threads.len();
        let mut settings = OsString::from(format!("{arena_bytes}:{heap_bytes}:{handlers}:"));
        settings.push(&self.socket);
        settings
    }

    /// Serves until no address space is left, and tells what happened.
    #[must_use]
    pub fn finish(self) -> Served {
        self.is_ending.store(true, Ordering::SeqCst);
        self.peers.bells.iter().for_each(Waker::wake);
        let mut all = Served::default();
        for (index, thread) in self.threads.into_iter().enumerate() {
            let one = thread.join();
            let one = one.expect("a handler that panics ends the process");
            all.counters += one.counters;
            all.stored_bytes = all.stored_bytes.max(one.stored_bytes);
            // Every handler has a shard of each.
            if index == 0 {
                all.spaces = one.spaces;
            }
        }
        reports::flush();
        let resident_max = self.peers.rooms().resident_max();
        all.resident_max_bytes = resident_max * PAGE_BYTES as u64;
        all
    }
}

/// A handler.
struct Work {
    /// Its place among them, which is its shard of each address space.
    index: usize,
    peers: Arc<Peers>,
    listener: OwnedFd,
    strangers: Strangers<OwnedFd>,
    /// When they are listened to again.
    next_hearing: Duration,
    /// When others are let in again, after the system refused one.
    next_accept: Duration,
    spaces: BTreeMap<u32, Space>,
    /// Those that had something to say when it last woke; used by the next turn alone.
    ready: Option<BTreeSet<u32>>,
    store: Store,
    next_look: Duration,
    /// What has to follow its last look.
    next: Next,
    demand: Demand,
    served: Served,
    done: Vec<Done>,
}

impl Work {
    fn run(&mut self, is_ending: &AtomicBool) -> Served {
        let mut busy_until = Instant::now();
        loop {
            if self.turn() {
                busy_until = Instant::now() + self.peers.spin();
            } else if is_ending.load(Ordering::SeqCst) && self.spaces.is_empty() {
                return self.served;
            } else if Instant::now() < busy_until {
                std::hint::spin_loop();
            } else {
                self.sleep();
            }
        }
    }

    fn turn(&mut self) -> bool {
        let mut is_busy = self.welcome();
        let ready = self.ready();
        let now = self.store.now();
        for (id, space) in &mut self.spaces {
            if now >= self.next_look
                || ready.as_ref().is_none_or(|ready| ready.contains(id))
                || space.is_due(now)
            {
                is_busy |= space.turn(&mut self.store);
            }
        }
        is_busy |= self.take_ends();
        self.adopt();
        if self.store.now() >= self.next_look {
            self.look();
        }
        is_busy
    }

    /// The address spaces that may have something to say; `None`: any of them. Each turn of one asks
    /// the kernel for its faults and for its agent's words: one call tells which of many have none.
    fn ready(&mut self) -> Option<BTreeSet<u32>> {
        if self.ready.is_some() {
            return self.ready.take();
        }
        if self.spaces.len() <= 1 {
            return None;
        }
        let (ids, mut fds): (Vec<_>, Vec<_>) = self.waits().into_iter().unzip();
        // SAFETY: `fds` is a live array of its length.
        let told = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, 0) };
        (told >= 0).then(|| ready_of(&ids, &fds))
    }

    /// What to wait for to hear of each address space.
    fn waits(&self) -> Vec<(u32, libc::pollfd)> {
        let mut waits = Vec::with_capacity(2 * self.spaces.len());
        for (id, space) in &self.spaces {
            waits.extend(space.waits().map(|fd| (*id, wait(fd))));
        }
        waits
    }

    fn take_ends(&mut self) -> bool {
        let mut done = std::mem::take(&mut self.done);
        self.store.ends(&mut done);
        let is_busy = !done.is_empty();
        for end in done.drain(..) {
            let (id, place, purpose) = untag(end.tag);
            let space = self.spaces.get_mut(&id);
            let space = space.expect("an address space stays while something is under way for it");
            space.end(place, purpose, end, &mut self.store);
        }
        self.done = done;
        is_busy
    }

    /// Takes in who introduces an address space.
    fn welcome(&mut self) -> bool {
        let now = self.store.now();
        let mut heard = Vec::new();
        let mut is_busy = false;
        if now < self.next_hearing {
            return false;
        }
        for _ in 0..ACCEPTS_MAX {
            if now < self.next_accept {
                break;
            }
            match socket::accept(&self.listener) {
                Ok(None) => break,
                Ok(Some(stranger)) => {
                    is_busy = true;
                    match hear(&stranger) {
                        Some(said) => heard.push((stranger, said)),
                        None => {
                            if let Some(displaced) = self.strangers.enter(stranger, now) {
                                answer(&displaced, libc::ETIMEDOUT);
                            }
                        }
                    }
                }
                Err(error) => {
                    reports::say(move || {
                        tracing::warn!(%error, "a program's connection cannot be accepted");
                    });
                    self.next_accept = now + PERIOD;
                }
            }
        }
        self.next_hearing = now + HEARING_PERIOD;
        heard.append(&mut self.strangers.heard(hear));
        while let Some(late) = self.strangers.late(now) {
            answer(&late, libc::ETIMEDOUT);
        }
        if let Some(count) = self.strangers.report(now) {
            reports::say(move || {
                tracing::warn!(
                    count,
                    "connections are closed that did not say what they are for"
                );
            });
        }
        for (stranger, (packet, hello)) in heard {
            is_busy = true;
            match packet {
                Packet::Words(wire::HELLO_WORDS, fds) if hello[0] == wire::MAGIC => {
                    match self.introduce(&stranger, &hello, fds) {
                        Ok(space) => self.bind(space, stranger),
                        Err(error) => self.refuse(&stranger, hello[1], &error),
                    }
                }
                // It connects again, when there may be descriptors.
                Packet::Cut => {
                    answer(&stranger, libc::ETIMEDOUT);
                    self.next_accept = now + PERIOD;
                }
                // It has ended, or is no program of ours.
                Packet::Nothing | Packet::End | Packet::Words(..) => {}
            }
        }
        is_busy
    }

    /// The address space that somebody introduces; nobody's, if the answer cannot be sent.
    fn introduce(
        &mut self,
        agent: &OwnedFd,
        hello: &[u64],
        fds: Vec<OwnedFd>,
    ) -> io::Result<Option<u32>> {
        let malformed = || io::Error::from_raw_os_error(libc::EPROTO);
        let mut fds = fds.into_iter();
        if hello[1] == wire::HELLO_CHILD {
            let id = u32::try_from(hello[2]).map_err(|_| malformed())?;
            let space = self.spaces.get_mut(&id).filter(|space| !space.is_bounded());
            let (Some(space), Some(memory)) = (space, fds.next().filter(is_memory)) else {
                return Err(malformed());
            };
            if space.is_given_up() {
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            let answer = [wire::MAGIC, 0, hello[2]];
            space.introduce(File::from(memory));
            let is_told = socket::send(agent, &answer, Some(space.uffd()));
            return Ok(is_told.then_some(id));
        }
        let uffd = fds.next().filter(is_userfaultfd);
        let (Some(uffd), Some(memory)) = (uffd, fds.next().filter(is_memory)) else {
            return Err(malformed());
        };
        // The tables are made at once: a page of the volume may be one of mappings and one of a heap.
        let most = (2 * u64::from(self.store.slots().count())).min(u64::from(u32::MAX - 8));
        let layout = Layout::of(hello, self.index, self.peers.bells.len(), most);
        let layout = layout.ok_or_else(malformed)?;
        if self.store.ids.is_full() {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let id = self.store.ids.take();
        let space = Space::begin(id, uffd, File::from(memory), layout)
            .inspect_err(|_| self.store.ids.release(id))?;
        self.spaces.insert(id, space);
        self.served.spaces += 1;
        let is_told = socket::send(agent, &[wire::MAGIC, 0, u64::from(id)], None);
        Ok(is_told.then_some(id))
    }

    /// Has an address space bounded by the agent that introduced it.
    fn bind(&mut self, space: Option<u32>, agent: OwnedFd) {
        if let Some(space) = space.and_then(|id| self.spaces.get_mut(&id)) {
            space.bound_by(agent);
        }
        self.look();
    }

    /// Tells a program why it is not served. It ends if handlers before this one have let it in, and
    /// a child in any case; what they have of it they leave then.
    fn refuse(&self, stranger: &OwnedFd, kind: u64, error: &io::Error) {
        let (index, why) = (self.index, error.to_string());
        reports::say(move || match index {
            _ if kind == wire::HELLO_CHILD => {
                tracing::error!(error = why, "a child ends: it cannot be served");
            }
            0 => tracing::warn!(error = why, "memory of a program stays in this machine"),
            _ => tracing::error!(
                error = why,
                "a program ends: others serve a part of its memory already"
            ),
        });
        answer(stranger, error.raw_os_error().unwrap_or(libc::EIO));
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
        let is_due = self.store.now() >= self.next_look;
        self.next_look = self.store.now() + PERIOD;
        let watched = self.spaces.values_mut().filter(|space| space.is_watched());
        watched.for_each(|space| space.probe(&mut self.store));
        let over: Vec<u32> = (self.spaces.iter())
            .filter(|(_, space)| space.is_over())
            .map(|(id, _)| *id)
            .collect();
        // Of those that are over as well: a short program had pages, too.
        let all = self.spaces.values().map(Space::resident);
        let resident = all.fold(0, u32::saturating_add);
        let used = self.store.slots().used();
        let stored_bytes = u64::from(used) * PAGE_BYTES as u64;
        self.served.stored_bytes = self.served.stored_bytes.max(stored_bytes);
        for id in over {
            if let Some(mut space) = self.spaces.remove(&id) {
                space.leave(&mut self.store);
                self.served.counters += space.counters();
            }
        }
        // What is over has left its slots.
        self.store.is_full = self.store.is_full && self.store.slots().are_scarce();
        let bounded = || self.spaces.values().filter(|space| space.is_bounded());
        let leaving = bounded().map(Space::leaving_max).sum();
        let bounded: Vec<u32> = bounded().map(Space::resident).collect();
        if is_due {
            let faults = self.spaces.values().map(|space| space.counters().faults);
            let is_awaited = self.spaces.values().any(Space::is_awaited);
            self.demand.note(faults.sum(), is_awaited);
        }
        let held = Held {
            resident,
            leaving,
            is_idle: self.demand.is_idle,
        };
        let (room, next) = self.peers.settle(self.index, held);
        self.next = next;
        let mut shares = shares::divide(room, &bounded).into_iter();
        for space in self.spaces.values_mut().filter(|space| space.is_bounded()) {
            let share = shares.next().expect("one for each");
            // Nothing can go where nothing has room: better here than nowhere.
            let room = if self.store.is_full {
                u32::MAX
            } else {
                share.room
            };
            space.set_share(Share { room, ..share }, &mut self.store);
        }
    }

    /// Sleeps until something happens.
    fn sleep(&mut self) {
        let bell = &self.peers.bells[self.index];
        let (worker, listener) = (self.store.worker.fd(), self.listener.as_raw_fd());
        let mut fds = vec![wait(bell.as_fd().as_raw_fd()), wait(worker)];
        let now = self.store.now();
        let mut deadline = self.store.worker.deadline();
        let mut until = |time: Duration| {
            let left = time.saturating_sub(now);
            deadline = Some(deadline.map_or(left, |deadline| deadline.min(left)));
        };
        match now < self.next_accept {
            true => until(self.next_accept),
            false => fds.push(wait(listener)),
        }
        fds.extend(self.strangers.iter().map(|fd| wait(fd.as_raw_fd())));
        self.strangers.deadline().into_iter().for_each(&mut until);
        let is_watched = self.spaces.len() > 1 || self.spaces.values().any(Space::is_watched);
        if is_watched || self.next == Next::Again {
            deadline = Some(deadline.unwrap_or(PERIOD).min(PERIOD));
        }
        for space in self.spaces.values_mut() {
            space.flush();
            if space.is_told() {
                return;
            }
            deadline = deadline.into_iter().chain(space.deadline(now)).min();
        }
        let first = fds.len();
        let (ids, waits): (Vec<_>, Vec<_>) = self.waits().into_iter().unzip();
        fds.extend(waits);
        // Rounded up, so that a deadline below a millisecond does not spin.
        let timeout_ms = deadline.map_or(-1, |left| {
            left.as_nanos().div_ceil(1_000_000).min(1 << 30) as libc::c_int
        });
        // SAFETY: `fds` is a live array of its length.
        unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) };
        if fds[0].revents != 0 {
            bell.clear();
        }
        self.ready = Some(ready_of(&ids, &fds[first..]));
        // Whoever spoke is listened to.
        self.next_hearing = Duration::ZERO;
    }
}

fn wait(fd: RawFd) -> libc::pollfd {
    libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    }
}

/// Whose descriptors, in the same order, are ready.
fn ready_of(ids: &[u32], fds: &[libc::pollfd]) -> BTreeSet<u32> {
    let all = ids.iter().zip(fds);
    let ready = all.filter(|(_, fd)| fd.revents != 0);
    ready.map(|(id, _)| *id).collect()
}

/// What a connection says, if it says something: its end, or words that may be a hello.
fn hear(stranger: &OwnedFd) -> Option<(Packet, [u64; wire::HELLO_WORDS])> {
    let mut hello = [0; wire::HELLO_WORDS];
    match socket::receive(stranger, &mut hello) {
        Packet::Nothing => None,
        packet => Some((packet, hello)),
    }
}

/// Tells why an address space is not served. One that does not get it sees the end of the
/// connection.
fn answer(stranger: &OwnedFd, errno: i32) {
    let answer = [wire::MAGIC, u64::from(errno.unsigned_abs()), 0];
    socket::send(stranger, &answer, None);
}
