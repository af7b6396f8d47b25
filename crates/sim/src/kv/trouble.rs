//! What goes wrong: processes die, are suspected, cut off, stall and come back; links break or are slow.

use cenote_kv::group::process::Process;
use cenote_kv::group::progress::Leave;
use cenote_kv::group::view::Partition;

use super::network::{Channel, WAYS};
use super::world::{PATIENCE_NS, World};

/// The longest time for which a link is slow, in nanoseconds: longer than anybody waits.
const SLOW_NS: u64 = 600_000_000;

/// A process that is to be lost.
pub(super) struct Doom {
    process: Process,
    /// After how many steps.
    at: u64,
    dies: bool,
}

impl World {
    /// Something goes wrong, or is mended.
    pub(super) fn trouble(&mut self) {
        let shares = self.mood.focus.shares();
        let mut drawn = self.random.below(shares.iter().sum());
        let mut kind = 0;
        while drawn >= shares[kind] {
            drawn -= shares[kind];
            kind += 1;
        }
        match kind {
            0 => self.lose(true),
            1 => self.lose(false),
            2 => self.break_link(),
            3 => self.slow_down(),
            4 => self.stall(),
            5 => self.take_leave(),
            _ if self.random.below(100) < self.options.returns => self.come_back(),
            _ => {}
        }
    }

    /// Trouble seldom comes alone: soon after a view it meets what that has begun.
    pub(super) fn unsettle(&mut self) {
        if !self.is_quiet && self.random.percent(self.mood.unsettling) {
            let shocks = 1 + self.random.below(4);
            let mut at = self.report.tally.steps;
            for _ in 0..shocks {
                at += 1 + self.random.below(60);
                self.aftershocks.push_back(at);
            }
        }
    }

    /// What was foreseen happens.
    pub(super) fn shake(&mut self) {
        self.end_leavers();
        let steps = self.report.tally.steps;
        while self.aftershocks.front().is_some_and(|at| *at <= steps) {
            self.aftershocks.pop_front();
            match self.random.below(8) {
                _ if self.is_quiet => {}
                0 => self.trouble(),
                1..4 => self.break_link(),
                _ => self.slow_down(),
            }
        }
        if self.leap.take_if(|leap| *leap <= steps).is_some() {
            self.now += PATIENCE_NS;
        }
        if let Some(doom) = self.doom.take_if(|doom| doom.at <= steps) {
            if self.is_quiet || !self.bears(doom.process) {
                return;
            }
            match doom.dies {
                true => self.kill(doom.process),
                false => self.depose(doom.process),
            }
        }
    }

    pub(super) fn is_cut(&self, process: Process) -> bool {
        self.cut
            .is_some_and(|(cut, until)| cut == process && self.now < until)
    }

    /// Whether the group bears the loss of one more process.
    fn bears(&self, process: Process) -> bool {
        let gone = |other: Process| other == process || self.dead.contains(&other);
        let after = self.view().without(gone);
        after.is_none_or(|view| view.lost() == self.view().lost() && !view.processes().is_empty())
    }

    fn pick_member(&mut self) -> Option<Process> {
        let inside = self.view().processes();
        let alive: Vec<Process> = inside
            .into_iter()
            .filter(|process| self.members.contains_key(process))
            .collect();
        (!alive.is_empty()).then(|| *self.random.pick(&alive))
    }

    /// One that the group can lose, if faults are left.
    fn pick_victim(&mut self) -> Option<Process> {
        if self.report.tally.faults >= self.options.faults {
            return None;
        }
        self.pick_member().filter(|process| self.bears(*process))
    }

    /// A process dies or is taken for dead: at once, or after some of what it says has become late.
    fn lose(&mut self, dies: bool) {
        let Some(process) = self.pick_victim() else {
            return;
        };
        if self.random.percent(50) {
            self.slow_from(process);
            let at = self.report.tally.steps + self.random.below(120);
            self.doom = Some(Doom { process, at, dies });
        } else if dies {
            self.kill(process);
        } else {
            self.depose(process);
        }
    }

    /// A process is told to leave: others are to take its places before it ends.
    fn take_leave(&mut self) {
        // The last one that is left of a group has to stay.
        if self.is_ruined {
            return;
        }
        let Some(process) = self.pick_member() else {
            return;
        };
        let leave = match self.random.percent(50) {
            true => Leave::Whole,
            false => Leave::Soon,
        };
        if self.leaving.insert(process, leave).is_none() {
            self.log(|| format!("{process} is to leave: {leave:?}"));
        }
    }

    /// Who was told to leave, and knows of having no place, ends.
    fn end_leavers(&mut self) {
        let has_left = |process: &&Process| {
            let member = self.members.get(process);
            let view = member.and_then(|member| member.view());
            view.is_none_or(|view| !view.has(**process)) && !self.view().has(**process)
        };
        let left: Vec<Process> = self.leaving.keys().filter(has_left).copied().collect();
        for process in left {
            self.leaving.remove(&process);
            if self.members.remove(&process).is_some() {
                self.report.tally.left += 1;
                self.log(|| format!("{process} has left"));
                self.network.lose(process, &mut self.random);
            }
        }
    }

    pub(super) fn kill(&mut self, process: Process) {
        if !self.view().processes().contains(&process) || self.members.remove(&process).is_none() {
            return;
        }
        self.report.tally.faults += 1;
        self.log(|| format!("{process} dies"));
        self.dead.push(process);
        self.network.lose(process, &mut self.random);
        if self.random.percent(40) {
            self.slow_from(process);
        }
    }

