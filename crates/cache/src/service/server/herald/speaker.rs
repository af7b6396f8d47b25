//! One host's speaker: a thread that says to it what it has not been told.
//!
//! It blocks while the host answers, so a silent one holds up nobody else. It ends when its
//! [`Speaker`] is dropped, within a failure timeout.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, sync_channel};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use cenote_fabric::calls::{Caller, CallerOpener};
use cenote_fabric::{FAILURE_TIMEOUT, Status, Waker};
use cenote_proc::CacheId;
use cenote_proc::remote::exchange;
use cenote_proc::service::{
    EVERYBODY, Heard, Named, Opened, SLABS_MAX, SlabPlace, SlabWord, Word, WordRefusal,
};

use super::Table;
use crate::owner::{Access, Entry};

/// How far a host is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in super::super) enum Said {
    /// It cannot be reached.
    Nothing,
    /// It goes by everything up to this word.
    UpTo(u64),
}

/// What a speaker has done.
pub(in super::super) struct Report {
    pub life: u64,
    pub said: Said,
}

/// The manager's end.
pub(in super::super) struct Speaker {
    pub life: u64,
    pub said: Said,
    wake: SyncSender<()>,
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
        let speech = Speech {
            host,
            life,
            table,
            reporter,
            waker,
            woken,
        };
        std::thread::Builder::new()
            .name("cache-words".to_owned())
            .spawn(move || speech.run(&opener))?;
        Ok(Self {
            life,
            said: Said::Nothing,
            wake,
        })
    }

    pub fn wake(&self) {
        // Full: it has not slept since. Gone: it cannot speak.
        let _full_or_gone = self.wake.try_send(());
    }
}

struct Speech {
    host: usize,
    life: u64,
    table: Arc<Table>,
    reporter: Sender<Report>,
    waker: Waker,
    woken: Receiver<()>,
}

/// What a host was told over one connection.
#[derive(Default)]
struct Told {
    /// Regions of the cache as it was opened.
    regions: u32,
    generations: BTreeMap<u32, u64>,
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
/// What a host does not have is said to it again.
const AGAIN: Duration = Duration::from_secs(1);
/// Words in one call: each has 25 bytes at most.
const WORDS: usize = 2048;

impl Speech {
    fn run(self, opener: &CallerOpener) {
        let mut pause = PAUSE;
        loop {
            match opener(FAILURE_TIMEOUT) {
                Ok(mut caller) => match self.speak(&mut *caller) {
                    Ok(()) => pause = PAUSE,
                    Err(Dropped) => return,
                },
                Err(error) => {
                    tracing::debug!(host = self.host, %error, "reach a host's server threads");
                    pause = PAUSE_MAX.min(2 * pause);
                }
            }
            self.report(Said::Nothing);
            if self.sleep(pause).is_err() {
                return;
            }
        }
    }

    fn report(&self, said: Said) {
        let life = self.life;
        drop(self.reporter.send(Report { life, said }));
        self.waker.wake();
    }

    fn sleep(&self, patience: Duration) -> Result<(), Dropped> {
        match self.woken.recv_timeout(patience) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(Dropped),
        }
    }

    /// Says what is new, until the connection is lost.
    fn speak(&self, caller: &mut dyn Caller) -> Result<(), Dropped> {
        let mut told = Told::default();
        let mut refused = None;
        loop {
            let (word, regions, news) = self.news(&told);
            match self.tell(caller, &mut told, regions, &news) {
                Ok(()) => self.report(Said::UpTo(word)),
                // It runs no procedure of the cache until it has a slab and is told again.
                Err(Failure::NoSlab) => {
                    told = Told::default();
                    self.report(Said::UpTo(word));
                }
                // It may have forgotten what it was told: that is said from the beginning.
                Err(Failure::Refused(why)) => {
                    told = Told::default();
                    if refused.replace(why) != Some(why) {
                        tracing::warn!(host = self.host, %why, "procedures cannot run there");
                    }
                    self.report(Said::UpTo(word));
                }
                Err(Failure::Lost(why)) => {
                    tracing::debug!(host = self.host, ?why, "tell a host where slabs are");
                    return Ok(());
                }
            }
            let is_all =
                news.is_empty() || told.regions == regions && self.news(&told).2.is_empty();
            let patience = if is_all { Duration::MAX } else { AGAIN };
            self.sleep(patience)?;
        }
    }

