//! Requests that failed beside a write that may explain it, until that has ended.
//!
//! A page of a write of several ends before the write does. One that the disk was to take alone, and refused, is an
//! error from then on; that the write failed by it is known when its last page has ended. What failed in between
//! is excused then, as what fails later is (`model`), or it is a trouble like any other.

use std::collections::BTreeSet;

use super::Trouble;

/// Failures to be judged yet.
#[derive(Default)]
pub(super) struct Suspects(Vec<Suspect>);

/// The sectors of a request: the first and how many.
type Sectors = (usize, usize);

struct Suspect {
    trouble: Trouble,
    sectors: Sectors,
    /// Starts of the writes that may explain it.
    writes: BTreeSet<u64>,
}

impl Suspects {
    /// A request of some sectors failed while these writes ran, at least one.
    pub fn note(&mut self, trouble: Trouble, sectors: Sectors, writes: BTreeSet<u64>) {
        self.0.push(Suspect {
            trouble,
            sectors,
            writes,
        });
    }

    /// A write has ended that may explain failures of some sectors; what nothing explains any more.
    pub fn end_write(&mut self, start: u64, explains: impl Fn(Sectors) -> bool) -> Vec<Trouble> {
        let mut troubles = Vec::new();
        for mut suspect in std::mem::take(&mut self.0) {
            let was_one = suspect.writes.remove(&start);
            if was_one && explains(suspect.sectors) {
                continue;
            }
            if suspect.writes.is_empty() {
                troubles.push(suspect.trouble);
            } else {
                self.0.push(suspect);
            }
        }
        troubles
    }

    /// The client has ended: nobody ends its writes.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suspect(writes: &[u64]) -> Suspects {
        let mut suspects = Suspects::default();
        let trouble = Trouble::Wrong("failed".to_owned());
        suspects.note(trouble, (3, 1), writes.iter().copied().collect());
        suspects
    }

    #[test]
    fn a_failure_is_excused_by_one_of_its_writes_and_else_told_at_the_last() {
        let mut excused = suspect(&[5, 7]);
        assert!(excused.end_write(5, |_| false).is_empty(), "one still runs");
        assert!(excused.end_write(7, |sectors| sectors == (3, 1)).is_empty());
        assert!(excused.end_write(7, |_| false).is_empty(), "judged once");

        let mut told = suspect(&[5, 7]);
        assert!(told.end_write(6, |_| true).is_empty(), "another write");
        assert!(told.end_write(7, |_| false).is_empty());
        assert_eq!(told.end_write(5, |_| false).len(), 1);
    }
}