    /// A process that lives is taken for dead: it goes on until it hears of it.
    fn depose(&mut self, process: Process) {
        let dead = self.dead.clone();
        let gone = |other: Process| other == process || dead.contains(&other);
        let Some(view) = self.view().without(gone) else {
            return;
        };
        self.report.tally.faults += 1;
        let how = self.random.below(10);
        match how {
            0..6 => self.cut_off(process),
            // What it says comes late, when others have gone on.
            6..9 => {
                self.slow_from(process);
                self.cut = Some((process, self.some_time()));
            }
            _ => {}
        }
        self.log(|| format!("{process} is suspected, cut off: {}", how < 6));
        self.agree(view, process);
        self.dead.clear();
    }

    /// A process reaches its clients and nobody else, for some time.
    pub(super) fn cut_off(&mut self, process: Process) {
        let others: Vec<Process> = self.members.keys().copied().collect();
        for other in others {
            self.network.part(process, other);
        }
        let longest = *self.random.pick(&[200_000_000, 1_000_000_000]);
        self.cut = Some((process, self.now + self.random.below(longest)));
    }

    fn break_link(&mut self) {
        if let Some((one, other)) = self.pick_pair()
            && self.network.part(one, other)
        {
            self.log(|| format!("link {one} {other} breaks"));
        }
    }

    /// For some time nothing comes from one process to another.
    fn slow_down(&mut self) {
        if let Some((from, to)) = self.pick_pair() {
            let until = self.some_time();
            let first = u8::from(self.random.percent(70));
            for way in first..WAYS {
                if way == 0 || self.random.percent(60) {
                    self.network.slow_down((from, to, way), until);
                }
            }
        }
    }

    /// Two processes; often such as have much to say to each other just now.
    fn pick_pair(&mut self) -> Option<(Process, Process)> {
        let view = self.view();
        let moving = (0..view.partitions.len())
            .filter(|index| !matches!(view.partitions[*index], Partition::Home(_)));
        let busy: Vec<Process> = moving
            .flat_map(|index| {
                let slot = view.slot_holding(index);
                let holder = slot.and_then(|slot| view.parities[slot].process());
                [view.owner(index), holder]
            })
            .flatten()
            .collect();
        let (one, other) = (self.pick_member()?, self.pick_member()?);
        if busy.is_empty() || self.random.percent(30) {
            return Some((one, other));
        }
        let to = *self.random.pick(&busy);
        let from = match self.random.percent(50) {
            true => *self.random.pick(&busy),
            false => one,
        };
        Some(if self.random.percent(70) {
            (from, to)
        } else {
            (to, from)
        })
    }

    /// What a process has to say comes late, to some.
    fn slow_from(&mut self, process: Process) {
        let others: Vec<Process> = self.members.keys().copied().collect();
        let until = self.some_time();
        for to in others {
            if self.random.percent(60) {
                self.network.slow_down((process, to, 0), until);
            }
        }
    }

    /// A process takes nothing from others for some time, though it serves clients.
    fn stall(&mut self) {
        let Some(process) = self.pick_member() else {
            return;
        };
        let until = self.some_time();
        let others: Vec<Process> = self.members.keys().copied().collect();
        for from in others {
            for way in 0..WAYS {
                self.network.slow_down((from, process, way), until);
            }
        }
        self.log(|| format!("{process} stalls until {} us", until / 1000));
    }

    /// Values may come late: sometimes when they have been asked for again.
    pub(super) fn delay(&mut self, channel: Channel) {
        match self.random.below(100) {
            _ if self.is_quiet => {}
            0..20 => {
                let until = self.some_time();
                self.network.slow_down(channel, until);
            }
            20..30 => {
                self.network.slow_down(channel, self.now + SLOW_NS);
                self.leap = Some(self.report.tally.steps + self.random.below(60));
            }
            _ => {}
        }
    }

    fn some_time(&mut self) -> u64 {
        let longest = *self.random.pick(&[5_000_000, 50_000_000, SLOW_NS]);
        self.now + self.random.below(longest)
    }

    pub(super) fn reconnect(&mut self) {
        let Some((one, other)) = self.network.mend() else {
            return;
        };
        if self.is_cut(one) || self.is_cut(other) {
            return self.network.delay((one, other));
        }
        // What the dead have sent may still come; nobody connects to them.
        if !self.members.contains_key(&one) || !self.members.contains_key(&other) {
            return;
        }
        let (near, far) = match self.random.percent(50) {
            true => (one, other),
            false => (other, one),
        };
        // One end knows first; the other at the latest when it is to take something.
        self.network.keep_unaware(far, near);
        self.connect(near, far);
    }

    pub(super) fn become_aware(&mut self) {
        if let Some((near, far)) = self.network.an_unaware() {
            self.network.becomes_aware(near, far);
            self.connect(near, far);
        }
    }

    /// A process comes back under another incarnation.
    pub(super) fn come_back(&mut self) {
        let nodes = u64::try_from(self.options.k + self.options.m).expect("few nodes");
        let nodes = nodes + self.mood.spares;
        let node = u32::try_from(self.random.below(nodes)).expect("few nodes");
        if self.members.keys().any(|process| process.node == node) {
            return;
        }
        self.incarnation += 1;
        let process = Process {
            node,
            incarnation: self.incarnation,
        };
        self.log(|| format!("{process} comes"));
        self.start(process);
    }
}
