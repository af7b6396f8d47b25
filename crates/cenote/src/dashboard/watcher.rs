//! Threads that ask the parts of a cluster, one for each kind, and what they found last.
//!
//! A part that does not answer keeps its own thread waiting, for as long as its limit says, and no
//! other. What is found is put together once, and every page gets the same bytes. A page that is slow
//! to take them misses what was found meanwhile: nothing waits for it, and nothing is kept for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use cenote_cli::failure::chain;
use cenote_fabric::Address;
use hyper::body::Bytes;
use serde::Serialize;
use tokio::sync::watch;

use super::events::{self, Change, Log};
use super::history::{History, Hour, Memory, Rates};
use super::snapshot::{CacheView, HostView, KvView, Part, StoreView, VolumeView};
use super::stores::Stores;
use super::work::{self, Kind, Paces, Work};
use crate::ask::side_by_side;
use crate::caches::CacheDir;
use crate::commands::kv::{place, status};
use crate::place::Loaded;
use crate::sample;

/// What is watched, and how often.
pub struct Watched {
    pub loaded: Option<Arc<Loaded>>,
    pub kv: Option<place::Which>,
    pub stores: Vec<Address>,
    pub interval: Duration,
    /// How long a host, an owner, a node or a store may take.
    pub timeout: Duration,
}

/// What all pages are shown: each part as text, with the revision in which it changed.
#[derive(Clone, Debug, Default)]
pub struct Board {
    pub revision: u64,
    pub parts: BTreeMap<&'static str, (u64, Bytes)>,
}

/// The cluster as it was found last.
pub struct Watcher {
    began: Instant,
    state: Mutex<State>,
    board: watch::Sender<Board>,
}

struct State {
    hosts: Part<Vec<HostView>>,
    volumes: Part<Vec<VolumeView>>,
    kv: Part<KvView>,
    caches: Part<Vec<CacheView>>,
    stores: Part<Vec<StoreView>>,
    works: BTreeMap<&'static str, Vec<Work>>,
    paces: Paces,
    log: Log,
    history: History,
}

/// Milliseconds since 1970.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

