//! The machines of one cache: which it has, gets and gives back, and when another one is cheaper.
//!
//! Pure: time, what providers did and how hosts stand come in, [`Action`]s go out. The manager's process drives
//! it, keeps [`Fleet::kept`] in the journal and asks providers on threads.
//!
//! ```text
//! ORDERED -> USED -> RELEASING -> (gone)
//!    \__________________^            refused, or the manager that ordered is gone
//! ```
//!
//! Invariants: an order is in the journal before its provider hears of it, and a machine stays there until its
//! provider said that it took it back: none is forgotten. No action is given out while [`Fleet::is_changed`].
//! A machine is given back when nothing of the cache is there, or nobody reaches it.
//!
//! Not here: which region is where. A machine is emptied by telling the owner that it goes.
//! Paper: \[redy22\] section 6. Decision 92.

mod kept;
mod planner;
mod presence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use cenote_fabric::Time;

pub use kept::{KeptMachine, Order, Stage};
use planner::{Aim, Types};

use crate::market::{Catalogue, Lookout, Price, Source};
use crate::owner::{HostIndex, HostSummary};
use crate::providers::{Machine, Wish};

/// What troubles with the catalogue are told under.
const CATALOGUE: &str = "catalogue";
/// And those with a lack of machines.
const ROOM: &str = "machines";
/// And in front of what is wrong with a machine.
const MACHINE: &str = "machine ";

fn machine_trouble(order: Order) -> String {
    format!("{MACHINE}{order}")
}

/// What the cache is, for its machines.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Its identity: part of the name of each order.
    pub cache: u128,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Copies of each region, on machines of other failure domains.
    pub copies: u32,
    /// Server threads in all; 0: one-sided verbs.
    pub server_threads: u32,
    /// Whether machines that their owner may want back are taken.
    pub is_spot_allowed: bool,
}

/// How the cache is now.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// Regions that it has to hold; 0: it ends.
    pub regions: u32,
    /// How long it goes on, if somebody said.
    pub remaining: Option<Duration>,
}

/// What is to be done, in order.
#[derive(Clone, Debug)]
pub enum Action {
    /// Get a machine.
    Acquire(Order, String, Wish),
    /// Give a machine back.
    Release(Order, String, Machine),
    /// Take back what an order got, if it got anything.
    Cancel(Order, String),
    /// Have regions move off a host.
    Empty(HostIndex),
    /// A host is not the cache's any more.
    Drop(HostIndex),
}

/// A machine that never comes into use within this is given back.
pub const USE_LIMIT: Duration = Duration::from_secs(60);
/// One that was in use and is out of reach for so long is given back, once its regions are given up.
pub const DOWN_LIMIT: Duration = Duration::from_secs(10);
/// Between two tries to give a machine back; doubles up to [`PENALTY_MAX`].
const AGAIN: Duration = Duration::from_secs(1);
/// What was wrong with a provider is told for as long at least.
const TOLD: Duration = Duration::from_secs(60);
/// Longest that a type of machine is left alone after it was not to be had.
const PENALTY_MAX: Duration = Duration::from_secs(300);

/// Most machines and orders at a time, those counted that go back: the journal keeps each until its provider
/// has it, however long that refuses, and has room for four times as many.
pub const MACHINES_MAX: usize = 1024;

/// One machine, or an order for one.
#[derive(Clone, Debug)]
struct Held {
    kept: KeptMachine,
    phase: Phase,
}

#[derive(Clone, Debug)]
enum Phase {
    Ordered,
    Used {
        host: HostIndex,
        /// Unless it is up by then, it is of no use.
        use_until: Time,
        was_up: bool,
        down_since: Option<Time>,
        /// It is not needed any more: regions move off it.
        is_surplus: bool,
        /// Since when it lends less than was asked for, and the most that it lent since, in bytes.
        short: Option<(Time, u64)>,
    },
    Releasing {
        /// The provider is at it.
        is_asked: bool,
        retry_at: Time,
        tries: u32,
        /// Before this, what the order gets may come yet: it is taken back once more then.
        settled_at: Time,
    },
}

