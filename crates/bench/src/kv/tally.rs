//! What a load came to: times of requests, and everything that was not as it should be.

use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

/// A request of the load.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Get,
    Set,
}

impl Kind {
    pub(crate) const ALL: [Self; 2] = [Self::Get, Self::Set];
}

/// Counts of one thread, or of all together.
pub(crate) struct Tally {
    times: [Histogram<u64>; 2],
    /// GETs of what was stored and is not there.
    pub(crate) misses: u64,
    /// Values with a wrong byte.
    pub(crate) wrong: u64,
    /// Values older than an acknowledged write, or that nobody wrote.
    pub(crate) stale: u64,
    /// Requests answered with an error.
    pub(crate) refused: u64,
    /// Requests whose connection ended before the answer.
    pub(crate) lost: u64,
    /// Requests for which there was no connection.
    pub(crate) unserved: u64,
    /// The first of each kind of trouble, in words.
    pub(crate) complaints: Vec<String>,
    /// By time of the answer, if asked for.
    pub(crate) slices: Vec<Slice>,
}

/// What happened in one [`SLICE`] of time.
#[derive(Clone)]
pub(crate) struct Slice {
    times: [Histogram<u64>; 2],
    /// Requests refused, lost or unserved.
    pub(crate) failed: u64,
}

/// Resolution over time.
pub(crate) const SLICE: Duration = Duration::from_millis(100);

/// How many complaints are kept; more say nothing new.
const COMPLAINTS_MAX: usize = 5;

impl Tally {
    /// Of nothing; with so many slices, if times are wanted by time.
    pub(crate) fn new(slice_count: usize) -> Result<Self> {
        Ok(Self {
            times: [fine()?, fine()?],
            misses: 0,
            wrong: 0,
            stale: 0,
            refused: 0,
            lost: 0,
            unserved: 0,
            complaints: Vec::new(),
            slices: vec![Slice::new()?; slice_count],
        })
    }

    /// A request was answered as it should be.
    pub(crate) fn answered(&mut self, kind: Kind, began_ns: u64, now_ns: u64) {
        let time = now_ns.saturating_sub(began_ns);
        self.times[kind as usize].saturating_record(time);
        if let Some(slice) = self.slice(now_ns) {
            slice.times[kind as usize].saturating_record(time);
        }
    }

    /// A request was not.
    pub(crate) fn failed(&mut self, now_ns: u64) {
        if let Some(slice) = self.slice(now_ns) {
            slice.failed += 1;
        }
    }

    pub(crate) fn complain(&mut self, what: impl FnOnce() -> String) {
        if self.complaints.len() < COMPLAINTS_MAX {
            self.complaints.push(what());
        }
    }

    fn slice(&mut self, now_ns: u64) -> Option<&mut Slice> {
        let index = u128::from(now_ns) / SLICE.as_nanos();
        self.slices.get_mut(usize::try_from(index).ok()?)
    }

    /// Takes in what another thread counted.
    pub(crate) fn add(&mut self, other: Self) -> Result<()> {
        add_times(&mut self.times, &other.times)?;
        self.misses += other.misses;
        self.wrong += other.wrong;
        self.stale += other.stale;
        self.refused += other.refused;
        self.lost += other.lost;
        self.unserved += other.unserved;
        self.complaints.extend(other.complaints);
        self.complaints.truncate(COMPLAINTS_MAX);
        for (slice, other) in self.slices.iter_mut().zip(other.slices) {
            add_times(&mut slice.times, &other.times)?;
            slice.failed += other.failed;
        }
        Ok(())
    }

    /// Requests answered.
    pub(crate) fn count(&self, kind: Kind) -> u64 {
        self.times[kind as usize].len()
    }

    /// Requests answered, of both kinds.
    pub(crate) fn total(&self) -> u64 {
        Kind::ALL.iter().map(|kind| self.count(*kind)).sum()
    }