impl Watcher {
    /// Begins to watch; the threads end with the process.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub fn start(watched: Watched) -> Result<Arc<Self>> {
        let watcher = Arc::new(Self {
            began: Instant::now(),
            state: Mutex::new(State {
                hosts: Part::default(),
                volumes: Part::default(),
                kv: Part::default(),
                caches: Part::default(),
                stores: Part::default(),
                works: BTreeMap::new(),
                paces: Paces::default(),
                log: Log::default(),
                history: History::new(),
            }),
            board: watch::Sender::new(Board::default()),
        });
        let (interval, timeout) = (watched.interval, watched.timeout);
        if let Some(loaded) = watched.loaded {
            let of_hosts = Arc::clone(&loaded);
            watcher.every("hosts", interval, move |watcher| {
                watcher.look_at_hosts(&of_hosts, timeout);
            })?;
            let of_volumes = Arc::clone(&loaded);
            watcher.every("volumes", interval, move |watcher| {
                watcher.look_at_volumes(&of_volumes, timeout);
            })?;
            if !watched.stores.is_empty() {
                let stores = Stores::new(watched.stores, loaded.key.clone());
                watcher.every("stores", interval, move |watcher| {
                    let asked_ms = now_ms();
                    watcher.take_stores(asked_ms, stores.ask(timeout));
                })?;
            }
            watcher.every("caches", interval, move |watcher| {
                watcher.look_at_caches(&loaded);
            })?;
        }
        if let Some(which) = watched.kv {
            let mut found = None;
            watcher.every("kv", interval, move |watcher| {
                watcher.look_at_kv(&which, &mut found, timeout);
            })?;
        }
        Ok(watcher)
    }

    /// Starts a thread that looks again and again.
    fn every(
        self: &Arc<Self>,
        name: &str,
        interval: Duration,
        mut look: impl FnMut(&Self) + Send + 'static,
    ) -> Result<()> {
        let watcher = Arc::clone(self);
        std::thread::Builder::new()
            .name(format!("watch-{name}"))
            .spawn(move || {
                loop {
                    look(&watcher);
                    std::thread::sleep(interval);
                }
            })
            .with_context(|| format!("start the thread that watches {name}"))?;
        Ok(())
    }

    /// What pages are shown, and word of each change.
    pub fn subscribe(&self) -> watch::Receiver<Board> {
        self.board.subscribe()
    }

    /// The last hour of a volume, or of all together; `None`: none of that name.
    pub fn hour(&self, volume: Option<&str>) -> Option<Hour> {
        let now = self.began.elapsed();
        self.lock().history.hour(now, volume)
    }

    /// Notes that something was ordered.
    pub fn note(&self, text: String) {
        let mut state = self.lock();
        state.log.add(now_ms(), vec![events::plain(text)]);
        self.show("events", &state.log.latest());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a part of the page from now on.
    pub fn show(&self, name: &'static str, what: &impl Serialize) {
        let text = match serde_json::to_vec(what) {
            Ok(text) => Bytes::from(text),
            Err(error) => {
                tracing::error!(%error, part = name, "put a part of the page together");
                return;
            }
        };
        self.board.send_modify(|board| {
            board.revision += 1;
            board.parts.insert(name, (board.revision, text));
        });
    }

    fn look_at_hosts(&self, loaded: &Loaded, timeout: Duration) {
        let asked_ms = now_ms();
        // Hosts come and go in the file while this runs.
        let found = loaded
            .cluster_now()
            .and_then(|cluster| sample::hosts(loaded, &cluster.hosts, timeout));
        let hosts = found.map(|hosts| hosts.iter().map(HostView::of).collect::<Vec<_>>());
        let mut state = self.lock();
        let state = &mut *state;
        let changes = settle(
            &mut state.hosts,
            "hosts",
            asked_ms,
            hosts,
            |before, after| events::of_hosts(before, after),
        );
        let mut works = Vec::new();
        if let Some(hosts) = current(&state.hosts) {
            let figures = hosts.iter().filter_map(|host| host.figures.as_ref());
            let memory = figures.fold(Memory::default(), |sum, one| Memory {
                lent_bytes: sum.lent_bytes.saturating_add(one.lent_bytes),
                free_bytes: sum.free_bytes.saturating_add(one.free_bytes),
            });
            state.history.note_memory(self.began.elapsed(), memory);
            works = work::of_hosts(hosts);
        }
        self.show("hosts", &state.hosts);
        self.show_rest(state, changes, "hosts", &[Kind::Drain], works);
    }

    fn look_at_volumes(&self, loaded: &Loaded, timeout: Duration) {
        let (asked_ms, at) = (now_ms(), self.began.elapsed());
        let found = sample::volumes(&loaded.dir, timeout);
        let volumes = found.map(|found| {
            let volumes = found.volumes.into_iter();
            volumes
                .map(|volume| VolumeView::of(volume, at))
                .collect::<Vec<_>>()
        });
        let mut state = self.lock();
        let state = &mut *state;
        let volumes = volumes.map(|mut volumes| {
            let before = state.volumes.answer.as_deref().unwrap_or_default();
            volumes
                .iter_mut()
                .for_each(|volume| note_rates(volume, before));
            volumes
        });
        let changes = settle(
            &mut state.volumes,
            "volumes",
            asked_ms,
            volumes,
            |before, after| events::of_volumes(before, after),
        );
        let mut works = Vec::new();
        if let Some(volumes) = current(&state.volumes) {
            for volume in volumes {
                if let Some(figures) = &volume.figures {
                    state.history.note_volume(&volume.name, &figures.counted);
                }
            }
            works = work::of_volumes(volumes);
        }
        self.show("volumes", &state.volumes);
        let kinds = [Kind::Rebuild, Kind::Change, Kind::Scrub];
        self.show_rest(state, changes, "volumes", &kinds, works);
    }

    fn look_at_caches(&self, loaded: &Loaded) {
        let asked_ms = now_ms();
        let found = CacheDir::all(&loaded.dir).map(|caches| {
            side_by_side(&caches, |cache| {
                let answer = cache.status(&loaded.key).map_err(|error| chain(&error));
                // Whether it has a manager that does not answer, or none.
                let is_managed = cache.is_managed().unwrap_or(true);
                CacheView::of(cache.name(), is_managed, answer)
            })
        });
        let mut state = self.lock();
        let state = &mut *state;
        let changes = settle(
            &mut state.caches,
            "caches",
            asked_ms,
            found,
            |before, after| events::of_caches(before, after),
        );
        let works = current(&state.caches).map(|caches| work::of_caches(caches));
        self.show("caches", &state.caches);
        let works = works.unwrap_or_default();
        self.show_rest(state, changes, "caches", &[Kind::Move], works);
    }

    fn look_at_kv(&self, which: &place::Which, kept: &mut Option<place::Found>, timeout: Duration) {
        let asked_ms = now_ms();
        let ask = |kept: &mut Option<place::Found>| {
            let found = match kept.take() {
                Some(found) => found,
                None => which.load()?,
            };
            let report = status::report(&found, timeout)?;
            // One that could not be asked is looked for again: it may be another by then.
            *kept = Some(found);
            anyhow::Ok(KvView::of(&report))
        };
        let answer = ask(kept);
        let mut state = self.lock();
        let state = &mut *state;
        let changes = settle(
            &mut state.kv,
            "the key-value store",
            asked_ms,
            answer,
            events::of_kv,
        );
        let mut works = Vec::new();
        if let Some(kv) = current(&state.kv) {
            let at = self.began.elapsed();
            state.history.note_operations(at, &kv.operations);
            works = work::of_nodes(kv);
        }
        self.show("kv", &state.kv);
        self.show_rest(state, changes, "kv", &[Kind::Recover], works);
    }

    fn take_stores(&self, asked_ms: u64, stores: Vec<StoreView>) {
        let mut state = self.lock();
        let state = &mut *state;
        let changes = settle(
            &mut state.stores,
            "stores",
            asked_ms,
            Ok(stores),
            |before, after| events::of_stores(before, after),
        );
        if let Some(stores) = current(&state.stores) {
            let put = stores.iter().filter_map(|store| {
                let figures = store.figures.as_ref()?;
                Some((store.address.clone(), figures.put_bytes))
            });
            state.history.note_put(self.began.elapsed(), &put.collect());
        }
        self.show("stores", &state.stores);
        self.show_rest(state, changes, "stores", &[], Vec::new());
    }

    /// Shows what changed, and what is under way in one part.
    fn show_rest(
        &self,
        state: &mut State,
        changes: Vec<Change>,
        part: &'static str,
        kinds: &[Kind],
        mut works: Vec<Work>,
    ) {
        state.paces.tell(self.began.elapsed(), kinds, &mut works);
        if state.works.get(part) != Some(&works) {
            state.works.insert(part, works);
            let all: Vec<&Work> = state.works.values().flatten().collect();
            self.show("work", &all);
        }
        if !changes.is_empty() {
            state.log.add(now_ms(), changes);
            self.show("events", &state.log.latest());
        }
    }
}

