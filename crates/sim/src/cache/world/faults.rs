//! What goes wrong, and when it ends.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_cache::manager::Manager;
use cenote_fabric::{Time, sim};

use super::{Repair, World};
use crate::cache::Faults;
use crate::cache::member::Member;
use crate::cluster::host::Host;

impl World {
    pub(super) fn any_host(&mut self) -> usize {
        usize::try_from(self.random.below(self.hosts.len() as u64)).expect("an index")
    }

    pub(super) fn any_client(&mut self) -> usize {
        usize::try_from(self.random.below(self.members.len() as u64)).expect("an index")
    }

    pub(super) fn later(&mut self, low_ms: u64, high_ms: u64, repair: Repair) {
        let pause = self.random.between(low_ms, high_ms);
        let at = self.net.now().after(Duration::from_millis(pause));
        self.repairs.push((at, repair));
    }

    /// Whether a host may go for good. With two copies one domain does at a time, when all is
    /// whole.
    pub(super) fn may_kill(&self) -> bool {
        let is_whole = |manager: &Manager| manager.owner.is_settled();
        self.copies == 1
            || self.hosts.iter().all(Host::is_up)
                && self.repairs.is_empty()
                && self.owner_paused_until == Time(0)
                && self.manager.as_ref().is_some_and(is_whole)
    }

    /// What lasts as long as the faults do.
    pub(super) fn begin_faults(&mut self) {
        match self.options.faults {
            Faults::Any => {}
            Faults::SlowWrites => {
                self.slow_links();
                self.slow_words();
            }
            Faults::BrokenLinks | Faults::DyingClients => self.slow_links(),
            Faults::HostsApart => self.slow_writes(),
            Faults::OwnerCutOff => self.cut_owner_off(),
            Faults::TwoOwners => self.stop_owner_for_long(),
            Faults::HungHost => {
                self.note("h0 lends and copies nothing any more, and does not say so".to_owned());
                self.muffles[0].store(true, Ordering::Relaxed);
            }
        }
    }

    pub(super) fn trouble(&mut self) {
        self.report.tally.faults += 1;
        match self.options.faults {
            Faults::Any => self.any_trouble(),
            Faults::TwoOwners | Faults::OwnerCutOff => {}
            Faults::BrokenLinks => self.break_links(),
            Faults::HostsApart => self.trouble_links(),
            Faults::DyingClients => {
                let client = self.any_client();
                self.replace_client(client);
            }
            Faults::SlowWrites => {
                let host = self.any_host();
                self.drain(host, (100, 800));
            }
            Faults::HungHost => {
                let host = self.any_host();
                self.drain(host, (4000, 9000));
            }
        }
    }

    fn any_trouble(&mut self) {
        let host = self.any_host();
        let client = self.any_client();
        let node = self.hosts[host].node;
        match self.random.below(20) {
            0 => self.kill_some(host),
            1..=3 if self.hosts[host].is_up() => self.drain(host, (300, 4000)),
            4 if self.copies == 1 => self.reclaim(host),
            5 => {
                let pause = Duration::from_millis(self.random.between(100, 5000));
                self.note(format!("c{client} stops for {pause:?}"));
                self.net.pause(self.members[client].connector.node());
                self.members[client].paused_until = self.net.now().after(pause);
            }
            6 if self.hosts[host].is_up() => {
                self.note(format!("h{host} stops"));
                self.net.pause(node);
                self.later(100, 3000, Repair::ResumeHost(host));
            }
            7 => {
                let other = match self.random.below(2) {
                    0 => self.owner_connector.node(),
                    _ => self.members[client].connector.node(),
                };
                self.note(format!("h{host} is cut off from {}", self.net.name(other)));
                self.net.cut(node, other);
                self.net.cut(other, node);
                self.later(100, 3000, Repair::Heal(node, other));
            }
            8 | 9 => {
                let other = match self.random.below(2) {
                    0 => self.members[client].connector.node(),
                    _ => self.hosts[(host + 1) % self.hosts.len()].node,
                };
                let delay = Duration::from_micros(self.random.between(100, 60_000));
                let name = self.net.name(other);
                self.note(format!("{name} to h{host} takes {delay:?}"));
                self.net.set_extra_delay(other, node, delay);
                self.later(500, 6000, Repair::EndDelay(other, node));
            }
            19 => {
                let other = self.any_host();
                if other != host {
                    self.note(format!("h{host} and h{other} do not reach each other"));
                    let other = self.hosts[other].node;
                    self.net.cut(node, other);
                    self.net.cut(other, node);
                    self.later(500, 30_000, Repair::Heal(node, other));
                }
            }
            12 => {
                let time = Duration::from_millis(self.random.between(100, 6000));
                self.note(format!("c{client} and the owner hear nothing for {time:?}"));
                self.members[client].deaf_until = self.net.now().after(time);
            }
            13 => self.slow_fills(),
            14 => {
                self.note(format!("c{client} and h{host} lose their connections"));
                let other = self.members[client].connector.node();
                self.net.lose_connections(other, node);
            }
            16 => {
                self.note(format!(
                    "h{host} lends and copies nothing, and does not say so"
                ));
                self.muffles[host].store(true, Ordering::Relaxed);
                self.later(1000, 12_000, Repair::Unmuffle(host));
            }
            17 if !self.refuses_records => self.refuse_records(),
            18 if self.manager.is_some() && self.owner_paused_until == Time(0) => {
                self.stop_owner((15_000, 15_001));
            }
            15 if self.manager.is_some() && self.owner_paused_until == Time(0) => {
                self.stop_owner((100, 5000));
            }
            10 if self.manager.is_some() && self.owner_paused_until == Time(0) => self.kill_owner(),
            11 if self.members[client].paused_until == Time(0) => self.replace_client(client),
            _ => {}
        }
    }

