//! A disk with two images: what it has, and what survives a crash.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use cenote_cache::log::tiers::{Busy, Ended, Request, Tier};
use cenote_test_kit::Random;

#[derive(Clone)]
enum Change {
    Write(u64, Vec<u8>),
    Drop(u64),
    Cut(u64),
}

impl Change {
    fn apply(&self, pages: &mut BTreeMap<u64, Vec<u8>>) {
        match self {
            Self::Write(address, bytes) => drop(pages.insert(*address, bytes.clone())),
            Self::Drop(address) => *pages = pages.split_off(address),
            Self::Cut(address) => drop(pages.split_off(address)),
        }
    }
}

/// The disk itself, which outlives who uses it.
#[derive(Default)]
pub struct Disk {
    live: BTreeMap<u64, Vec<u8>>,
    durable: BTreeMap<u64, Vec<u8>>,
    /// Changes that nobody has synced.
    unsynced: Vec<Change>,
    /// Changes and syncs that it still takes; then the power is gone.
    pub budget: Option<u64>,
    /// How many it took.
    pub taken: u64,
    /// The next sync fails: what it was to cover is lost, and the one after it succeeds.
    pub fails_sync: bool,
    /// Syncs that began.
    pub syncs: u64,
    /// The read that many reads from now ends after half of what it was asked for.
    pub halves_read: Option<u64>,
}

impl Disk {
    /// What is there after a crash: of each change that was not synced nothing, all, or a part.
    pub fn crash(&mut self, random: &mut Random) {
        for change in std::mem::take(&mut self.unsynced) {
            match (change, random.below(4)) {
                (_, 0) => {}
                (Change::Write(address, bytes), 1) => {
                    let mut torn = self.durable.get(&address).cloned().unwrap_or_default();
                    torn.resize(bytes.len(), 0);
                    for (old, new) in torn.chunks_mut(64).zip(bytes.chunks(64)) {
                        if random.one_in(2) {
                            old.copy_from_slice(new);
                        }
                    }
                    self.durable.insert(address, torn);
                }
                (change, _) => change.apply(&mut self.durable),
            }
        }
        self.live = self.durable.clone();
        self.budget = None;
    }

    pub fn is_off(&self) -> bool {
        self.budget == Some(0)
    }

    fn spend(&mut self) -> bool {
        if self.is_off() {
            return false;
        }
        self.taken += 1;
        if let Some(budget) = &mut self.budget {
            *budget -= 1;
        }
        true
    }

    fn change(&mut self, change: Change) {
        change.apply(&mut self.live);
        self.unsynced.push(change);
    }
}

/// A tier on such a disk, whose requests take a while.
pub struct DiskTier {
    disk: Arc<Mutex<Disk>>,
    random: Random,
    under_way: Vec<(u64, Ended)>,
    /// Syncs end later: what they cover is counted when they begin.
    syncs: Vec<(u64, u64, usize)>,
    /// One request of so many is refused: as busy, or a write with an error.
    refuse_one_in: u64,
}

impl DiskTier {
    pub fn new(disk: Arc<Mutex<Disk>>, seed: u64, refuse_one_in: u64) -> Self {
        Self {
            disk,
            random: Random(seed),
            under_way: Vec::new(),
            syncs: Vec::new(),
            refuse_one_in,
        }
    }
}

impl Tier for DiskTier {
    fn name(&self) -> String {
        "disk".to_owned()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn capacity_bytes(&self) -> Option<u64> {
        None
    }

    fn block_bytes(&self) -> usize {
        64
    }

    fn start(&mut self, token: u64, request: Request) -> Result<(), Busy> {
        if self.random.one_in(self.refuse_one_in) {
            return Err(Busy);
        }
        let mut disk = self.disk.lock().unwrap();
        let mut result = Ok(Vec::new());
        let is_refused = self.random.one_in(self.refuse_one_in);
        match request {
            Request::Read { address, len_bytes } => {
                let is_half = disk.halves_read == Some(0);
                disk.halves_read = disk.halves_read.and_then(|reads| reads.checked_sub(1));
                let len_bytes = if is_half { len_bytes / 2 } else { len_bytes };
                if let Some((start, page)) = disk.live.range(..=address).next_back() {
                    let from = ((address - start) as usize).min(page.len());
                    result = Ok(page[from..page.len().min(from + len_bytes)].to_vec());
                }
            }
            Request::Write { .. } if is_refused => result = Err(io::ErrorKind::StorageFull.into()),
            // Who is off takes nothing, and says nothing.
            _ if !disk.spend() => return Ok(()),
            Request::Write { address, page } => disk.change(Change::Write(address, page.to_vec())),
            Request::Drop { address } => disk.change(Change::Drop(address)),
            Request::Cut { address } => disk.change(Change::Cut(address)),
            Request::Sync => {
                disk.syncs += 1;
                let covered = disk.unsynced.len();
                self.syncs.push((self.random.below(4), token, covered));
                return Ok(());
            }
        }
        let polls = self.random.below(4);
        self.under_way.push((polls, Ended { token, result }));
        Ok(())
    }

    fn poll(&mut self, ended: &mut Vec<Ended>) -> io::Result<()> {
        for (polls, _) in &mut self.under_way {
            *polls = polls.saturating_sub(1);
        }
        let is_over = |(polls, _): &mut (u64, Ended)| *polls == 0;
        ended.extend(self.under_way.extract_if(.., is_over).map(|(_, end)| end));
        for (polls, _, _) in &mut self.syncs {
            *polls = polls.saturating_sub(1);
        }
        let mut disk = self.disk.lock().unwrap();
        if let Some(number) = self.syncs.iter().position(|(polls, _, _)| *polls == 0) {
            let (_, token, covered) = self.syncs.remove(number);
            if disk.is_off() {
                return Ok(());
            }
            let covered = covered.min(disk.unsynced.len());
            let synced: Vec<Change> = disk.unsynced.drain(..covered).collect();
            let fails = std::mem::take(&mut disk.fails_sync);
            for change in synced.into_iter().filter(|_| !fails) {
                change.apply(&mut disk.durable);
            }
            for (_, _, other) in &mut self.syncs {
                *other = other.saturating_sub(covered);
            }
            let result = match fails {
                true => Err(io::ErrorKind::Other.into()),
                false => Ok(Vec::new()),
            };
            ended.push(Ended { token, result });
        }
        Ok(())
    }
}
