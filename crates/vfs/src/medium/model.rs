//! A medium in memory that can crash: what was synced is kept apart from what was not.
//!
//! For every block it keeps the durable version and those written since, in order. An image of a
//! crash takes of each block any of these, block by block, by a [`Survival`]. A discarded block
//! reads as garbage, which is all that [`Medium::discard`] promises.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{BLOCK_BYTES, Medium, MediumError};

/// The medium.
pub struct ModelMedium {
    inner: Mutex<Inner>,
}

struct Inner {
    size_bytes: u64,
    blocks: BTreeMap<u64, Versions>,
    /// Steps (writes, discards, syncs) so far.
    step: u64,
    watcher: Option<Watcher>,
    fails: Option<Failing>,
}

/// How a medium fails.
#[derive(Clone, Copy)]
struct Failing {
    error: MediumError,
    reads_too: bool,
    /// Of writes below this byte one in two is done all the same.
    lands_below: u64,
}

type Block = Arc<[u8]>;

/// Is called before every step with its number, and may ask what a crash there leaves.
pub type Watcher = Box<dyn FnMut(u64, &dyn Fn(Survival) -> ModelMedium) + Send>;

struct Versions {
    durable: Option<Block>,
    /// Oldest first; `None`: discarded.
    pending: Vec<Option<Block>>,
}

/// Which of the steps that were not synced survive a crash.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Survival {
    /// All of them, as on a volume, where an acknowledged write is durable.
    All,
    /// None of them.
    None,
    /// Those below this byte only.
    Below(u64),
    /// Those from this byte on only.
    From(u64),
    /// Of each block a version drawn with this seed.
    Random(u64),
}

impl ModelMedium {
    /// A blank one.
    #[must_use]
    pub fn new(size_bytes: u64) -> Self {
        Self::from_image(size_bytes, BTreeMap::new())
    }

    fn from_image(size_bytes: u64, image: BTreeMap<u64, Block>) -> Self {
        let blocks = image.into_iter().map(|(index, block)| {
            let versions = Versions {
                durable: Some(block),
                pending: Vec::new(),
            };
            (index, versions)
        });
        Self {
            inner: Mutex::new(Inner {
                size_bytes,
                blocks: blocks.collect(),
                step: 0,
                watcher: None,
                fails: None,
            }),
        }
    }

    /// Steps so far.
    #[must_use]
    pub fn steps(&self) -> u64 {
        self.inner().step
    }

    /// Has `watcher` called before every step from now on.
    pub fn watch(&self, watcher: Watcher) {
        self.inner().watcher = Some(watcher);
    }

    /// What a crash now leaves.
    #[must_use]
    pub fn crash(&self, survival: Survival) -> Self {
        let inner = self.inner();
        Self::from_image(inner.size_bytes, inner.image(survival))
    }

    /// From now on every write, discard and sync fails with `error`; `None`: no more.
    pub fn fail(&self, error: Option<MediumError>) {
        self.inner().fails = error.map(|error| Failing {
            error,
            reads_too: false,
            lands_below: 0,
        });
    }

    /// As [`fail`](Self::fail), of reads too; a write below this byte may be done although it fails,
    /// as on a volume whose hosts went meanwhile.
    pub fn fail_wholly(&self, error: MediumError, lands_below: u64) {
        self.inner().fails = Some(Failing {
            error,
            reads_too: true,
            lands_below,
        });
    }

    /// Another size.
    pub fn grow(&self, size_bytes: u64) {
        self.inner().size_bytes = size_bytes;
    }

    /// Bytes in blocks that hold something.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let inner = self.inner();
        let held = inner.blocks.values().filter(|block| block.is_held());
        held.count() as u64 * BLOCK_BYTES
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Versions {
    fn newest(&self) -> Option<&Block> {
        match self.pending.last() {
            Some(newest) => newest.as_ref(),
            None => self.durable.as_ref(),
        }
    }

    /// Whether it was written since it was discarded.
    fn is_held(&self) -> bool {
        let newest = self.newest();
        newest.is_some_and(|block| block[..] != [GARBAGE; BLOCK_BYTES as usize])
    }

    /// As `after` steps of those that are pending left it.
    fn at(&self, after: usize) -> Option<&Block> {
        match after.checked_sub(1) {
            Some(last) => self.pending[last].as_ref(),
            None => self.durable.as_ref(),
        }
    }
}

impl Inner {
    fn image(&self, survival: Survival) -> BTreeMap<u64, Block> {
        let mut image = BTreeMap::new();
        for (index, versions) in &self.blocks {
            let (all, offset) = (versions.pending.len(), index * BLOCK_BYTES);
            let kept = match survival {
                Survival::All => all,
                Survival::None => 0,
                Survival::Below(byte) if offset < byte => all,
                Survival::From(byte) if offset >= byte => all,
                Survival::Below(_) | Survival::From(_) => 0,
                Survival::Random(seed) => (mix(seed ^ mix(*index)) % (all as u64 + 1)) as usize,
            };
            if let Some(block) = versions.at(kept) {
                image.insert(*index, block.clone());
            }
        }
        image
    }

