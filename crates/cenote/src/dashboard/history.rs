//! What rates and latencies were in the last hour: rings of a fixed number of slots, in memory alone.
//!
//! A slot is [`SLOT`] long and has a number, counted from the start of the process. What comes within
//! one slot counts once; slots in which nothing was known stay empty. At most [`VOLUMES_MAX`] volumes
//! have a history of their own.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::snapshot::{Counted, Operations};

/// Length of a slot.
pub const SLOT: Duration = Duration::from_secs(10);
/// Slots of an hour.
pub const SLOTS: usize = 360;
/// Most volumes with a history.
const VOLUMES_MAX: usize = 256;

/// A ring of slots.
#[derive(Clone, Debug)]
struct Ring<T> {
    /// Number of the latest slot.
    latest: u64,
    /// The latest last.
    slots: VecDeque<Option<T>>,
}

impl<T: Copy> Ring<T> {
    fn new() -> Self {
        Self {
            latest: 0,
            slots: VecDeque::new(),
        }
    }

    /// Notes a value; those before it in the same slot are replaced, late ones are left out.
    fn put(&mut self, slot: u64, value: Option<T>) {
        if self.slots.is_empty() {
            self.slots.push_back(value);
            self.latest = slot;
            return;
        }
        let Some(passed) = slot.checked_sub(self.latest) else {
            return;
        };
        if passed == 0 {
            *self.slots.back_mut().expect("not empty") = value;
            return;
        }
        for _ in 1..passed.min(SLOTS as u64) {
            self.push(None);
        }
        self.push(value);
        self.latest = slot;
    }

    fn push(&mut self, value: Option<T>) {
        if self.slots.len() == SLOTS {
            self.slots.pop_front();
        }
        self.slots.push_back(value);
    }

    fn at(&self, slot: u64) -> Option<T> {
        let back = usize::try_from(self.latest.checked_sub(slot)?).ok()?;
        let index = self.slots.len().checked_sub(back + 1)?;
        self.slots[index]
    }
}

/// What a volume did in a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Pages per second.
    pub reads: f64,
    /// Pages per second.
    pub writes: f64,
    /// Requests per second.
    pub failed: f64,
    /// Slab bytes per second.
    pub rebuilt_bytes: f64,
    /// Of requests of one page; none where none was timed.
    pub read_p50_us: Option<f64>,
    pub read_p99_us: Option<f64>,
    pub write_p50_us: Option<f64>,
    pub write_p99_us: Option<f64>,
}

impl Rates {
    /// Between two countings; `None`: it was counted again meanwhile, by another owner.
    pub fn between(before: &Counted, after: &Counted) -> Option<Self> {
        let seconds = after.at.checked_sub(before.at)?.as_secs_f64();
        if seconds <= 0.0 {
            return None;
        }
        let rate = |of: fn(&Counted) -> u64| {
            let came = of(after).checked_sub(of(before))?;
            Some(came as f64 / seconds)
        };
        let reads = came(&before.read, &after.read)?;
        let writes = came(&before.write, &after.write)?;
        Some(Self {
            reads: rate(|counted| counted.pages_read)?,
            writes: rate(|counted| counted.pages_written)?,
            failed: rate(|counted| counted.requests_failed)?,
            rebuilt_bytes: rate(|counted| counted.rebuilt_bytes)?,
            read_p50_us: quantile_us(&reads, 50),
            read_p99_us: quantile_us(&reads, 99),
            write_p50_us: quantile_us(&writes, 50),
            write_p99_us: quantile_us(&writes, 99),
        })
    }

    /// Of both together; of latencies the longer.
    fn with(self, other: Self) -> Self {
        let longer = |one: Option<f64>, two: Option<f64>| match (one, two) {
            (Some(one), Some(two)) => Some(one.max(two)),
            (one, two) => one.or(two),
        };
        Self {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            failed: self.failed + other.failed,
            rebuilt_bytes: self.rebuilt_bytes + other.rebuilt_bytes,
            read_p50_us: longer(self.read_p50_us, other.read_p50_us),
            read_p99_us: longer(self.read_p99_us, other.read_p99_us),
            write_p50_us: longer(self.write_p50_us, other.write_p50_us),
            write_p99_us: longer(self.write_p99_us, other.write_p99_us),
        }
    }
}

