//! Processes, views and time of one simulation.

use std::collections::{BTreeMap, VecDeque};

use cenote_kv::group::Bound;
use cenote_kv::group::member::{Member, Outgoing, Shape};
use cenote_kv::group::message::{Message, UNIT_BYTES};
use cenote_kv::group::process::Process;
use cenote_kv::group::progress::{Decision, Leave};
use cenote_kv::group::view::View;
use cenote_kv::injected_faults::{InjectedFault, is_injected};
use cenote_kv::memory::key_hash::KeyHasher;
use cenote_measure::random::Random;

use super::client::Client;
use super::mood::{Focus, Mood};
use super::network::{Channel, Network, WAYS};
use super::observations::Observations;
use super::trouble::Doom;
use super::{Options, Report, Tally, judge};

/// Lines of the log that a report shows.
const LOG_LINES: usize = 400;
/// Steps without faults in which everything has to become still.
const QUIET_STEPS: u64 = 400_000;
/// Steps for which nothing may be left to do.
const STILL_STEPS: u64 = 200;
/// Just longer than anybody waits for units, in nanoseconds.
pub(super) const PATIENCE_NS: u64 = 220_000_000;
/// When simulations begin, in nanoseconds.
const START_NS: u64 = 1_000_000_000;
/// Percent of groups of which, in the end, more dies than they bear.
const DISASTERS: u64 = 30;
/// Clients of a group.
const CLIENTS: u32 = 8;

pub(super) struct World {
    pub(super) options: Options,
    pub(super) mood: Mood,
    pub(super) random: Random,
    pub(super) now: u64,
    pub(super) members: BTreeMap<Process, Member>,
    pub(super) network: Network,
    /// A process that nobody but clients reaches, and until when.
    pub(super) cut: Option<(Process, u64)>,
    /// All views that were agreed on.
    views: Vec<View>,
    /// Dead processes whose deaths no view knows of yet.
    pub(super) dead: Vec<Process>,
    /// Processes that are to give their places up, and end then.
    pub(super) leaving: BTreeMap<Process, Leave>,
    pub(super) clients: Vec<Client>,
    pub(super) seen: Observations,
    pub(super) report: Report<Tally>,
    pub(super) incarnation: u64,
    /// When trouble follows trouble, in steps.
    pub(super) aftershocks: VecDeque<u64>,
    pub(super) doom: Option<Doom>,
    /// When time leaps for as long as anybody waits for units, in steps.
    pub(super) leap: Option<u64>,
    pub(super) is_quiet: bool,
    /// More has died than the group bears: what is lost is to start from scratch.
    pub(super) is_ruined: bool,
}

impl World {
    pub(super) fn new(options: &Options) -> Self {
        let process = |node: usize| Process {
            node: u32::try_from(node).expect("few nodes"),
            incarnation: 1,
        };
        let data: Vec<Process> = (0..options.k).map(process).collect();
        let parities: Vec<Process> = (options.k..options.k + options.m).map(process).collect();
        let view = View::first(options.scheme, &data, &parities);
        let mut random = Random::new(options.seed);
        let mood = Mood::draw(&mut random, options);
        let clients = (0..CLIENTS).map(|index| Client::new(index, &mood));
        let mut world = Self {
            clients: clients.collect(),
            options: options.clone(),
            mood,
            random,
            now: START_NS,
            members: BTreeMap::new(),
            network: Network::default(),
            cut: None,
            views: vec![view],
            dead: Vec::new(),
            leaving: BTreeMap::new(),
            seen: Observations::default(),
            report: Report::new(options.seed),
            incarnation: 1,
            aftershocks: VecDeque::new(),
            doom: None,
            leap: None,
            is_quiet: false,
            is_ruined: false,
        };
        for process in data.into_iter().chain(parities) {
            world.start(process);
        }
        world
    }

