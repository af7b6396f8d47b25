//! The host's table of windows: who may touch which bytes, and waiting until nobody does.
//!
//! Shared by the control thread, which registers and revokes, and the thread that serves verbs,
//! which enters. Entering takes no lock ([`Entrance`]).
//!
//! Invariants: a slot's memory fields change only while its generation is 0 and nobody is counted
//! in; a generation is never given twice.

mod entrance;
mod held_window;

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::memory::Region;
use crate::{Error, Generation, Result, Rights, Status, WindowDescriptor, WindowId};
use entrance::Entrance;
pub use held_window::{HeldWindow, Unwritten};

/// Most windows of one host.
pub const WINDOW_COUNT_MAX: usize = CHUNK_SLOTS_FIRST * ((1 << CHUNK_COUNT) - 1);

/// All windows of one host.
#[derive(Default)]
pub struct WindowTable {
    chunks: [OnceLock<Box<[Slot]>>; CHUNK_COUNT],
    control: Mutex<Control>,
    /// Windows were restored, and nobody is served yet: whoever keeps their memory may hand it to another.
    is_on_trial: AtomicBool,
}

/// What only registering and revoking use.
#[derive(Default)]
struct Control {
    /// Ids to use again, last in first out.
    free: Vec<WindowId>,
    /// The region of each id; `None` while it is free.
    regions: Vec<Option<Arc<Region>>>,
    generations: Generations,
}

#[derive(Default)]
struct Slot {
    entrance: Entrance,
    base: AtomicPtr<u8>,
    len_bytes: AtomicU64,
    rights: AtomicU8,
    /// For the dead flag; valid while a window stands, which `Control::regions` upholds.
    region: AtomicPtr<Region>,
}

impl WindowTable {
    /// An empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty table whose generations follow from `seed`; their high halves count from `first`.
    #[cfg(feature = "sim")]
    pub(crate) fn seeded(seed: u64, first: u32) -> Self {
        let table = Self::default();
        table.control().generations = Generations::Seeded { seed, next: first };
        table
    }

    /// Opens a window on all of `region`.
    ///
    /// # Errors
    /// `Bound`: there are [`WINDOW_COUNT_MAX`]; `StaleWindow`: the region is dead; `Key`: no randomness.
    pub fn register(&self, region: Arc<Region>, rights: Rights) -> Result<WindowDescriptor> {
        if region.is_dead() {
            return Err(Error::StaleWindow);
        }
        let mut control = self.control();
        let generation = control.generations.next()?;
        let id = match control.free.pop() {
            Some(id) => id,
            None => {
                let id =
                    u32::try_from(control.regions.len()).map_err(|_| Error::Bound("windows"))?;
                if control.regions.len() >= WINDOW_COUNT_MAX {
                    return Err(Error::Bound("windows"));
                }
                control.regions.push(None);
                WindowId(id)
            }
        };
        let descriptor = WindowDescriptor {
            id,
            generation,
            len_bytes: region.len_bytes(),
            rights,
        };
        self.open(&mut control, descriptor, region);
        Ok(descriptor)
    }

    /// Opens a window as an earlier process of this host had it open, under the same name, for
    /// those who hold that name. Later windows get later generations.
    ///
    /// # Errors
    /// `StaleWindow`: the region is dead or not as long as the window was;
    /// `Bound`: the name is taken, or beyond what this table can have.
    pub fn restore(&self, region: Arc<Region>, descriptor: WindowDescriptor) -> Result<()> {
        if region.is_dead() || region.len_bytes() != descriptor.len_bytes {
            return Err(Error::StaleWindow);
        }
        let mut control = self.control();
        let index = descriptor.id.0 as usize;
        let free = control.free.iter().position(|&id| id == descriptor.id);
        if index >= WINDOW_COUNT_MAX || descriptor.generation.0 == 0 {
            return Err(Error::Bound("windows"));
        }
        match free {
            Some(at) => drop(control.free.swap_remove(at)),
            None if index < control.regions.len() => return Err(Error::Bound("windows")),
            None => {
                for id in control.regions.len()..index {
                    let id = u32::try_from(id).expect("below WINDOW_COUNT_MAX");
                    control.free.push(WindowId(id));
                }
                control.regions.resize(index + 1, None);
            }
        }
        count_from(descriptor.generation);
        self.is_on_trial.store(true, Ordering::Relaxed);
        self.open(&mut control, descriptor, region);
        Ok(())
    }

