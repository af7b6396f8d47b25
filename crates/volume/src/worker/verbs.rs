//! The verbs of an operation: which are out, and what came of them.
//!
//! [`Verbs`] is bit sets over the members of its stripe. Whoever posts says for which it waits; each completion is
//! noted, and tells whether the operation goes on.

use cenote_fabric::Token;

/// Bit of [`Verbs::pending`] that stands for "the parities are yet to be posted".
pub const ENCODING: u64 = 1 << 63;

/// Verbs that are out, and that have ended.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Verbs {
    /// Members whose verb is out; [`ENCODING`] while parities are not posted.
    pub pending: u64,
    /// Members whose verb succeeded; of a read, whose splits are there.
    pub acked: u64,
    /// Whether one failed.
    pub failed: bool,
    /// Splits that a read needs; of writes, which need all, 0.
    wants: u32,
    /// Nothing lands any more of what is out.
    pub revoked: bool,
    /// Of copies that are read, the one that lands in the page.
    pub primary: u8,
}

impl Verbs {
    /// Nothing has been posted to anybody: what ended before does not count.
    #[inline]
    pub fn reset(&mut self) {
        (self.acked, self.failed, self.wants) = (0, false, 0);
    }

    /// Reads of these members go out, of which so many are needed.
    #[inline]
    pub fn begin_read(&mut self, chosen: u64, wants: u32) {
        self.reset();
        self.pending = chosen;
        self.wants = chosen.count_ones().min(wants);
    }

    /// Reads of more members go out, all of which are needed.
    pub fn ask_more(&mut self, more: u64) {
        self.pending = more;
        self.wants = (self.acked | more).count_ones();
    }

    /// Nothing of what is out counts, for an operation that goes on without it.
    pub fn without_late(self) -> Self {
        Self {
            pending: 0,
            revoked: false,
            ..self
        }
    }

    /// A verb that completed as it was posted.
    #[inline]
    pub fn note_at_once(&mut self, ended: u64) {
        self.acked |= ended;
        self.pending &= !ended;
    }

    /// A verb has ended; of one that nobody waits for it does not count how.
    pub fn note_end(&mut self, member: usize, is_ok: bool) {
        let bit = 1 << member;
        self.pending &= !bit;
        if !is_ok {
            self.failed = true;
        } else if !self.revoked {
            self.acked |= bit;
        }
    }

    /// Whether no verb is out.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.pending == 0
    }

    /// Whether a read has what it needs, and nobody has gone on with it.
    #[inline]
    pub fn is_served(&self) -> bool {
        self.wants != 0 && !self.revoked && self.acked.count_ones() >= self.wants
    }

    /// Whether too few splits came: some host failed, and nothing is out any more.
    #[inline]
    pub fn is_short(&self) -> bool {
        self.acked.count_ones() < self.wants
    }

    /// Has what is out not count any more: which members that is, the first time. When nothing is out any
    /// more, what is posted next counts.
    #[inline]
    pub fn revoke(&mut self) -> u64 {
        if self.is_over() {
            self.revoked = false;
        }
        if self.revoked || self.is_over() {
            return 0;
        }
        self.revoked = true;
        self.pending
    }

    /// Parities are posted from here on: those that are not.
    pub fn take_parities(&mut self, k: usize) -> u64 {
        self.pending &= !ENCODING;
        self.pending >> k << k
    }

    /// Members whose verb is out.
    pub fn out(&self) -> u64 {
        self.pending & !ENCODING
    }
}

/// What a verb moves.
#[derive(Clone, Copy, Eq, PartialEq)]
pub enum Verb {
    Read,
    Write,
}

/// Names a verb of an operation.
pub fn token(op: u16, split: usize) -> Token {
    u64::from(op) << 8 | split as u64
}

/// Where among the spare pages a copy lands that does not land in the page itself.
pub fn spare_of(copy: usize, primary: u8) -> Option<usize> {
    let primary = usize::from(primary);
    match copy {
        _ if copy == primary => None,
        0 => Some(primary - 1),
        _ => Some(copy - 1),
    }
}

/// The set bits of `mask`, lowest first.
pub fn bits(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        (mask != 0).then(|| {
            let bit = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            bit
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_served_by_any_so_many_of_those_it_asked() {
        let mut verbs = Verbs::default();
        verbs.begin_read(0b1011, 2);
        verbs.note_end(3, true);
        assert!(!verbs.is_served() && !verbs.is_over());
        verbs.note_end(0, true);
        assert!(verbs.is_served() && !verbs.is_short() && !verbs.is_over());
        assert_eq!(verbs.revoke(), 0b0010);
        assert_eq!(verbs.revoke(), 0, "once");
        assert!(!verbs.is_served(), "somebody has gone on with it");
        verbs.note_end(1, true);
        assert_eq!((verbs.acked, verbs.is_over()), (0b1001, true), "too late");
    }

    #[test]
    fn a_read_whose_hosts_failed_is_short() {
        let mut verbs = Verbs::default();
        verbs.begin_read(0b11, 2);
        verbs.note_end(0, false);
        verbs.note_end(1, true);
        assert!(verbs.is_over() && verbs.is_short() && verbs.failed);
        verbs.begin_read(0b110, 2);
        assert!(!verbs.failed && verbs.acked == 0, "it begins anew");
    }

    #[test]
    fn parities_that_are_encoded_hold_a_write_open() {
        let mut verbs = Verbs {
            pending: 0b1_1111 | ENCODING,
            ..Verbs::default()
        };
        (0..3).for_each(|data| verbs.note_end(data, true));
        assert!(!verbs.is_over());
        assert_eq!((verbs.out(), verbs.take_parities(3)), (0b1_1000, 0b1_1000));
        verbs.note_at_once(0b1_1000);
        assert!(verbs.is_over() && verbs.acked == 0b1_1111);
    }
}