    /// The owner's disk is full: what it decides waits.
    fn refuse_records(&mut self) {
        self.note("the owner's disk takes no records".to_owned());
        self.refuses_records = true;
        self.later(500, 25_000, Repair::AllowRecords);
    }

    fn stop_owner(&mut self, (low_ms, high_ms): (u64, u64)) {
        let pause = Duration::from_millis(self.random.between(low_ms, high_ms));
        self.note(format!("the owner stops for {pause:?}"));
        self.net.pause(self.owner_connector.node());
        self.owner_paused_until = self.net.now().after(pause);
    }

    pub(super) fn kill_owner(&mut self) {
        self.note("the owner dies".to_owned());
        let node = self.owner_connector.node();
        self.net.crash(node, sim::Memory::Lost, sim::Notice::AtOnce);
        self.manager = None;
        let pause = Duration::from_millis(self.random.between(10, 3000));
        self.owner_back_at = self.net.now().after(pause);
        self.members.iter_mut().for_each(Member::forget_owner);
    }

    pub(super) fn replace_client(&mut self, client: usize) {
        self.note(format!("c{client} dies, another comes"));
        self.members[client].end(&mut self.model);
        let node = self.members[client].connector.node();
        self.net.crash(node, sim::Memory::Lost, sim::Notice::AtOnce);
        self.net.restart_client(node);
        self.start_client(client);
    }

    /// Its regions move, as many as there is room for elsewhere.
    pub(super) fn drain(&mut self, host: usize, (low_ms, high_ms): (u64, u64)) {
        self.note(format!("h{host} drains"));
        self.hosts[host].drain(true);
        self.later(low_ms, high_ms, Repair::EndDrain(host));
    }

    /// Writes reach their host late.
    fn slow_links(&mut self) {
        for client in 0..self.members.len() {
            let from = self.members[client].connector.node();
            for host in 0..self.hosts.len() {
                self.slow_for_good(from, self.hosts[host].node);
            }
        }
    }

    /// The owner hears late that a copy is there. So a write that the copy did not wait for lands
    /// behind it, where the memory is still kept and nobody will look.
    fn slow_words(&mut self) {
        let owner = self.owner_connector.node();
        for host in 0..self.hosts.len() {
            self.slow_for_good(self.hosts[host].node, owner);
        }
    }

    fn slow_for_good(&mut self, from: sim::NodeId, to: sim::NodeId) {
        let end = self.net.now().after(self.options.duration);
        let delay = Duration::from_millis(self.random.between(20, 60));
        self.net.set_extra_delay(from, to, delay);
        self.repairs.push((end, Repair::EndDelay(from, to)));
    }

    /// One host and one client are out of the owner's reach, for longer than it waits for either.
    fn cut_owner_off(&mut self) {
        self.note("the owner reaches neither h0 nor c0".to_owned());
        let (host, owner) = (self.hosts[0].node, self.owner_connector.node());
        self.net.cut(host, owner);
        self.net.cut(owner, host);
        self.later(14_000, 15_000, Repair::Heal(host, owner));
        self.members[0].deaf_until = self.net.now().after(Duration::from_millis(15_500));
    }