    /// `None` where there was no such request.
    pub(crate) fn quantile_us(&self, kind: Kind, quantile: f64) -> Option<f64> {
        quantile_us(&self.times[kind as usize], quantile)
    }

    /// Of requests of both kinds together; `None` where there was none.
    ///
    /// # Errors
    /// Times that do not add up: a mistake of this file.
    pub(crate) fn quantile_of_all_us(&self, quantile: f64) -> Result<Option<f64>> {
        let [mut all, sets] = self.times.clone();
        all.add(sets)?;
        Ok(quantile_us(&all, quantile))
    }

    /// What must never be, whatever happened to a server.
    pub(crate) fn is_sound(&self) -> bool {
        self.wrong == 0 && self.stale == 0
    }

    /// Requests refused, lost or unserved.
    pub(crate) fn failures(&self) -> u64 {
        self.refused + self.lost + self.unserved
    }

    /// Counts of what was not as it should be, for people.
    pub(crate) fn troubles(&self) -> String {
        format!(
            "{} misses, {} values wrong, {} stale; {} requests refused, {} lost, {} not served{}{}",
            self.misses,
            self.wrong,
            self.stale,
            self.refused,
            self.lost,
            self.unserved,
            if self.complaints.is_empty() { "" } else { ": " },
            self.complaints.join("; ")
        )
    }
}

impl Slice {
    /// Several slices as one.
    pub(crate) fn joined<'a>(slices: impl Iterator<Item = &'a Self>) -> Result<Self> {
        let mut sum = Self::new()?;
        for slice in slices {
            add_times(&mut sum.times, &slice.times)?;
            sum.failed += slice.failed;
        }
        Ok(sum)
    }

    fn new() -> Result<Self> {
        Ok(Self {
            times: [coarse()?, coarse()?],
            failed: 0,
        })
    }

    pub(crate) fn total(&self) -> u64 {
        self.times.iter().map(Histogram::len).sum()
    }

    pub(crate) fn quantile_us(&self, kind: Kind, quantile: f64) -> Option<f64> {
        quantile_us(&self.times[kind as usize], quantile)
    }
}

fn quantile_us(times: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!times.is_empty()).then(|| times.value_at_quantile(quantile) as f64 / 1e3)
}

fn add_times(sums: &mut [Histogram<u64>; 2], parts: &[Histogram<u64>; 2]) -> Result<()> {
    for (sum, part) in sums.iter_mut().zip(parts) {
        sum.add(part)?;
    }
    Ok(())
}

fn fine() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(100, LONGEST_NS, 3)?)
}

/// There is one for each slice.
fn coarse() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1000, LONGEST_NS, 2)?)
}

/// Longer times count as this long.
const LONGEST_NS: u64 = 60_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_add_up_and_slices_hold_what_ended_in_them() {
        let mut sum = Tally::new(2).unwrap();
        let slice = u64::try_from(SLICE.as_nanos()).unwrap();
        for _ in 0..2 {
            let mut part = Tally::new(2).unwrap();
            part.answered(Kind::Get, 0, 2_000);
            part.answered(Kind::Set, slice - 1_000, slice + 4_000);
            part.answered(Kind::Get, 0, slice * 9);
            part.failed(slice);
            part.misses = 1;
            part.complain(|| "x".to_owned());
            sum.add(part).unwrap();
        }
        assert_eq!((sum.count(Kind::Get), sum.count(Kind::Set)), (4, 2));
        assert_eq!((sum.total(), sum.misses, sum.complaints.len()), (6, 2, 2));
        let of: Vec<_> = sum
            .slices
            .iter()
            .map(|one| (one.total(), one.failed))
            .collect();
        assert_eq!(of, [(2, 0), (2, 2)], "what ended later is in none");
        let p50 = sum.slices[1].quantile_us(Kind::Set, 0.5).unwrap();
        assert!((4.5..5.5).contains(&p50), "{p50}");
        assert_eq!(sum.slices[1].quantile_us(Kind::Get, 0.5), None);
    }
}