/// Durations that came to a histogram: longest duration of each bucket in nanoseconds, and how many.
fn came(before: &[(u64, u64)], after: &[(u64, u64)]) -> Option<Vec<(u64, u64)>> {
    let mut earlier = before.iter().copied().peekable();
    let mut came = Vec::with_capacity(after.len());
    for &(upper, count) in after {
        while earlier.next_if(|(known, _)| *known < upper).is_some() {}
        let known = earlier.next_if(|(known, _)| *known == upper);
        let count = count.checked_sub(known.map_or(0, |(_, count)| count))?;
        came.push((upper, count));
    }
    Some(came)
}

/// What so many of a hundred did not pass, in microseconds.
fn quantile_us(buckets: &[(u64, u64)], percent: u64) -> Option<f64> {
    let all = buckets
        .iter()
        .fold(0_u64, |sum, (_, count)| sum.saturating_add(*count));
    let rank = all.saturating_mul(percent).div_ceil(100);
    let mut seen = 0_u64;
    let within = buckets.iter().find(|(_, count)| {
        seen = seen.saturating_add(*count);
        all > 0 && seen >= rank
    });
    within.map(|(upper, _)| *upper as f64 / 1e3)
}

/// Memory of the cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    pub lent_bytes: u64,
    pub free_bytes: u64,
}

/// The last hour.
#[derive(Debug)]
pub struct History {
    memory: Ring<Memory>,
    /// Operations of the key-value store, by partition.
    operations: Counters<(usize, usize)>,
    /// Bytes put into stores.
    put: Counters<String>,
    volumes: BTreeMap<String, Volume>,
}

/// What several count, all together per second.
#[derive(Debug)]
struct Counters<K> {
    rates: Ring<f64>,
    /// What was counted last: in which slot, when, and by whom how much.
    counted: Option<(u64, Duration, BTreeMap<K, u64>)>,
}

impl<K: Clone + Ord> Counters<K> {
    fn new() -> Self {
        Self {
            rates: Ring::new(),
            counted: None,
        }
    }

    fn note(&mut self, at: Duration, counted: &BTreeMap<K, u64>) {
        let slot = slot_of(at);
        if let Some((counted_slot, then, before)) = &self.counted {
            if slot <= *counted_slot {
                return;
            }
            let seconds = at.saturating_sub(*then).as_secs_f64();
            // Who was silent meanwhile would add all that it ever did; who was started again counts
            // from the beginning.
            let came = counted
                .iter()
                .filter_map(|(who, count)| count.checked_sub(*before.get(who)?));
            let came = came.reduce(u64::saturating_add).filter(|_| seconds > 0.0);
            self.rates.put(slot, came.map(|came| came as f64 / seconds));
        }
        self.counted = Some((slot, at, counted.clone()));
    }
}

#[derive(Debug)]
struct Volume {
    rates: Ring<Rates>,
    /// In which slot it was counted last, and what.
    counted: (u64, Counted),
}

/// The slot of a time since the start.
fn slot_of(at: Duration) -> u64 {
    at.as_secs() / SLOT.as_secs()
}

impl History {
    /// Of nothing yet.
    pub fn new() -> Self {
        Self {
            memory: Ring::new(),
            operations: Counters::new(),
            put: Counters::new(),
            volumes: BTreeMap::new(),
        }
    }

    /// What hosts lend.
    pub fn note_memory(&mut self, at: Duration, memory: Memory) {
        self.memory.put(slot_of(at), Some(memory));
    }

    /// What a volume has counted so far. Rates of a slot are those since the last slot's first counting.
    pub fn note_volume(&mut self, name: &str, counted: &Counted) {
        let slot = slot_of(counted.at);
        if let Some(volume) = self.volumes.get_mut(name) {
            if slot > volume.counted.0 {
                let rates = Rates::between(&volume.counted.1, counted);
                volume.rates.put(slot, rates);
                volume.counted = (slot, counted.clone());
            }
            return;
        }
        self.volumes
            .retain(|_, volume| slot.saturating_sub(volume.counted.0) < SLOTS as u64);
        if self.volumes.len() < VOLUMES_MAX {
            let volume = Volume {
                rates: Ring::new(),
                counted: (slot, counted.clone()),
            };
            self.volumes.insert(name.to_owned(), volume);
        }
    }

    /// Operations of the key-value store so far.
    pub fn note_operations(&mut self, at: Duration, counted: &Operations) {
        self.operations.note(at, counted);
    }

    /// Bytes that clients have put into each store so far, by its address.
    pub fn note_put(&mut self, at: Duration, counted: &BTreeMap<String, u64>) {
        self.put.note(at, counted);
    }