    pub(super) fn start(&mut self, process: Process) {
        let shape = Shape {
            scheme: self.options.scheme,
            k: self.options.k,
            m: self.options.m,
            region_bytes: self.options.units * UNIT_BYTES,
            evicts: self.mood.evicts,
            service: self.options.service,
            bound: Bound::NONE,
            hasher: KeyHasher::new(u128::from(self.options.seed).to_le_bytes()),
        };
        self.members.insert(process, Member::new(process, shape));
    }

    pub(super) fn run(mut self) -> Report<Tally> {
        let pause = self.mood.pauses.then_some(self.options.steps / 2);
        for step in 0..self.options.steps {
            if pause == Some(step) && !self.become_still() {
                return self.end();
            }
            self.step();
            if self.report.is_broken() {
                return self.end();
            }
        }
        if self.become_still() {
            judge::judge(&mut self);
        }
        let is_right = !self.report.is_broken();
        if is_right && self.random.percent(DISASTERS) && self.strike() && self.become_still() {
            judge::judge(&mut self);
        }
        self.end()
    }

    /// Ends faults and requests, waits until all is at home and nothing under way, and compares.
    fn become_still(&mut self) -> bool {
        self.is_quiet = true;
        self.network.hasten();
        let mut still = 0;
        for _ in 0..QUIET_STEPS {
            self.step();
            if self.report.is_broken() {
                return false;
            }
            still = if self.is_still() { still + 1 } else { 0 };
            if still > STILL_STEPS {
                break;
            }
        }
        if still == 0 {
            let state = self.describe();
            self.violate(format!("it does not become still: {state}"));
            return false;
        }
        self.calm();
        judge::compare(self);
        self.is_quiet = false;
        !self.report.is_broken()
    }

    /// Delivers all that there is, and tells backups what is stable.
    fn calm(&mut self) {
        for _ in 0..20 {
            let all: Vec<Process> = self.members.keys().copied().collect();
            for process in all {
                if let Some(member) = self.members.get_mut(&process) {
                    member.flush(self.now, true);
                }
                self.post(process);
            }
            while !self.network.is_empty() {
                self.deliver();
            }
        }
    }

    fn end(mut self) -> Report<Tally> {
        self.report.tally.views = self.view().number;
        self.report
    }

    pub(super) fn view(&self) -> &View {
        self.views.last().expect("the first view stays")
    }

    pub(super) fn log(&mut self, line: impl FnOnce() -> String) {
        let line = format!("{:>7} us: {}", (self.now - START_NS) / 1000, line());
        self.report.note(line, LOG_LINES);
    }

    pub(super) fn violate(&mut self, what: String) {
        self.report.violate(what);
    }

    /// The time in seconds.
    pub(super) fn seconds(&self) -> u32 {
        u32::try_from(self.now / 1_000_000_000).expect("a short time")
    }

    pub(super) fn step(&mut self) {
        self.now += self.random.below(20_000);
        self.report.tally.steps += 1;
        match self.random.below(1000) {
            0..500 => self.deliver(),
            500..750 => self.client_step(),
            750..900 => self.flush(),
            900..940 => self.learn(),
            940..970 => self.propose(),
            970..978 => self.now += self.random.below(40_000_000),
            // Longer than anybody waits for units.
            978 if matches!(self.mood.focus, Focus::Recovery | Focus::Moves) => {
                self.now += PATIENCE_NS
            }
            978 | 979 => self.now += self.random.below(500_000_000),
            980..987 => self.reconnect(),
            987..990 => self.become_aware(),
            _ if self.is_quiet => self.come_back(),
            _ => self.trouble(),
        }
        self.shake();
    }

    fn client_step(&mut self) {
        let index = self.random.below(self.clients.len() as u64);
        let index = usize::try_from(index).expect("few clients");
        let mut client = std::mem::take(&mut self.clients[index]);
        client.step(self);
        self.clients[index] = client;
    }