    /// Lets verbs into a slot that is free.
    fn open(&self, control: &mut Control, descriptor: WindowDescriptor, region: Arc<Region>) {
        let WindowDescriptor {
            id,
            generation,
            rights,
            ..
        } = descriptor;
        let (chunk, index) = place(id);
        let slot = &self.chunks[chunk].get_or_init(|| new_chunk(chunk))[index];
        slot.base.store(region.view().base(), Ordering::Relaxed);
        slot.len_bytes
            .store(descriptor.len_bytes, Ordering::Relaxed);
        slot.rights.store(rights.0, Ordering::Relaxed);
        slot.region
            .store(Arc::as_ptr(&region).cast_mut(), Ordering::Relaxed);
        control.regions[id.0 as usize] = Some(region);
        slot.entrance.open(generation.0);
    }

    /// Closes a window and gives its memory back. After the return no byte of an earlier verb lands in it.
    ///
    /// Waits for verbs inside, which stay for one non-blocking system call or one copy each.
    ///
    /// # Errors
    /// `StaleWindow`: there is no such window; `Os`: the truncation was refused.
    pub fn revoke(&self, id: WindowId) -> Result<()> {
        let mut control = self.control();
        let region = control
            .regions
            .get_mut(id.0 as usize)
            .and_then(Option::take)
            .ok_or(Error::StaleWindow)?;
        let slot = self.slot(id).expect("a registered window has a slot");
        slot.entrance.close();
        control.free.push(id);
        region.truncate()
    }

    /// Gives a window a new generation and leaves its memory as it is: after the return verbs of
    /// earlier generations change nothing.
    ///
    /// # Errors
    /// `StaleWindow`: there is no such window, or its memory is gone; `Key`: no randomness.
    pub fn renew(&self, id: WindowId) -> Result<WindowDescriptor> {
        let mut control = self.control();
        let region = control.regions.get(id.0 as usize).and_then(Option::as_ref);
        if region.is_none_or(|region| region.is_dead()) {
            return Err(Error::StaleWindow);
        }
        let generation = control.generations.next()?;
        let slot = self.slot(id).expect("a registered window has a slot");
        slot.entrance.close();
        let descriptor = WindowDescriptor {
            id,
            generation,
            len_bytes: slot.len_bytes.load(Ordering::Relaxed),
            rights: Rights(slot.rights.load(Ordering::Relaxed)),
        };
        slot.entrance.open(generation.0);
        Ok(descriptor)
    }