    /// A client loses its connections to all hosts, and may not get to tell the owner for a while.
    pub(super) fn break_links(&mut self) {
        let client = self.any_client();
        let deaf_ms = self.random.below(2) * self.random.between(100, 1400);
        self.note(format!(
            "c{client} loses its connections; mute for {deaf_ms} ms"
        ));
        self.members[client].deaf_until = self.net.now().after(Duration::from_millis(deaf_ms));
        let from = self.members[client].connector.node();
        for host in &self.hosts {
            self.net.lose_connections(from, host.node);
        }
    }

    /// What happens last, where the worst time for it is the last.
    pub(super) fn end_faults(&mut self) {
        match self.options.faults {
            Faults::DyingClients => {
                for client in 0..self.members.len() {
                    self.replace_client(client);
                }
            }
            Faults::HostsApart => self.end_links(),
            _ => {}
        }
    }

    /// All hosts are slow to read each other: moves take long.
    fn slow_fills(&mut self) {
        let delay = Duration::from_micros(self.random.between(1000, 30_000));
        self.note(format!("hosts read each other in {delay:?}"));
        for one in 0..self.hosts.len() {
            for other in 0..self.hosts.len() {
                let (from, to) = (self.hosts[one].node, self.hosts[other].node);
                if from != to {
                    self.net.set_extra_delay(from, to, delay);
                    self.later(3000, 6000, Repair::EndDelay(from, to));
                }
            }
        }
    }

    fn kill_some(&mut self, host: usize) {
        if !self.may_kill() {
            return;
        }
        let notice = match self.random.below(2) {
            0 => sim::Notice::AtOnce,
            _ => sim::Notice::BySilence,
        };
        self.kill_host(host, notice);
        if self.copies == 2 {
            self.kill_host(host ^ 1, notice);
        }
    }

    /// The machine is taken back, with a notice that may be too short.
    fn reclaim(&mut self, host: usize) {
        let notice = self.random.between(5, 1500);
        let Some(manager) = &mut self.manager else {
            return;
        };
        let now = self.net.now();
        let deadline = now.after(Duration::from_millis(notice));
        manager.owner.handle_notice(now, host, Some(deadline));
        self.note(format!("h{host} goes in {notice} ms"));
        self.repairs.push((deadline, Repair::KillHost(host)));
    }

    pub(super) fn kill_host(&mut self, host: usize, notice: sim::Notice) {
        if self.hosts[host].is_up() {
            self.note(format!("h{host} dies: {notice:?}"));
            self.hosts[host].crash(&self.net, sim::Memory::Lost, notice);
            self.later(500, 14_000, Repair::StartHost(host));
        }
    }

    pub(super) fn undo_due(&mut self) {
        let now = self.net.now();
        let (due, left) = std::mem::take(&mut self.repairs)
            .into_iter()
            .partition(|(at, _)| *at <= now);
        self.repairs = left;
        for (_, repair) in due {
            self.undo(repair);
        }
    }

    fn undo(&mut self, repair: Repair) {
        match repair {
            Repair::StartHost(host) => {
                if !self.hosts[host].is_up() {
                    self.note(format!("h{host} starts"));
                    self.hosts[host].restart(&self.net);
                }
                if let Some(manager) = &mut self.manager {
                    manager.owner.handle_notice_withdrawn(self.net.now(), host);
                }
            }
            Repair::ResumeHost(host) => self.net.resume(self.hosts[host].node),
            Repair::TakeOver => self.take_over(),
            Repair::AllowRecords => {
                self.note("the owner's disk takes records".to_owned());
                self.refuses_records = false;
                self.later(3000, 3001, Repair::OwnerLooked);
            }
            Repair::OwnerLooked => {}
            Repair::Unmuffle(host) => self.muffles[host].store(false, Ordering::Relaxed),
            Repair::EndDrain(host) => self.hosts[host].drain(false),
            Repair::Heal(one, other) => {
                self.net.heal(one, other);
                self.net.heal(other, one);
            }
            Repair::EndDelay(from, to) => self.net.set_extra_delay(from, to, Duration::ZERO),
            Repair::KillHost(host) => self.kill_host(host, sim::Notice::AtOnce),
        }
    }
}
