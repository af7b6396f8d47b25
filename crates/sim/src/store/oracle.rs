//! What is known of a store from outside, and what it may not say.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Whether what was said is allowed, and if not why.
pub type Checked = Result<(), String>;

/// What was known when a read began.
#[derive(Clone, Copy, Debug)]
pub struct Floor {
    /// The newest version that had been told.
    told: u64,
    /// Sequences of earlier lives are below this.
    life: u64,
    /// How many versions were known to be gone.
    gone: usize,
}

/// What clients meant, and were told.
#[derive(Default)]
pub struct Oracle {
    /// Of each key, what each version is meant to be; `None` is a deletion.
    meant: HashMap<u64, BTreeMap<u64, Option<Vec<u8>>>>,
    /// Values, and deletions, that were asked for when the crash came.
    pub unknown: Vec<(u64, Option<Vec<u8>>)>,
    /// The newest version of a key that was told as durable.
    told: HashMap<u64, u64>,
    sequences: HashSet<u64>,
    /// Of each key, versions that were told as durable, or read.
    seen: HashMap<u64, BTreeSet<u64>>,
    /// Versions that were put in place of another: nothing is between the two.
    replaced: Vec<(u64, u64, u64)>,
    /// Versions of earlier lives that were not there any more when somebody looked, each with how many
    /// were known before.
    gone: HashMap<u64, usize>,
    /// Sequences of earlier lives are below this.
    life_floor: u64,
    /// What clients asked and were told, for who looks for the cause; `None`: nobody does.
    pub history: Option<Vec<String>>,
}

impl Oracle {
    /// Notes an event, if anybody wants to know.
    pub fn note(&mut self, event: impl FnOnce() -> String) {
        if let Some(history) = &mut self.history {
            history.push(event());
        }
    }

    /// Another life of the store begins.
    pub fn begin_life(&mut self) {
        self.life_floor = self.sequences.iter().max().map_or(0, |max| max + 1);
    }

    /// A version was given to somebody who means to write this.
    pub fn allocated(&mut self, key: u64, sequence: u64, value: Option<Vec<u8>>) -> Checked {
        // Somebody may have read it before its writer was told.
        let is_known = self.meant.get(&key).and_then(|one| one.get(&sequence)) == Some(&value);
        if !self.sequences.insert(sequence) && !is_known {
            return Err(format!("sequence {sequence} comes twice"));
        }
        self.meant.entry(key).or_default().insert(sequence, value);
        Ok(())
    }

    /// A version was told as one that is there from now on.
    pub fn tell(&mut self, key: u64, sequence: u64) {
        let told = self.told.entry(key).or_default();
        *told = sequence.max(*told);
        self.seen.entry(key).or_default().insert(sequence);
    }

    /// A change was made in place of the version `before`, and of no other.
    pub fn replaced(&mut self, key: u64, before: u64, sequence: u64) {
        self.replaced.push((key, before, sequence));
    }

    /// Whether each change that names a version was made in place of it.
    pub fn check_replaced(&self) -> Checked {
        for (key, before, sequence) in &self.replaced {
            if sequence <= before {
                return Err(format!(
                    "key {key}: {sequence} was put in place of {before}"
                ));
            }
            let seen = self.seen.get(key);
            let mut between = seen
                .into_iter()
                .flat_map(|seen| seen.range(before + 1..*sequence));
            if let Some(other) = between.next() {
                return Err(format!(
                    "key {key}: {sequence} was put in place of {before}, and {other} was there"
                ));
            }
        }
        Ok(())
    }

    /// The newest version that was told.
    pub fn told(&self, key: u64) -> u64 {
        self.told.get(&key).copied().unwrap_or(0)
    }

    /// What was asked for and not known has become known: a version, or nothing.
    pub fn known(&mut self, key: u64, value: Option<&Vec<u8>>) {
        let is_it = |one: &(u64, Option<Vec<u8>>)| one.0 == key && one.1.as_ref() == value;
        if let Some(at) = self.unknown.iter().position(is_it) {
            self.unknown.swap_remove(at);
        }
    }

    /// What a read that begins now may not fall behind.
    pub fn floor(&self, key: u64) -> Floor {
        Floor {
            told: self.told(key),
            life: self.life_floor,
            gone: self.gone.len(),
        }
    }

    /// A read said this. What is said is durable if `is_durable`.
    pub fn check(&mut self, key: u64, said: Option<(u64, Vec<u8>)>, is_durable: bool) -> Checked {
        self.check_since(key, self.floor(key), said, is_durable)
    }

    /// The same of a read that was begun a while ago.
    pub fn check_since(
        &mut self,
        key: u64,
        floor: Floor,
        said: Option<(u64, Vec<u8>)>,
        is_durable: bool,
    ) -> Checked {
        let Floor { told, life, gone } = floor;
        let meant = self.meant.entry(key).or_default();
        let Some((sequence, value)) = said else {
            let mut later = meant.range(told.max(1)..);
            let is_deleted = later.any(|(_, value)| value.is_none());
            let may_be = self.unknown.contains(&(key, None));
            return match told > 0 && !is_deleted && !may_be {
                true => Err(format!("key {key}: version {told} was told and is gone")),
                false => Ok(()),
            };
        };
        let is_meant = meant.get(&sequence) == Some(&Some(value.clone()));
        let is_unknown =
            !meant.contains_key(&sequence) && self.unknown.contains(&(key, Some(value.clone())));
        if !is_meant && !is_unknown {
            return Err(format!(
                "key {key}, version {sequence}: {value:?}, which nobody wrote; meant {:?}",
                meant.get(&sequence)
            ));
        }
        // What was read before the crash may be told after it, unless it was durable.
        let gone_at = self.gone.get(&sequence);
        if gone_at.is_some_and(|at| is_durable || *at < gone) {
            return Err(format!("key {key}: {sequence} was gone and is back"));
        }
        if sequence < told {
            return Err(format!("key {key}: {sequence} after {told} was told"));
        }
        let earlier = meant.range(sequence + 1..life.max(sequence + 1));
        for (later, _) in earlier {
            let known = self.gone.len();
            self.gone.entry(*later).or_insert(known);
        }
        meant.insert(sequence, Some(value));
        self.sequences.insert(sequence);
        self.seen.entry(key).or_default().insert(sequence);
        if is_durable {
            self.tell(key, sequence);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_before_a_crash_may_be_told_after_it_unless_it_was_durable() {
        for is_durable in [false, true] {
            let mut oracle = Oracle::default();
            let version = |sequence: u64| Some((sequence, vec![sequence as u8]));
            for sequence in [1, 2] {
                let value = Some(vec![sequence as u8]);
                oracle.allocated(7, sequence, value).unwrap();
            }
            let before = oracle.floor(7);
            oracle.begin_life();
            // The second is gone.
            oracle.check(7, version(1), false).unwrap();
            let late = oracle.check_since(7, before, version(2), is_durable);
            assert_eq!(late.is_err(), is_durable);
            assert!(oracle.check(7, version(2), false).is_err());
        }
    }
}