    /// The newest word, how many regions there are, and what the host was not told of them.
    fn news(&self, told: &Told) -> (u64, u32, Vec<Entry>) {
        let rows = self
            .table
            .rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let regions = rows.region_count();
        let is_new = |entry: &&Entry| {
            let known = told.generations.get(&entry.region);
            entry.region < regions && known.is_none_or(|known| *known < entry.generation)
        };
        let news = rows.entries.values().filter(is_new).cloned().collect();
        (rows.word, regions, news)
    }

    fn tell(
        &self,
        caller: &mut dyn Caller,
        told: &mut Told,
        regions: u32,
        news: &[Entry],
    ) -> Result<(), Failure> {
        let cache = CacheId(self.table.settings.cache);
        if told.regions != regions {
            if told.regions > 0 {
                *told = Told::default();
                say(caller, &Word::Close { cache })?;
            }
            if regions > 0 {
                say(caller, &self.open(regions))?;
                told.regions = regions;
                // All of it is news.
                let (_, _, news) = self.news(told);
                return self.map(caller, told, &news);
            }
        }
        self.map(caller, told, news)
    }

    fn open(&self, regions: u32) -> Word {
        let settings = &self.table.settings;
        let slabs = regions.saturating_mul(settings.slabs_per_region);
        Word::Open(Opened {
            cache: CacheId(settings.cache),
            slab_bytes: settings.slab_bytes,
            // Too many are refused there.
            slabs: slabs.min(SLABS_MAX + 1),
            // Writes of procedures would reach one copy, and no client would end them.
            writable: false,
            me: u32::try_from(self.host).unwrap_or(u32::MAX),
            machines: self.table.machines.clone(),
            users: vec![EVERYBODY],
        })
    }

    fn map(&self, caller: &mut dyn Caller, told: &mut Told, news: &[Entry]) -> Result<(), Failure> {
        let per_region = self.table.settings.slabs_per_region as usize;
        for some in news.chunks((WORDS / per_region).max(1)) {
            let slabs: Vec<_> = some.iter().flat_map(|entry| self.words(entry)).collect();
            let mut missing = 0;
            for slabs in slabs.chunks(WORDS) {
                missing += say(
                    caller,
                    &Word::Map {
                        cache: CacheId(self.table.settings.cache),
                        writes_until: 0,
                        slabs: slabs.to_vec(),
                    },
                )?;
            }
            if missing > 0 {
                tracing::debug!(
                    host = self.host,
                    missing,
                    "slabs that the host does not have"
                );
                continue;
            }
            let known = some.iter().map(|entry| (entry.region, entry.generation));
            told.generations.extend(known);
        }
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
                SlabPlace::Here(Named {
                    window: window.id,
                    generation: window.generation,
                })
            }
            Some(copy) => SlabPlace::At(u32::try_from(copy.host).unwrap_or(u32::MAX)),
        };
        let word = |slab: u32| SlabWord {
            slab: entry.region.saturating_mul(count).saturating_add(slab),
            generation: entry.generation,
            place: place(slab),
        };
        (0..count).map(word).collect()
    }
}

/// Says a word and waits until all threads of the host go by it; how many slabs it does not have.
fn say(caller: &mut dyn Caller, word: &Word) -> Result<u32, Failure> {
    let mut bytes = Vec::new();
    word.write(&mut bytes);
    let answer = exchange(caller, &bytes, FAILURE_TIMEOUT).map_err(Failure::Lost)?;
    match Heard::read(&answer) {
        Ok(Heard::Taken { missing, .. }) => Ok(missing),
        Ok(Heard::Refused(WordRefusal::NotYours)) => Err(Failure::NoSlab),
        Ok(Heard::Refused(why)) => Err(Failure::Refused(why)),
        Err(_) => Err(Failure::Lost(Status::Protocol)),
    }
}
