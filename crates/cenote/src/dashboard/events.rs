//! What changed: events, each told by two answers of the same part, one after the other.
//!
//! The log keeps the latest [`EVENTS_MAX`]. Nothing is told of what was so when the dashboard began.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use super::snapshot::{
    CacheState, CacheView, HostFigures, HostState, HostView, KvView, Level, StoreView, VolumeState,
    VolumeView,
};
use crate::commands::kv::status::State as NodeState;

/// Events kept.
const EVENTS_MAX: usize = 200;
/// Events of one answer: a cluster that goes as a whole tells this many, and how many more.
const BURST_MAX: usize = 50;

/// How much it matters.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Grade {
    /// Something is as it should be again.
    Good,
    /// Something was done or ended.
    Plain,
    /// Something is less than it should be.
    Warning,
    /// Something is gone.
    Bad,
}

/// What changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Change {
    pub grade: Grade,
    pub text: String,
}

/// When it was seen.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
pub struct Event {
    /// Counts events from 1.
    pub number: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    pub grade: Grade,
    pub text: String,
}

/// The latest events.
#[derive(Debug, Default)]
pub struct Log {
    count: u64,
    events: VecDeque<Event>,
}

impl Log {
    /// Notes what changed.
    pub fn add(&mut self, at_ms: u64, changes: Vec<Change>) {
        let more = changes.len().saturating_sub(BURST_MAX);
        let rest = (more > 0).then(|| plain(format!("and {more} more changes at that time")));
        for change in changes.into_iter().take(BURST_MAX).chain(rest) {
            self.count += 1;
            if self.events.len() == EVENTS_MAX {
                self.events.pop_front();
            }
            self.events.push_back(Event {
                number: self.count,
                at_ms,
                grade: change.grade,
                text: change.text,
            });
        }
    }

    /// Them, the latest first.
    pub fn latest(&self) -> Vec<&Event> {
        self.events.iter().rev().collect()
    }
}

fn change(grade: Grade, text: String) -> Change {
    Change { grade, text }
}

/// Something was done.
pub fn plain(text: String) -> Change {
    change(Grade::Plain, text)
}

/// What has a name, as it was and as it is; `None` where it is new or gone.
fn pairs<'a, T>(
    before: &'a [T],
    after: &'a [T],
    name: impl Fn(&T) -> &str,
) -> Vec<(Option<&'a T>, Option<&'a T>)> {
    let mut known: BTreeMap<&str, &T> = before.iter().map(|one| (name(one), one)).collect();
    let mut pairs: Vec<_> = after
        .iter()
        .map(|one| (known.remove(name(one)), Some(one)))
        .collect();
    pairs.extend(known.into_values().map(|gone| (Some(gone), None)));
    pairs
}

/// What became of hosts.
pub fn of_hosts(before: &[HostView], after: &[HostView]) -> Vec<Change> {
    let mut changes = Vec::new();
    for pair in pairs(before, after, |host| &host.name) {
        match pair {
            (Some(old), Some(new)) => of_host(old, new, &mut changes),
            (None, Some(new)) => changes.push(plain(format!(
                "host {} was added to the cluster file",
                new.name
            ))),
            (Some(old), None) => changes.push(plain(format!(
                "host {} was removed from the cluster file",
                old.name
            ))),
            (None, None) => {}
        }
    }
    changes
}