/// A machine for people.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// What is kept of it.
    pub kept: &'a KeptMachine,
    /// ordered, starting, used, leaving, silent or releasing.
    pub state: &'static str,
}

/// A type that was not to be had.
#[derive(Clone, Debug)]
struct Penalty {
    until: Time,
    /// What was wrong is told at least as long.
    told_until: Time,
    times: u32,
}

/// See the module's text.
pub struct Fleet {
    shape: Shape,
    /// Of the manager: part of the names of orders.
    epoch: u64,
    orders: u32,
    catalogue: Catalogue,
    machines: BTreeMap<Order, Held>,
    penalties: BTreeMap<String, Penalty>,
    /// What is wrong, by what it is wrong with.
    troubles: BTreeMap<String, String>,
    lookout: Lookout,
    /// What it last began to move to.
    aim: Aim,
    /// Moves that came to nothing beside the machines of now, and what their machines cost together then.
    futile: BTreeMap<Types, Price>,
    actions: VecDeque<Action>,
    is_changed: bool,
    /// The last time that anybody looked how hosts stand.
    looked_at: Time,
    /// Prices are being read for the look for cheaper machines that is due, ...
    is_awaited: bool,
    /// ... and were read.
    is_fresh: bool,
}

impl Fleet {
    /// The machines that a predecessor left, those of orders among them of which it did not hear; these are taken
    /// back. `limit`: how long a provider may take. A command that was given longer may outlast it.
    #[must_use]
    pub fn new(
        shape: Shape,
        epoch: u64,
        catalogue: Catalogue,
        left: Vec<KeptMachine>,
        limit: impl Fn(&str) -> Duration,
        now: Time,
    ) -> Self {
        let held = |mut kept: KeptMachine| {
            let releasing = |settled_at| Phase::Releasing {
                is_asked: false,
                retry_at: now,
                tries: 0,
                settled_at,
            };
            let phase = match (kept.stage, kept.host) {
                (Stage::Used, Some(host)) => Phase::Used {
                    host: usize::from(host),
                    use_until: now,
                    was_up: true,
                    down_since: None,
                    is_surplus: false,
                    short: None,
                },
                // The command that was to get it may still run. It stays ordered in the journal: should this
                // manager end before, the next one waits for as long again.
                (Stage::Ordered, _) => releasing(now.after(limit(&kept.provider))),
                _ => {
                    kept.stage = Stage::Releasing;
                    releasing(now)
                }
            };
            (kept.order, Held { kept, phase })
        };
        let lookout = Lookout::new(now, catalogue.look_every());
        Self {
            shape,
            epoch,
            orders: 0,
            catalogue,
            machines: left.into_iter().map(held).collect(),
            penalties: BTreeMap::new(),
            troubles: BTreeMap::new(),
            lookout,
            aim: Aim::default(),
            futile: BTreeMap::new(),
            actions: VecDeque::new(),
            is_changed: true,
            looked_at: now,
            is_awaited: false,
            is_fresh: false,
        }
    }

    /// What the journal is to say.
    #[must_use]
    pub fn kept(&self) -> Vec<KeptMachine> {
        self.machines.values().map(|one| one.kept.clone()).collect()
    }

    /// Whether [`Fleet::kept`] says something that the journal may not.
    #[must_use]
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// The journal says what is kept.
    pub fn confirm(&mut self) {
        self.is_changed = false;
    }

    /// The next thing to do. None while the journal does not say what it is to.
    pub fn poll_action(&mut self) -> Option<Action> {
        if self.is_changed {
            return None;
        }
        self.actions.pop_front()
    }

    /// Whether it has no machine and waits for none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// Whether the host is one of its machines that are in use.
    #[must_use]
    pub fn uses(&self, host: HostIndex) -> bool {
        let is_it = |one: &Held| matches!(one.phase, Phase::Used { host: of, .. } if of == host);
        self.machines.values().any(is_it)
    }

    /// Whether the provider of this order takes a machine of that id back. To be given it meanwhile is to be
    /// given none: it may go at each try.
    #[must_use]
    pub fn is_given_back(&self, order: Order, id: &str) -> bool {
        let Some(provider) = self.machines.get(&order).map(|one| &one.kept.provider) else {
            return false;
        };
        let is_it = |one: &Held| {
            let kept = &one.kept;
            matches!(one.phase, Phase::Releasing { .. })
                && kept.id == id
                && kept.provider == *provider
        };
        self.machines.values().any(is_it)
    }

