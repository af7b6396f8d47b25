//! One host's speaker: a thread that says to it what it has not been told.
//!
//! It blocks while the host answers, so a silent one holds up nobody else. It ends when its
//! [`Speaker`] is dropped, within a failure timeout.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::calls::{Caller, CallerOpener};
use cenote_fabric::{FAILURE_TIMEOUT, Status, Time, Waker};
use cenote_proc::CacheId;
use cenote_proc::remote::exchange;
use cenote_proc::service::{
    EVERYBODY, Heard, Named, Opened, SLABS_MAX, SlabPlace, SlabWord, Word, WordRefusal,
};

use super::Table;
use crate::owner::{Access, Entry, LEASE};

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
        let speech = Speech {
            host,
            life,
            table,
            reporter,
            waker,
            woken,
            granted: Arc::clone(&granted),
        };
        std::thread::Builder::new()
            .name("cache-words".to_owned())
            .spawn(move || speech.run(&opener))?;
        Ok(Self {
            life,
            wake,
            granted,
        })
    }

    pub fn wake(&self) {
        // Full: it has not slept since. Gone: it cannot speak.
        let _full_or_gone = self.wake.try_send(());
    }

    /// The owner counts the lease that the host asked for. Entries from before are in the table.
    pub fn grant(&self, asking: Asking) {
        let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        *granted = Some(asking);
        drop(granted);
        self.wake();
    }
}

struct Speech {
    host: usize,
    life: u64,
    table: Arc<Table>,
    reporter: Sender<Report>,
    waker: Waker,
    woken: Receiver<()>,
    granted: Arc<Mutex<Option<Asking>>>,
}

/// What a host was told over one connection.
#[derive(Default)]
struct Told {
    /// Regions of the cache as it was opened.
    regions: u32,
    generations: BTreeMap<u32, u64>,
    /// Until when it has the cache, by its clock.
    until: Time,
}

/// What came of some words.
#[derive(Default)]
struct Spoken {
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
/// Words in one call: each has 25 bytes at most.
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

