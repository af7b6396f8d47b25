//! The log of versions and the index of the model: which there are, which are whole, durable,
//! named.
//!
//! No time in here. Versions are numbered in the order of the log; the first `keys` of them are
//! those that every key has from the start, durable.

use cenote_store::schemes::Named;

/// A version, by its place in the log.
pub type Version = u32;

#[derive(Clone, Copy, Debug)]
struct State {
    key: u32,
    /// What the index named when this one was allocated.
    previous: Option<Version>,
    is_whole: bool,
    is_durable: bool,
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Versions {
    named: Named,
    log: Vec<State>,
    /// What the index names, by key.
    index: Vec<Version>,
}

impl Versions {
    /// So many keys with a durable version each.
    #[must_use]
    pub fn new(keys: u32, named: Named) -> Self {
        let first = |key| State {
            key,
            previous: None,
            is_whole: true,
            is_durable: true,
        };
        Self {
            named,
            log: (0..keys).map(first).collect(),
            index: (0..keys).collect(),
        }
    }

    /// Appends a version whose value is not there yet.
    pub fn allocate(&mut self, key: u32) -> Version {
        let version = Version::try_from(self.log.len()).expect("a run has fewer versions");
        self.log.push(State {
            key,
            previous: Some(self.newest(key)),
            is_whole: false,
            is_durable: false,
        });
        if self.named == Named::AtAllocation {
            self.index[key as usize] = version;
        }
        version
    }

    /// Its value is there.
    pub fn land(&mut self, version: Version) {
        self.log[version as usize].is_whole = true;
    }

    /// It is durable; whether it was not before. The index never goes back to an older version.
    ///
    /// # Panics
    /// Its value is not there.
    pub fn make_durable(&mut self, version: Version) -> bool {
        let state = &mut self.log[version as usize];
        assert!(state.is_whole, "an incomplete version was made durable");
        let was_durable = std::mem::replace(&mut state.is_durable, true);
        let named = &mut self.index[state.key as usize];
        *named = version.max(*named);
        !was_durable
    }

    /// What the index names.
    #[must_use]
    pub fn newest(&self, key: u32) -> Version {
        self.index[key as usize]
    }

    /// The version before.
    #[must_use]
    pub fn older(&self, version: Version) -> Option<Version> {
        self.log[version as usize].previous
    }

    /// Whether its value is there.
    #[must_use]
    pub fn is_whole(&self, version: Version) -> bool {
        self.log[version as usize].is_whole
    }

    /// Whether it is durable.
    #[must_use]
    pub fn is_durable(&self, version: Version) -> bool {
        self.log[version as usize].is_durable
    }

    /// How many there were so far: the next one's number.
    #[must_use]
    pub fn count(&self) -> Version {
        Version::try_from(self.log.len()).expect("a run has fewer versions")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_named_at_allocation_or_when_it_is_durable() {
        let mut early = Versions::new(2, Named::AtAllocation);
        let version = early.allocate(1);
        assert_eq!((early.newest(0), early.newest(1)), (0, version));
        assert!(!early.is_whole(version) && !early.is_durable(version));
        assert_eq!(early.older(version), Some(1));

        let mut late = Versions::new(2, Named::WhenDurable);
        let version = late.allocate(1);
        late.land(version);
        assert_eq!(late.newest(1), 1);
        assert!(late.make_durable(version));
        assert!(!late.make_durable(version), "only once");
        assert_eq!(late.newest(1), version);
    }

    #[test]
    fn the_index_does_not_go_back() {
        let mut versions = Versions::new(1, Named::WhenDurable);
        let (first, second) = (versions.allocate(0), versions.allocate(0));
        for version in [second, first] {
            versions.land(version);
            versions.make_durable(version);
        }
        assert_eq!(versions.newest(0), second);
    }
}
