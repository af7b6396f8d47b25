//! A parity process: keeps the operations of every partition, and the sum of their values.
//!
//! Each partition's operations are a stream of their own; the order between streams is free (C2).
//! What is received is kept in a buffer and acknowledged; what is stable is applied to keys and
//! to the parity. Where the process recovers a partition, its parity gives way to the data unit by unit.
//! Paper: \[cocytus16\] sections 3.4 and 4.2.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use cenote_codec::Code;

use super::exchange::Taking;
use super::message::{Content, Item, Lacks, Run, UNIT_BYTES};
use super::operation::{Effect, Operation};
use super::replica::{Basis, Diverged, Replica, Xid};
use super::units::Units;
use super::view::{Scheme, View};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::memory::buffer::Buffer;
use crate::memory::key_hash::KeyHasher;
use crate::memory::region::{Region, is_zero};
use crate::memory::table::Entry;

/// Attempts that are kept: more than a leader has under way.
const ATTEMPTS_MAX: usize = 128;

/// The operations of one partition, at a backup.
pub(super) struct Stream {
    /// The view in which it began.
    begun: u32,
    /// None while this process owns the partition.
    pub(super) replica: Option<Replica>,
    /// What is not applied yet: those after the replica's last one.
    buffer: VecDeque<Operation>,
    /// The last one that is here.
    pub(super) latest: Xid,
    /// Units from this one on are not in the parity yet.
    pub(super) units_from: Option<u64>,
}

/// An attempt to recover units: a copy of the parity from which known data are subtracted.
struct Attempt {
    number: u64,
    run: Run,
    /// Bit per partition.
    known: u32,
    lost: u32,
    rest: Buffer,
}

/// What is left when everything known has been subtracted.
#[derive(Debug)]
pub(super) struct Residual {
    pub(super) lost: u32,
    pub(super) bytes: Bytes,
}

/// One parity slot.
pub(super) struct Parity {
    pub(super) slot: usize,
    pub(super) scheme: Scheme,
    pub(super) code: Arc<Code>,
    /// One parity, or a copy of each partition.
    pub(super) regions: Vec<Arc<Region>>,
    pub(super) streams: Vec<Stream>,
    hasher: KeyHasher,
    /// The partition whose data are here in place of parity, and where.
    held: Option<(usize, Units)>,
    /// The partition that its process is to own, changing places with its owner.
    pub(super) taking: Option<Taking>,
    /// The partition that its process owns as yet, changing places with who has the slot: its values are not in the
    /// parity, and no stream has its operations.
    pub(super) own: Option<usize>,
    /// Partitions that nobody has any more, bit per partition.
    pub(super) lost: u32,
    /// Something of such a one is in the parity: nothing can be recovered from it.
    pub(super) is_stale: bool,
    /// By their first unit.
    attempts: BTreeMap<u64, Attempt>,
    /// The mistake [`InjectedFault::ResidualInPlace`]: units that a partition was subtracted from.
    subtracted: HashSet<(u64, usize)>,
}

impl Stream {
    pub(super) fn new(hasher: KeyHasher, region_bytes: u64, begun: u32) -> Self {
        Self {
            begun,
            replica: Some(Replica::new(hasher, region_bytes)),
            buffer: VecDeque::new(),
            latest: 0,
            units_from: None,
        }
    }

    /// That of a partition as a view begins it: of a lost one there is nothing to be told.
    fn of(
        view: &View,
        partition: usize,
        (hasher, region_bytes): (KeyHasher, u64),
        is_joining: bool,
    ) -> Self {
        let begun = view.begun[partition];
        match is_joining && !view.is_lost(partition) {
            true => Self::joining(hasher, region_bytes, begun, true),
            false => Self::new(hasher, region_bytes, begun),
        }
    }

