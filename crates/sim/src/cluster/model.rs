//! What each sector of a client's volume may hold: every write that could be the last.
//!
//! A write is a version with a start and, once it has ended, an end, both in steps of the
//! simulation. A read that began at step `s` may return a version unless a write that was
//! acknowledged before `s` began after that version had ended. A write that failed may have
//! taken effect or not. Sectors are 512 bytes, the least that a front end may write.

use std::collections::BTreeMap;
use std::ops::Range;

use cenote_measure::random::mix;

/// Sectors of a page.
const PAGE: usize = cenote_volume::PAGE_BYTES / SECTOR_BYTES;

/// Bytes of a sector.
pub const SECTOR_BYTES: usize = 512;

/// The content of one write. 0: zeros.
type Content = u64;

#[derive(Clone, Copy, Debug)]
struct Version {
    content: Content,
    start: u64,
    /// `u64::MAX` while it runs.
    end: u64,
    is_acknowledged: bool,
    /// Its client ended meanwhile: each page of it is there, or is not.
    is_cut: bool,
    /// It failed, or its client ended and the next one could not redo it: any of its bytes may be there.
    may_be_torn: bool,
    /// It failed, and slabs had what was there before, and have it still unless they are lost.
    was_on_slabs: bool,
}

impl Version {
    /// Whether its page may be an error by it.
    fn may_be_unreadable(&self) -> bool {
        self.may_be_torn && !self.was_on_slabs
    }
}

/// The sectors of one volume.
pub struct Model {
    /// Tells bytes of this volume from those of others.
    nonce: u64,
    sectors: Vec<Vec<Version>>,
    contents_made: u64,
    /// Starts of the reads under way.
    reading: Vec<u64>,
    /// Pages that are errors, or what was acknowledged, until they are written whole.
    at_risk: BTreeMap<usize, Risk>,
}

/// Why a page may be an error, and in which steps.
#[derive(Clone, Copy, Debug)]
struct Risk {
    cause: Cause,
    since: u64,
    /// When it was written whole; `u64::MAX` before.
    until: u64,
}

/// Why a page may be an error.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// A split of it rotted.
    Rot,
    /// More hosts were lost than its extent survives.
    Lost,
    /// A split rotted, and no more than k splits of it were there for a while.
    RotAmongFew,
}

/// What excuses a request that fails.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Excuse {
    /// Everything that may happen to a page.
    Any,
    /// Enough splits are left to put right what rotted.
    AllButRot,
}

/// A sector that read as what it cannot hold.
#[derive(Debug)]
pub struct Wrong {
    /// Index of the sector.
    pub sector: usize,
    /// What its first bytes are, and what they might have been.
    pub detail: String,
}

impl Model {
    /// A volume that nobody has written.
    pub fn new(nonce: u64, size_bytes: u64) -> Self {
        let count =
            usize::try_from(size_bytes).expect("simulated volumes are small") / SECTOR_BYTES;
        let zeros = Version {
            content: 0,
            start: 0,
            end: 0,
            is_acknowledged: true,
            is_cut: false,
            may_be_torn: false,
            was_on_slabs: false,
        };
        Self {
            nonce,
            sectors: vec![vec![zeros]; count],
            contents_made: 0,
            reading: Vec::new(),
            at_risk: BTreeMap::new(),
        }
    }

    /// A content that no write had before.
    pub fn fresh_content(&mut self) -> u64 {
        self.contents_made += 1;
        self.contents_made
    }

    /// Puts the bytes of `content` for the sectors from `first` into `buffer`.
    pub fn fill(&self, content: Content, first: usize, buffer: &mut [u8]) {
        for (index, sector) in buffer.chunks_mut(SECTOR_BYTES).enumerate() {
            for (word, bytes) in sector.chunks_exact_mut(8).enumerate() {
                bytes.copy_from_slice(&self.word(content, first + index, word).to_le_bytes());
            }
        }
    }

    /// A write or discard of `count` sectors begins.
    pub fn begin_write(&mut self, content: Content, first: usize, count: usize, step: u64) {
        for sector in &mut self.sectors[first..first + count] {
            sector.push(Version {
                content,
                start: step,
                end: u64::MAX,
                is_acknowledged: false,
                is_cut: false,
                may_be_torn: false,
                was_on_slabs: false,
            });
        }
    }

