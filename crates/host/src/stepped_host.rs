//! A host without threads: its caller decides when each part of it runs, and in what time.
//!
//! For simulators. The daemon, the ledger and the filler are those of a real host; what the
//! keeper and the filler do beside the control thread happens in [`Stepped::work`].

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cenote_fabric::calls::{Answering, Call};
use cenote_fabric::{
    ClientId, Connector, Event, Listen, Region, RegionOptions, Time, WindowDescriptor, Windows,
};
use cenote_pool::control::{Drain, HostStatus};
use cenote_pool::ledger::{Demand, Handover};

use crate::cache_threads::{CacheThreads, answer_call};
use crate::daemon::{Daemon, Inheritance, Inherited, Parts, Watch, inherit};
use crate::fill::{self, Filler, Reach};
use crate::keeper;
use crate::machine::Machine;
use crate::outcome::Outcome;
use crate::owners::Owners;
use crate::side_thread::SideThread;
use crate::{Config, Gauge, Result};

/// Every process of a simulation runs on this machine, as far as it says: clients are told of memory
/// to spare.
const MACHINE: u128 = 1;

/// A host that its caller runs step by step.
pub struct Stepped {
    daemon: Daemon,
    events: Vec<Event>,
    slab_bytes: u64,
    keeper_inbox: Receiver<keeper::Job>,
    filler_inbox: Receiver<fill::Job>,
    filler: Filler,
    is_filling: bool,
    outcomes: Sender<Outcome>,
    clock: fn() -> Time,
    cache_thread: Option<CacheThread>,
}

/// Its server thread for caches, which has a turn when the daemon has.
struct CacheThread {
    answering: Box<dyn Answering>,
    windows: Windows,
}

impl Stepped {
    /// A host that clients reach through `listener`, and that reaches other hosts through
    /// `connector` as `client`. Of `config`, addresses and key are not used; memory is neither
    /// locked nor checked against the machine's. A host with a headroom measures with `gauge`, or
    /// with the machine's own.
    ///
    /// # Errors
    /// `Config`.
    pub fn start(
        config: Config,
        listener: Box<dyn Listen>,
        (connector, client): (Box<dyn Connector>, ClientId),
        clock: fn() -> Time,
        gauge: Option<Gauge>,
    ) -> Result<Self> {
        let outward = (connector, client);
        Self::assemble(
            config,
            Inherited::default(),
            listener,
            outward,
            clock,
            gauge,
        )
    }

    /// As [`Stepped::start`], with the slabs that an earlier process of this host had lent, whose windows
    /// `listen` is given.
    ///
    /// # Errors
    /// As [`Stepped::start`] and `listen`; `Inheritance`.
    pub fn start_with(
        config: Config,
        inheritance: Inheritance,
        listen: impl FnOnce(Vec<(Arc<Region>, WindowDescriptor)>) -> Result<Box<dyn Listen>>,
        outward: (Box<dyn Connector>, ClientId),
        clock: fn() -> Time,
        gauge: Option<Gauge>,
    ) -> Result<Self> {
        let inherited = inherit(inheritance, config.huge_pages)?;
        let listener = listen(inherited.windows())?;
        Self::assemble(config, inherited, listener, outward, clock, gauge)
    }

    fn assemble(
        config: Config,
        inherited: Inherited,
        listener: Box<dyn Listen>,
        (connector, client): (Box<dyn Connector>, ClientId),
        clock: fn() -> Time,
        gauge: Option<Gauge>,
    ) -> Result<Self> {
        config.check(&Machine::boundless())?;
        let watch = Watch::open(&config, gauge, Duration::from_nanos(clock().0))?;
        let (outcome_sender, outcomes) = channel();
        let (keeper, keeper_inbox) = SideThread::done_elsewhere("keeper");
        let (filler, filler_inbox) = SideThread::done_elsewhere("filler");
        let name = config.name.clone();
        let slab_bytes = config.slab_bytes;
        let mut daemon = Daemon::assemble(
            config,
            Parts {
                inherited,
                listener,
                outcomes,
                keeper,
                filler,
                cache_threads: CacheThreads::none(),
                owners: Owners::default(),
                locked: false,
                incarnation: clock().0,
                clock,
                watch,
                machine: MACHINE,
            },
        );
        daemon.begin();
        Ok(Self {
            daemon,
            events: Vec::new(),
            slab_bytes,
            keeper_inbox,
            filler_inbox,
            filler: Filler::new(connector, Reach::InTurn, client, &name),
            is_filling: false,
            outcomes: outcome_sender,
            clock,
            cache_thread: None,
        })
    }