    /// Counts a verb in: checks that it may touch the range and holds off `revoke` until the guard is dropped.
    ///
    /// # Errors
    /// `StaleGeneration`, `NoRights`, `OutOfBounds`, or `Revoked` when the memory is gone.
    #[inline]
    pub fn enter(
        &self,
        id: WindowId,
        generation: Generation,
        need: Rights,
        offset: u64,
        len_bytes: u64,
    ) -> std::result::Result<WindowGuard<'_>, Status> {
        let slot = self.slot(id).ok_or(Status::StaleGeneration)?;
        let stands = slot.entrance.enter(generation.0);
        let mut guard = WindowGuard {
            slot,
            generation: generation.0,
            pointer: std::ptr::null_mut(),
        };
        if !stands {
            return Err(Status::StaleGeneration);
        }
        if !Rights(slot.rights.load(Ordering::Relaxed)).contains(need) {
            return Err(Status::NoRights);
        }
        let window_bytes = slot.len_bytes.load(Ordering::Relaxed);
        if offset
            .checked_add(len_bytes)
            .is_none_or(|end| end > window_bytes)
        {
            return Err(Status::OutOfBounds);
        }
        let start = usize::try_from(offset).map_err(|_| Status::OutOfBounds)?;
        // SAFETY: `offset` is inside the mapping that `base` starts, checked just above.
        guard.pointer = unsafe { slot.base.load(Ordering::Relaxed).add(start) };
        if guard.is_dead() {
            Err(Status::Revoked)
        } else {
            Ok(guard)
        }
    }

    /// The region and descriptor of a window, for a client that attaches it.
    ///
    /// # Errors
    /// `StaleWindow`: the window is not that one any more.
    pub(crate) fn attach(
        &self,
        id: WindowId,
        generation: Generation,
    ) -> Result<(Arc<Region>, WindowDescriptor)> {
        self.standing(id)
            .filter(|(region, standing)| standing.generation == generation && !region.is_dead())
            .ok_or(Error::StaleWindow)
    }

    /// The window that has this place now.
    pub(crate) fn standing(&self, id: WindowId) -> Option<(Arc<Region>, WindowDescriptor)> {
        let control = self.control();
        let region = control.regions.get(id.0 as usize)?.clone()?;
        let slot = self.slot(id)?;
        let descriptor = WindowDescriptor {
            id,
            generation: Generation(slot.entrance.generation()),
            len_bytes: region.len_bytes(),
            rights: Rights(slot.rights.load(Ordering::Relaxed)),
        };
        Some((region, descriptor))
    }

    /// From now on windows that were [restored](Self::restore) are this table's alone, and end with it.
    pub(crate) fn note_serving(&self) {
        self.is_on_trial.store(false, Ordering::Relaxed);
    }

    /// Closes all windows and leaves their memory as it is.
    pub(crate) fn let_go(&self) {
        drop(self.close_all());
    }

    /// Closes all windows and gives their memory back: clients may hold mappings of it.
    pub(crate) fn give_back(&self) {
        for region in self.close_all() {
            if let Err(error) = region.truncate() {
                tracing::warn!(%error, "give back a window's memory");
            }
        }
    }

    /// Closes all windows; what they were on.
    fn close_all(&self) -> Vec<Arc<Region>> {
        let mut control = self.control();
        let mut closed = Vec::new();
        for index in 0..control.regions.len() {
            let Some(region) = control.regions[index].take() else {
                continue;
            };
            let id = WindowId(u32::try_from(index).expect("below WINDOW_COUNT_MAX"));
            if let Some(slot) = self.slot(id) {
                slot.entrance.close();
            }
            closed.push(region);
        }
        closed
    }

    #[inline]
    fn slot(&self, id: WindowId) -> Option<&Slot> {
        let (chunk, index) = place(id);
        self.chunks.get(chunk)?.get()?.get(index)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WindowTable {
    fn drop(&mut self) {
        match *self.is_on_trial.get_mut() {
            true => self.let_go(),
            false => self.give_back(),
        }
    }
}

/// A verb inside a window. While it lives `revoke` waits; hold it over one copy or system call only.
pub struct WindowGuard<'a> {
    slot: &'a Slot,
    generation: u64,
    pointer: *mut u8,
}

impl WindowGuard<'_> {
    /// Where the checked range starts.
    #[inline]
    #[must_use]
    pub fn ptr(&self) -> *mut u8 {
        self.pointer
    }

    /// Whether the memory was lost or the window revoked; ask after the copy or system call.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> bool {
        if self.slot.entrance.generation() != self.generation {
            return true;
        }
        self.has_lost_memory()
    }

    /// Whether the memory was lost. A window that is being revoked has its memory until the guard is gone.
    #[inline]
    #[must_use]
    pub(crate) fn has_lost_memory(&self) -> bool {
        // SAFETY: the generation matched after this guard was counted in, so the region is the
        // window's; `revoke` keeps it alive until the guard is gone.
        unsafe { (*self.slot.region.load(Ordering::Relaxed)).is_dead() }
    }
}

impl Drop for WindowGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.slot.entrance.leave();
    }
}

/// Chunk and index of a slot; chunk `i` holds `CHUNK_SLOTS_FIRST << i`.
/// Reads and writes of the host's own threads on whatever stands in its windows.
///
/// Each access checks the generation when it is made; while it lasts the window is not revoked.
#[derive(Clone)]
pub struct Windows(Arc<WindowTable>);

impl Windows {
    pub(crate) fn new(table: Arc<WindowTable>) -> Self {
        Self(table)
    }