    /// Takes what a member has to say and puts it on its links.
    pub(super) fn post(&mut self, from: Process) {
        let Some(member) = self.members.get_mut(&from) else {
            return;
        };
        let messages = member.take_messages();
        let accused = member.take_accused();
        if let Some(failure) = member.failure() {
            self.log(|| format!("{from} gives up: {failure}"));
            self.violate(format!("{from} was told what cannot be: {failure}"));
        }
        if !accused.is_empty() {
            self.violate(format!("{from} accuses {accused:?}"));
        }
        for Outgoing { to, view, message } in messages {
            if self.members.contains_key(&to) {
                let channel = (from, to, self.way_of(&message));
                if channel.2 > 0 {
                    self.delay(channel);
                    self.post_again(channel, view, &message);
                }
                let is_settle = matches!(message, Message::Settle { .. });
                self.network.post(channel, view, &message);
                // Where it hurts most: what the other has may be other than what is kept.
                if is_settle && !self.is_quiet && self.random.percent(self.mood.unsettling / 2) {
                    self.network.part(from, to);
                }
            }
        }
    }

    /// Values that were asked for twice come twice, the second time when others have come since.
    fn post_again(&mut self, (from, to, way): Channel, view: u32, message: &Message) {
        let is_asked = matches!(message, Message::Pulled { .. } | Message::Solved { .. });
        if is_asked && !self.is_quiet && self.random.percent(25) {
            let channel = (from, to, 1 + way % (WAYS - 1));
            let until = self.now + self.random.below(2 * PATIENCE_NS);
            self.network.slow_down(channel, until);
            self.network.post(channel, view, message);
        }
    }

    /// Values that are recovered or moved may come late: nothing depends on the order of their links.
    fn way_of(&mut self, message: &Message) -> u8 {
        let is_apart = match message {
            Message::Units { .. } => is_injected(InjectedFault::UnitsOvertake),
            Message::Pulled { .. } => {
                is_injected(InjectedFault::UnitsOvertake) || self.mood.values_apart
            }
            Message::Solved { .. } => self.mood.values_apart,
            _ => false,
        };
        match is_apart {
            true => 1 + u8::try_from(self.random.below(u64::from(WAYS) - 1)).expect("few ways"),
            false => 0,
        }
    }

    fn deliver(&mut self) {
        let Some(channel) = self.network.pick(&mut self.random, self.now) else {
            return;
        };
        let (from, to, _) = channel;
        if self.network.becomes_aware(to, from) {
            self.connect(to, from);
        }
        // A few at a time, as a socket gives them.
        for _ in 0..=self.random.below(4) {
            let Some((number, message)) = self.network.take(channel) else {
                return;
            };
            let now = self.now;
            if let Some(member) = self.members.get_mut(&to) {
                self.report.tally.solved += u64::from(matches!(message, Message::Solved { .. }));
                member.handle(from, number, message, now);
                self.post(to);
            }
        }
    }

    /// A process hears that its link to another is new.
    pub(super) fn connect(&mut self, near: Process, far: Process) {
        if let Some(member) = self.members.get_mut(&near) {
            member.connected(far);
            self.post(near);
        }
    }

    fn any_member(&mut self) -> Process {
        let all: Vec<Process> = self.members.keys().copied().collect();
        *self.random.pick(&all)
    }

    fn flush(&mut self) {
        let process = self.any_member();
        let is_idle = self.random.percent(30);
        let seconds = self.seconds();
        if let Some(member) = self.members.get_mut(&process) {
            let owned: Vec<usize> = member.owned().collect();
            for partition in owned {
                if let Some(owner) = member.owner(partition).filter(|_| !self.is_quiet) {
                    owner.tick(seconds);
                }
            }
            member.flush(self.now, is_idle);
        }
        self.post(process);
    }

    /// A process hears of a view that was agreed on.
    fn learn(&mut self) {
        let process = self.any_member();
        if self.is_cut(process) {
            return;
        }
        let member = self.members.get_mut(&process).expect("it is one of them");
        let known = member.view().map_or(0, |view| view.number);
        // Some hear of every view, others of the last one.
        let next = self.views.iter().find(|view| view.number > known);
        let view = if self.random.percent(50) {
            next
        } else {
            self.views.last()
        };
        let Some(view) = view.filter(|view| view.number > known).cloned() else {
            return;
        };
        member.adopt(&view);
        self.log(|| format!("{process} adopts {}", view.number));
        self.post(process);
    }