    fn report(&self, known: Vec<(u32, u64)>, asking: Option<Asking>) {
        let life = self.life;
        drop(self.reporter.send(Report {
            life,
            known,
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
            if has_told_all && !is_due && !is_short {
                self.sleep(ASK.saturating_sub(now.since(asked_at)))?;
                continue;
            }
            asked_at = now;
            let nothing = match self.tell(caller, &mut told, regions, news, until) {
                Ok(spoken) => {
                    let asks = |clock| Asking { connection, clock };
                    self.report(spoken.known, spoken.clock.map(asks));
                    // It is opened again, or lacks slabs, whose next entry is on its way.
                    self.sleep(if regions == 0 { Duration::MAX } else { ASK })?;
                    continue;
                }
                Err(Failure::Lost(why)) => Err(why),
                // It runs no procedure of the cache until it has a slab and is told again.
                Err(Failure::NoSlab) => Ok(()),
                // What it was told before is not to be gone by any more.
                Err(Failure::Refused(why)) => {
                    if refused.replace(why) != Some(why) {
                        tracing::warn!(host = self.host, %why, "procedures cannot run there");
                    }
                    self.close(caller)
                }
            };
            if let Err(why) = nothing {
                tracing::debug!(host = self.host, ?why, "tell a host where slabs are");
                return Ok(());
            }
            told = Told::default();
            let (_, news) = self.news(&idle);
            let known = news.iter().map(|entry| (entry.region, entry.generation));
            let known: Vec<_> = known.collect();
            idle.generations.extend(known.iter().copied());
            self.report(known, None);
            self.sleep(AGAIN)?;
        }
    }

    /// Until when the host has the cache, as far as it may be told over this connection. A clock of
    /// an earlier one may have been another's: the machine was started again.
    fn granted(&self, connection: u64) -> Time {
        let granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
        let granted = granted.filter(|asking| asking.connection == connection);
        granted.map_or(Time(0), |asking| asking.clock.after(LEASE))
    }

    /// How many regions there are, and the entries of which the host was not told.
    fn news(&self, told: &Told) -> (u32, Vec<Entry>) {
        let rows = self
            .table
            .rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
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
        mut news: Vec<Entry>,
        until: Time,
    ) -> Result<Spoken, Failure> {
        let cache = CacheId(self.table.settings.cache);
        let mut spoken = Spoken::default();
        if told.regions != regions {
            let last = std::mem::take(told).regions;
            if regions > 0 {
                // Of another number, it replaces what was said: requests there wait for the rest.
                say(caller, &self.open(regions))?;
                told.regions = regions;
            } else if last > 0 {
                say(caller, &Word::Close { cache })?;
            }
            // All of it is news.
            (_, news) = self.news(told);
        }
        self.map(caller, told, &news, &mut spoken)?;
        if told.regions > 0 && spoken.missing == 0 && (until > told.until || news.is_empty()) {
            let lease = Word::Map {
                cache,
                writes_until: until.0,
                slabs: Vec::new(),
            };
            let (_, clock) = say(caller, &lease)?;
            told.until = until;
            spoken.clock = Some(clock);
        }
        Ok(spoken)
    }

    /// Has a host forget the cache.
    fn close(&self, caller: &mut dyn Caller) -> Result<(), Status> {
        let cache = CacheId(self.table.settings.cache);
        match say(caller, &Word::Close { cache }) {
            Err(Failure::Lost(why)) => Err(why),
            // Or it is not this manager's there.
            Ok(_) | Err(Failure::NoSlab | Failure::Refused(_)) => Ok(()),
        }
    }

    fn open(&self, regions: u32) -> Word {
        let settings = &self.table.settings;
        let slabs = regions.saturating_mul(settings.slabs_per_region);
        Word::Open(Opened {
            cache: CacheId(settings.cache),
            slab_bytes: settings.slab_bytes,
            // Too many are refused there.
            slabs: slabs.min(SLABS_MAX + 1),
            // Of two copies a procedure would write one.
            writable: settings.copies == 1,
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
                let (lacking, clock) = say(caller, &word)?;
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
        let copy = entry.copies.first();
        let readable = matches!(entry.access, Access::Open | Access::Frozen);
        let copy = copy.filter(|copy| readable && copy.windows.len() == count as usize);
        let place = |slab: u32| match copy {
            None => SlabPlace::Nowhere,
            Some(copy) if copy.host == self.host => {
                let window = copy.windows[slab as usize];
                let named = Named {
                    window: window.id,
                    generation: window.generation,
                };
                match entry.access {
                    Access::Open => SlabPlace::Here(named),
                    _ => SlabPlace::Leaving(named),
                }
            }
            Some(copy) => {
                let number = self.table.roll.number(copy.host);
                number.map_or(SlabPlace::Nowhere, SlabPlace::At)
            }
        };
        let word = |slab: u32| SlabWord {
            slab: entry.region.saturating_mul(count).saturating_add(slab),
            generation: entry.generation,
            place: place(slab),
        };
        (0..count).map(word).collect()
    }
}

fn named(entry: &Entry) -> (u32, u64) {
    (entry.region, entry.generation)
}

/// Says a word and waits until all threads of the host go by it; how many slabs it does not have,
/// and what its clock showed meanwhile.
fn say(caller: &mut dyn Caller, word: &Word) -> Result<(u32, Time), Failure> {
    let mut bytes = Vec::new();
    word.write(&mut bytes);
    let answer = exchange(caller, &bytes, FAILURE_TIMEOUT).map_err(Failure::Lost)?;
    match Heard::read(&answer) {
        Ok(Heard::Taken { missing, now }) => Ok((missing, Time(now))),
        Ok(Heard::Refused(WordRefusal::NotYours)) => Err(Failure::NoSlab),
        Ok(Heard::Refused(why)) => Err(Failure::Refused(why)),
        Err(_) => Err(Failure::Lost(Status::Protocol)),
    }
}
