//! The control thread of a host: messages in, answers out.
//!
//! It owns the listener and the ledger, and carries out what the ledger decides. It
//! blocks until a message, an outcome of slow work, or the next tick; one wake-up in a
//! second is all that an idle host costs.
//!
//! Invariant: a slab's window is registered once, when its memory is fresh, and revoked
//! before `Unmapped` is sent.

mod cut_short;
mod departure;
mod inheritance;
mod leaving;
mod pressure;
mod reclaim;
mod service;
mod slab_stock;
mod status;
mod volume_fills;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cenote_fabric::calls::Spin;
use cenote_fabric::{Address, Event, Listen, Listener, PeerId, RegionOptions, Time, Waker};
use cenote_pool::control::Counters;
use cenote_pool::ledger::{Handover, LEASE, Ledger, Limits, ORPHAN_LIFE, TICK};
use cenote_pool::pressure::Room;
pub use inheritance::Inheritance;
use inheritance::Memory;
pub(crate) use inheritance::{Inherited, open as inherit};
pub use leaving::End;
use leaving::Leaving;
use slab_stock::Stocking;
use volume_fills::VolumeFills;
use watch::Evicting;
pub(crate) use watch::Watch;

use crate::cache_threads::CacheThreads;
use crate::machine::{Machine, volunteer_for_oom_killer};
use crate::outcome::Outcome;
use crate::owners::Owners;
use crate::procedures::Running;
use crate::side_thread::SideThread;
use crate::{Config, Result, fill, keeper};

/// A host that lends memory.
pub struct Daemon {
    config: Config,
    locked: bool,
    incarnation: u64,
    started: Duration,
    ticked: Time,
    listener: Box<dyn Listen>,
    clock: fn() -> Time,
    ledger: Ledger,
    /// By slab, while it has any.
    memory: Vec<Option<Memory>>,
    sessions: BTreeMap<PeerId, Session>,
    /// The session of each connected client.
    peers: BTreeMap<u128, PeerId>,
    counters: Counters,
    outcomes: Receiver<Outcome>,
    /// Fills that the filler has not ended yet.
    fills: usize,
    volume_fills: VolumeFills,
    keeper: SideThread<keeper::Job>,
    stocking: Stocking,
    filler: SideThread<fill::Job>,
    /// Carry out batches of clients. Only held: dropping them ends the threads.
    _cache_threads: CacheThreads,
    owners: Owners,
    /// Whether the last slab that was to be prepared got no memory; see [`Daemon::slabs_free`].
    is_short: bool,
    leaving: Leaving,
    /// When it was last said that clients are refused by a limit.
    limit_told: Option<Duration>,
    evicting: Evicting,
    /// `None` on a host that lends its memory whatever happens.
    watch: Option<Watch>,
    /// The one that it runs on; 0: nobody is known to share it.
    machine: u128,
    /// Counts ticks, for whoever watches that this thread lives.
    beats: Arc<AtomicU64>,
}

/// What a daemon is made of.
pub(crate) struct Parts {
    pub inherited: Inherited,
    pub listener: Box<dyn Listen>,
    pub outcomes: Receiver<Outcome>,
    pub keeper: SideThread<keeper::Job>,
    pub filler: SideThread<fill::Job>,
    pub cache_threads: CacheThreads,
    pub owners: Owners,
    pub locked: bool,
    pub incarnation: u64,
    pub clock: fn() -> Time,
    pub watch: Option<Watch>,
    pub machine: u128,
}

/// A client's control connection.
struct Session {
    client: u128,
    /// Of the messages that it speaks; 0 until it has said something.
    version: u8,
    /// Fills asked for and not answered.
    fills: usize,
    /// What it could reclaim to this host's own machine; `None`: it is not on it.
    away_bytes: Option<u64>,
    /// Cleared when the session ends.
    wanted: Arc<AtomicBool>,
}

/// Prepared slabs are kept ahead, one for each this many, ...
const SLABS_PER_STOCK: u32 = 16;
/// ... and no more than this: a burst of grants waits for few, and idle memory stays idle.
const STOCK_MAX: u32 = 4;
/// Most rounds that reading the inbox takes before a tick.
const INBOX_ROUNDS_MAX: usize = 1000;

