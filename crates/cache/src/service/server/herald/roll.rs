//! Which hosts words name, and by which numbers.
//!
//! A word has room for [`MACHINES_MAX`] hosts. A cache may have had more in its life: a host keeps
//! its number until the room is needed, and then makes it if it is of no use any more.

use std::collections::{BTreeMap, BTreeSet};

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

    /// The roll that names all of `wanted`, as far as there is room; `None`: it is this one. Where room
    /// is short, those go that are neither wanted nor `of_use`. Looks, and no more, where all are named.
    pub fn admitting(
        &self,
        wanted: impl Iterator<Item = usize> + Clone,
        of_use: impl Fn(usize) -> bool,
    ) -> Option<Self> {
        let is_new = |host: &usize| self.number(*host).is_none();
        let mut newcomers: Vec<usize> = wanted.clone().filter(is_new).collect();
        if newcomers.is_empty() {
            return None;
        }
        let mut hosts = self.hosts.clone();
        if hosts.len() + newcomers.len() > MACHINES_MAX {
            let wanted: BTreeSet<usize> = wanted.collect();
            hosts.retain(|host| wanted.contains(host) || of_use(*host));
            newcomers.truncate(MACHINES_MAX.saturating_sub(hosts.len()));
        }
        hosts.append(&mut newcomers);
        (hosts != self.hosts).then(|| Self {
            numbers: (0..)
                .zip(&hosts)
                .map(|(number, &host)| (host, number))
                .collect(),
            hosts,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admitted(roll: &Roll, wanted: impl Iterator<Item = usize> + Clone) -> Roll {
        roll.admitting(wanted, |_| false).expect("another roll")
    }

    #[test]
    fn a_host_keeps_its_number_until_the_room_is_needed() {
        let roll = admitted(&Roll::default(), [7, 3].into_iter());
        assert!(roll.admitting([3].into_iter(), |_| false).is_none());
        let roll = admitted(&roll, [9].into_iter());
        assert_eq!(roll.hosts(), [7, 3, 9]);
        assert_eq!([3, 8].map(|host| roll.number(host)), [Some(1), None]);
    }

    #[test]
    fn hosts_of_before_make_room_and_those_of_use_stay() {
        let all = 0..MACHINES_MAX;
        let full = admitted(&Roll::default(), all.clone());
        let next = MACHINES_MAX;
        let roll = full.admitting([5, next].into_iter(), |host| host == 8);
        let roll = roll.expect("another roll");
        assert_eq!(roll.hosts(), [5, 8, next]);
        assert_eq!(roll.number(6), None);

        let roll = roll.admitting(all, |_| true).expect("another roll");
        assert_eq!(roll.hosts().len(), MACHINES_MAX);
        let none = roll.admitting([next + 1].into_iter(), |_| true);
        assert!(none.is_none(), "all are of use");
    }
}
