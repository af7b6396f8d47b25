//! Links between hosts are cut, while the owner and all clients reach every host.
//!
//! Two hosts of different domains, the **hubs**, reach all others but one that may be **isolated**
//! from every host. So whichever two hosts have a region, another host reaches one of them, and is
//! of another domain than that one: every region becomes whole again while the links stay cut, and
//! that is waited for, with a limit. In between no host reaches any other for a while: then regions
//! have to take writes most of the time.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_cache::manager::Manager;
use cenote_cache::owner::Access;
use cenote_fabric::sim;
use cenote_measure::random::Random;

use super::World;

/// What a burst of faults leaves behind is known by then: leases of clients that died are over.
const KNOWN_AFTER: Duration = Duration::from_secs(4);

/// From a burst of faults until every region is whole, at most.
const WHOLE_WITHIN: Duration = Duration::from_secs(30);

/// Writes of a region are stopped for so long at most meanwhile, in all.
const STOPPED_MAX: Duration = Duration::from_secs(15);

/// How long no host reaches another.
const ALONE: Duration = Duration::from_secs(30);

/// Until a region that is whole has taken a write.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);

/// How often it is looked at.
const STEP: Duration = Duration::from_millis(100);

/// Which hosts reach each other.
pub struct Links {
    hubs: [usize; 2],
    isolated: Option<usize>,
    /// Directions that are cut, from and to.
    cut: BTreeSet<[usize; 2]>,
}

impl Links {
    /// Of hosts of which each two, the even one first, may share a domain.
    pub fn new(hosts: usize, random: &mut Random) -> Self {
        let mut draw = |below: usize| usize::try_from(random.below(below as u64)).expect("small");
        let first = draw(hosts);
        let second = (first / 2 * 2 + 2 + draw(hosts - 2)) % hosts;
        Self {
            hubs: [first, second],
            isolated: None,
            cut: BTreeSet::new(),
        }
    }

    fn is_hub(&self, host: usize) -> bool {
        self.hubs.contains(&host)
    }
}

impl World {
    /// Writes are under way for long, to the end: copies differ when a client dies.
    pub(super) fn slow_writes(&mut self) {
        for member in &self.members {
            for host in &self.hosts {
                let delay = Duration::from_millis(self.random.between(20, 60));
                let client = member.connector.node();
                self.net.set_extra_delay(client, host.node, delay);
            }
        }
    }

    /// Links are cut and healed, and something happens for which regions have to be copied. Then
    /// every region has to be whole in time.
    pub(super) fn trouble_links(&mut self) {
        if self.random.percent(50) {
            self.heal_links();
            self.empty_hubs();
        }
        if self.random.percent(10) {
            return self.leave_hosts_alone();
        }
        self.cut_some_links();
        for _ in 0..self.random.between(1, 3) {
            self.have_regions_copied();
            // The next may come while regions are copied for this one, or when they cannot be.
            let pause = self.random.between(0, 4000);
            self.run_for(Duration::from_millis(pause));
        }
        self.await_whole();
    }

    /// What happens last: copies differ, and their hosts do not reach each other, in half of the
    /// runs to the end.
    pub(super) fn end_links(&mut self) {
        self.heal_links();
        self.empty_hubs();
        self.await_whole();
        self.cut_some_links();
        for client in 0..self.members.len() {
            self.replace_client(client);
        }
        // Nobody writes over what differs.
        for member in &mut self.members {
            member.is_busy = false;
        }
        // They are compared once all is whole, which it seems to be until then.
        self.run_for(KNOWN_AFTER);
        if self.random.percent(50) {
            let pause = self.random.below(6000);
            self.run_for(Duration::from_millis(pause));
            self.heal_links();
        }
    }

    /// Regions leave the hubs, so that links matter.
    fn empty_hubs(&mut self) {
        for hub in self.links.hubs {
            self.drain(hub, (500, 1500));
        }
        self.run_for(Duration::from_secs(2));
    }

    fn cut_some_links(&mut self) {
        let hosts = self.hosts.len();
        let others: Vec<usize> = (0..hosts).filter(|&h| !self.links.is_hub(h)).collect();
        if self.links.isolated.is_none() && self.random.percent(40) {
            let host = self.one_of(&others);
            self.links.isolated = Some(host);
            self.note(format!("h{host} reaches no host"));
            for other in (0..hosts).filter(|&other| other != host) {
                self.cut_link(host, other);
            }
        }
        for _ in 0..self.random.between(1, 6) {
            let (one, other) = (self.one_of(&others), self.one_of(&others));
            if one != other {
                self.cut_link(one, other);
            }
        }
        let entries = self.manager.as_ref().map(|manager| manager.owner.entries());
        for entry in entries.unwrap_or_default() {
            if let [one, other] = &entry.copies[..]
                && !self.links.is_hub(one.host)
                && !self.links.is_hub(other.host)
                && self.random.percent(50)
            {
                self.cut_link(one.host, other.host);
            }
        }
    }