impl Daemon {
    /// Checks the configuration, binds the addresses and starts the threads.
    ///
    /// # Errors
    /// `Config`, `OutOfMemory` and `CannotLock` before anything is touched; `Fabric` when an
    /// address is in use or not of this machine; `Os`.
    pub fn start(config: Config) -> Result<Self> {
        Self::start_with(config, Inheritance::default())
    }

    /// Whether a process with these settings would start with the `state` that another one hands over,
    /// as far as can be told while that one listens.
    ///
    /// # Errors
    /// As [`Daemon::start_with`].
    pub fn check(mut config: Config, state: &[u8]) -> Result<()> {
        let inherited = Inherited::read(state)?;
        settle(&mut config, &inherited, Machine::read())?;
        inherited.try_addresses(&config)
    }

    /// As [`Daemon::start`], with the slabs that an earlier process of this host had lent. They
    /// are there before the first client is served.
    ///
    /// # Errors
    /// As [`Daemon::start`]; `Inheritance` when what was handed over contradicts itself.
    pub fn start_with(config: Config, inheritance: Inheritance) -> Result<Self> {
        Self::start_running(config, inheritance, Running::default())
    }

    /// [`Daemon::start`] with server threads that look for work as long as `spin` says.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_spinning(config: Config, spin: Spin) -> Result<Self> {
        let running = Running {
            spin,
            ..Running::default()
        };
        Self::start_running(config, Inheritance::default(), running)
    }

    /// As [`Daemon::start_with`]; procedures are run as `running` says.
    ///
    /// # Errors
    /// As [`Daemon::start_with`].
    pub fn start_running(
        mut config: Config,
        inheritance: Inheritance,
        running: Running,
    ) -> Result<Self> {
        let inherited = inherit(inheritance, config.huge_pages)?;
        let (locked, watch) = settle(&mut config, &inherited, Machine::read())?;
        let options = RegionOptions {
            huge: config.huge_pages,
            // Reserved pages that are given back are of no use to other programs, so a host that
            // makes room for them with these would never be done.
            reserved: config.huge_pages && config.headroom.is_none(),
            lock: locked,
        };
        let mut listener = Listener::bind_with(
            &config.addresses,
            &config.key,
            config.page_traffic,
            inherited.windows(),
        )?;
        let answerers = (0..config.cache_threads)
            .map(|_| listener.answerer())
            .collect::<cenote_fabric::Result<Vec<_>>>()?;
        let owners = Owners::default();
        let outward = cenote_fabric::connector_with(config.key.clone(), config.page_traffic);
        let cache_threads = CacheThreads::start(
            answerers,
            &listener.windows(),
            &owners,
            running,
            (&config.name, Box::new(outward)),
            config.modules.clone(),
        )?;
        let (sender, outcomes) = channel();
        let reserve_bytes = watch.as_ref().map_or(0, Watch::reserve_bytes);
        let keeper = keeper::start(
            config.slab_bytes,
            reserve_bytes,
            options,
            sender.clone(),
            listener.waker(),
        )?;
        let sources = cenote_fabric::connector_with(config.key.clone(), config.page_traffic);
        let filler = fill::start(&config.name, Box::new(sources), sender, listener.waker())?;
        // For people, to tell two lives apart; a clock before 1970 gives 0.
        let incarnation = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        if locked {
            inherited.lock(&keeper);
        }
        Ok(Self::assemble(
            config,
            Parts {
                inherited,
                listener: Box::new(listener),
                outcomes,
                keeper,
                filler,
                cache_threads,
                owners,
                locked,
                incarnation: u64::try_from(incarnation.as_nanos()).unwrap_or(u64::MAX),
                clock: Time::now,
                watch,
                machine: cenote_fabric::machine_id(),
            },
        ))
    }

    /// A daemon of a checked configuration.
    pub(crate) fn assemble(config: Config, parts: Parts) -> Self {
        let now = (parts.clock)();
        let slabs_total = config.slabs_total();
        let limits = Limits {
            slabs_total,
            client_slabs_max: slabs_total,
            clients_max: config.clients_max as usize,
            stock: (slabs_total / SLABS_PER_STOCK).clamp(1, STOCK_MAX),
            lease: LEASE,
            orphan_life: ORPHAN_LIFE,
            room: match parts.watch {
                Some(_) => Room::unknown(slabs_total),
                None => Room::fixed(slabs_total),
            },
        };
        let start = Duration::from_nanos(now.0);
        let ledger = Ledger::inherit(limits, start, &parts.inherited.handover);
        for (_, grant) in ledger.grants() {
            let volume = grant.place.volume;
            parts.owners.grant(&grant.window, grant.client, volume);
        }
        let memory = parts.inherited.memory(ledger.counts().total());
        Self {
            locked: parts.locked,
            incarnation: parts.incarnation,
            started: start,
            ticked: now,
            clock: parts.clock,
            listener: parts.listener,
            ledger,
            memory,
            sessions: BTreeMap::new(),
            peers: BTreeMap::new(),
            counters: parts.inherited.handover.counters,
            outcomes: parts.outcomes,
            fills: 0,
            volume_fills: VolumeFills::default(),
            limit_told: None,
            keeper: parts.keeper,
            stocking: Stocking::default(),
            filler: parts.filler,
            _cache_threads: parts.cache_threads,
            owners: parts.owners,
            is_short: false,
            leaving: Leaving::inherit(&parts.inherited.handover, now),
            evicting: Evicting::default(),
            watch: parts.watch,
            machine: parts.machine,
            beats: Arc::default(),
            config,
        }
    }

    /// Where it listens, with the real port where the configuration said 0.
    #[must_use]
    pub fn addresses(&self) -> Vec<Address> {
        self.listener.addresses()
    }

    /// Makes `run` look at its stop flag at once; without it that takes up to a second.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.listener.waker()
    }

    /// A number that grows while the control thread lives, by one each second.
    #[must_use]
    pub fn beats(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.beats)
    }

    /// Serves until `stop` is set, until it is drained and was to stop then, or until the time of a
    /// notice is up; then refuses those who wait, closes all connections and gives all memory back.
    /// Or until another process is to take its place, or `stop` is set on a host that keeps its
    /// memory: then it leaves everything as it is, and may be called again.
    ///
    /// # Errors
    /// `Fabric`: the listener broke; the host is of no use any more.
    pub fn run(&mut self, stop: &AtomicBool) -> Result<End> {
        volunteer_for_oom_killer();
        let mut events = Vec::new();
        self.begin();
        self.dismiss_askers();
        loop {
            if stop.load(Ordering::Relaxed) {
                if !self.leaving.keeps && self.has_ended_grace() {
                    self.shut_down();
                    break Ok(End::Stopped);
                }
                if self.leaving.keeps && self.has_bidden_farewell() {
                    break Ok(End::Stopped);
                }
            }
            if self.is_past_notice() {
                self.shut_down();
                break Ok(End::NoticeOver);
            }
            if self.takes_leave() {
                self.shut_down();
                break Ok(End::Drained);
            }
            if self.leaving.upgrade.load(Ordering::Relaxed) && self.has_bidden_farewell() {
                self.leaving.upgrade.store(false, Ordering::Relaxed);
                break Ok(End::Upgrade);
            }
            let patience = self.next_turn().since((self.clock)());
            self.turn(patience, &mut events)?;
        }
    }

    /// Does what is to be done before the first turn.
    pub(crate) fn begin(&mut self) {
        self.make_room();
        self.carry_out();
    }

    /// Waits up to `patience` for something to happen, handles it, and ticks when that is due.
    ///
    /// # Errors
    /// As [`Daemon::run`].
    pub(crate) fn turn(&mut self, patience: Duration, events: &mut Vec<Event>) -> Result<()> {
        self.listener.poll(Some(patience), events)?;
        self.handle(events);
        self.make_stock();
        if (self.clock)() >= self.next_tick() {
            self.tick(events)?;
        }
        Ok(())
    }

    /// When the next turn is due if nothing happens before.
    pub(crate) fn next_turn(&self) -> Time {
        let due = self
            .stocking
            .due(self.fills, self.ledger.awaited())
            .into_iter();
        let due = due.chain(self.farewell_until()).chain(self.goes_at());
        due.fold(self.next_tick(), Time::min)
    }

    fn next_tick(&self) -> Time {
        self.ticked.after(TICK)
    }

    /// Its ledger, as the next process would have it.
    pub(crate) fn book(&self) -> Handover {
        self.ledger.handover(self.elapsed())
    }

    fn handle(&mut self, events: &mut Vec<Event>) {
        let now = self.elapsed();
        for event in events.drain(..) {
            self.handle_event(now, event);
        }
        while let Ok(outcome) = self.outcomes.try_recv() {
            self.handle_outcome(now, outcome);
        }
        self.carry_out();
        self.trace_drain();
        self.trace_evictions();
    }

    /// Reads the inbox to its end before any lease may run out: this host may have been
    /// stopped, and what is in there was said in time.
    fn tick(&mut self, events: &mut Vec<Event>) -> Result<()> {
        for _ in 0..INBOX_ROUNDS_MAX {
            self.listener.poll(Some(Duration::ZERO), events)?;
            if events.is_empty() {
                break;
            }
            self.handle(events);
        }
        self.ticked = (self.clock)();
        self.ledger.handle_tick(Duration::from_nanos(self.ticked.0));
        self.make_room();
        self.carry_out();
        self.trace_drain();
        self.trace_evictions();
        self.tell_notice();
        self.ask_back();
        self.beats.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Slabs to advertise. A host that is short of memory offers what it has prepared and no
    /// more, or clients would ask again and again for what it has to refuse. The ledger's
    /// attempts to rebuild the stock, some seconds apart, tell when memory is back.
    fn slabs_free(&self) -> u32 {
        if self.is_short {
            self.ledger.slabs_free().min(self.ledger.counts().prepared)
        } else {
            self.ledger.slabs_lendable()
        }
    }

    /// Now, as the ledger counts.
    fn elapsed(&self) -> Duration {
        Duration::from_nanos((self.clock)().0)
    }

    /// Refuses those who wait, closes all connections and gives all memory back.
    pub fn shut_down(&mut self) {
        self.ledger.handle_shutdown();
        self.carry_out();
        let peers: Vec<PeerId> = self.sessions.keys().copied().collect();
        for peer in peers {
            self.end_session(self.elapsed(), peer);
            self.listener.close(peer);
        }
        for memory in self.memory.iter_mut().filter_map(Option::take) {
            if let Err(error) = self.listener.revoke(memory.window) {
                tracing::error!(%error, "revoke a slab's window");
            }
        }
    }
}