/// What a part answers now; `None` while it does not.
fn current<T>(part: &Part<T>) -> Option<&T> {
    part.answer.as_ref().filter(|_| part.error.is_none())
}

/// Takes a part's answer, or why there is none; what changed by it.
fn settle<T>(
    part: &mut Part<T>,
    name: &str,
    asked_ms: u64,
    answer: Result<T>,
    changes: impl FnOnce(&T, &T) -> Vec<Change>,
) -> Vec<Change> {
    let (answer, error) = match answer {
        Ok(answer) => (Some(answer), None),
        Err(error) => (None, Some(chain(&error))),
    };
    let of_part = events::of_part(name, part.error.as_deref(), error.as_deref());
    let mut all: Vec<Change> = of_part.into_iter().collect();
    if let (Some(before), Some(after)) = (&part.answer, &answer) {
        all.extend(changes(before, after));
    }
    part.error = error;
    if answer.is_some() {
        part.answer = answer;
        part.asked_ms = asked_ms;
    }
    all
}

/// Notes what a volume did since it was asked before.
fn note_rates(volume: &mut VolumeView, before: &[VolumeView]) {
    let earlier = before.iter().find(|old| old.name == volume.name);
    let earlier = earlier.and_then(|old| old.figures.as_ref());
    if let (Some(earlier), Some(figures)) = (earlier, &mut volume.figures) {
        figures.rates = Rates::between(&earlier.counted, &figures.counted);
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn what_was_known_stays_while_a_part_does_not_answer() {
        let mut part = Part::<u32>::default();
        let tell = |before: &u32, after: &u32| vec![events::plain(format!("{before} {after}"))];
        assert_eq!(settle(&mut part, "it", 1, Ok(7), tell), []);
        let gone = settle(&mut part, "it", 2, Err(anyhow!("no")), tell);
        assert_eq!(gone[0].text, "it cannot be reached: no");
        assert_eq!((part.answer, part.asked_ms), (Some(7), 1));
        assert_eq!(current(&part), None);
        let back = settle(&mut part, "it", 3, Ok(8), tell);
        let texts: Vec<&str> = back.iter().map(|change| &*change.text).collect();
        // What changed meanwhile is told then.
        assert_eq!(texts, ["it can be reached again", "7 8"]);
        assert_eq!((current(&part), part.asked_ms), (Some(&8), 3));
    }
}
