//! Which manager of a cache comes next, agreed on at etcd: for a cache whose folder several machines
//! can reach, or that was copied.
//!
//! One key for each cache holds the epoch of its last manager, and the place where that one ran. A
//! journal of an earlier manager is refused, unless it is that place's own: a lock of the machine
//! keeps others out there. An epoch that was only claimed, by a manager that never began, makes no
//! journal an earlier one: beside it the key still has the last that did begin. The epoch is what
//! fences: hosts refuse a lower one from then on. What no host sees, machines and the table, is
//! fenced by a look at the key, again and again: see [`Agreement`].

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
        // A line of the key's value.
        let place = place.replace('\n', " ");
        Self { etcd, key, place }
    }

    fn parse<'a>(&self, value: &'a [u8]) -> Result<Stored<'a>, String> {
        parse(value).ok_or_else(|| format!("{} at etcd is not a cache's key", self.key))
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
                let stored = self.parse(&entry.value)?;
                (entry.mod_revision, Some(stored))
            }
        };
        let epoch = next(stored, &self.place, last)?;
        let may_have_rival = may_have_rival(stored, &self.place, last);
        let value = claim_of(epoch, &self.place, stored.and_then(|stored| stored.begun));
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
        let (stored, place) = self.parse(&entry.value)?.last;
        match stored.cmp(&epoch) {
            Ordering::Less => Err(lost()),
            Ordering::Equal => Ok(place == self.place),
            Ordering::Greater => Ok(false),
        }
    }

    fn begin(&mut self, epoch: u64) -> Result<bool, String> {
        let etcd = self.etcd.patient(PATIENCE);
        let found = etcd.read(&self.key);
        let found = found.map_err(|error| error.to_string())?;
        let Some(entry) = found else {
            return Err(format!(
                "{} at etcd is gone: start the manager again",
                self.key
            ));
        };
        if self.parse(&entry.value)?.last != (epoch, &*self.place) {
            return Ok(false);
        }
        let value = format!("{epoch} {}", self.place);
        match etcd.swap(&self.key, entry.mod_revision, value.as_bytes(), None) {
            Ok(Swap::Done(_)) => Ok(true),
            Ok(Swap::Changed(_)) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// An epoch, and where its manager is.
type At<'a> = (u64, &'a str);

/// What the key holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Stored<'a> {
    /// The last that was claimed.
    last: At<'a>,
    /// The last that began, which may be the same.
    begun: Option<At<'a>>,
}

/// Whether a manager elsewhere may act still: the last that claimed was there, or it was here and
/// never began, as the epoch of its journal tells. That one may have waited for a rival itself.
fn may_have_rival(stored: Option<Stored<'_>>, place: &str, last: u64) -> bool {
    stored.is_some_and(|stored| stored.last.1 != place || stored.last.0 > last)
}

/// The epoch that follows.
fn next(stored: Option<Stored<'_>>, place: &str, last: u64) -> Result<u64, String> {
    if let Some((epoch, other)) = stored.and_then(|stored| stored.begun)
        && epoch > last
        && other != place
    {
        return Err(format!(
            "the journal here is that of manager {last}, but manager {epoch} has started at \
             {other}"
        ));
    }
    let highest = stored.map_or(last, |stored| stored.last.0.max(last));
    highest
        .checked_add(1)
        .ok_or_else(|| "no epochs left".to_owned())
}

/// A claim, and behind it the last that began.
fn claim_of(epoch: u64, place: &str, begun: Option<At<'_>>) -> String {
    let begun = begun.map(|(epoch, place)| format!("{epoch} {place}"));
    format!("{epoch} {place}\n{}", begun.unwrap_or_default())
}

fn at(line: &str) -> Option<At<'_>> {
    let (epoch, place) = line.split_once(' ')?;
    Some((epoch.parse().ok()?, place))
}

fn parse(value: &[u8]) -> Option<Stored<'_>> {
    let text = std::str::from_utf8(value).ok()?;
    let Some((claim, begun)) = text.split_once('\n') else {
        let last = at(text)?;
        let begun = Some(last);
        return Some(Stored { last, begun });
    };
    let begun = match begun {
        "" => None,
        begun => Some(at(begun)?),
    };
    Some(Stored {
        last: at(claim)?,
        begun,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begun(at: At<'_>) -> Option<Stored<'_>> {
        Some(Stored {
            last: at,
            begun: Some(at),
        })
    }

    #[test]
    fn an_old_journal_is_refused_where_another_manager_went_on_elsewhere() {
        assert_eq!(next(None, "here", 3), Ok(4));
        let newest = begun((3, "there"));
        assert_eq!(next(newest, "here", 3), Ok(4), "the newest journal");
        let lost = begun((5, "here"));
        assert_eq!(next(lost, "here", 3), Ok(6), "it lost its journal");
        let refused = next(begun((5, "there")), "here", 3).unwrap_err();
        assert!(
            refused.contains("manager 5 has started at there"),
            "{refused}"
        );
        assert!(next(begun((u64::MAX, "here")), "here", 3).is_err());
    }

    #[test]
    fn a_claim_of_a_manager_that_never_began_keeps_no_other_out_and_hides_none_that_began() {
        let value = claim_of(6, "there", Some((5, "here")));
        let claimed = parse(value.as_bytes());
        assert_eq!(next(claimed, "elsewhere", 5), Ok(7));
        assert_eq!(next(claimed, "here", 5), Ok(7));
        let refused = next(claimed, "elsewhere", 4).unwrap_err();
        assert!(
            refused.contains("manager 5 has started at here"),
            "{refused}"
        );
        let first = claim_of(1, "there", None);
        assert_eq!(next(parse(first.as_bytes()), "here", 0), Ok(2));
    }

    #[test]
    fn a_claim_that_was_never_begun_may_still_have_a_rival() {
        assert!(!may_have_rival(None, "here", 3));
        assert!(!may_have_rival(begun((3, "here")), "here", 3));
        assert!(may_have_rival(begun((3, "there")), "here", 3));
        // It claimed, and ended while it waited for the manager before it.
        let value = claim_of(4, "here", Some((3, "there")));
        assert!(may_have_rival(parse(value.as_bytes()), "here", 3));
    }

    #[test]
    fn only_what_a_manager_wrote_is_believed() {
        assert_eq!(parse(b"7 /srv/well on 1"), begun((7, "/srv/well on 1")));
        for value in [
            &b"7"[..],
            b"",
            b"x y",
            b"\xff 1",
            b"-1 y",
            b"8 x\n7",
            b"8\n7 x",
        ] {
            assert_eq!(parse(value), None);
        }
    }
}
