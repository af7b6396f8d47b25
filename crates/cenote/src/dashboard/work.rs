//! What is under way, and how long it takes: rebuilds, changes of a scheme, passes of the scrubber, hosts
//! that drain, key-value nodes that recover, regions of caches that move.
//!
//! Time left is what is left at the rate of the last [`WINDOW`]; it is not told while nothing moves.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use super::snapshot::{CacheView, HostState, HostView, KvView, VolumeView};

/// How far back rates go.
const WINDOW: Duration = Duration::from_secs(30);
/// Looks kept of each, however often it is looked.
const LOOKS_MAX: usize = 64;
/// Most that is told at once.
const WORKS_MAX: usize = 256;
/// Longer is not worth a number.
const LEFT_S_MAX: f64 = 1e7;

/// What is done.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Slabs of a volume are rebuilt.
    Rebuild,
    /// A volume gets another scheme.
    Change,
    /// A volume's pages are looked at.
    Scrub,
    /// A host gives its slabs back.
    Drain,
    /// A key-value node recovers or is told what it lacks.
    Recover,
    /// Regions of a cache move.
    Move,
}

/// Something under way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Work {
    pub kind: Kind,
    /// Of which volume, host, node or cache.
    pub of: String,
    /// What is left, ...
    pub left: f64,
    /// ... in bytes, slabs, pages or regions.
    pub unit: &'static str,
    /// More about it: from which scheme to which.
    pub note: Option<String>,
    /// Share that is done, 0 to 1.
    pub done: Option<f64>,
    pub left_s: Option<u64>,
}

impl Work {
    fn of(kind: Kind, of: &str, left: f64, unit: &'static str) -> Self {
        Self {
            kind,
            of: of.to_owned(),
            left,
            unit,
            note: None,
            done: None,
            left_s: None,
        }
    }
}

/// What volumes do.
pub fn of_volumes(volumes: &[VolumeView]) -> Vec<Work> {
    let mut works = Vec::new();
    for volume in volumes {
        let Some(figures) = &volume.figures else {
            continue;
        };
        if figures.to_rebuild_bytes > 0.0 {
            let left = figures.to_rebuild_bytes;
            works.push(Work::of(Kind::Rebuild, &volume.name, left, "bytes"));
        }
        if let Some(change) = &figures.change {
            let left = change.bytes.saturating_sub(change.bytes_done) as f64;
            let note = (change.from != change.to)
                .then(|| format!("from {} to {}", change.from, change.to));
            works.push(Work {
                note,
                ..Work::of(Kind::Change, &volume.name, left, "bytes")
            });
        }
        let scrub = &figures.scrub;
        if scrub.is_running {
            let left = scrub.pages_total.saturating_sub(scrub.pages_done) as f64;
            works.push(Work::of(Kind::Scrub, &volume.name, left, "pages"));
        }
    }
    works
}

/// What hosts do.
pub fn of_hosts(hosts: &[HostView]) -> Vec<Work> {
    let draining = hosts
        .iter()
        .filter(|host| host.state == HostState::Draining);
    let held = |host: &HostView| {
        let figures = host.figures.as_ref();
        f64::from(figures.map_or(0, |figures| figures.slabs_held))
    };
    draining
        .map(|host| Work::of(Kind::Drain, &host.name, held(host), "slabs"))
        .filter(|work| work.left > 0.0)
        .collect()
}

/// What the nodes of the key-value store do.
pub fn of_nodes(kv: &KvView) -> Vec<Work> {
    let behind = kv.nodes.iter().filter(|node| node.missing_bytes > 0);
    behind
        .map(|node| {
            Work::of(
                Kind::Recover,
                &node.name,
                node.missing_bytes as f64,
                "bytes",
            )
        })
        .collect()
}

/// What caches do.
pub fn of_caches(caches: &[CacheView]) -> Vec<Work> {
    let moving = |cache: &CacheView| cache.figures.as_ref().map_or(0, |figures| figures.moving);
    let caches = caches.iter().filter(|cache| moving(cache) > 0);
    caches
        .map(|cache| Work::of(Kind::Move, &cache.name, moving(cache) as f64, "regions"))
        .collect()
}

/// How fast each goes.
#[derive(Debug, Default)]
pub struct Paces {
    known: BTreeMap<(Kind, String), Pace>,
}

/// How fast one goes.
#[derive(Debug)]
struct Pace {
    /// When what was left, the oldest first.
    looks: VecDeque<(Duration, f64)>,
    /// Most that ever was left.
    most: f64,
}

impl Paces {
    /// Says of these kinds of work what is done and how long the rest takes; work of these kinds that is
    /// not named is over.
    pub fn tell(&mut self, now: Duration, kinds: &[Kind], works: &mut Vec<Work>) {
        works.truncate(WORKS_MAX);
        let is_there = |key: &(Kind, String)| {
            let mut works = works.iter();
            works.any(|work| work.kind == key.0 && work.of == key.1)
        };
        self.known
            .retain(|key, _| !kinds.contains(&key.0) || is_there(key));
        for work in works {
            let key = (work.kind, work.of.clone());
            let pace = self.known.entry(key).or_insert_with(|| Pace {
                looks: VecDeque::new(),
                most: work.left,
            });
            (work.done, work.left_s) = pace.look(now, work.left);
        }
    }
}