    fn step(&mut self) -> Result<(), MediumError> {
        if let Some(mut watcher) = self.watcher.take() {
            watcher(self.step, &|survival| {
                ModelMedium::from_image(self.size_bytes, self.image(survival))
            });
            self.watcher = Some(watcher);
        }
        self.step += 1;
        self.fails.map_or(Ok(()), |failing| Err(failing.error))
    }

    /// Whether a write that fails is done.
    fn lands(&self, offset: u64) -> bool {
        let may = self
            .fails
            .is_some_and(|failing| offset < failing.lands_below);
        may && mix(self.step).is_multiple_of(2)
    }

    fn block(&mut self, index: u64) -> &mut Versions {
        self.blocks.entry(index).or_insert(Versions {
            durable: None,
            pending: Vec::new(),
        })
    }
}

impl Medium for ModelMedium {
    fn size_bytes(&self) -> u64 {
        self.inner().size_bytes
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<(), MediumError> {
        let inner = self.inner();
        if let Some(failing) = inner.fails.filter(|failing| failing.reads_too) {
            return Err(failing.error);
        }
        if offset + buffer.len() as u64 > inner.size_bytes {
            return Err(MediumError::Io);
        }
        let mut at = offset;
        let mut rest = buffer;
        while !rest.is_empty() {
            let within = (at % BLOCK_BYTES) as usize;
            let len = rest.len().min(BLOCK_BYTES as usize - within);
            let (now, later) = rest.split_at_mut(len);
            let block = inner.blocks.get(&(at / BLOCK_BYTES));
            match block.and_then(Versions::newest) {
                Some(block) => now.copy_from_slice(&block[within..within + len]),
                None => now.fill(0),
            }
            (at, rest) = (at + len as u64, later);
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediumError> {
        let mut inner = self.inner();
        let outcome = inner.step();
        if outcome.is_err() && !inner.lands(offset) {
            return outcome;
        }
        if offset + bytes.len() as u64 > inner.size_bytes {
            return Err(MediumError::Io);
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let within = (at % BLOCK_BYTES) as usize;
            let (now, later) = rest.split_at(rest.len().min(BLOCK_BYTES as usize - within));
            let versions = inner.block(at / BLOCK_BYTES);
            let mut block = match versions.newest() {
                Some(block) => block.to_vec(),
                None => vec![0; BLOCK_BYTES as usize],
            };
            block[within..within + now.len()].copy_from_slice(now);
            versions.pending.push(Some(block.into()));
            (at, rest) = (at + now.len() as u64, later);
        }
        outcome
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> Result<(), MediumError> {
        let mut inner = self.inner();
        inner.step()?;
        for index in offset / BLOCK_BYTES..(offset + len_bytes) / BLOCK_BYTES {
            let garbage: Block = vec![GARBAGE; BLOCK_BYTES as usize].into();
            inner.block(index).pending.push(Some(garbage));
        }
        Ok(())
    }

    fn sync(&self) -> Result<(), MediumError> {
        let mut inner = self.inner();
        inner.step()?;
        for versions in inner.blocks.values_mut() {
            if let Some(newest) = versions.pending.pop() {
                versions.durable = newest;
                versions.pending.clear();
            }
        }
        Ok(())
    }

    fn allocation(&self, offset: u64, end: u64) -> (bool, u64) {
        let inner = self.inner();
        let holds = |index: u64| inner.blocks.get(&index).is_some_and(Versions::is_held);
        let first = offset / BLOCK_BYTES;
        let is_held = holds(first);
        let last = end.div_ceil(BLOCK_BYTES);
        let change = (first + 1..last).find(|index| holds(*index) != is_held);
        let to = change.map_or(end, |index| index * BLOCK_BYTES);
        (is_held, to.min(end))
    }
}

/// What a discarded block reads as.
const GARBAGE: u8 = 0xDD;

/// Spreads the bits of a number (the finalizer of splitmix64).
#[must_use]
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}