    pub(super) fn joining(
        hasher: KeyHasher,
        region_bytes: u64,
        begun: u32,
        with_units: bool,
    ) -> Self {
        Self {
            replica: Some(Replica::joining(hasher, region_bytes)),
            units_from: with_units.then_some(0),
            ..Self::new(hasher, region_bytes, begun)
        }
    }

    pub(super) fn applied(&self) -> Xid {
        self.replica.as_ref().map_or(0, Replica::applied)
    }

    pub(super) fn lacks(&self) -> Lacks {
        Lacks {
            keys_from: self.replica.as_ref().and_then(Replica::cursor),
            units_from: self.units_from,
        }
    }

    /// Keeps an operation. False if there is a gap before it.
    pub(super) fn receive(&mut self, xid: Xid, operation: Operation) -> bool {
        if xid == self.latest + 1 {
            self.latest = xid;
            self.buffer.push_back(operation);
        }
        xid <= self.latest
    }

    /// Drops what is behind an operation.
    pub(super) fn discard(&mut self, after: Xid) {
        let applied = self.applied();
        let keep = usize::try_from(after.saturating_sub(applied)).unwrap_or(usize::MAX);
        self.buffer.truncate(keep);
        self.latest = applied + self.buffer.len() as u64;
    }

    /// Takes keys.
    pub(super) fn take(
        &mut self,
        at: Xid,
        basis: Basis,
        from: u64,
        items: &[Item],
        end: Option<u64>,
    ) -> Result<(), Diverged> {
        let Some(replica) = &mut self.replica else {
            return Ok(());
        };
        if replica.cursor() != Some(from) {
            return Ok(());
        }
        if replica.cursor() == Some(0) {
            // What is under way before `at` is in what follows.
            let before = at.saturating_sub(replica.applied());
            let before = usize::try_from(before).unwrap_or(usize::MAX);
            self.buffer.drain(..before.min(self.buffer.len()));
            self.latest = self.latest.max(at);
        }
        let entries: Vec<(&[u8], Entry)> = items
            .iter()
            .map(|item| (&item.key[..], item.entry))
            .collect();
        replica.take(at, basis, &entries, end)
    }

    /// The units of a run have been told.
    pub(super) fn note_units(&mut self, run: Run, region_bytes: u64) {
        let end = run.first + u64::from(run.units);
        let total = region_bytes.div_ceil(UNIT_BYTES);
        self.units_from = Some(end).filter(|end| *end < total);
    }

    /// Bytes of a region that are still to be told.
    pub(super) fn missing_bytes(&self, region_bytes: u64) -> u64 {
        let from = self.units_from;
        from.map_or(0, |unit| region_bytes.saturating_sub(unit * UNIT_BYTES))
    }

    /// The next one that may be applied if everything up to `stable` may.
    pub(super) fn next(&mut self, stable: Xid) -> Option<(Xid, Operation)> {
        let xid = self.applied() + 1;
        if xid > stable {
            return None;
        }
        Some((xid, self.buffer.pop_front()?))
    }
}

impl Parity {
    pub(super) fn new(
        slot: usize,
        scheme: Scheme,
        code: Arc<Code>,
        (hasher, region_bytes): (KeyHasher, u64),
        view: &View,
        is_joining: bool,
    ) -> Self {
        let partitions = code.k();
        let regions = match scheme {
            Scheme::Coded => 1,
            Scheme::Replicated => partitions,
        };
        let stream = |partition| Stream::of(view, partition, (hasher, region_bytes), is_joining);
        Self {
            slot,
            scheme,
            code,
            regions: (0..regions)
                .map(|_| Arc::new(Region::new(region_bytes)))
                .collect(),
            streams: (0..partitions).map(stream).collect(),
            hasher,
            held: None,
            taking: None,
            own: None,
            lost: 0,
            is_stale: false,
            attempts: BTreeMap::new(),
            subtracted: HashSet::new(),
        }
    }

