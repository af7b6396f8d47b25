//! Which hosts words name, and by which numbers.
//!
//! A word has room for [`MACHINES_MAX`] hosts. A cache may have had more in its life: a host keeps
//! its number until the room is needed, and then makes it if it is of no use any more.

use std::collections::BTreeMap;

use cenote_proc::service::MACHINES_MAX;

/// Hosts by the numbers that words name them by.
#[derive(Clone, Debug, Default)]
pub(in super::super) struct Roll {
    /// The host of each number.
    hosts: Vec<usize>,
    numbers: BTreeMap<usize, u32>,
}

impl Roll {
    pub fn number(&self, host: usize) -> Option<u32> {
        self.numbers.get(&host).copied()
    }

    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Has all of `wanted` named, as far as there is room; whether anything changed. Where room is
    /// short, those go that are neither wanted nor `of_use`.
    pub fn admit(&mut self, wanted: &[usize], of_use: impl Fn(usize) -> bool) -> bool {
        let is_new = |host: &&usize| !self.numbers.contains_key(host);
        let mut newcomers: Vec<usize> = wanted.iter().filter(is_new).copied().collect();
        if newcomers.is_empty() {
            return false;
        }
        let mut hosts = self.hosts.clone();
        if hosts.len() + newcomers.len() > MACHINES_MAX {
            hosts.retain(|&host| wanted.contains(&host) || of_use(host));
            newcomers.truncate(MACHINES_MAX.saturating_sub(hosts.len()));
        }
        hosts.append(&mut newcomers);
        if hosts == self.hosts {
            return false;
        }
        self.numbers = (0..)
            .zip(&hosts)
            .map(|(number, &host)| (host, number))
            .collect();
        self.hosts = hosts;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_keeps_its_number_until_the_room_is_needed() {
        let mut roll = Roll::default();
        assert!(roll.admit(&[7, 3], |_| false));
        assert!(!roll.admit(&[3], |_| false), "nobody is new");
        assert!(roll.admit(&[9], |_| false));
        assert_eq!(roll.hosts(), [7, 3, 9]);
        assert_eq!([3, 8].map(|host| roll.number(host)), [Some(1), None]);
    }

    #[test]
    fn hosts_of_before_make_room_and_those_of_use_stay() {
        let mut roll = Roll::default();
        let first: Vec<usize> = (0..MACHINES_MAX).collect();
        assert!(roll.admit(&first, |_| false));
        let next = MACHINES_MAX;
        assert!(roll.admit(&[5, next], |host| host == 8));
        assert_eq!(roll.hosts(), [5, 8, next]);

        assert!(roll.admit(&first, |_| true));
        assert_eq!(roll.hosts().len(), MACHINES_MAX);
        let before = roll.hosts().to_vec();
        assert!(!roll.admit(&[next + 1], |_| true), "all are of use");
        assert_eq!(roll.hosts(), before);
        assert_eq!(roll.number(next + 1), None);
    }
}
