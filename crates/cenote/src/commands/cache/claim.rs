//! Which manager of a cache comes next, agreed on at etcd: for a cache whose folder several machines
//! can reach, or that was copied.
//!
//! One key for each cache holds the epoch of its last manager, and the place where that one ran. A
//! journal of an earlier manager is refused, unless it is that place's own: a lock of the machine
//! keeps others out there. The epoch is what fences: hosts refuse a lower one from then on. What no
//! host sees, machines and the table, is fenced by a look at the key, again and again: see
//! [`Agreement`].

use std::cmp::Ordering;
use std::time::Duration;

use cenote_cache::service::{Agreement, Claimed};
use cenote_kv_cluster::etcd::Etcd;
use cenote_kv_cluster::store::Swap;

/// How long etcd may be silent when a manager starts: less than who starts it waits for.
const PATIENCE: Duration = Duration::from_secs(10);

/// The key of one cache, for the manager in one place.
pub struct AtEtcd {
    etcd: Etcd,
    key: String,
    place: String,
}

impl AtEtcd {
    pub fn new(etcd: Etcd, cache: u128, place: String) -> Self {
        let key = format!("/cenote/caches/{cache:032x}");
        Self { etcd, key, place }
    }

    fn none_of_a_cache(&self) -> String {
        format!("{} at etcd is not a cache's key", self.key)
    }
}

impl Agreement for AtEtcd {
    fn claim(&mut self, last: u64) -> Result<Claimed, String> {
        // Without an answer the manager does not start.
        let etcd = self.etcd.patient(PATIENCE);
        let found = etcd.read(&self.key);
        let found = found.map_err(|error| error.to_string())?;
        let (revision, stored) = match &found {
            None => (0, None),
            Some(entry) => {
                let stored = parse(&entry.value).ok_or_else(|| self.none_of_a_cache())?;
                (entry.mod_revision, Some(stored))
            }
        };
        let epoch = next(stored, &self.place, last)?;
        let may_have_rival = may_have_rival(stored, &self.place, last);
        let value = format!("{epoch} {}", self.place);
        match etcd.swap(&self.key, revision, value.as_bytes(), None) {
            Ok(Swap::Done(_)) => Ok(Claimed {
                epoch,
                may_have_rival,
            }),
            Ok(Swap::Changed(_)) => Err("another manager started at the same time".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    fn is_last(&mut self, epoch: u64) -> Result<bool, String> {
        let found = self.etcd.read(&self.key);
        let found = found.map_err(|error| error.to_string())?;
        // Where etcd lost it, nobody can say who claimed what meanwhile.
        let lost = || {
            let key = &self.key;
            format!("{key} at etcd is older than this manager: start the manager again")
        };
        let entry = found.ok_or_else(lost)?;
        let (stored, place) = parse(&entry.value).ok_or_else(|| self.none_of_a_cache())?;
        match stored.cmp(&epoch) {
            Ordering::Less => Err(lost()),
            Ordering::Equal => Ok(place == self.place),
            Ordering::Greater => Ok(false),
        }
    }
}

/// Whether a manager elsewhere may act still: the last that claimed was there, or it was here and
/// never began, as the epoch of its journal tells. That one may have waited for a rival itself.
fn may_have_rival(stored: Option<(u64, &str)>, place: &str, last: u64) -> bool {
    stored.is_some_and(|(epoch, other)| other != place || epoch > last)
}

/// The epoch that follows.
fn next(stored: Option<(u64, &str)>, place: &str, last: u64) -> Result<u64, String> {
    let highest = match stored {
        Some((epoch, other)) if epoch > last && other != place => {
            return Err(format!(
                "the journal here is that of manager {last}, but manager {epoch} has started at \
                 {other}"
            ));
        }
        Some((epoch, _)) => epoch.max(last),
        None => last,
    };
    highest
        .checked_add(1)
        .ok_or_else(|| "no epochs left".to_owned())
}

fn parse(value: &[u8]) -> Option<(u64, &str)> {
    let (epoch, place) = std::str::from_utf8(value).ok()?.split_once(' ')?;
    Some((epoch.parse().ok()?, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_journal_is_refused_where_another_manager_went_on_elsewhere() {
        assert_eq!(next(None, "here", 3), Ok(4));
        assert_eq!(
            next(Some((3, "there")), "here", 3),
            Ok(4),
            "the newest journal"
        );
        assert_eq!(
            next(Some((5, "here")), "here", 3),
            Ok(6),
            "it claimed, and could not write"
        );
        let refused = next(Some((5, "there")), "here", 3).unwrap_err();
        assert!(
            refused.contains("manager 5 has started at there"),
            "{refused}"
        );
        assert!(next(Some((u64::MAX, "here")), "here", 3).is_err());
    }

    #[test]
    fn a_claim_that_was_never_begun_may_still_have_a_rival() {
        assert!(!may_have_rival(None, "here", 3));
        assert!(!may_have_rival(Some((3, "here")), "here", 3));
        assert!(may_have_rival(Some((3, "there")), "here", 3));
        // It claimed, and ended while it waited for the manager before it.
        assert!(may_have_rival(Some((4, "here")), "here", 3));
    }

    #[test]
    fn only_what_a_manager_wrote_is_believed() {
        assert_eq!(parse(b"7 /srv/well on 1"), Some((7, "/srv/well on 1")));
        for value in [&b"7"[..], b"", b"x y", b"\xff 1", b"-1 y"] {
            assert_eq!(parse(value), None);
        }
    }
}
