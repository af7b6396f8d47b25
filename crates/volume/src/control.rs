//! The control thread of a volume: it owns the sessions to the hosts and everything slow.
//!
//! It is machines that know nothing of each other but what is below them. [`Context`] has what all work
//! with: the hosts' sessions (`hosts`), slabs on their way (`acquires`), the journal (`recorder`) and the choice
//! of hosts (`placement`). On it stand the `mapper`, which maps extents that workers ask for; the `repairer`,
//! which relocates slabs (`relocation`) and gives extents up (`slab_drop`, `extent_reclaim`); the `evictor` of slabs that
//! hosts want back; the `reshaper` and the `restriper` for another scheme; and the `owner` of a volume that
//! outlives its owners. What concerns another machine comes out of them as an event, and [`Control`] takes it there.
//!
//! Workers never wait for it on the page path; they park a page until the directory moves.
//!
//! Concurrency: one thread. Sessions are non-blocking; connecting and opening
//! endpoints (`openings`) run on short-lived threads and come back through `arrivals`. Every wait is bounded
//! by [`TICK`].

mod acquires;
mod activity;
mod books;
mod close;
mod context;
mod dialer;
mod evictor;
mod extent_reclaim;
mod fate;
mod host;
mod hosts;
mod mapper;
mod mender;
mod openings;
mod owner;
mod ownership;
mod pace;
mod parts;
mod placement;
mod poll;
mod reach;
mod recorder;
mod relocation;
mod repairer;
mod report;
mod reputations;
mod reshaper;
mod restriper;
mod slab_drop;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use cenote_fabric::{Incoming, Time};
use cenote_pool::control::{HeldSlab, Reply, Window};
use cenote_pool::ledger::LEASE;

use crate::command::Command;
use crate::core::Core;
use crate::directory::{HostIndex, Session, Snapshot};
use crate::status::HostState;
use acquires::{Acquire, Acquires, Outcome, Purpose};
use activity::Activity;
use books::Names;
use close::Closing;
use context::Context;
use evictor::Evictor;
use fate::{Cause, Unmapped};
use hosts::{Arrival, Hosts};
use mapper::Mapper;
use mender::Mender;
use openings::Equipped;
use owner::Owner;
use placement::Placer;
use recorder::Recorder;
use relocation::PAUSE;
use repairer::Repairer;
use reputations::Reputations;
use reshaper::Reshaper;
use restriper::Restriper;

pub use dialer::{Dialer, Greeted, Greeting, Link, Threads, dial};
pub use parts::Parts;
pub use relocation::stage::{Relocation, RelocationStage};

/// Longest the thread sleeps: pings, retries and reclaims are due at this grain.
const TICK: Duration = Duration::from_millis(250);

/// How often a drain is looked at: workers leave an epoch within microseconds.
const DRAIN_POLL: Duration = Duration::from_micros(20);

/// Messages taken from one host per turn: what one host sends must not hold up the others.
/// Arbitrary; a turn of this many takes well under a millisecond.
const MESSAGES_PER_TURN: usize = 64;

/// The control thread.
pub struct Control {
    cx: Context,
    mapper: Mapper,
    repairer: Repairer,
    evictor: Evictor,
    reshaper: Reshaper,
    restriper: Restriper,
    owner: Owner,
    activity: Activity,
    arrivals: Receiver<Arrival>,
    commands: Receiver<Command>,
    closing: Option<Closing>,
    ticked: Time,
}

impl Control {
    pub fn new(mut parts: Parts) -> Self {
        let (arrive, arrivals) = std::sync::mpsc::channel();
        let now = (parts.core.clock)();
        let hosts = Hosts::new(&mut parts, arrive, now);
        let scheme = parts.core.resilience().scheme();
        let mut control = Self {
            cx: Context {
                acquires: Acquires::new(parts.volume),
                placer: Placer::new(parts.volume, parts.placement, scheme, &hosts),
                reputations: Reputations::new(hosts.len(), now),
                hosts,
                recorder: Recorder::new(None),
                opening: None,
                search_at: Time(0),
                core: Arc::clone(&parts.core),
            },
            mapper: Mapper::default(),
            repairer: Repairer::new(Mender::new(parts.orders), now),
            evictor: Evictor::default(),
            reshaper: Reshaper::default(),
            restriper: Restriper::default(),
            owner: Owner::default(),
            activity: Activity::new(&parts.core.demand.touched, now),
            arrivals,
            commands: parts.commands,
            closing: None,
            ticked: now,
        };
        if let Some(journal) = parts.journal {
            parts.core.journaled.store(0, Ordering::Release);
            let (owner, cx) = (&control.owner, &mut control.cx);
            owner.inherit(cx, journal.wanted(), parts.opened);
            cx.recorder = Recorder::new(Some(journal));
        }
        for (host, link) in parts.links {
            control.link_up(host, Equipped::new(link));
        }
        control
    }