    /// A write that failed found a page on slabs when it began. Unless another write met it there, the page is
    /// no error by it.
    pub fn note_on_slabs(&mut self, content: Content, page: usize, start: u64) {
        let sectors = &mut self.sectors[page * PAGE..][..PAGE];
        let is_it = |version: &Version| version.content == content && version.start == start;
        let mut others = sectors.iter().flatten().filter(|version| !is_it(version));
        if others.any(|other| other.end >= start) {
            return;
        }
        let failed = sectors
            .iter_mut()
            .flatten()
            .filter(|version| is_it(version));
        failed.for_each(|version| version.was_on_slabs = true);
    }

    /// It ended.
    pub fn end_write(
        &mut self,
        content: Content,
        (first, count): (usize, usize),
        start: u64,
        step: u64,
        is_acknowledged: bool,
    ) {
        if is_acknowledged {
            let whole = first.div_ceil(PAGE)..(first + count) / PAGE;
            // What rotted while the page was written may have rotted behind the write.
            let healed = self
                .at_risk
                .iter_mut()
                .filter(|(page, risk)| whole.contains(page) && risk.since < start);
            for (_, risk) in healed {
                risk.until = step.min(risk.until);
            }
        }
        let horizon = self.reading.iter().copied().min().unwrap_or(step);
        for sector in &mut self.sectors[first..first + count] {
            for version in sector.iter_mut() {
                if version.content == content && version.start == start {
                    version.end = step;
                    version.is_acknowledged = is_acknowledged;
                    version.may_be_torn = !is_acknowledged;
                }
            }
            let newest = newest_before(sector, horizon);
            sector.retain(|version| version.end >= newest);
        }
    }

    /// The client ends: what it was writing may be there or not, page by page.
    pub fn end_all(&mut self, step: u64) {
        self.reading.clear();
        for version in self.sectors.iter_mut().flatten() {
            if version.end == u64::MAX {
                version.end = step;
                version.is_cut = true;
            }
        }
    }

    /// What a client was writing to this page when it ended is not known to the next one: it may be there in
    /// part, or the page be an error.
    pub fn leave_unfinished(&mut self, page: usize) {
        let versions = self.sectors[page * PAGE..][..PAGE].iter_mut().flatten();
        for version in versions.filter(|version| version.is_cut) {
            version.may_be_torn = true;
        }
    }

    /// From this step on the page may be an error.
    pub fn risk(&mut self, page: usize, cause: Cause, step: u64) {
        let risk = Risk {
            cause,
            since: step,
            until: u64::MAX,
        };
        self.at_risk.insert(page, risk);
    }

    /// Of the pages that rotted, and have not been written whole since, no more than k splits are left.
    pub fn leave_few(&mut self, pages: Range<usize>) {
        let rotted = |risk: &&mut Risk| risk.cause == Cause::Rot && risk.until == u64::MAX;
        let at_risk = self.at_risk.range_mut(pages).map(|(_, risk)| risk);
        at_risk
            .filter(rotted)
            .for_each(|risk| risk.cause = Cause::RotAmongFew);
    }

    /// Whether a page is at risk, and has not been written whole since.
    pub fn is_at_risk(&self, page: usize) -> bool {
        let risk = self.at_risk.get(&page);
        risk.is_some_and(|risk| risk.until == u64::MAX)
    }

    /// Whether somebody writes to these sectors.
    pub fn is_being_written(&self, first: usize, count: usize) -> bool {
        let mut versions = self.sectors[first..first + count].iter().flatten();
        versions.any(|version| version.end == u64::MAX)
    }