    /// What is drawn: the hour up to `now`, of one volume or of all together; `None`: none of that name.
    pub fn hour(&self, now: Duration, volume: Option<&str>) -> Option<Hour> {
        let last = slot_of(now);
        let slots: Vec<Option<u64>> = (0..SLOTS as u64)
            .map(|index| (last + 1 + index).checked_sub(SLOTS as u64))
            .collect();
        let chosen: Vec<&Volume> = match volume {
            Some(name) => vec![self.volumes.get(name)?],
            None => self.volumes.values().collect(),
        };
        let rates = slots.iter().map(|slot| {
            let known = chosen.iter().filter_map(|volume| volume.rates.at((*slot)?));
            known.reduce(Rates::with)
        });
        let rates: Vec<Option<Rates>> = rates.collect();
        let of = |figure: fn(&Rates) -> Option<f64>| {
            let rounded = |rates: &Option<Rates>| rates.as_ref().and_then(figure).map(round);
            rates.iter().map(rounded).collect::<Vec<_>>()
        };
        let memory = |figure: fn(&Memory) -> u64| {
            let at = |slot: &Option<u64>| self.memory.at((*slot)?).as_ref().map(figure);
            slots.iter().map(at).collect()
        };
        let rounded = |rates: &Ring<f64>| {
            let at = |slot: &Option<u64>| rates.at((*slot)?).map(round);
            slots.iter().map(at).collect()
        };
        Some(Hour {
            slot_s: SLOT.as_secs(),
            volumes: self.volumes.keys().cloned().collect(),
            reads: of(|rates| Some(rates.reads)),
            writes: of(|rates| Some(rates.writes)),
            rebuilt_bytes: of(|rates| Some(rates.rebuilt_bytes)),
            read_p50_us: of(|rates| rates.read_p50_us),
            read_p99_us: of(|rates| rates.read_p99_us),
            write_p50_us: of(|rates| rates.write_p50_us),
            write_p99_us: of(|rates| rates.write_p99_us),
            lent_bytes: memory(|memory| memory.lent_bytes),
            free_bytes: memory(|memory| memory.free_bytes),
            operations: rounded(&self.operations.rates),
            put_bytes: rounded(&self.put.rates),
        })
    }
}