    /// Both directions, or one.
    fn cut_link(&mut self, one: usize, other: usize) {
        let ways = [[one, other], [other, one]];
        let ways = match self.random.percent(70) {
            true => &ways[..],
            false => &ways[..1],
        };
        for &[from, to] in ways {
            self.note(format!("h{from} is cut off from h{to}"));
            self.net.cut(self.hosts[from].node, self.hosts[to].node);
            self.links.cut.insert([from, to]);
        }
    }

    fn heal_links(&mut self) {
        self.links.isolated = None;
        if !self.links.cut.is_empty() {
            self.note("hosts reach each other".to_owned());
        }
        for [from, to] in std::mem::take(&mut self.links.cut) {
            self.net.heal(self.hosts[from].node, self.hosts[to].node);
        }
    }

    fn have_regions_copied(&mut self) {
        let host = self.any_host();
        match self.random.below(8) {
            0 | 1 => {
                let client = self.any_client();
                self.replace_client(client);
            }
            2 => self.break_links(),
            3 if self.manager.is_some() => self.kill_owner(),
            4 => self.drain_linked(host),
            5 | 6 => {
                let client = self.any_client();
                self.replace_client(client);
                let pause = self.random.between(1500, 4500);
                self.run_for(Duration::from_millis(pause));
                self.drain_linked(host);
            }
            _ => self.kill_linked(host),
        }
    }

    /// Of one copy, nothing could be copied from a host that is isolated.
    fn drain_linked(&mut self, host: usize) {
        let is_only = self.copies == 1 && self.links.isolated == Some(host);
        if !self.links.is_hub(host) && !is_only && self.hosts[host].is_up() {
            self.drain(host, (300, 4000));
        }
    }

    /// No hub dies, and none where the last copy may be on a host that is isolated.
    fn kill_linked(&mut self, host: usize) {
        let has_hub = self.links.is_hub(host) || self.copies == 2 && self.links.is_hub(host ^ 1);
        if self.links.isolated.is_none() && !has_hub && self.may_kill() {
            self.kill_host(host, sim::Notice::AtOnce);
            if self.copies == 2 {
                self.kill_host(host ^ 1, sim::Notice::AtOnce);
            }
        }
    }

    /// No host reaches another. Regions that lack something do not get it, and what is tried stops
    /// their writes.
    fn leave_hosts_alone(&mut self) {
        self.note("no host reaches another".to_owned());
        for one in 0..self.hosts.len() {
            for other in 0..one {
                self.cut_link(one, other);
            }
        }
        let client = self.any_client();
        self.replace_client(client);
        let end = self.net.now().after(ALONE);
        let mut stopped = self.nothing_stopped();
        while self.net.now() < end && !self.report.is_broken() {
            self.run_for(STEP);
            self.count_stopped(&mut stopped);
        }
        self.judge_stopped(&stopped, ALONE / 2);
        self.heal_links();
        self.await_whole();
    }

    fn await_whole(&mut self) {
        let begun = self.net.now();
        let mut stopped = self.nothing_stopped();
        while !self.report.is_broken() {
            self.run_for(STEP);
            self.count_stopped(&mut stopped);
            let passed = self.net.now().since(begun);
            let is_settled = |manager: &Manager| manager.owner.is_settled();
            if passed >= KNOWN_AFTER && self.manager.as_ref().is_some_and(is_settled) {
                let ms = u64::try_from(passed.as_millis()).expect("short");
                let longest = &mut self.report.tally.whole_after_ms;
                *longest = ms.max(*longest);
                break;
            }
            if passed > WHOLE_WITHIN {
                let what = self.what_lacks();
                return self.violate(format!("a region lacks something for too long: {what}"));
            }
        }
        self.judge_stopped(&stopped, STOPPED_MAX);
        self.await_writes();
    }

    fn await_writes(&mut self) {
        let before = self.model.acknowledged().to_vec();
        let end = self.net.now().after(WRITTEN_WITHIN);
        while !self.report.is_broken() {
            self.run_for(STEP);
            let now = self.model.acknowledged();
            let unwritten = before.iter().zip(now).position(|(then, now)| then == now);
            let Some(region) = unwritten else { return };
            if self.net.now() > end {
                return self.violate(format!("region {region} is whole and takes no writes"));
            }
        }
    }

    fn nothing_stopped(&self) -> Vec<Duration> {
        vec![Duration::ZERO; self.options.regions as usize]
    }

    fn count_stopped(&self, stopped: &mut [Duration]) {
        let Some(manager) = &self.manager else { return };
        for (entry, stopped) in manager.owner.entries().iter().zip(stopped) {
            if entry.access != Access::Open {
                *stopped += STEP;
            }
        }
    }

    fn judge_stopped(&mut self, stopped: &[Duration], limit: Duration) {
        let longest = stopped.iter().max().copied().unwrap_or_default();
        let ms = u64::try_from(longest.as_millis()).expect("short");
        let known = &mut self.report.tally.stopped_ms;
        *known = ms.max(*known);
        if longest > limit {
            self.violate(format!("writes of a region were stopped for {longest:?}"));
        }
    }

    fn one_of(&mut self, hosts: &[usize]) -> usize {
        hosts[usize::try_from(self.random.below(hosts.len() as u64)).expect("an index")]
    }
}
