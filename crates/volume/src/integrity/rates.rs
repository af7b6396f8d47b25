//! Which hosts are to be doubted, and which are to go: error rates against two limits.
//!
//! A host's level is the errors that it is blamed for, each counting half as much after every
//! half-life. `Trusted -> Suspicious` above the first limit (`ErrorCorrectionLimit`); `-> Excluded`
//! above the second (`SlabRegenerationLimit`), or too long above the first; `-> Trusted` again
//! well below the first. Suspicious hosts cost their readers more splits; excluded ones lose their
//! slabs and get no others.
//!
//! Where no split can be named, all that were read share the blame. Then a host is excluded only if
//! it has twice the blame of any other: its neighbours in one stripe change from extent to extent.
//!
//! Pure; time is passed in. Paper: \[hydra22\] 4.1.2; the numbers are decision 26's.

use std::time::Duration;

use cenote_fabric::Time;
use serde::Serialize;

/// What a host is held to be.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reputation {
    /// As any host.
    #[default]
    Trusted,
    /// It sent wrong splits lately: reads that touch it ask for more.
    Suspicious,
    /// It sends too many, or has for too long: its slabs are rebuilt elsewhere.
    #[serde(rename = "condemned")]
    Excluded,
}

/// When a host's reputation changes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Above this level a host is suspicious.
    pub correction: f64,
    /// Above this level it is excluded, ...
    pub regeneration: f64,
    /// ... and after so long above the first.
    pub patience: Duration,
    /// After which an error counts half.
    pub half_life: Duration,
}

impl Default for Limits {
    /// A bit that turned over by itself is one error; memory or a program that is wrong makes them by
    /// the page.
    fn default() -> Self {
        Self {
            correction: 2.0,
            regeneration: 16.0,
            patience: Duration::from_secs(300),
            half_life: Duration::from_secs(60),
        }
    }
}

/// The error rates of a volume's hosts.
pub struct ErrorRates {
    limits: Limits,
    hosts: Vec<ErrorRate>,
    updated: Time,
}

#[derive(Clone, Copy, Default)]
struct ErrorRate {
    /// Splits of it that were named as wrong, decayed.
    named: f64,
    /// Those, and its share of what could not be named.
    blamed: f64,
    suspicious_since: Option<Time>,
    reputation: Reputation,
}

impl ErrorRates {
    pub fn new(limits: Limits, host_count: usize, now: Time) -> Self {
        Self {
            limits,
            hosts: vec![ErrorRate::default(); host_count],
            updated: now,
        }
    }

    /// Takes in how many errors each host was named for since the last call, and blamed for in all;
    /// hosts whose reputation changed come back.
    pub fn update(&mut self, now: Time, errors: &[(f64, f64)]) -> Vec<(usize, Reputation)> {
        let halvings = now.since(self.updated).as_secs_f64() / self.limits.half_life.as_secs_f64();
        let kept = (-halvings).exp2();
        self.updated = now;
        for (rate, (named, blamed)) in self.hosts.iter_mut().zip(errors) {
            rate.named = rate.named * kept + named;
            rate.blamed = rate.blamed * kept + blamed;
        }
        let mut changed = Vec::new();
        for host in 0..self.hosts.len() {
            let reputation = self.judge(host, now);
            if std::mem::replace(&mut self.hosts[host].reputation, reputation) != reputation {
                changed.push((host, reputation));
            }
        }
        changed
    }

    fn judge(&mut self, host: usize, now: Time) -> Reputation {
        let limits = self.limits;
        let stands_out = self.stands_out(host);
        let rate = &mut self.hosts[host];
        if rate.blamed < limits.correction / 2.0 {
            rate.suspicious_since = None;
            return Reputation::Trusted;
        }
        if rate.blamed > limits.correction {
            rate.suspicious_since.get_or_insert(now);
        }
        let Some(since) = rate.suspicious_since else {
            return rate.reputation;
        };
        let is_too_much = rate.named > limits.regeneration
            || rate.blamed > limits.regeneration && stands_out
            || now.since(since) > limits.patience && (rate.named > 0.5 || stands_out);
        match rate.reputation {
            Reputation::Excluded => Reputation::Excluded,
            _ if is_too_much => Reputation::Excluded,
            _ => Reputation::Suspicious,
        }
    }

    /// Whether it has twice the blame of any other.
    fn stands_out(&self, host: usize) -> bool {
        let others = self.hosts.iter().enumerate();
        let mut others = others.filter(|(other, _)| *other != host);
        others.all(|(_, rate)| rate.blamed * 2.0 < self.hosts[host].blamed)
    }

    /// How a host stands.
    pub fn reputation(&self, host: usize) -> Reputation {
        self.hosts[host].reputation
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: (f64, f64) = (0.0, 0.0);

    fn at(secs: u64) -> Time {
        Time(secs * 1_000_000_000)
    }

    fn rates() -> ErrorRates {
        ErrorRates::new(Limits::default(), 3, at(0))
    }

    fn named(count: f64) -> [(f64, f64); 3] {
        [(count, count), NOTHING, NOTHING]
    }

    #[test]
    fn an_accident_is_forgotten() {
        let mut rates = rates();
        assert!(rates.update(at(1), &named(1.0)).is_empty());
        assert!(rates.update(at(100), &named(1.0)).is_empty());
        assert_eq!(rates.reputation(0), Reputation::Trusted);
    }

    #[test]
    fn a_few_make_a_host_suspicious_until_it_behaves() {
        let mut rates = rates();
        let changed = rates.update(at(1), &named(3.0));
        assert_eq!(changed, [(0, Reputation::Suspicious)]);
        assert!(rates.update(at(61), &named(0.0)).is_empty(), "half of it");
        let changed = rates.update(at(150), &named(0.0));
        assert_eq!(changed, [(0, Reputation::Trusted)]);
    }

    #[test]
    fn many_exclude_it_and_silence_forgives() {
        let mut rates = rates();
        let changed = rates.update(at(1), &named(17.0));
        assert_eq!(changed, [(0, Reputation::Excluded)]);
        assert!(rates.update(at(100), &named(0.0)).is_empty());
        let changed = rates.update(at(400), &named(0.0));
        assert_eq!(changed, [(0, Reputation::Trusted)]);
    }

    #[test]
    fn too_long_above_the_first_limit_is_too_much() {
        let mut rates = rates();
        rates.update(at(1), &named(3.0));
        let excluded = (2..100).find(|minute| {
            let changed = rates.update(at(minute * 30), &named(1.5));
            changed.contains(&(0, Reputation::Excluded))
        });
        assert_eq!(excluded, Some(11), "after five minutes");
    }

    #[test]
    fn blame_that_all_share_excludes_nobody_and_who_stands_out_goes() {
        let mut rates = rates();
        let share = (0.0, 20.0);
        let changed = rates.update(at(1), &[share; 3]);
        let all_suspicious = changed.iter().all(|(_, s)| *s == Reputation::Suspicious);
        assert!(all_suspicious && changed.len() == 3);
        rates.update(at(2), &[(0.0, 40.0), NOTHING, NOTHING]);
        assert_eq!(rates.reputation(0), Reputation::Excluded);
        assert_eq!(rates.reputation(1), Reputation::Suspicious);
    }
}