    /// A register with compare-and-swap, as etcd is one.
    pub(super) fn agree(&mut self, view: View, by: Process) -> bool {
        if view.number != self.view().number + 1 {
            return false;
        }
        self.log(|| {
            format!(
                "view {} by {by}: {:?} {:?}, handoff {:?}, let go {:b}",
                view.number, view.partitions, view.parities, view.handoff, view.let_go
            )
        });
        if let Some(exchange) = self.view().exchange() {
            let owner = view.owner(exchange.partition);
            self.report.tally.exchanged += u64::from(owner == Some(exchange.parity));
        }
        self.views.push(view);
        self.unsettle();
        true
    }

    fn propose(&mut self) {
        let process = self.any_member();
        if self.is_cut(process) {
            return;
        }
        let present = self.view().clone();
        let member = &self.members[&process];
        if member
            .view()
            .is_none_or(|view| view.number != present.number)
        {
            return;
        }
        let dead = self.dead.clone();
        if let Some(view) = present.without(|process| dead.contains(&process)) {
            if self.agree(view, process) {
                self.dead.clear();
            }
            return;
        }
        let members: Vec<Process> = self.members.keys().copied().collect();
        let inside = present.processes();
        let now = self.now;
        let leaving = &self.leaving;
        let leave = leaving.get(&process).copied().unwrap_or(Leave::No);
        let spare = |()| {
            let mut all = members.iter().copied();
            all.find(|process| !inside.contains(process) && !leaving.contains_key(process))
        };
        if self.is_ruined && present.lost() != 0 && self.random.percent(20) {
            let spare = spare(());
            return self.begin_reset(spare);
        }
        let member = self.members.get_mut(&process).expect("it is one of them");
        let mut next = member.propose(now, leave, Decision::Soon, |_| spare(()));
        if next.is_none()
            && !self.is_quiet
            && leave == Leave::No
            && self.random.percent(self.mood.spreads)
        {
            let owned: Vec<usize> = member.owned().collect();
            let others = members
                .iter()
                .filter(|process| !leaving.contains_key(process));
            let others: Vec<Process> = others.copied().collect();
            if !owned.is_empty() && !others.is_empty() {
                let (partition, to) = (*self.random.pick(&owned), *self.random.pick(&others));
                next = member.hand_over(now, partition, to);
                self.report.tally.handed += u64::from(next.is_some());
            }
        }
        let Some(view) = next else { return };
        // Who leaves may be the last to hear what came of it.
        if leave != Leave::No && !self.is_quiet && self.random.percent(20) {
            self.cut_off(process);
        }
        // Sometimes nobody could be asked, and that is sure.
        if self.random.percent(10) || !self.agree(view, process) {
            let member = self.members.get_mut(&process).expect("it is one of them");
            member.reopen();
        }
    }

    fn is_still(&self) -> bool {
        let view = self.view();
        view.is_whole()
            && view.is_calm()
            && self.leaving.is_empty()
            && self.dead.is_empty()
            && self.network.is_whole()
            && self.clients.iter().all(Client::is_idle)
            && self.members.values().all(|member| {
                let inside = view.processes().contains(&member.me());
                !inside || member.view().is_some_and(|own| own.number == view.number)
            })
    }

    fn describe(&self) -> String {
        let waiting: Vec<String> = self
            .clients
            .iter()
            .filter(|client| !client.is_idle())
            .map(Client::describe)
            .collect();
        format!(
            "{:?}, views {:?}, waiting {waiting:?}, dead {:?}, {}",
            self.view(),
            self.members
                .iter()
                .map(|(process, member)| (process.to_string(), member.view().map(|v| v.number)))
                .collect::<Vec<_>>(),
            self.dead,
            self.network.describe(),
        )
    }
}