    /// What each machine costs now, together.
    #[must_use]
    pub fn price(&self) -> Price {
        self.machines
            .values()
            .map(|one| self.price_of(&one.kept))
            .sum()
    }

    /// Each machine, with how it is.
    pub fn shown(&self) -> impl Iterator<Item = Shown<'_>> {
        self.machines.values().map(|one| Shown {
            kept: &one.kept,
            state: match one.phase {
                Phase::Ordered => "ordered",
                Phase::Used {
                    is_surplus: true, ..
                } => "leaving",
                Phase::Used {
                    down_since: Some(_),
                    ..
                } => "silent",
                Phase::Used { was_up: false, .. } => "starting",
                Phase::Used { .. } => "used",
                Phase::Releasing { .. } => "releasing",
            },
        })
    }

    /// What is wrong, and with what.
    pub fn troubles(&self) -> impl Iterator<Item = (&str, &str)> {
        self.troubles.iter().map(|(with, what)| (&**with, &**what))
    }

    /// Whether the catalogue is to be read again: prices of now are wanted, it could not be read,
    /// or something waits for what it lacks. No look for cheaper machines comes before that is
    /// there, and none at all while the cache ends.
    #[must_use]
    pub fn wants_prices(&mut self, now: Time) -> bool {
        self.is_awaited |= now >= self.lookout.due() && !self.is_fresh;
        let is_lacking = self.troubles.contains_key(CATALOGUE) || self.troubles.contains_key(ROOM);
        self.is_awaited || is_lacking || self.lacks_provider()
    }

    /// Whether the catalogue names no provider for one of the machines: nobody takes that back, and
    /// it costs until somebody does.
    fn lacks_provider(&self) -> bool {
        let mut kept = self.machines.values().map(|one| &one.kept);
        kept.any(|kept| self.catalogue.source(&kept.provider).is_none())
    }

    /// Where the machines of this provider come from.
    #[must_use]
    pub fn source(&self, provider: &str) -> Option<&Source> {
        self.catalogue.source(provider)
    }

    /// The prices of now, or why they are not known: then those from before count.
    pub fn set_catalogue(&mut self, read: Result<Catalogue, String>) {
        // What was read before a look was due is old by then.
        self.is_fresh |= std::mem::take(&mut self.is_awaited);
        match read {
            Ok(catalogue) => {
                self.lookout.set_every(catalogue.look_every());
                self.catalogue = catalogue;
                self.troubles.remove(CATALOGUE);
            }
            Err(error) => {
                self.troubles.insert(CATALOGUE.to_owned(), error);
            }
        }
    }

    /// A machine was got, and is host `host` from now on.
    pub fn handle_acquired(&mut self, now: Time, order: Order, machine: &Machine, host: HostIndex) {
        let Some(one) = self.machines.get_mut(&order) else {
            return;
        };
        one.kept.id.clone_from(&machine.id);
        one.kept.address = machine.host.address.to_string();
        one.kept.domain.clone_from(&machine.host.domain);
        one.kept.host = u16::try_from(host).ok();
        one.kept.stage = Stage::Used;
        one.phase = Phase::Used {
            host,
            use_until: now.after(USE_LIMIT),
            was_up: false,
            down_since: None,
            is_surplus: false,
            short: None,
        };
        self.is_changed = true;
    }

    /// An order came to nothing; with a machine, if it got one that is of no use. One whose words are too long
    /// to be kept goes back by its order's name alone.
    pub fn handle_no_machine(
        &mut self,
        now: Time,
        order: Order,
        machine: Option<&Machine>,
        why: &str,
    ) {
        let Some(one) = self.machines.get_mut(&order) else {
            return;
        };
        if let Some(machine) = machine.filter(|machine| machine.is_short()) {
            one.kept.id.clone_from(&machine.id);
            one.kept.address = machine.host.address.to_string();
        }
        let (machine_type, provider) = (one.kept.machine_type.clone(), one.kept.provider.clone());
        // A provider that failed may have got one: it takes back what the order got.
        self.begin_release(now, order);
        self.penalize(now, &machine_type);
        self.troubles.insert(provider, why.to_owned());
    }

    /// A machine was given back, or was not.
    pub fn handle_released(&mut self, now: Time, order: Order, result: Result<(), String>) {
        let Some(one) = self.machines.get_mut(&order) else {
            return;
        };
        let Phase::Releasing {
            is_asked,
            retry_at,
            tries,
            settled_at,
        } = &mut one.phase
        else {
            return;
        };
        *is_asked = false;
        match result {
            Ok(()) if now < *settled_at => *retry_at = *settled_at,
            Ok(()) => {
                self.machines.remove(&order);
                self.troubles.remove(&machine_trouble(order));
                self.is_changed = true;
            }
            Err(error) => {
                let pause = AGAIN * (1 << (*tries).min(8));
                *retry_at = now.after(pause.min(PENALTY_MAX));
                *tries += 1;
                self.troubles.insert(machine_trouble(order), error);
            }
        }
    }

    /// What follows from how hosts stand, and from what the cache needs.
    pub fn handle_tick(
        &mut self,
        now: Time,
        summary: &dyn Fn(HostIndex) -> HostSummary,
        demand: Demand,
    ) {
        self.note_time(now);
        self.note_summaries(now, summary, demand);
        self.release_again(now);
        self.plan(now, summary, demand);
    }

    /// Forgets what was wrong with providers whose machines are not needed, and can be tried again, once
    /// who waited for the cache had time to look.
    fn forget_troubles(&mut self, now: Time) {
        let is_told = |provider: &str| {
            let of_it = self.catalogue.types().iter();
            let mut of_it = of_it.filter(|one| one.provider == provider);
            let penalty = |name: &str| self.penalties.get(name);
            of_it.any(|one| penalty(&one.name).is_some_and(|penalty| now < penalty.told_until))
        };
        self.troubles
            .retain(|with, _| with == CATALOGUE || with.starts_with(MACHINE) || is_told(with));
    }

    /// From now on it is given back until its provider says that it has it.
    fn begin_release(&mut self, now: Time, order: Order) {
        let one = self.machines.get_mut(&order).expect("it is there");
        one.kept.stage = Stage::Releasing;
        // The next manager must not place anything on what is being taken away.
        one.kept.host = None;
        one.phase = Phase::Releasing {
            is_asked: false,
            retry_at: now,
            tries: 0,
            settled_at: now,
        };
        self.is_changed = true;
        self.release_again(now);
    }

    fn release_again(&mut self, now: Time) {
        for (&order, one) in &mut self.machines {
            let Phase::Releasing {
                is_asked, retry_at, ..
            } = &mut one.phase
            else {
                continue;
            };
            if *is_asked || now < *retry_at {
                continue;
            }
            *is_asked = true;
            let provider = one.kept.provider.clone();
            self.actions
                .push_back(match one.kept.machine(self.shape.cache) {
                    Some(machine) => Action::Release(order, provider, machine),
                    None => Action::Cancel(order, provider),
                });
        }
    }

    /// Leaves a type alone for a while.
    fn penalize(&mut self, now: Time, machine_type: &str) {
        let penalty = self.penalties.entry(machine_type.to_owned());
        let penalty = penalty.or_insert(Penalty {
            until: now,
            told_until: now,
            times: 0,
        });
        let pause = AGAIN * (1 << penalty.times.min(8));
        penalty.until = now.after(pause.min(PENALTY_MAX));
        penalty.told_until = penalty.until.max(now.after(TOLD));
        penalty.times += 1;
    }

    fn price_of(&self, kept: &KeptMachine) -> Price {
        let named = |one: &&crate::market::MachineType| one.name == kept.machine_type;
        let now = self.catalogue.types().iter().find(named);
        let now = now.and_then(|one| match kept.is_spot {
            true => one.spot_price,
            false => Some(one.price),
        });
        now.unwrap_or(Price::from_micros(kept.price_micros))
    }
}