fn of_host(old: &HostView, new: &HostView, changes: &mut Vec<Change>) {
    let name = &new.name;
    let mut tell = |grade, what: String| changes.push(change(grade, format!("host {name} {what}")));
    match (old.state, new.state) {
        (old, new) if old == new => {}
        (old, HostState::Up) if !old.answers() => tell(Grade::Good, "is up".to_owned()),
        (_, HostState::Up) => tell(Grade::Good, "lends again".to_owned()),
        (_, HostState::Draining) => {
            tell(Grade::Plain, "is draining".to_owned());
        }
        (_, HostState::Ended) => tell(Grade::Bad, "is down: its process has exited".to_owned()),
        (_, HostState::Silent) => tell(
            Grade::Bad,
            "does not answer, but its process is running".to_owned(),
        ),
        (_, HostState::Unreachable) => tell(Grade::Bad, "is down: it does not answer".to_owned()),
    }
    let (Some(was), Some(is)) = (&old.figures, &new.figures) else {
        return;
    };
    if was.incarnation != is.incarnation {
        tell(Grade::Warning, "was restarted".to_owned());
        return;
    }
    let level = |figures: &HostFigures| {
        let pressure = figures.pressure.as_ref();
        pressure.map_or(Level::None, |pressure| pressure.level)
    };
    match (level(was), level(is)) {
        (old, new) if old == new => {}
        (_, Level::None) => tell(Grade::Good, "is no longer under memory pressure".to_owned()),
        (_, Level::Stalled) => tell(
            Grade::Warning,
            "has programs that stall for memory".to_owned(),
        ),
        (_, Level::Short) => tell(Grade::Warning, "is under memory pressure".to_owned()),
        (_, Level::Floor) => tell(Grade::Bad, "has less free memory than its floor".to_owned()),
    }
    if is.slabs_taken > was.slabs_taken {
        let slabs = is.slabs_taken - was.slabs_taken;
        let what = format!("took {slabs} slabs from clients that did not answer");
        tell(Grade::Bad, what);
    }
    if was.asked_back == 0 && is.asked_back > 0 {
        let what = format!("asks clients to return {} slabs", is.asked_back);
        tell(Grade::Warning, what);
    }
    if was.slabs_held > 0 && is.slabs_held == 0 && new.state == HostState::Draining {
        tell(Grade::Good, "is drained".to_owned());
    }
}

/// What became of volumes.
pub fn of_volumes(before: &[VolumeView], after: &[VolumeView]) -> Vec<Change> {
    let mut changes = Vec::new();
    for pair in pairs(before, after, |volume| &volume.name) {
        match pair {
            (Some(old), Some(new)) => of_volume(old, new, &mut changes),
            (None, Some(new)) => changes.push(plain(format!("volume {} was created", new.name))),
            (Some(old), None) => changes.push(plain(format!("volume {} was deleted", old.name))),
            (None, None) => {}
        }
    }
    changes
}

fn of_volume(old: &VolumeView, new: &VolumeView, changes: &mut Vec<Change>) {
    let name = &new.name;
    let mut tell =
        |grade, what: String| changes.push(change(grade, format!("volume {name} {what}")));
    let broken = || {
        let map = new.figures.as_ref().map(|figures| &figures.map);
        let whole = map.map_or(0, |map| map.by_health[0]);
        let count = map.map_or(0, |map| map.count);
        format!("{whole} of {count} extents whole")
    };
    match (old.state, new.state) {
        (old, new) if old == new => {}
        (VolumeState::Idle, VolumeState::Healthy) => tell(Grade::Plain, "is served".to_owned()),
        (_, VolumeState::Healthy) => tell(Grade::Good, "is whole".to_owned()),
        (_, VolumeState::Idle) => tell(Grade::Plain, "is no longer served".to_owned()),
        (_, VolumeState::Silent) => tell(Grade::Bad, "does not answer".to_owned()),
        (_, VolumeState::Regenerating) => {
            tell(Grade::Warning, format!("is being rebuilt: {}", broken()));
        }
        (_, VolumeState::Degraded) => tell(Grade::Warning, format!("is degraded: {}", broken())),
        (_, VolumeState::Lost) => {
            tell(Grade::Bad, format!("has lost extents: {}", broken()));
        }
    }
    let (Some(was), Some(is)) = (&old.figures, &new.figures) else {
        return;
    };
    if is.torn_pages > was.torn_pages {
        let pages = is.torn_pages - was.torn_pages;
        let what = format!("lost {pages} pages, which return errors until they are written");
        tell(Grade::Bad, what);
    }
    if is.wrong_splits > was.wrong_splits {
        let splits = is.wrong_splits - was.wrong_splits;
        tell(
            Grade::Warning,
            format!("found {splits} wrong splits in hosts' memory"),
        );
    }
    match (&was.journal_error, &is.journal_error) {
        (None, Some(error)) => tell(Grade::Bad, format!("cannot write its journal: {error}")),
        (Some(_), None) => tell(Grade::Good, "can write its journal again".to_owned()),
        _ => {}
    }
    match (&was.change, &is.change) {
        (None, Some(change)) => {
            let what = format!("is changing from {} to {}", change.from, change.to);
            tell(Grade::Plain, what);
        }
        (Some(change), None) => tell(Grade::Good, format!("has changed to {}", change.to)),
        _ => {}
    }
    if is.scrub.passes > was.scrub.passes && was.scrub.is_running {
        tell(Grade::Plain, "was scrubbed".to_owned());
    }
}