    /// Whether a request of these sectors may fail although hosts are there: some page of them was
    /// being written when a write of it ended unknown, or rotted, and has not been written whole since.
    pub fn may_fail(&self, first: usize, count: usize, start: u64, excuse: Excuse) -> bool {
        let pages = first / PAGE * PAGE..(first + count).next_multiple_of(PAGE);
        let numbers = pages.start / PAGE..pages.end / PAGE;
        let mut risks = self.at_risk.range(numbers).map(|(_, risk)| risk);
        let counts = |risk: &Risk| excuse == Excuse::Any || risk.cause != Cause::Rot;
        if risks.any(|risk| risk.until > start && counts(risk)) {
            return true;
        }
        self.sectors[pages].iter().any(|versions| {
            let newest = newest_before(versions, start);
            let mut possible = versions.iter().filter(|version| version.end >= newest);
            possible.any(Version::may_be_unreadable)
        })
    }

    /// Whether a write that began then has ended, and pages of these sectors may be errors by it.
    pub fn made_unreadable(&self, start: u64, first: usize, count: usize) -> bool {
        let pages = first / PAGE * PAGE..(first + count).next_multiple_of(PAGE);
        let mut versions = self.sectors[pages].iter().flatten();
        versions.any(|version| version.start == start && version.may_be_unreadable())
    }

    /// A read begins.
    pub fn begin_read(&mut self, step: u64) {
        self.reading.push(step);
    }

    /// It ended without bytes.
    pub fn forget_read(&mut self, start: u64) {
        if let Some(at) = self.reading.iter().position(|&reading| reading == start) {
            self.reading.swap_remove(at);
        }
    }

    /// It ended with `bytes` from the sector `first` on.
    ///
    /// # Errors
    /// The first sector that holds what it cannot.
    pub fn end_read(&mut self, first: usize, bytes: &[u8], start: u64) -> Result<(), Wrong> {
        self.forget_read(start);
        for (index, bytes) in bytes.chunks(SECTOR_BYTES).enumerate() {
            let sector = first + index;
            let versions = &self.sectors[sector];
            let newest = newest_before(versions, start);
            let possible = || versions.iter().filter(|version| version.end >= newest);
            let is_whole = possible().any(|version| self.is(version.content, sector, bytes));
            let may_be_mixed = possible().any(|version| version.may_be_torn);
            if !(is_whole || may_be_mixed && self.is_mix(possible, sector, bytes)) {
                return Err(self.wrong(sector, bytes, start));
            }
        }
        Ok(())
    }

    fn wrong(&self, sector: usize, bytes: &[u8], start: u64) -> Wrong {
        let newest = newest_before(&self.sectors[sector], start);
        let possible: Vec<u64> = self.sectors[sector]
            .iter()
            .filter(|version| version.end >= newest)
            .map(|version| version.content)
            .collect();
        let found = (0..=self.contents_made)
            .rev()
            .find(|&content| self.is(content, sector, bytes));
        let found = match found {
            Some(content) => format!("write {content}"),
            None if bytes.iter().all(|&byte| byte == 0) => "zeros".to_owned(),
            None => format!("bytes of no write: {:02x?}", &bytes[..16]),
        };
        Wrong {
            sector,
            detail: format!("found {found}, possible are writes {possible:?}"),
        }
    }

    fn is(&self, content: Content, sector: usize, bytes: &[u8]) -> bool {
        let mut words = bytes.chunks_exact(8).enumerate();
        words.all(|(word, bytes)| *bytes == self.word(content, sector, word).to_le_bytes())
    }

    /// Whether each byte is of one of the versions.
    fn is_mix<'a, V: Iterator<Item = &'a Version>>(
        &self,
        versions: impl Fn() -> V,
        sector: usize,
        bytes: &[u8],
    ) -> bool {
        bytes.iter().enumerate().all(|(at, byte)| {
            versions().any(|version| {
                self.word(version.content, sector, at / 8).to_le_bytes()[at % 8] == *byte
            })
        })
    }

    fn word(&self, content: Content, sector: usize, word: usize) -> u64 {
        if content == 0 {
            return 0;
        }
        let place = (sector as u64) << 8 | word as u64;
        mix(self.nonce ^ mix(content ^ place << 24))
    }
}