impl Pace {
    /// So much is left now; the share that is done, and how many seconds the rest takes.
    fn look(&mut self, now: Duration, left: f64) -> (Option<f64>, Option<u64>) {
        if self.looks.back().is_some_and(|(_, before)| left > *before) {
            // More to do than before: what was, tells nothing of it.
            self.looks.clear();
        }
        self.most = self.most.max(left);
        // One that is older than the window stays, so that rates are of all of it.
        while self.looks.len() > 1 && self.looks[1].0 + WINDOW <= now
            || self.looks.len() >= LOOKS_MAX
        {
            self.looks.pop_front();
        }
        self.looks.push_back((now, left));
        let done = (self.most > 0.0).then(|| (self.most - left) / self.most);
        let (then, before) = self.looks[0];
        let rate = (before - left) / now.saturating_sub(then).as_secs_f64();
        let seconds = left / rate;
        let is_sure = rate > 0.0 && rate.is_finite() && seconds < LEFT_S_MAX;
        (done, is_sure.then_some(seconds.ceil() as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::{host, volume};
    use super::*;

    fn seconds(s: u64) -> Duration {
        Duration::from_secs(s)
    }

    fn told(paces: &mut Paces, now: u64, left: f64) -> (Option<f64>, Option<u64>) {
        let mut works = vec![Work::of(Kind::Rebuild, "v", left, "bytes")];
        paces.tell(seconds(now), &[Kind::Rebuild], &mut works);
        (works[0].done, works[0].left_s)
    }

    #[test]
    fn time_left_is_what_is_left_at_the_rate_of_late() {
        let mut paces = Paces::default();
        assert_eq!(told(&mut paces, 0, 1000.0), (Some(0.0), None));
        assert_eq!(told(&mut paces, 10, 900.0), (Some(0.1), Some(90)));
        // What was before the window counts no more: nothing moved for 40 of these 100 seconds.
        let mut paces = Paces::default();
        for step in 0..=10_u32 {
            let left = if step < 5 {
                1000.0
            } else {
                1000.0 - 100.0 * f64::from(step - 4)
            };
            let said = told(&mut paces, u64::from(step) * 10, left);
            if step == 10 {
                assert_eq!(said, (Some(0.6), Some(40)));
            }
        }
    }

    #[test]
    fn what_does_not_move_has_no_end_in_sight() {
        let mut paces = Paces::default();
        told(&mut paces, 0, 1000.0);
        assert_eq!(told(&mut paces, 10, 1000.0).1, None);
        assert_eq!(told(&mut paces, 10, 900.0).1, Some(90));
        // Another host is lost: more to do.
        assert_eq!(told(&mut paces, 20, 2000.0), (Some(0.0), None));
        assert_eq!(told(&mut paces, 30, 1500.0), (Some(0.25), Some(30)));
    }

    #[test]
    fn looks_are_bounded_and_forgotten_with_their_work() {
        let mut paces = Paces::default();
        for step in 0..1_000 {
            let mut works = vec![Work::of(Kind::Scrub, "v", 1e6 - f64::from(step), "pages")];
            let now = Duration::from_millis(u64::try_from(step).unwrap());
            paces.tell(now, &[Kind::Scrub], &mut works);
        }
        let key = (Kind::Scrub, "v".to_owned());
        assert_eq!(paces.known[&key].looks.len(), LOOKS_MAX);
        paces.tell(seconds(2), &[Kind::Drain], &mut Vec::new());
        assert_eq!(paces.known.len(), 1, "others say nothing of it");
        paces.tell(seconds(2), &[Kind::Scrub], &mut Vec::new());
        assert_eq!(paces.known.len(), 0);
    }

    #[test]
    fn what_is_under_way_is_found_in_what_parts_say() {
        let works = of_volumes(&[
            volume("v", &["healthy", "degraded"]),
            volume("w", &["healthy"]),
        ]);
        let found: Vec<_> = works
            .iter()
            .map(|work| (work.kind, &*work.of, work.left))
            .collect();
        assert_eq!(found, [(Kind::Rebuild, "v", 1000.0)]);
        let mut draining = host("h03", HostState::Draining);
        draining.figures.as_mut().unwrap().slabs_held = 4;
        let works = of_hosts(&[host("h00", HostState::Up), draining.clone()]);
        assert_eq!((works.len(), &*works[0].of, works[0].left), (1, "h03", 4.0));
        draining.figures.as_mut().unwrap().slabs_held = 0;
        assert_eq!(of_hosts(&[draining]), [], "it is drained");
    }
}