/// What became of the key-value store.
pub fn of_kv(before: &KvView, after: &KvView) -> Vec<Change> {
    let mut changes = Vec::new();
    for pair in pairs(&before.nodes, &after.nodes, |node| &node.name) {
        let (Some(old), Some(new)) = pair else {
            let name = pair.0.or(pair.1).map_or("", |node| &node.name);
            let is_new = pair.1.is_some();
            let what = if is_new { "is new" } else { "is gone" };
            changes.push(plain(format!("node {name} {what}")));
            continue;
        };
        let (grade, what) = match (old.state, new.state) {
            (old, new) if old == new => continue,
            (_, NodeState::Up) => (Grade::Good, "is up"),
            (_, NodeState::Draining) => (Grade::Plain, "drains"),
            (_, NodeState::Silent) => (Grade::Bad, "does not answer"),
            (_, NodeState::Down) => (Grade::Bad, "is down"),
        };
        changes.push(change(grade, format!("node {} {what}", new.name)));
    }
    for new in &after.groups {
        let old = before.groups.iter().find(|old| old.group == new.group);
        match old.map(|old| (old.whole, new.whole)) {
            Some((true, false)) => {
                let text = format!("group {} is not whole", new.group);
                changes.push(change(Grade::Warning, text));
            }
            Some((false, true)) => {
                changes.push(change(Grade::Good, format!("group {} is whole", new.group)));
            }
            _ => {}
        }
    }
    changes
}

/// What became of caches.
pub fn of_caches(before: &[CacheView], after: &[CacheView]) -> Vec<Change> {
    let mut changes = Vec::new();
    for pair in pairs(before, after, |cache| &cache.name) {
        let (Some(old), Some(new)) = pair else {
            let name = pair.0.or(pair.1).map_or("", |cache| &cache.name);
            let is_new = pair.1.is_some();
            let what = if is_new { "is new" } else { "was deleted" };
            changes.push(plain(format!("cache {name} {what}")));
            continue;
        };
        let losses = |cache: &CacheView| cache.figures.as_ref().map_or(0, |found| found.losses);
        if new.figures.is_some() && old.figures.is_some() && losses(new) > losses(old) {
            let text = format!("cache {} lost the bytes of a region", new.name);
            changes.push(change(Grade::Bad, text));
        }
        let (grade, what) = match (old.state, new.state) {
            (old, new) if old == new => continue,
            (_, CacheState::Whole) => (Grade::Good, "is whole"),
            (_, CacheState::Partial) => (Grade::Warning, "is not whole"),
            (_, CacheState::Ending) => (Grade::Plain, "is being deleted"),
            (_, CacheState::Idle) => (Grade::Warning, "has no manager"),
            (_, CacheState::Silent) => (Grade::Bad, "has a manager that does not answer"),
        };
        changes.push(change(grade, format!("cache {} {what}", new.name)));
    }
    changes
}

/// What became of stores of objects.
pub fn of_stores(before: &[StoreView], after: &[StoreView]) -> Vec<Change> {
    let mut changes = Vec::new();
    for pair in pairs(before, after, |store| &store.address) {
        let (Some(old), Some(new)) = pair else {
            continue;
        };
        let (grade, what) = match (old.answers, new.answers) {
            (true, false) => (Grade::Bad, "does not answer"),
            (false, true) => (Grade::Good, "answers"),
            _ => continue,
        };
        changes.push(change(grade, format!("store {} {what}", new.address)));
    }
    changes
}