    /// Appends `len_bytes` at `offset` of a window to `target`, or nothing.
    ///
    /// # Errors
    /// The status that a READ would end with.
    pub fn read(
        &self,
        (id, generation): (WindowId, Generation),
        offset: u64,
        len_bytes: usize,
        target: &mut Vec<u8>,
    ) -> std::result::Result<(), Status> {
        let len = len_bytes as u64;
        let guard = self.0.enter(id, generation, Rights::READ, offset, len)?;
        target.reserve(len_bytes);
        let end = target.len();
        // SAFETY: the guard's pointer is valid for `len_bytes` while it lives: other processes may
        // write there meanwhile, and lost memory is replaced under the copy; `reserve` made as much
        // room behind the vector's end, which is apart from any window.
        unsafe {
            let room = target.as_mut_ptr().add(end);
            std::ptr::copy_nonoverlapping(guard.ptr().cast_const(), room, len_bytes);
        }
        if guard.is_dead() {
            return Err(Status::Revoked);
        }
        // SAFETY: so many bytes behind the end were just written.
        unsafe { target.set_len(end + len_bytes) };
        Ok(())
    }

    /// Writes `source` at `offset` of a window.
    ///
    /// # Errors
    /// The status that a WRITE would end with.
    pub fn write(
        &self,
        (id, generation): (WindowId, Generation),
        offset: u64,
        source: &[u8],
    ) -> std::result::Result<(), Status> {
        let len = source.len() as u64;
        let guard = self.0.enter(id, generation, Rights::WRITE, offset, len)?;
        // SAFETY: as in `read`; the source is a slice of private memory.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), guard.ptr(), source.len()) };
        if guard.is_dead() {
            Err(Status::Revoked)
        } else {
            Ok(())
        }
    }
}

impl std::fmt::Debug for Windows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Windows").finish_non_exhaustive()
    }
}

#[inline]
fn place(id: WindowId) -> (usize, usize) {
    let position = id.0 as usize + CHUNK_SLOTS_FIRST;
    let chunk = (position / CHUNK_SLOTS_FIRST).ilog2() as usize;
    (chunk, position - (CHUNK_SLOTS_FIRST << chunk))
}

fn new_chunk(chunk: usize) -> Box<[Slot]> {
    (0..CHUNK_SLOTS_FIRST << chunk)
        .map(|_| Slot::default())
        .collect()
}

/// Where generations come from.
#[derive(Default)]
enum Generations {
    /// High half: a counter that starts at the wall clock in seconds, so that neither this process
    /// nor, but for odds of 2^-32, a restarted one gives a generation twice. Low half: random, not
    /// guessable.
    #[default]
    System,
    /// The same numbers in every run.
    #[cfg(feature = "sim")]
    Seeded { seed: u64, next: u32 },
}

impl Generations {
    fn next(&mut self) -> Result<Generation> {
        let (high, low) = match self {
            Self::System => {
                let mut low = [0; 4];
                getrandom::fill(&mut low).map_err(|_| Error::Key(crate::KeyError::NoRandomness))?;
                (count(), u32::from_le_bytes(low))
            }
            #[cfg(feature = "sim")]
            Self::Seeded { seed, next } => {
                let high = *next;
                *next += 1;
                let drawn = crate::sim::random::mix(*seed ^ u64::from(high));
                (high, (drawn >> 32) as u32)
            }
        };
        // Zero means "no window".
        Ok(Generation((u64::from(high) << 32 | u64::from(low)).max(1)))
    }
}

/// Counts the generations of this process.
fn count() -> u32 {
    counter().fetch_add(1, Ordering::Relaxed)
}

/// Goes on after a generation that an earlier process gave.
fn count_from(given: Generation) {
    let next = ((given.0 >> 32) as u32).wrapping_add(1);
    counter().fetch_max(next, Ordering::Relaxed);
}

fn counter() -> &'static AtomicU32 {
    static COUNTER: OnceLock<AtomicU32> = OnceLock::new();
    COUNTER.get_or_init(|| {
        let seconds = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_secs());
        AtomicU32::new((seconds & u64::from(u32::MAX)) as u32)
    })
}

const CHUNK_SLOTS_FIRST: usize = 64;
/// 64 * (2^15 - 1), about two million windows.
const CHUNK_COUNT: usize = 15;

#[cfg(test)]
mod tests;