    /// Where a partition's values or the parity are.
    pub(super) fn region(&self, partition: usize) -> &Arc<Region> {
        match self.scheme {
            Scheme::Coded => &self.regions[0],
            Scheme::Replicated => &self.regions[partition],
        }
    }

    /// Begins to take a partition's data in place of the parity. In copies they are there.
    pub(super) fn hold(&mut self, partition: usize) -> Option<Units> {
        match self.scheme {
            Scheme::Replicated => None,
            Scheme::Coded => {
                let units = Units::none(self.regions[0].bytes());
                let held = self.held.get_or_insert((partition, units));
                Some(held.1.clone())
            }
        }
    }

    /// The units of the partition that is held here.
    pub(super) fn held(&self) -> Option<&(usize, Units)> {
        self.held.as_ref()
    }

    /// The data have gone to another: what was held is no parity, and all units have to be told again.
    pub(super) fn empty(&mut self, view: &View) {
        self.held = None;
        for region in &mut self.regions {
            *region = Arc::new(Region::new(region.bytes()));
        }
        for (partition, stream) in self.streams.iter_mut().enumerate() {
            stream.units_from = (!view.is_lost(partition)).then_some(0);
        }
        self.forget_attempts();
    }

    /// Forgets what it had of partitions that were lost: nothing of what they begin with is here.
    pub(super) fn end_lost(&mut self, view: &View, is_joining: bool) {
        for (partition, begun) in view.begun.iter().enumerate() {
            if *begun == self.streams[partition].begun {
                continue;
            }
            let region_bytes = self.region(partition).bytes();
            let begins = (self.hasher, region_bytes);
            self.streams[partition] = Stream::of(view, partition, begins, is_joining);
            if self.scheme == Scheme::Replicated {
                self.regions[partition] = Arc::new(Region::new(region_bytes));
            }
        }
    }

    /// The mistake [`InjectedFault::SpentAsFull`].
    pub(super) fn count_as_full(&mut self) {
        self.held = None;
    }

    /// Attempts belong to one view.
    pub(super) fn forget_attempts(&mut self) {
        self.attempts.clear();
    }

    /// Applies what is stable of a partition.
    pub(super) fn apply(&mut self, partition: usize, stable: Xid) -> Result<(), Diverged> {
        while let Some((xid, operation)) = self.streams[partition].next(stable) {
            if let Effect::Put(entry) = operation.effect() {
                self.add(partition, entry.address, operation.change());
                if let Some(taking) = &self.taking
                    && taking.partition == partition
                {
                    taking.add(entry.address, operation.change());
                }
            }
            let replica = self.streams[partition].replica.as_mut();
            replica.map_or(Ok(()), |replica| replica.apply(xid, &operation, false))?;
        }
        Ok(())
    }

    /// Adds a change of a partition's bytes.
    pub(super) fn add(&mut self, partition: usize, address: u64, change: &[u8]) {
        let is_plain = self.held.is_none()
            && self.attempts.is_empty()
            && self.subtracted.is_empty()
            && self.streams[partition].units_from.is_none();
        if is_plain {
            return self.add_plainly(partition, address, change);
        }
        let mut at = address;
        let mut rest = change;
        while !rest.is_empty() {
            let unit = at / UNIT_BYTES;
            let room = usize::try_from((unit + 1) * UNIT_BYTES - at).expect("within a unit");
            let (part, behind) = rest.split_at(room.min(rest.len()));
            self.add_to_unit(partition, unit, at, part);
            at += part.len() as u64;
            rest = behind;
        }
    }

    fn add_plainly(&self, partition: usize, address: u64, change: &[u8]) {
        let region = self.region(partition);
        match self.scheme {
            Scheme::Replicated => region.xor(address, change),
            Scheme::Coded => region.add_scaled(&self.code, self.slot, partition, address, change),
        }
    }

