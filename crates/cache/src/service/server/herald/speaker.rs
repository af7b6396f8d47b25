//! One host's speaker: a thread that says to it what it has not been told.
//!
//! It blocks while the host answers, so a silent one holds up nobody else. It ends when its
//! [`Speaker`] is dropped, within a failure timeout.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_fabric::calls::{Caller, CallerOpener};
use cenote_fabric::{FAILURE_TIMEOUT, Status, Time, Waker};
use cenote_proc::CacheId;
use cenote_proc::remote::exchange;
use cenote_proc::service::{
    DOUBTS_MAX, Doubt, EVERYBODY, Heard, Named, Opened, SLABS_MAX, SlabPlace, SlabWord, Word,
    WordRefusal, WriteState, Writing,
};

use super::Table;
use crate::owner::{Access, Copy, Entry, LEASE};

/// A host asks for its lease, over one connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) struct Asking {
    connection: u64,
    /// What its clock showed. No lease is counted from later.
    clock: Time,
}

/// What a speaker has done.
pub(in super::super) struct Report {
    pub life: u64,
    /// Over which connection.
    pub connection: u64,
    /// How far the host's process is with writing to a cache with two copies, if it said so.
    pub state: Option<WriteState>,
    /// Regions whose copies may differ since a store by the entry of this generation. To be passed
    /// on before what the host goes by.
    pub doubts: Vec<Doubt>,
    /// Entries that the host goes by from now on: region and generation.
    pub known: Vec<(u32, u64)>,
    /// None: it has nothing of the cache to use.
    pub asking: Option<Asking>,
}

/// The manager's end.
pub(in super::super) struct Speaker {
    pub life: u64,
    wake: SyncSender<()>,
    granted: Arc<Mutex<Option<Asking>>>,
    permitted: Arc<Mutex<Option<u64>>>,
    heard: Arc<Mutex<Vec<Doubt>>>,
}

impl Speaker {
    pub fn start(
        (host, life): (usize, u64),
        opener: CallerOpener,
        table: Arc<Table>,
        (reporter, waker): (Sender<Report>, Waker),
    ) -> io::Result<Self> {
        // One wake waits at most: it says that there is something.
        let (wake, woken) = sync_channel(1);
        let granted = Arc::default();
        let permitted = Arc::default();
        let heard = Arc::default();
        let speech = Speech {
            host,
            life,
            table,
            reporter,
            waker,
            woken,
            granted: Arc::clone(&granted),
            permitted: Arc::clone(&permitted),
            heard: Arc::clone(&heard),
        };
        std::thread::Builder::new()
            .name("cache-words".to_owned())
            .spawn(move || speech.run(&opener))?;
        Ok(Self {
            life,
            wake,
            granted,
            permitted,
            heard,
        })
    }

    pub fn wake(&self) {
        // Full: it has not slept since. Gone: it cannot speak.
        let _full_or_gone = self.wake.try_send(());
    }

    /// The owner counts the lease that the host asked for. Entries from before are in the table.
    pub fn grant(&self, asking: Asking) {
        *lock(&self.granted) = Some(asking);
        self.wake();
    }

    /// The owner has heard of doubts.
    pub fn tell_heard(&self, doubts: &[Doubt]) {
        lock(&self.heard).extend(doubts);
        self.wake();
    }