/// Digits beyond these are noise, and bytes of each answer.
fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The last hour, oldest first; none where nothing is known.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Hour {
    /// Length of a slot in seconds.
    pub slot_s: u64,
    /// Volumes with a history.
    pub volumes: Vec<String>,
    pub reads: Vec<Option<f64>>,
    pub writes: Vec<Option<f64>>,
    pub rebuilt_bytes: Vec<Option<f64>>,
    pub read_p50_us: Vec<Option<f64>>,
    pub read_p99_us: Vec<Option<f64>>,
    pub write_p50_us: Vec<Option<f64>>,
    pub write_p99_us: Vec<Option<f64>>,
    pub lent_bytes: Vec<Option<u64>>,
    pub free_bytes: Vec<Option<u64>>,
    /// Of the key-value store.
    pub operations: Vec<Option<f64>>,
    /// Into stores of objects.
    pub put_bytes: Vec<Option<f64>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(at_s: u64, reads: u64, read: &[(u64, u64)]) -> Counted {
        Counted {
            at: Duration::from_secs(at_s),
            pages_read: reads,
            read: read.to_vec(),
            ..Counted::default()
        }
    }

    #[test]
    fn rates_and_latencies_are_of_what_came_between() {
        let before = counted(100, 1_000, &[(1_023, 50), (8_191, 1)]);
        let after = counted(110, 1_600, &[(1_023, 50), (2_047, 98), (8_191, 3)]);
        let rates = Rates::between(&before, &after).unwrap();
        assert_eq!((rates.reads, rates.writes), (60.0, 0.0));
        // Of 100 that came 98 are within 2.047 us.
        assert_eq!(rates.read_p50_us, Some(2.047));
        assert_eq!(rates.read_p99_us, Some(8.191));
        assert_eq!(rates.write_p99_us, None);
    }

    #[test]
    fn another_owner_counts_again() {
        let before = counted(100, 1_000, &[(1_023, 50)]);
        assert_eq!(Rates::between(&before, &counted(110, 10, &[])), None);
        let fewer = counted(110, 2_000, &[(1_023, 49)]);
        assert_eq!(Rates::between(&before, &fewer), None);
        assert_eq!(Rates::between(&before, &before), None, "no time passed");
    }

    #[test]
    fn an_hour_is_kept_and_no_more() {
        let mut history = History::new();
        for slot in 0..2 * SLOTS as u64 {
            history.note_volume("v", &counted(slot * 10, slot * slot, &[]));
        }
        let ring = &history.volumes["v"].rates;
        assert_eq!(ring.slots.len(), SLOTS);
        let now = Duration::from_secs(719 * 10);
        let hour = history.hour(now, Some("v")).unwrap();
        assert_eq!(hour.reads.len(), SLOTS);
        // 719 squared less 718 squared, over ten seconds.
        assert_eq!(hour.reads[SLOTS - 1], Some(143.7));
        assert_eq!(hour.reads[0], Some(71.9));
        assert_eq!(history.hour(now, Some("w")), None);
    }

    #[test]
    fn a_while_without_answers_is_a_gap() {
        let mut history = History::new();
        history.note_volume("v", &counted(0, 0, &[]));
        history.note_volume("v", &counted(10, 10, &[]));
        history.note_volume("v", &counted(40, 40, &[]));
        let hour = history.hour(Duration::from_secs(45), None).unwrap();
        let tail = &hour.reads[SLOTS - 5..];
        assert_eq!(tail, [None, Some(1.0), None, None, Some(1.0)]);
        // Later than an hour nothing is left, and nothing is kept of it.
        let late = Duration::from_secs(40 + 3_600);
        let hour = history.hour(late, None).unwrap();
        assert!(hour.reads.iter().all(Option::is_none));
        history.note_volume("w", &counted(late.as_secs(), 0, &[]));
        assert_eq!(history.volumes.keys().collect::<Vec<_>>(), ["w"]);
    }

    #[test]
    fn volumes_that_come_and_go_do_not_fill_the_memory() {
        let mut history = History::new();
        for index in 0..2 * VOLUMES_MAX {
            history.note_volume(&format!("v{index}"), &counted(0, 0, &[]));
        }
        assert_eq!(history.volumes.len(), VOLUMES_MAX);
    }

    #[test]
    fn all_together_is_the_sum_of_rates_and_the_longest_latency() {
        let mut history = History::new();
        for (name, reads, upper) in [("v", 100, 2_047), ("w", 300, 4_095)] {
            history.note_volume(name, &counted(0, 0, &[]));
            history.note_volume(name, &counted(10, reads, &[(upper, 5)]));
        }
        let hour = history.hour(Duration::from_secs(10), None).unwrap();
        assert_eq!(hour.reads[SLOTS - 1], Some(40.0));
        assert_eq!(hour.read_p99_us[SLOTS - 1], Some(4.1));
        assert_eq!(hour.volumes, ["v", "w"]);
    }

    #[test]
    fn memory_and_operations_have_slots_as_well() {
        let mut history = History::new();
        let memory = |lent_bytes| Memory {
            lent_bytes,
            free_bytes: 5,
        };
        history.note_memory(Duration::from_secs(1), memory(1));
        history.note_memory(Duration::from_secs(9), memory(2));
        for (at_s, count) in [(1, 100), (11, 150), (21, 20), (31, 40)] {
            let counted = Operations::from([((0, 0), count)]);
            history.note_operations(Duration::from_secs(at_s), &counted);
        }
        let hour = history.hour(Duration::from_secs(31), None).unwrap();
        assert_eq!(hour.lent_bytes[SLOTS - 4..], [Some(2), None, None, None]);
        let rates = &hour.operations[SLOTS - 4..];
        assert_eq!(rates, [None, Some(5.0), None, Some(2.0)]);
    }

    #[test]
    fn bytes_put_into_stores_are_summed_and_one_that_was_started_again_takes_nothing_away() {
        let mut history = History::new();
        for (at_s, one, two) in [(1, 100, 7), (11, 1_100, 507), (21, 40, 1_507)] {
            let counted = [("one".to_owned(), one), ("two".to_owned(), two)];
            history.note_put(Duration::from_secs(at_s), &BTreeMap::from(counted));
        }
        let hour = history.hour(Duration::from_secs(21), None).unwrap();
        assert_eq!(hour.put_bytes[SLOTS - 2..], [Some(150.0), Some(100.0)]);
    }

    #[test]
    fn a_partition_that_was_silent_makes_no_peak() {
        let (a, b) = ((0, 0), (1, 0));
        let mut history = History::new();
        for (at_s, counted) in [
            (1, Operations::from([(a, 100), (b, 10_000_000)])),
            (11, Operations::from([(a, 150)])),
            (21, Operations::from([(a, 200), (b, 10_000_010)])),
        ] {
            history.note_operations(Duration::from_secs(at_s), &counted);
        }
        let hour = history.hour(Duration::from_secs(21), None).unwrap();
        assert_eq!(hour.operations[SLOTS - 2..], [Some(5.0), Some(5.0)]);
    }
}