/// The latest start of a write that was acknowledged before `step`: what ended before it is over.
fn newest_before(versions: &[Version], step: u64) -> u64 {
    let done = versions
        .iter()
        .filter(|version| version.is_acknowledged && version.end < step);
    done.map(|version| version.start).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sector(model: &Model, content: u64) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR_BYTES];
        model.fill(content, 3, &mut bytes);
        bytes
    }

    #[test]
    fn a_read_sees_the_last_write_or_one_that_overlaps_it() {
        let mut model = Model::new(7, 8 * SECTOR_BYTES as u64);
        let (old, new) = (model.fresh_content(), model.fresh_content());
        model.begin_write(old, 3, 1, 1);
        model.end_write(old, (3, 1), 1, 2, true);
        model.begin_read(3);
        model.begin_write(new, 3, 1, 4);
        model.end_write(new, (3, 1), 4, 5, true);
        let (old_bytes, new_bytes) = (sector(&model, old), sector(&model, new));
        assert!(
            model.end_read(3, &old_bytes, 3).is_ok(),
            "began before the new write"
        );
        model.begin_read(3);
        assert!(model.end_read(3, &new_bytes, 3).is_ok());
        model.begin_read(6);
        assert!(model.end_read(3, &old_bytes, 6).is_err(), "a stale read");
        model.begin_read(7);
        assert!(
            model.end_read(3, &[0; SECTOR_BYTES], 7).is_err(),
            "a lost write"
        );
    }

    #[test]
    fn a_failed_write_may_have_taken_effect_until_the_next() {
        let mut model = Model::new(7, 8 * SECTOR_BYTES as u64);
        let (failed, next) = (model.fresh_content(), model.fresh_content());
        model.begin_write(failed, 3, 1, 1);
        model.end_write(failed, (3, 1), 1, 2, false);
        let bytes = sector(&model, failed);
        model.begin_read(3);
        assert!(model.end_read(3, &bytes, 3).is_ok());
        model.begin_read(4);
        assert!(model.end_read(3, &[0; SECTOR_BYTES], 4).is_ok());
        model.begin_write(next, 3, 1, 5);
        model.end_write(next, (3, 1), 5, 6, true);
        model.begin_read(7);
        assert!(model.end_read(3, &bytes, 7).is_err());
    }

    #[test]
    fn a_write_that_failed_before_slabs_is_no_reason_for_another_to_fail() {
        let mut model = Model::new(7, 16 * SECTOR_BYTES as u64);
        let (first, second) = (model.fresh_content(), model.fresh_content());
        model.begin_write(first, 0, 8, 1);
        model.end_write(first, (0, 8), 1, 2, false);
        assert!(model.may_fail(0, 1, 3, Excuse::Any) && model.made_unreadable(1, 3, 1));
        assert!(!model.made_unreadable(1, 8, 8), "another page");
        model.note_on_slabs(first, 0, 1);
        assert!(!model.may_fail(0, 1, 3, Excuse::Any) && !model.made_unreadable(1, 3, 1));
        // Two at a time: the one may have taken the page from its slabs.
        model.begin_write(first, 8, 8, 4);
        model.begin_write(second, 9, 1, 5);
        assert!(!model.made_unreadable(4, 8, 8), "it still runs");
        model.end_write(first, (8, 8), 4, 6, false);
        model.note_on_slabs(first, 1, 4);
        assert!(model.may_fail(8, 1, 7, Excuse::Any));
    }

    #[test]
    fn a_write_that_ended_unknown_may_be_there_in_part() {
        let mut model = Model::new(7, 16 * SECTOR_BYTES as u64);
        let (old, torn) = (model.fresh_content(), model.fresh_content());
        model.begin_write(old, 3, 1, 1);
        model.end_write(old, (3, 1), 1, 2, true);
        let mut mixed = sector(&model, old);
        model.begin_write(torn, 3, 1, 3);
        mixed[..100].copy_from_slice(&sector(&model, torn)[..100]);
        model.begin_read(4);
        assert!(model.end_read(3, &mixed, 4).is_err(), "it still runs");
        assert!(!model.may_fail(0, 8, 4, Excuse::Any));
        model.end_all(5);
        model.begin_read(6);
        assert!(model.end_read(3, &mixed, 6).is_err(), "it is redone");
        assert!(!model.may_fail(0, 8, 6, Excuse::Any));
        for content in [old, torn] {
            model.begin_read(6);
            assert!(model.end_read(3, &sector(&model, content), 6).is_ok());
        }
        model.leave_unfinished(1);
        assert!(!model.may_fail(0, 8, 6, Excuse::Any), "another page");
        model.leave_unfinished(0);
        model.begin_read(6);
        assert!(model.end_read(3, &mixed, 6).is_ok());
        assert!(model.may_fail(0, 1, 6, Excuse::AllButRot), "on its page");
        assert!(!model.may_fail(8, 8, 6, Excuse::Any), "on the next");
        mixed[300] ^= 1;
        model.begin_read(7);
        assert!(model.end_read(3, &mixed, 7).is_err(), "a byte of nobody");
        model.begin_write(0, 0, 8, 8);
        model.end_write(0, (0, 8), 8, 9, true);
        assert!(!model.may_fail(0, 8, 10, Excuse::Any));
    }

    #[test]
    fn what_is_at_risk_may_be_an_error_and_nothing_else_until_it_is_written_whole() {
        let mut model = Model::new(7, 16 * SECTOR_BYTES as u64);
        let old = model.fresh_content();
        model.begin_write(old, 0, 8, 1);
        model.end_write(old, (0, 8), 1, 2, true);
        model.risk(0, Cause::Rot, 2);
        let may_fail = |model: &Model, first, start| model.may_fail(first, 1, start, Excuse::Any);
        assert!(may_fail(&model, 3, 3) && !may_fail(&model, 8, 3));
        model.begin_read(3);
        assert!(model.end_read(3, &[0; SECTOR_BYTES], 3).is_err());
        let new = model.fresh_content();
        model.begin_write(new, 0, 4, 4);
        model.end_write(new, (0, 4), 4, 5, true);
        let part = model.fresh_content();
        model.begin_write(part, 1, 2, 5);
        model.end_write(part, (1, 2), 5, 6, true);
        assert!(may_fail(&model, 3, 7), "written in part");
        model.begin_write(new, 0, 8, 7);
        model.end_write(new, (0, 8), 7, 8, true);
        assert!(may_fail(&model, 3, 7), "began before");
        assert!(!may_fail(&model, 3, 9));
    }

    #[test]
    fn what_rotted_while_it_was_written_stays_at_risk() {
        let mut model = Model::new(7, 8 * SECTOR_BYTES as u64);
        let content = model.fresh_content();
        model.begin_write(content, 0, 8, 1);
        model.risk(0, Cause::Rot, 2);
        model.end_write(content, (0, 8), 1, 3, true);
        assert!(model.is_at_risk(0) && model.may_fail(0, 1, 4, Excuse::Any));
        assert!(!model.may_fail(0, 1, 4, Excuse::AllButRot));
        model.begin_write(content, 0, 8, 5);
        model.end_write(content, (0, 8), 5, 6, true);
        assert!(!model.is_at_risk(0) && !model.may_fail(0, 1, 7, Excuse::Any));
    }

    #[test]
    fn what_rotted_is_excused_where_too_few_splits_were_left() {
        let mut model = Model::new(7, 16 * SECTOR_BYTES as u64);
        model.risk(0, Cause::Rot, 1);
        model.risk(1, Cause::Rot, 1);
        model.leave_few(1..2);
        assert!(!model.may_fail(0, 1, 2, Excuse::AllButRot));
        assert!(model.may_fail(8, 1, 2, Excuse::AllButRot));
    }

    #[test]
    fn bytes_of_another_place_or_volume_are_wrong() {
        let mut model = Model::new(7, 8 * SECTOR_BYTES as u64);
        let content = model.fresh_content();
        model.begin_write(content, 0, 8, 1);
        model.end_write(content, (0, 8), 1, 2, true);
        let mut bytes = sector(&model, content);
        model.begin_read(3);
        assert!(model.end_read(3, &bytes, 3).is_ok());
        model.begin_read(3);
        assert!(
            model.end_read(4, &bytes, 3).is_err(),
            "the next sector's place"
        );
        Model::new(8, 4096).fill(content, 3, &mut bytes);
        model.begin_read(3);
        assert!(
            model.end_read(3, &bytes, 3).is_err(),
            "another volume's bytes"
        );
    }
}