    /// The owner knows that procedures write in the process at the end of a connection.
    pub fn permit(&self, connection: u64) {
        *lock(&self.permitted) = Some(connection);
        self.wake();
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Speech {
    host: usize,
    life: u64,
    table: Arc<Table>,
    reporter: Sender<Report>,
    waker: Waker,
    woken: Receiver<()>,
    granted: Arc<Mutex<Option<Asking>>>,
    permitted: Arc<Mutex<Option<u64>>>,
    heard: Arc<Mutex<Vec<Doubt>>>,
}

/// What a host was told over one connection.
#[derive(Default)]
struct Told {
    /// Regions of the cache as it was opened.
    regions: u32,
    generations: BTreeMap<u32, u64>,
    /// Until when it has the cache, by its clock.
    until: Time,
    /// That the owner knows that it writes.
    may_write: bool,
}

/// What came of some words.
#[derive(Default)]
struct Spoken {
    state: Option<WriteState>,
    doubts: Vec<Doubt>,
    known: Vec<(u32, u64)>,
    /// Slabs that the host does not have.
    missing: u32,
    /// What its clock showed before it answered last.
    clock: Option<Time>,
}

/// Nobody listens to this speaker any more.
struct Dropped;

/// Why a host was not told.
enum Failure {
    /// The connection is of no use any more.
    Lost(Status),
    /// It holds no slab of the cache.
    NoSlab,
    /// It does not take it.
    Refused(WordRefusal),
}

/// Between two attempts to reach a host's server threads.
const PAUSE: Duration = Duration::from_millis(500);
/// Most of it, where there are none.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// A host that runs nothing of the cache is told of it again.
const AGAIN: Duration = Duration::from_secs(1);
/// A host that does is asked what its clock shows. An eighth of a lease: two answers in a row may
/// be late, or lost.
const ASK: Duration = Duration::from_millis(250);
/// Words in one call: each has 29 bytes at most.
const WORDS: usize = 2048;

impl Speech {
    fn run(self, opener: &CallerOpener) {
        let mut pause = PAUSE;
        for connection in 0.. {
            match opener(FAILURE_TIMEOUT) {
                Ok(mut caller) => match self.speak(&mut *caller, connection) {
                    Ok(()) => pause = PAUSE,
                    Err(Dropped) => return,
                },
                Err(error) => {
                    tracing::debug!(host = self.host, %error, "reach a host's server threads");
                    pause = PAUSE_MAX.min(2 * pause);
                }
            }
            if self.sleep(pause).is_err() {
                return;
            }
        }
    }

    fn report(&self, connection: u64, spoken: Spoken, asking: Option<Asking>) {
        drop(self.reporter.send(Report {
            life: self.life,
            connection,
            state: spoken.state,
            doubts: spoken.doubts,
            known: spoken.known,
            asking,
        }));
        self.waker.wake();
    }

    fn sleep(&self, patience: Duration) -> Result<(), Dropped> {
        match self.woken.recv_timeout(patience) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(Dropped),
        }
    }

    /// Says what is new, until the connection is lost.
    fn speak(&self, caller: &mut dyn Caller, connection: u64) -> Result<(), Dropped> {
        let mut told = Told::default();
        // What a host that has nothing of the cache need not be told.
        let mut idle = Told::default();
        let mut refused = None;
        let mut asked_at = Time(0);
        loop {
            // In this order: a lease goes behind all entries from before it was counted.
            let until = self.granted(connection);
            let (regions, news) = self.news(&told);
            let now = Time::now();
            let is_due = now.since(asked_at) >= ASK;
            let is_short = until.since(told.until) >= LEASE / 2;
            let has_told_all = news.is_empty() && told.regions == regions;
            let permits = *lock(&self.permitted) == Some(connection) && !told.may_write;
            let has_heard = !lock(&self.heard).is_empty();
            if has_told_all && !is_due && !is_short && !permits && !has_heard {
                self.sleep(ASK.saturating_sub(now.since(asked_at)))?;
                continue;
            }
            asked_at = now;
            let news = (news, permits);
            let nothing = match self.tell(caller, &mut told, regions, news, until) {
                Ok(spoken) => {
                    let asking = spoken.clock.map(|clock| Asking { connection, clock });
                    self.report(connection, spoken, asking);
                    // It is opened again, or lacks slabs, whose next entry is on its way.
                    self.sleep(if regions == 0 { Duration::MAX } else { ASK })?;
                    continue;
                }
                Err(Failure::Lost(why)) => Err(why),
                // It runs no procedure of the cache until it has a slab and is told again.
                Err(Failure::NoSlab) => Ok(Vec::new()),
                // What it was told before is not to be gone by any more.
                Err(Failure::Refused(why)) => {
                    if refused.replace(why) != Some(why) {
                        tracing::warn!(host = self.host, %why, "procedures cannot run there");
                    }
                    self.close(caller)
                }
            };
            let doubts = match nothing {
                Ok(doubts) => doubts,
                Err(why) => {
                    tracing::debug!(host = self.host, ?why, "tell a host where slabs are");
                    return Ok(());
                }
            };
            told = Told::default();
            // What it knew of the cache is gone, and that it may write with it.
            *lock(&self.permitted) = None;
            let (_, news) = self.news(&idle);
            let known = news.iter().map(|entry| (entry.region, entry.generation));
            let known: Vec<_> = known.collect();
            idle.generations.extend(known.iter().copied());
            let spoken = Spoken {
                state: Some(WriteState::Idle),
                doubts,
                known,
                ..Spoken::default()
            };
            self.report(connection, spoken, None);
            self.sleep(AGAIN)?;
        }
    }

    /// Until when the host has the cache, as far as it may be told over this connection. A clock of
    /// an earlier one may have been another's: the machine was started again.
    fn granted(&self, connection: u64) -> Time {
        let granted = lock(&self.granted).filter(|asking| asking.connection == connection);
        granted.map_or(Time(0), |asking| asking.clock.after(LEASE))
    }

    /// How many regions there are, and the entries of which the host was not told.
    fn news(&self, told: &Told) -> (u32, Vec<Entry>) {
        let rows = lock(&self.table.rows);
        let is_new = |entry: &&Entry| {
            let known = told.generations.get(&entry.region);
            known.is_none_or(|known| *known < entry.generation)
        };
        let news = rows.0.values().filter(is_new).cloned().collect();
        (rows.region_count(), news)
    }

    /// Says `news`, and then that the host has the cache until `until`, if it goes by all of it.
    fn tell(
        &self,
        caller: &mut dyn Caller,
        told: &mut Told,
        regions: u32,
        (mut news, permits): (Vec<Entry>, bool),
        until: Time,
    ) -> Result<Spoken, Failure> {
        let cache = CacheId(self.table.settings.cache);
        let mut spoken = Spoken::default();
        if told.regions != regions {
            let last = std::mem::take(told).regions;
            if regions > 0 {
                // Of another number, it replaces what was said: requests there wait for the rest.
                self.say(caller, &self.open(regions), &mut spoken)?;
                told.regions = regions;
            } else if last > 0 {
                self.say(caller, &Word::Close { cache }, &mut spoken)?;
            }
            // All of it is news.
            (_, news) = self.news(told);
        }
        self.map(caller, told, &news, &mut spoken)?;
        let doubts = std::mem::take(&mut *lock(&self.heard));
        if told.regions > 0 {
            // One that is not told says them again.
            for doubts in doubts.chunks(DOUBTS_MAX) {
                let doubts = doubts.to_vec();
                self.say(caller, &Word::Told { cache, doubts }, &mut spoken)?;
            }
        }
        if permits && told.regions > 0 {
            self.say(caller, &Word::Write { cache }, &mut spoken)?;
            told.may_write = true;
        }
        if told.regions > 0 && spoken.missing == 0 && (until > told.until || news.is_empty()) {
            let lease = Word::Map {
                cache,
                writes_until: until.0,
                slabs: Vec::new(),
            };
            let (_, clock) = self.say(caller, &lease, &mut spoken)?;
            told.until = until;
            spoken.clock = Some(clock);
        }
        Ok(spoken)
    }

    /// Has a host forget the cache; what is doubtful there.
    fn close(&self, caller: &mut dyn Caller) -> Result<Vec<Doubt>, Status> {
        let cache = CacheId(self.table.settings.cache);
        let mut spoken = Spoken::default();
        match self.say(caller, &Word::Close { cache }, &mut spoken) {
            Err(Failure::Lost(why)) => Err(why),
            // Or it is not this manager's there.
            Ok(_) | Err(Failure::NoSlab | Failure::Refused(_)) => Ok(spoken.doubts),
        }
    }

    /// Says a word; how many slabs the host does not have, and what its clock showed meanwhile.
    fn say(
        &self,
        caller: &mut dyn Caller,
        word: &Word,
        spoken: &mut Spoken,
    ) -> Result<(u32, Time), Failure> {
        let (missing, now, state, doubts) = say(caller, word)?;
        spoken.doubts.extend(doubts);
        spoken.state = Some(state);
        Ok((missing, now))
    }

    fn open(&self, regions: u32) -> Word {
        let settings = &self.table.settings;
        let slabs = regions.saturating_mul(settings.slabs_per_region);
        Word::Open(Opened {
            cache: CacheId(settings.cache),
            slab_bytes: settings.slab_bytes,
            // Too many are refused there.
            slabs: slabs.min(SLABS_MAX + 1),
            writing: match settings.copies {
                1 => Writing::Direct,
                _ => Writing::Replicated,
            },
            leased: true,
            me: self.table.roll.number(self.host).unwrap_or(u32::MAX),
            machines: self.table.machines.clone(),
            users: vec![EVERYBODY],
        })
    }

    fn map(
        &self,
        caller: &mut dyn Caller,
        told: &mut Told,
        news: &[Entry],
        spoken: &mut Spoken,
    ) -> Result<(), Failure> {
        // Of regions that were cut off the host has nothing.
        let there = news.partition_point(|entry| entry.region < told.regions);
        let (news, cut) = news.split_at(there);
        spoken.known.extend(cut.iter().map(named));
        let per_region = self.table.settings.slabs_per_region as usize;
        for some in news.chunks((WORDS / per_region).max(1)) {
            let slabs: Vec<_> = some.iter().flat_map(|entry| self.words(entry)).collect();
            let mut missing = 0;
            for slabs in slabs.chunks(WORDS) {
                let word = Word::Map {
                    cache: CacheId(self.table.settings.cache),
                    writes_until: 0,
                    slabs: slabs.to_vec(),
                };
                let (lacking, clock) = self.say(caller, &word, spoken)?;
                missing += lacking;
                spoken.clock = Some(clock);
            }
            if missing > 0 {
                tracing::debug!(
                    host = self.host,
                    missing,
                    "slabs that the host does not have"
                );
                spoken.missing += missing;
                continue;
            }
            spoken.known.extend(some.iter().map(named));
        }
        if spoken.missing > 0 {
            // It has no time with a cache of which it may know something old.
            spoken.clock = None;
        }
        told.generations.extend(spoken.known.iter().copied());
        Ok(())
    }

    /// Where the slabs of a region are. Of two copies the first counts: what is read of the other
    /// may lack a write that was acknowledged to nobody.
    fn words(&self, entry: &Entry) -> Vec<SlabWord> {
        let count = self.table.settings.slabs_per_region;
        let readable = matches!(entry.access, Access::Open | Access::Frozen);
        let is_known = |copy: &&Copy| copy.windows.len() == count as usize;
        let mut copies = entry
            .copies
            .iter()
            .filter(|_| readable)
            .take_while(is_known);
        let (first, second) = (copies.next(), copies.next());
        let word = |slab: u32| SlabWord {
            slab: entry.region.saturating_mul(count).saturating_add(slab),
            generation: entry.generation,
            place: first.map_or(SlabPlace::Nowhere, |first| {
                self.place(entry.access, slab as usize, first, second)
            }),
        };
        (0..count).map(word).collect()
    }

    fn place(&self, access: Access, slab: usize, first: &Copy, second: Option<&Copy>) -> SlabPlace {
        let is_open = access == Access::Open;
        let number = |copy: &Copy| self.table.roll.number(copy.host);
        let named = |copy: &Copy| Named {
            window: copy.windows[slab].id,
            generation: copy.windows[slab].generation,
        };
        if first.host == self.host {
            let named = named(first);
            return match second.map(number) {
                _ if !is_open => SlabPlace::Leaving(named),
                None => SlabPlace::Here(named),
                Some(Some(second)) => SlabPlace::First { named, second },
                // Nobody there takes stores.
                Some(None) => SlabPlace::Leaving(named),
            };
        }
        match (number(first), second) {
            (None, _) => SlabPlace::Nowhere,
            (Some(first), Some(second)) if is_open && second.host == self.host => {
                let named = named(second);
                SlabPlace::Second { named, first }
            }
            (Some(first), _) => SlabPlace::At(first),
        }
    }
}

fn named(entry: &Entry) -> (u32, u64) {
    (entry.region, entry.generation)
}

/// Says a word and waits until all threads of the host go by it; how many slabs it does not have,
/// what its clock showed meanwhile, how far it is with writing, and which slabs are doubtful there.
fn say(
    caller: &mut dyn Caller,
    word: &Word,
) -> Result<(u32, Time, WriteState, Vec<Doubt>), Failure> {
    let mut bytes = Vec::new();
    word.write(&mut bytes);
    let answer = exchange(caller, &bytes, FAILURE_TIMEOUT).map_err(Failure::Lost)?;
    match Heard::read(&answer) {
        Ok(Heard::Taken {
            missing,
            now,
            state,
            doubts,
        }) => Ok((missing, Time(now), state, doubts)),
        Ok(Heard::Refused(WordRefusal::NotYours)) => Err(Failure::NoSlab),
        Ok(Heard::Refused(why)) => Err(Failure::Refused(why)),
        Err(_) => Err(Failure::Lost(Status::Protocol)),
    }
}