/// A part as a whole answers no more, or again.
pub fn of_part(part: &str, before: Option<&str>, after: Option<&str>) -> Option<Change> {
    match (before, after) {
        (None, Some(why)) => Some(change(
            Grade::Bad,
            format!("{part} cannot be reached: {why}"),
        )),
        (Some(_), None) => Some(change(Grade::Good, format!("{part} can be reached again"))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::{GroupView, NodeView, Pressure, host, volume};
    use super::*;

    fn texts(changes: &[Change]) -> Vec<&str> {
        changes.iter().map(|change| &*change.text).collect()
    }

    #[test]
    fn a_host_that_goes_and_comes_is_told_once_each() {
        let up = [host("h00", HostState::Up), host("h01", HostState::Up)];
        let down = [host("h00", HostState::Up), host("h01", HostState::Ended)];
        assert_eq!(of_hosts(&up, &up), []);
        let gone = of_hosts(&up, &down);
        assert_eq!(texts(&gone), ["host h01 is down: its process has exited"]);
        assert_eq!(gone[0].grade, Grade::Bad);
        assert_eq!(of_hosts(&down, &down), []);
        let back = of_hosts(&down, &up);
        assert_eq!(
            (texts(&back), back[0].grade),
            (vec!["host h01 is up"], Grade::Good)
        );
        let listed = of_hosts(&up[..1], &up);
        assert_eq!(texts(&listed), ["host h01 was added to the cluster file"]);
        let unlisted = of_hosts(&up, &up[..1]);
        assert_eq!(
            texts(&unlisted),
            ["host h01 was removed from the cluster file"]
        );
    }

    #[test]
    fn a_restart_between_two_looks_is_seen() {
        let mut other = host("h00", HostState::Up);
        other.figures.as_mut().unwrap().incarnation = 7;
        other.figures.as_mut().unwrap().slabs_taken = 9;
        let changes = of_hosts(&[host("h00", HostState::Up)], &[other]);
        assert_eq!(
            changes.len(),
            1,
            "its counters are those of another process: {changes:?}"
        );
        assert!(changes[0].text.contains("was restarted"), "{changes:?}");
    }

    #[test]
    fn pressure_evictions_and_drains_are_told() {
        let with = |level, taken, asked_back| {
            let mut view = host("h00", HostState::Up);
            view.figures = Some(HostFigures {
                pressure: Some(Pressure {
                    level,
                    used_bytes: 0,
                    total_bytes: 0,
                    left_bytes: 0,
                    headroom_bytes: 0,
                }),
                slabs_taken: taken,
                asked_back,
                ..HostFigures::default()
            });
            [view]
        };
        let changes = of_hosts(&with(Level::None, 1, 0), &with(Level::Floor, 3, 2));
        let expected = [
            "host h00 has less free memory than its floor",
            "host h00 took 2 slabs from clients that did not answer",
            "host h00 asks clients to return 2 slabs",
        ];
        assert_eq!(texts(&changes), expected);
        let changes = of_hosts(&with(Level::Short, 3, 2), &with(Level::None, 3, 0));
        assert_eq!(
            texts(&changes),
            ["host h00 is no longer under memory pressure"]
        );
        let mut drains = host("h00", HostState::Draining);
        drains.figures.as_mut().unwrap().slabs_held = 2;
        let drained = host("h00", HostState::Draining);
        let changes = of_hosts(&[host("h00", HostState::Up)], std::slice::from_ref(&drains));
        assert_eq!(texts(&changes), ["host h00 is draining"]);
        assert_eq!(
            texts(&of_hosts(&[drains], &[drained])),
            ["host h00 is drained"]
        );
    }

    #[test]
    fn a_volume_that_degrades_and_heals_is_told_with_its_extents() {
        let whole = [volume("v", &["healthy", "healthy"])];
        let degraded = [volume("v", &["healthy", "degraded"])];
        let rebuilt = [volume("v", &["healthy", "regenerating"])];
        let changes = of_volumes(&whole, &degraded);
        assert_eq!(
            texts(&changes),
            ["volume v is degraded: 1 of 2 extents whole"]
        );
        let changes = of_volumes(&degraded, &rebuilt);
        assert_eq!(
            texts(&changes),
            ["volume v is being rebuilt: 1 of 2 extents whole"]
        );
        let changes = of_volumes(&rebuilt, &whole);
        assert_eq!(
            (texts(&changes), changes[0].grade),
            (vec!["volume v is whole"], Grade::Good)
        );
        let lost = [volume("v", &["lost", "lost"])];
        assert_eq!(of_volumes(&whole, &lost)[0].grade, Grade::Bad);
        assert_eq!(texts(&of_volumes(&[], &whole)), ["volume v was created"]);
        assert_eq!(texts(&of_volumes(&whole, &[])), ["volume v was deleted"]);
    }

    #[test]
    fn a_journal_that_fails_and_pages_that_are_lost_are_told() {
        let before = [volume("v", &["healthy"])];
        let mut after = before.clone();
        let figures = after[0].figures.as_mut().unwrap();
        figures.torn_pages = 3;
        figures.journal_error = Some("no room".to_owned());
        let expected = [
            "volume v lost 3 pages, which return errors until they are written",
            "volume v cannot write its journal: no room",
        ];
        assert_eq!(texts(&of_volumes(&before, &after)), expected);
        assert_eq!(
            texts(&of_volumes(&after, &before)),
            ["volume v can write its journal again"]
        );
    }

    #[test]
    fn nodes_and_groups_of_the_key_value_store_are_told() {
        let view = |state, whole| KvView {
            cluster: "kv".to_owned(),
            code: "2+1".to_owned(),
            whole,
            nodes: vec![NodeView {
                name: "n00".to_owned(),
                state,
                why: None,
                owned: 0,
                memory: None,
                missing_bytes: 0,
            }],
            groups: vec![GroupView {
                group: 0,
                whole,
                places: Vec::new(),
            }],
            operations: Default::default(),
        };
        let changes = of_kv(&view(NodeState::Up, true), &view(NodeState::Silent, false));
        assert_eq!(
            texts(&changes),
            ["node n00 does not answer", "group 0 is not whole"]
        );
        let changes = of_kv(&view(NodeState::Down, false), &view(NodeState::Up, true));
        assert_eq!(texts(&changes), ["node n00 is up", "group 0 is whole"]);
    }

    #[test]
    fn the_log_is_bounded_also_when_a_whole_cluster_goes() {
        let mut log = Log::default();
        let many = |state| -> Vec<HostView> {
            (0..4096)
                .map(|index| host(&format!("h{index}"), state))
                .collect()
        };
        log.add(
            1,
            of_hosts(&many(HostState::Up), &many(HostState::Unreachable)),
        );
        assert_eq!(log.latest().len(), BURST_MAX + 1);
        assert_eq!(log.latest()[0].text, "and 4046 more changes at that time");
        for at_ms in 0..2 * EVENTS_MAX as u64 {
            log.add(at_ms, vec![plain("again".to_owned())]);
        }
        let latest = log.latest();
        assert_eq!(latest.len(), EVENTS_MAX);
        assert_eq!(
            latest[0].number,
            BURST_MAX as u64 + 1 + 2 * EVENTS_MAX as u64
        );
    }

    #[test]
    fn a_part_that_cannot_be_asked_is_told_once() {
        assert_eq!(of_part("hosts", None, None), None);
        assert_eq!(of_part("hosts", Some("a"), Some("b")), None);
        let gone = of_part("hosts", None, Some("no cluster file")).unwrap();
        assert_eq!(gone.text, "hosts cannot be reached: no cluster file");
        assert_eq!(
            of_part("hosts", Some("a"), None).unwrap().grade,
            Grade::Good
        );
    }
}