    /// Runs until told to close.
    pub fn run(mut self) {
        loop {
            let wake = self.cx.core.wake.as_fd().as_raw_fd();
            let ready = poll::ready_hosts(&self.cx.hosts, wake, self.patience());
            if !self.turn(ready) {
                return;
            }
        }
    }

    /// Handles what `ready` hosts sent and all else that is due; false once the volume is closed.
    pub fn turn(&mut self, ready: Vec<HostIndex>) -> bool {
        self.cx.core.wake.clear();
        if let Some(closing) = &mut self.closing {
            return closing.step(&mut self.cx.hosts, ready);
        }
        for host in ready {
            self.receive(host);
        }
        while let Ok(arrival) = self.arrivals.try_recv() {
            if let Some((host, equipped)) = self.cx.hosts.on_arrival(arrival) {
                self.link_up(host, equipped);
            }
            self.follow_up();
        }
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Close => return self.begin_closing(),
                Command::Detach => {
                    self.cx.record();
                    return false;
                }
                command => self.on_command(command),
            }
        }
        self.take_failures();
        for extent in self.cx.core.take_wanted() {
            self.map(extent);
        }
        let now = self.cx.now();
        if now.since(self.ticked) >= TICK {
            self.tick(now);
        }
        self.cx.tend_returning(now);
        let is_restriping = self.restriper.is_out();
        self.repairer.tend_pace(&self.cx, now, is_restriping);
        self.repairer.tend_mending(&mut self.cx);
        self.follow_up();
        self.repair(now);
        if !self.cx.is_opening() {
            self.restripe();
        } else if self.cx.acquires.is_empty() {
            self.owner.tend(&mut self.cx, now);
        }
        self.follow_up();
        self.cx.record();
        true
    }

    /// Hosts that may have sent something.
    pub fn connected(&self) -> Vec<HostIndex> {
        self.cx.hosts.connected()
    }

    /// How long it may sleep when nothing arrives.
    pub fn patience(&self) -> Duration {
        let (core, hosts) = (&self.cx.core, &self.cx.hosts);
        let is_draining = self.repairer.is_draining() || self.reshaper.is_giving_up(core);
        if hosts.iter().any(|host| host.is_unread) {
            return Duration::ZERO;
        }
        if is_draining || self.repairer.is_mending() {
            return DRAIN_POLL;
        }
        if hosts.is_awaiting_return() {
            return hosts::RECONNECT_RETURNING;
        }
        let pauses = self.repairer.pauses_until();
        let until = pauses.into_iter().chain(self.restriper.goes_on_at(core));
        until.min().map_or(TICK, |until| {
            until.since(self.cx.now()).clamp(DRAIN_POLL, TICK)
        })
    }

    /// Handles what a host sent, up to [`MESSAGES_PER_TURN`].
    fn receive(&mut self, host: HostIndex) {
        for _ in 0..MESSAGES_PER_TURN {
            match self.cx.hosts[host].receive() {
                Ok(Some(Incoming::Message(bytes))) => self.on_message(host, &bytes),
                Ok(Some(Incoming::Attached(descriptor, window))) => {
                    let cx = &mut self.cx;
                    let (acquires, hosts) = (&mut cx.acquires, &mut cx.hosts);
                    acquires.on_attached(hosts, &cx.recorder, host, descriptor, window);
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => self.cx.hosts.note_lost(host, &error),
            }
        }
        self.follow_up();
        self.owner.retake(&mut self.cx, host);
        self.follow_up();
    }

    fn on_message(&mut self, host: HostIndex, bytes: &[u8]) {
        match Reply::decode(bytes) {
            // Slabs that come one after the other take their places together.
            Ok(reply @ Reply::Mapped { .. }) => self.on_reply(host, reply),
            Ok(reply) => {
                self.follow_up();
                self.on_reply(host, reply);
                self.follow_up();
            }
            Err(malformed) => {
                tracing::warn!(host = %self.cx.hosts.name(host), %malformed, "host sent a malformed reply");
                self.cx.hosts.lose(host);
            }
        }
    }

    fn on_reply(&mut self, host: HostIndex, reply: Reply) {
        let cx = &mut self.cx;
        match reply {
            Reply::Free {
                slabs_total,
                slabs_free,
                ..
            } => cx.hosts[host].set_free(slabs_free, Some(slabs_total)),
            Reply::Pong { slabs_free, .. } => cx.hosts[host].on_pong(slabs_free),
            Reply::Mapped { request, window } => {
                let (acquires, hosts) = (&mut cx.acquires, &mut cx.hosts);
                acquires.on_mapped(hosts, &cx.recorder, host, request, window);
            }
            Reply::Refused { request, reason } => {
                let is_slab = cx.acquires.on_refused(&mut cx.hosts, host, request, reason);
                if !is_slab && cx.hosts[host].is_asked_to_own(request) {
                    self.owner.on_not_owned(cx, host, reason);
                }
            }
            Reply::Owned { request, .. } => self.owner.on_owned(cx, host, request),
            Reply::Filled { request, result } => {
                self.repairer.on_filled(cx, host, request, result);
            }
            Reply::Reclaim { bytes } => {
                cx.core.limits.spare.offer(bytes, cx.now());
                cx.hosts.say_where(host);
            }
            Reply::HandsOver { back_within_ms } => {
                let back_within = Duration::from_millis(back_within_ms.into());
                cx.hosts.on_hands_over(host, back_within);
            }
            Reply::Evict { windows } => self.on_evict(host, &windows),
            Reply::CheckActivity { request, windows } => {
                self.activity.on_check(cx, host, request, &windows);
            }
            Reply::Held { skip, slabs } => self.on_held(host, skip, &slabs),
            Reply::Unmapped { window } => books::on_unmapped(cx, host, window),
            // A host under notice asks for its slabs as well, which moves them.
            Reply::Status(_) | Reply::Notice { .. } => {}
        }
    }

    /// A host wants slabs back: it is asked for a list if nobody here knows one of them.
    fn on_evict(&mut self, host: HostIndex, windows: &[Window]) {
        if self.cx.hosts[host].listing.is_idle() {
            let known = self.known_on(host);
            if !windows.iter().all(|window| known.contains(window)) {
                self.cx.hosts.compare_books(host);
            }
        }
        self.evictor.on_evict(&mut self.cx, host, windows);
    }

    /// A host says what this client holds there: what nobody here knows goes back, and what the host does
    /// not is dropped.
    fn on_held(&mut self, host: HostIndex, skip: u32, slabs: &[HeldSlab]) {
        let Some(listed) = books::take_page(&mut self.cx, host, skip, slabs) else {
            return;
        };
        books::drop_unlisted(&mut self.cx, host, &listed);
        if self.cx.recorder.is_unknown() {
            return self.cx.hosts[host].listing.request();
        }
        let known = self.known_on(host);
        books::return_strange(&mut self.cx, host, &listed, &known);
    }

    fn known_on(&self, host: HostIndex) -> Names {
        let snapshot = self.cx.core.directory.snapshot();
        Names::of_host(host, &mut self.slabs(&snapshot))
    }

    /// Every slab that something here has, or is about to give back by itself.
    fn slabs<'a>(
        &'a self,
        snapshot: &'a Snapshot,
    ) -> impl Iterator<Item = (HostIndex, Window)> + 'a {
        let held = snapshot.stripes();
        let held = held.flat_map(|(_, stripe)| stripe.members.iter().flatten());
        let members = held.chain(self.mapper.members());
        let members = members.map(|member| {
            let window = member.window.name();
            (member.session.host, window)
        });
        let acquires = self.cx.acquires.iter();
        let granted = acquires.filter_map(|acquire| Some((acquire.session.host, acquire.granted?)));
        members
            .chain(granted)
            .chain(self.repairer.leaving())
            .chain(self.reshaper.surplus())
    }

    fn on_command(&mut self, command: Command) {
        let cx = &mut self.cx;
        match command {
            Command::AddWorker { id, ready } => cx.hosts.add_worker(id, ready),
            Command::RemoveWorker { id } => cx.hosts.remove_worker(id),
            Command::Status { reply } => {
                if reply.send(self.status()).is_err() {
                    tracing::debug!("nobody waits for the status");
                }
            }
            Command::Reshape(resilience) => {
                self.reshaper.begin(cx, &mut self.restriper, resilience);
                cx.core.helpers.restripe_orders.note_obeyed();
            }
            Command::Close | Command::Detach => unreachable!("they end the turn"),
        }
    }

    fn tick(&mut self, now: Time) {
        // A gap means that this process was stopped: what the hosts owe may wait in the sockets.
        let stopped_for = now.since(self.ticked);
        let frozen = stopped_for > TICK * 3;
        let cx = &mut self.cx;
        if frozen {
            self.owner.begin_waits_again(cx, now);
        }
        self.ticked = now;
        if stopped_for > LEASE / 2 {
            // Hosts may have given up on it: nothing but a verb on a slab that is gone would tell, and
            // parities would be missed only when they are needed.
            cx.hosts.compare_all_books();
        }
        if !cx.recorder.is_unknown() {
            cx.hosts.tend_books();
        }
        for host in 0..cx.hosts.len() {
            cx.hosts.tend(host, now, frozen);
        }
        cx.acquires.tend(&mut cx.hosts, &cx.recorder, now);
        self.follow_up();
        let (cx, repairer) = (&mut self.cx, &mut self.repairer);
        self.activity.tend(cx, &mut self.mapper, repairer, now);
        if cx
            .reputations
            .tend(&cx.core.pages.integrity, &cx.hosts, now)
        {
            cx.search_soon();
        }
        self.owner.tend(cx, now);
        self.follow_up();
        for extent in self.mapper.tend(&self.cx.core, now) {
            self.map(extent);
        }
        self.mapper.map_again(&self.cx, now);
        let core = &self.cx.core;
        let is_kept = core.demand.mapped_ahead.load(Ordering::Acquire) && !core.layouts.is_mixed();
        if core.demand.discarded.swap(false, Ordering::AcqRel) && !is_kept {
            self.repairer.reclaim_the_empty(&self.cx);
        }
    }

    /// Begins to map an extent.
    fn map(&mut self, extent: usize) {
        let is_busy = self.repairer.has(extent);
        self.mapper.begin(&mut self.cx, extent, is_busy);
        self.follow_up();
    }

    /// Moves on what is done to extents, and looks for what else is to be done.
    fn repair(&mut self, now: Time) {
        self.repairer.step(&mut self.cx, now);
        self.follow_up();
        let (cx, repairer) = (&mut self.cx, &mut self.repairer);
        self.reshaper.give_up_surplus(cx);
        if now < cx.search_at || cx.is_opening() {
            return;
        }
        cx.search_at = now.after(PAUSE);
        repairer.give_up_the_lost(cx);
        self.reshaper.step(cx, repairer, &self.restriper, now);
        repairer.rebuild_the_incomplete(cx, now);
        self.evictor.start(cx, repairer, now);
        repairer.step_drops(cx, now);
        self.follow_up();
    }

    /// Goes on with bringing pages to the other layout.
    fn restripe(&mut self) {
        let (cx, repairer) = (&mut self.cx, &mut self.repairer);
        self.restriper.step(cx, repairer, &self.mapper);
        if self.restriper.is_under_way(&cx.core) {
            self.reshaper.note_restripe(&cx.core);
        }
    }

    /// Takes over a new connection to a host.
    fn link_up(&mut self, host: HostIndex, equipped: Equipped) {
        if self.cx.hosts.link_up(host, equipped) {
            self.cx.search_soon();
            self.owner.begin(&mut self.cx, host);
        }
        self.follow_up();
    }

    /// Acts on failures that workers marked in the directory.
    fn take_failures(&mut self) {
        let directory = Arc::clone(&self.cx.core.directory);
        let hosts = &mut self.cx.hosts;
        for session in directory.take_failed() {
            if hosts.session_is_up(session) {
                hosts.note_lost(session.host, &"a data connection ended");
            }
        }
        for dropped in directory.take_dropped() {
            let (extent, member) = (dropped.extent, dropped.member);
            self.repairer.lose_member(&mut self.cx, extent, member);
            let window = dropped.window.name();
            self.cx.give_back(dropped.session, window);
            self.cx.search_soon();
        }
        self.follow_up();
    }

    /// Takes what came of hosts, slabs and extents to whom it concerns, until nothing follows from it.
    fn follow_up(&mut self) {
        loop {
            if let Some(session) = self.cx.hosts.take_lost() {
                self.on_lost(session);
            } else if let Some((acquire, outcome)) = self.cx.acquires.take_ended() {
                self.on_acquired(&acquire, outcome);
            } else if let Some(unmapped) = self.repairer.take_unmapped() {
                self.on_unmapped(unmapped);
            } else {
                return;
            }
        }
    }

    /// A host is lost: who had something of it does without.
    fn on_lost(&mut self, session: Session) {
        let cx = &mut self.cx;
        cx.tell_loss(session.host);
        self.evictor.forget_host(session.host);
        cx.acquires.lose(&mut cx.hosts, &cx.recorder, session);
        self.repairer.lose_session(cx, session);
    }

    /// A slab has come, or will not.
    fn on_acquired(&mut self, acquire: &Acquire, outcome: Outcome) {
        let (cx, extent, member) = (&mut self.cx, acquire.extent, acquire.member);
        match (acquire.purpose, outcome) {
            (Purpose::Map, Outcome::Granted(slab)) => {
                self.mapper.on_granted(cx, extent, member, slab);
            }
            (Purpose::Map, Outcome::Short(error)) => self.mapper.on_short(cx, extent, error),
            (Purpose::Map, _) => self.mapper.on_failed(cx, extent),
            (Purpose::Repair, Outcome::Granted(slab)) => {
                self.repairer.on_granted(cx, extent, member, slab);
            }
            (Purpose::Repair, _) => self.repairer.on_refused(extent),
            (Purpose::Return { .. }, Outcome::Granted(slab)) => {
                self.owner.on_returned(cx, acquire, slab);
            }
            (Purpose::Return { birth }, Outcome::NotHeld) => {
                self.owner.on_not_held(cx, acquire, birth);
            }
            (Purpose::Return { .. }, Outcome::Failed | Outcome::Short(_)) => {
                self.owner.on_return_failed(cx, acquire)
            }
        }
    }

    /// An extent has no slabs any more.
    fn on_unmapped(&mut self, unmapped: Unmapped) {
        let (core, extent) = (&self.cx.core, unmapped.extent);
        match unmapped.cause {
            Cause::Lost => {
                let is_ahead = core.demand.mapped_ahead.load(Ordering::Acquire);
                if is_ahead && !core.layouts.is_mixed() {
                    self.mapper.note_lost(extent);
                }
            }
            Cause::Dropped(slabs) => {
                let now = self.cx.now();
                for (host, window) in slabs {
                    if let Some(since) = self.evictor.note_given_back(host, &window) {
                        core.measures.timings.evict.note(now.since(since));
                    }
                }
                // It takes others at once if it is busy.
                if self.activity.is_hot(core, extent) {
                    let is_busy = self.repairer.has(extent);
                    self.mapper.begin(&mut self.cx, extent, is_busy);
                }
            }
        }
    }

    /// Starts to give every slab back; whether answers are to come.
    fn begin_closing(&mut self) -> bool {
        // Gives back what workers had dropped.
        self.take_failures();
        if !self.cx.recorder.note_end(&self.cx.core) {
            // Its slabs are those of the next owner.
            self.closing = Some(Closing::at_once(self.cx.now()));
            return false;
        }
        let snapshot = self.cx.core.directory.snapshot();
        let slabs: Vec<(HostIndex, Window)> = self.slabs(&snapshot).collect();
        let Context {
            acquires, hosts, ..
        } = &mut self.cx;
        let asked = acquires.numbered();
        let asked = asked.filter(|(_, acquire)| acquire.granted.is_none());
        let asked = asked.map(|(request, acquire)| (acquire.session.host, request));
        let mut closing = Closing::begin(hosts, slabs.into_iter(), asked);
        let goes_on = closing.step(hosts, Vec::new());
        self.closing = Some(closing);
        goes_on
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.cx.core
    }

    pub(crate) fn host_states(&self) -> Vec<HostState> {
        report::host_states(&self.cx)
    }

    /// Where the relocations stand that have a slab to fill; for simulators.
    pub(crate) fn relocations(&self) -> Vec<relocation::stage::Relocation> {
        self.repairer.at_work()
    }
}

#[cfg(test)]
mod tests;