    fn add_to_unit(&mut self, partition: usize, unit: u64, address: u64, part: &[u8]) {
        let from = self.streams[partition].units_from;
        if from.is_some_and(|from| unit >= from) {
            return;
        }
        if let Some((held, units)) = &self.held
            && units.has(unit)
        {
            if *held == partition {
                self.region(partition).xor(address, part);
            }
            return;
        }
        if !self.subtracted.contains(&(unit, partition)) {
            self.add_plainly(partition, address, part);
        }
        let before = self.attempts.range_mut(..=unit).next_back();
        if let Some((_, attempt)) = before
            && unit < attempt.run.first + u64::from(attempt.run.units)
            && attempt.known >> partition & 1 == 0
        {
            let start = usize::try_from(address - attempt.run.address()).expect("within a run");
            let rest = &mut attempt.rest[start..start + part.len()];
            self.code.update(self.slot, partition, part, rest);
        }
    }

    /// Takes units of a joining parity's partition.
    pub(super) fn copy(
        &mut self,
        partition: usize,
        at: Xid,
        run: Run,
        bytes: &[u8],
    ) -> Result<(), Diverged> {
        self.apply(partition, at)?;
        if let Some(taking) = &mut self.taking
            && taking.partition == partition
            && taking.copy(run, bytes)
        {
            return Ok(());
        }
        if self.streams[partition].units_from != Some(run.first) {
            return Ok(());
        }
        if !bytes.is_empty() {
            self.add_plainly(partition, run.address(), bytes);
        }
        let region_bytes = self.region(partition).bytes();
        self.streams[partition].note_units(run, region_bytes);
        Ok(())
    }

    /// Takes what an owner has of units that are to be recovered here. What is left once all owners
    /// have been heard is returned.
    pub(super) fn learn(
        &mut self,
        number: u64,
        run: Run,
        partition: usize,
        content: &Content,
    ) -> Result<Option<Residual>, Diverged> {
        let Some((_, units)) = &self.held else {
            return Ok(None);
        };
        if units.count(&run) > 0 || self.is_stale {
            return Ok(None);
        }
        if let Content::Known { at, bytes } = content {
            let stream = &self.streams[partition];
            let is_bad = !bytes.is_empty() && bytes.len() != run.bytes();
            let is_old = *at < stream.applied() && !is_injected(InjectedFault::UnitsOvertake);
            // Too old to agree with this parity, or of operations that are not here: asked again.
            if is_bad || is_old || *at > stream.latest || stream.replica.is_none() {
                return Ok(None);
            }
        }
        let is_open = self.open(number, run);
        if !is_open {
            return Ok(None);
        }
        if let Content::Known { at, .. } = content {
            self.apply(partition, *at)?;
        }
        let attempt = self.attempts.get_mut(&run.first).expect("it is open");
        match content {
            Content::Lost => attempt.lost |= 1 << partition,
            Content::Known { bytes, .. } if attempt.known >> partition & 1 == 0 => {
                attempt.known |= 1 << partition;
                if !bytes.is_empty() {
                    let rest = &mut attempt.rest;
                    self.code.update(self.slot, partition, bytes, rest);
                }
                if is_injected(InjectedFault::ResidualInPlace) {
                    self.subtract_in_place(run, partition, bytes);
                }
            }
            Content::Known { .. } => {}
        }
        let attempt = &self.attempts[&run.first];
        if attempt.known | attempt.lost | self.lost != all_of(self.streams.len()) {
            return Ok(None);
        }
        let attempt = self.attempts.remove(&run.first).expect("it is open");
        Ok(Some(Residual {
            lost: attempt.lost,
            bytes: attempt.rest.freeze(),
        }))
    }