/// Fits the settings to what was inherited and holds them against the machine: whether memory is
/// locked, and the watch of a host that has a headroom.
///
/// # Errors
/// As [`Daemon::start_with`].
fn settle(
    config: &mut Config,
    inherited: &Inherited,
    mut machine: Machine,
) -> Result<(bool, Option<Watch>)> {
    // Before memory is capped: how much there is may change between a check and the start, and
    // they must not decide differently for it.
    let locked = config.decide_lock(&machine)?;
    inherited.adjust(config, &mut machine);
    config.check(&machine)?;
    let watch = Watch::open(config, None, Duration::from_nanos(Time::now().0))?;
    Ok((locked, watch))
}

#[cfg(test)]
mod tests {
    use cenote_fabric::Region;

    use super::*;
    use crate::LockMemory;
    use cenote_fabric::ClusterKey;

    const SLAB_BYTES: u64 = 1 << 20;

    #[test]
    fn a_host_short_of_memory_advertises_no_more_than_it_has_prepared() {
        let config = Config {
            name: "h00".into(),
            domain: "h00".into(),
            addresses: vec!["tcp:127.0.0.1:0".parse().unwrap()],
            memory_bytes: 32 * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            key: ClusterKey::generate().unwrap(),
            huge_pages: false,
            lock_memory: LockMemory::Never,
            clients_max: 8,
            cache_threads: 0,
            modules: None,
            headroom: None,
            page_traffic: cenote_fabric::WireProtection::default(),
        };
        // Its loop does not run: the stock of two is being prepared until the test says more.
        let mut daemon = Daemon::start(config).unwrap();
        let options = RegionOptions {
            huge: false,
            reserved: false,
            lock: false,
        };
        let slab = |name| Arc::new(Region::create(name, SLAB_BYTES, options).unwrap());
        let now = daemon.elapsed();
        assert_eq!(daemon.slabs_free(), 32);

        daemon.handle_outcome(now, Outcome::Prepared(0, slab("first")));
        daemon.handle_outcome(now, Outcome::PrepareFailed(1));
        assert_eq!(daemon.slabs_free(), 1, "what is prepared");

        // The ledger's next attempt, some time later.
        daemon.ledger.handle_tick(now + Duration::from_secs(60));
        assert_eq!(daemon.slabs_free(), 1, "not known yet");
        daemon.handle_outcome(now, Outcome::Prepared(1, slab("second")));
        assert_eq!(daemon.slabs_free(), 32, "memory is back");
    }
}