    /// From here on it answers the batches that come by `answering`, on the windows of its listener.
    pub fn serve_caches(&mut self, answering: Box<dyn Answering>, windows: Windows) {
        self.cache_thread = Some(CacheThread { answering, windows });
    }

    /// Handles what has arrived, and ticks when that is due.
    ///
    /// # Errors
    /// As [`Daemon::run`](crate::Daemon::run).
    pub fn turn(&mut self) -> Result<()> {
        self.daemon.turn(Duration::ZERO, &mut self.events)?;
        if let Some(CacheThread { answering, windows }) = &mut self.cache_thread {
            let mut handler =
                |call: Call<'_>, answer: &mut Vec<u8>| answer_call(&call, answer, windows);
            answering.turn(Some(Duration::ZERO), &mut handler)?;
        }
        Ok(())
    }

    /// When it wants a turn even if nothing arrives.
    #[must_use]
    pub fn next_tick(&self) -> Time {
        self.daemon.next_turn()
    }

    /// Does the next piece of slow work: one slab made or given back, or a fill moved on as far
    /// as it goes. False: there is nothing to do now; an unfinished fill waits for its sources.
    pub fn work(&mut self) -> bool {
        if let Ok(job) = self.keeper_inbox.try_recv() {
            let options = RegionOptions::default();
            self.tell(keeper::carry_out(job, self.slab_bytes, options, u64::MAX));
            return true;
        }
        if !self.is_filling {
            let Ok(job) = self.filler_inbox.try_recv() else {
                return false;
            };
            self.filler.begin(job, (self.clock)());
            self.is_filling = true;
        }
        let Some(outcome) = self.filler.step((self.clock)()) else {
            return false;
        };
        self.is_filling = false;
        self.tell(outcome);
        true
    }

    /// Whether a fill waits for its sources.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        self.is_filling
    }

    /// What an operator asks of it by a message.
    pub fn drain(&mut self, draining: bool) {
        let how = if draining { Drain::On } else { Drain::Off };
        self.daemon
            .drain(Duration::from_nanos((self.clock)().0), how);
    }

    /// Tells its clients, once, that another process is about to take its place; whether it may end. It is to
    /// be asked until then.
    pub fn bids_farewell(&mut self) -> bool {
        self.daemon.has_bidden_farewell()
    }

    /// What the process after this one is to have.
    ///
    /// # Errors
    /// `Os`: the system has no descriptors.
    pub fn inheritance(&self) -> Result<Inheritance> {
        let (state, memory) = self.daemon.handover();
        let copies = memory.into_iter().map(|fd| fd.try_clone_to_owned());
        let memory = copies.collect::<std::io::Result<_>>();
        let memory =
            memory.map_err(|error| cenote_fabric::Error::os("copy a descriptor", error))?;
        Ok(Inheritance { state, memory })
    }

    /// Its view of itself.
    #[must_use]
    pub fn status(&self) -> HostStatus {
        self.daemon.status()
    }

    /// What it asks back of its clients, and what it has room for.
    #[must_use]
    pub fn demand(&self) -> Demand {
        self.daemon.demand()
    }

    /// What its book says: who holds which slab, and who owns which volume.
    #[must_use]
    pub fn book(&self) -> Handover {
        self.daemon.book()
    }

    fn tell(&self, outcome: Outcome) {
        self.outcomes
            .send(outcome)
            .expect("the daemon that takes outcomes is a field of this");
    }
}