    /// Begins an attempt, or finds it begun. False if a later one has been.
    fn open(&mut self, number: u64, run: Run) -> bool {
        let met: Vec<u64> = self
            .attempts
            .values()
            .filter(|attempt| attempt.run.meets(&run))
            .map(|attempt| attempt.run.first)
            .collect();
        for first in met {
            let attempt = &self.attempts[&first];
            if attempt.number > number {
                return false;
            }
            if attempt.number == number && attempt.run == run {
                return true;
            }
            self.attempts.remove(&first);
        }
        // Attempts that their leader gave up are not kept for ever.
        while self.attempts.len() >= ATTEMPTS_MAX {
            let oldest = self.attempts.values().min_by_key(|attempt| attempt.number);
            let Some(first) = oldest.map(|attempt| attempt.run.first) else {
                break;
            };
            self.attempts.remove(&first);
        }
        let mut rest = Buffer::new(run.bytes());
        self.regions[0].copy_out(run.address(), &mut rest);
        let attempt = Attempt {
            number,
            run,
            known: 0,
            lost: 0,
            rest,
        };
        self.attempts.insert(run.first, attempt);
        true
    }

    fn subtract_in_place(&mut self, run: Run, partition: usize, bytes: &[u8]) {
        for unit in run.first..run.first + u64::from(run.units) {
            if self.subtracted.insert((unit, partition)) && !bytes.is_empty() {
                let start = usize::try_from((unit - run.first) * UNIT_BYTES).expect("in a run");
                let part = &bytes[start..start + UNIT_BYTES as usize];
                self.add_plainly(partition, unit * UNIT_BYTES, part);
            }
        }
    }

    /// Puts recovered data where the parity was. Units that are there already stay as they are.
    /// Says how many were new and are not all zero.
    pub(super) fn install(&mut self, run: Run, bytes: &[u8]) -> u64 {
        let region = Arc::clone(&self.regions[0]);
        let Some((_, units)) = &mut self.held else {
            return 0;
        };
        let filled = install(&region, units, run, bytes);
        self.attempts.retain(|_, attempt| !attempt.run.meets(&run));
        filled
    }
}

impl Parity {
    /// As [`install`](Self::install), of a run of which nothing is there yet, where `solve` makes the bytes of
    /// each part of it in place. `None`: some of it is there.
    pub(super) fn install_in_place(
        &mut self,
        run: Run,
        mut solve: impl FnMut(Range<usize>, &mut [u8]),
    ) -> Option<u64> {
        let (_, units) = self.held.as_mut()?;
        if units.count(&run) > 0 {
            return None;
        }
        units.add_all(&run);
        let mut filled = 0;
        self.regions[0].fill(run.address(), run.bytes(), |range, part| {
            solve(range, part);
            let units = part.chunks(UNIT_BYTES as usize);
            filled += units.filter(|unit| !is_zero(unit)).count() as u64;
        });
        self.attempts.retain(|_, attempt| !attempt.run.meets(&run));
        Some(filled)
    }
}

/// Writes those units of a run that are not there yet; no bytes are zeroes. Says how many of them are
/// not all zero.
pub(super) fn install(region: &Region, units: &mut Units, run: Run, bytes: &[u8]) -> u64 {
    let filled = |part: &[u8]| u64::from(!is_zero(part));
    if !bytes.is_empty() && units.count(&run) == 0 {
        units.add_all(&run);
        region.write(run.address(), bytes);
        return bytes.chunks(UNIT_BYTES as usize).map(filled).sum();
    }
    let mut count = 0;
    let zeroes = [0; UNIT_BYTES as usize];
    let size = UNIT_BYTES as usize;
    for (index, unit) in (run.first..run.first + u64::from(run.units)).enumerate() {
        let part = bytes.get(index * size..(index + 1) * size);
        if units.add(unit) || is_injected(InjectedFault::LateDataOverwrites) {
            region.write(unit * UNIT_BYTES, part.unwrap_or(&zeroes));
            count += part.map_or(0, filled);
        }
    }
    count
}

/// The set of so many partitions, from 1 to 32.
fn all_of(partitions: usize) -> u32 {
    u32::MAX >> (u32::BITS as usize - partitions)
}
