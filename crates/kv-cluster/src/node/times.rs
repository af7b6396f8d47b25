//! When a node's recoveries went on, by the clock on the wall.

use std::time::SystemTime;

use cenote_kv::group::Takeover;
use serde::{Deserialize, Serialize};

/// What turns a lane's time into that of the wall.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Clock {
    /// The lane's, nanoseconds.
    now: u64,
    /// The same moment.
    unix_us: u64,
}

/// A partition that the node took over from one that was lost. Times in microseconds since 1970.
#[derive(Clone, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct TakeoverReport {
    /// Its number in the group.
    pub partition: usize,
    /// The view that said so.
    pub view: u32,
    /// The view was taken up.
    pub began_unix_us: Option<u64>,
    /// All parities agreed on what was acknowledged.
    pub settled_unix_us: Option<u64>,
    /// The former owner's lease had surely run out; none: it had none from here.
    pub lease_over_unix_us: Option<u64>,
    /// Requests were answered from then on.
    pub served_unix_us: Option<u64>,
    /// Every value was there.
    pub ended_unix_us: Option<u64>,
    /// Bytes of lost units that were solved for, without those that are all zero.
    pub rebuilt_bytes: u64,
}

/// A view that the node had proposed, and that was agreed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize, Deserialize)]
pub struct AgreedReport {
    /// Whose.
    pub group: usize,
    /// Its number.
    pub view: u32,
    /// When etcd said so, in microseconds since 1970.
    pub at_unix_us: u64,
}

impl Clock {
    pub(in super::super) fn at(now: u64) -> Self {
        Self {
            now,
            unix_us: unix_us(),
        }
    }

    fn of(self, moment: u64) -> u64 {
        let later = moment.saturating_sub(self.now) / 1000;
        let earlier = self.now.saturating_sub(moment) / 1000;
        (self.unix_us + later).saturating_sub(earlier)
    }
}

impl TakeoverReport {
    pub(super) fn of(takeover: &Takeover, clock: Clock) -> Self {
        let unix = |moment: Option<u64>| moment.map(|moment| clock.of(moment));
        let lease_over = Some(takeover.lease_over).filter(|at| *at > 0);
        Self {
            partition: takeover.partition,
            view: takeover.view,
            began_unix_us: unix(takeover.began),
            settled_unix_us: unix(takeover.settled),
            lease_over_unix_us: unix(lease_over),
            served_unix_us: unix(takeover.served),
            ended_unix_us: unix(takeover.ended),
            rebuilt_bytes: takeover.rebuilt_bytes,
        }
    }
}

impl AgreedReport {
    pub(super) fn now(group: usize, view: u32) -> Self {
        Self {
            group,
            view,
            at_unix_us: unix_us(),
        }
    }
}

fn unix_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_and_after_are_told_by_the_wall() {
        let clock = Clock {
            now: 5_000_000,
            unix_us: 1_000_000,
        };
        assert_eq!(clock.of(5_000_000), 1_000_000);
        assert_eq!(clock.of(2_000_000), 997_000);
        assert_eq!(clock.of(7_500_000), 1_002_500);
        let takeover = Takeover {
            settled: Some(4_000_000),
            ..Takeover::default()
        };
        let report = TakeoverReport::of(&takeover, clock);
        assert_eq!(report.settled_unix_us, Some(999_000));
        assert_eq!(
            report.lease_over_unix_us, None,
            "no lease was given from here"
        );
    }
}
