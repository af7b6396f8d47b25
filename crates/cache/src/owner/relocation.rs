//! How a region gets another copy while clients use it: drain, fence, fill, switch, retire.
//!
//! | stage | reads | writes |
//! |---|---|---|
//! | placing, ready | old copies | old copies |
//! | draining, fencing, filling | old copies | wait |
//! | switching | new copies | wait |
//!
//! No region is stopped while the host that it goes to makes memory, and none is made there while a region
//! is copied (decision 90).
//!
//! Nothing is waited for without a limit but hosts that are silent, which are given up in their
//! time.
//!
//! Paper: \[redy22\] section 5.2: reads of the old copy go on, writes stop for the region that
//! moves.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FILL_BYTES_MAX, FillResult};

use super::host::HostIndex;
use super::region::{Access, Contents, Fill, Filling, Purpose, Region, Switching, Target, Task};
use super::{Action, Copy, Owner};
use crate::injected_faults::{InjectedFault, is_injected};

/// Fills that a host is given ahead, so that it goes from one to the next without a round trip.
pub const FILLS_AHEAD: usize = 8;

/// Pause before a fill that failed, or a host that refused, is tried again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

/// Rounds of fills of one region that fail before another host is looked for: writes wait
/// meanwhile.
const FAILURES_MAX: u32 = 5;

/// A host that is connected and leaves a request unanswered for longer is not waited for.
/// Arbitrary: making a slab of 1 GiB takes a second on a machine that is busy.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

impl Owner {
    /// Moves every relocation on as far as it goes.
    pub(super) fn tend_relocations(&mut self, now: Time) {
        for region in 0..self.regions.len() {
            self.regions[region].told_at.get_or_insert(now);
            let tended = &mut self.regions[region];
            if matches!(tended.task, Task::None) && now >= tended.rest_until {
                tended.span = None;
            }
            match tended.task {
                Task::None | Task::Placing(_) | Task::Fencing(_) | Task::Restoring(_) => {}
                Task::Held(_) => self.tend_hold(region, now),
                Task::Ready(_) => self.begin_draining(region, now),
                Task::Draining(_) => self.end_draining(region, now),
                Task::Filling(_) => self.fill(region, now),
                Task::Switching(_) => self.end_switching(region, now),
            }
        }
    }

    /// Gives up what a host that is connected does not answer.
    pub(super) fn end_overdue(&mut self, now: Time) {
        let is_over = |since: Time| now.since(since) >= ANSWER_LIMIT;
        self.reconnect_where_renewing(now);
        for region in 0..self.regions.len() {
            let asked = match &self.regions[region].task {
                Task::Placing(placing) if is_over(placing.heard_at) => placing.host,
                Task::Filling(filling) if is_over(filling.heard_at) => {
                    let target = filling.target.copy.host;
                    self.note_apart(region, now);
                    target
                }
                Task::Switching(Switching { quiet, heard_at }) => {
                    let is_over = heard_at.is_some_and(is_over);
                    // One that is out of reach is being dialled.
                    let is_up = |(host, _): &&(HostIndex, u64)| self.hosts[*host].is_up();
                    if let Some(&(host, _)) = quiet.iter().find(is_up).filter(|_| is_over) {
                        self.reconnect(now, host);
                    }
                    continue;
                }
                _ => continue,
            };
            if is_injected(InjectedFault::WaitForEver) {
                continue;
            }
            tracing::warn!(region, host = asked, "a host does not answer");
            self.hosts[asked].avoid_until = now.after(ANSWER_LIMIT);
            self.end_relocation(region, now);
        }
    }

    /// The memory is there: with nothing to copy it counts at once, else its turn has to come.
    fn begin_draining(&mut self, region: usize, now: Time) {
        let Task::Ready(target) = &self.regions[region].task else {
            return;
        };
        let mut target = target.clone();
        if self.regions[region].copies.is_empty() {
            if self.begin_restoring(region, &target) {
                return;
            }
            let fresh = &mut self.regions[region];
            fresh.copies = vec![target.copy];
            fresh.make_sure();
            return self.open(region);
        }
        let Some(source) = self.source_for(region, &target, now) else {
            return;
        };
        if self.is_wary
            || self.is_busy(source, target.copy.host)
            || self.makes_memory(target.copy.host)
        {
            return;
        }
        let is_up = |copy: &Copy| self.hosts[copy.host].is_up();
        let first_up = self.regions[region].copies.iter().position(is_up);
        if self.regions[region].contents == Contents::Sure
            && let Some(at) = first_up.filter(|&at| at > 0)
        {
            // Clients are told of the order when they are told to stop. While the first is up they
            // read that, as the other may have writes that are under way.
            self.regions[region].copies.swap(0, at);
        }
        target.source = Some(source);
        self.freeze(region, target, now);
    }

    /// Hosts whose copy new memory may be filled from, best first. What is copied of a doubtful
    /// region is to be what stays, so that no other copy differs from it; otherwise any will do.
    pub(super) fn sources(&self, region: usize, replaces: Option<HostIndex>) -> Vec<HostIndex> {
        let copies = self.regions[region].copies.iter().map(|copy| copy.host);
        let up: Vec<HostIndex> = copies.filter(|&host| self.hosts[host].is_up()).collect();
        let stays = |&host: &HostIndex| Some(host) != replaces;
        match self.is_doubtful(region) && up.iter().any(stays) {
            true => up.into_iter().filter(stays).collect(),
            false => up,
        }
    }

    /// The one of them for this memory.
    pub(super) fn source_for(
        &self,
        region: usize,
        target: &Target,
        now: Time,
    ) -> Option<HostIndex> {
        let sources = self.sources(region, target.purpose.replaces());
        let reaches = |&&host: &&HostIndex| !self.apart.are_apart(host, target.copy.host, now);
        sources.iter().find(reaches).or(sources.first()).copied()
    }

    /// Has clients end their writes.
    pub(super) fn freeze(&mut self, region: usize, target: Target, now: Time) {
        if is_injected(InjectedFault::ReadBeforeFilled) {
            let moved = &mut self.regions[region];
            let kept = std::mem::replace(&mut moved.copies, vec![target.copy.clone()]);
            self.publish(region, Access::Frozen);
            self.regions[region].copies = kept;
        } else {
            self.publish(region, Access::Frozen);
        }
        self.regions[region].task = Task::Draining(target);
        self.end_draining(region, now);
    }

    /// Whether one of the hosts copies another region: bandwidth that is shared makes both stops
    /// longer.
    pub(super) fn is_busy(&self, source: HostIndex, target: HostIndex) -> bool {
        self.regions.iter().any(|other| {
            let is_copied = matches!(
                other.task,
                Task::Draining(_) | Task::Fencing(_) | Task::Filling(_)
            );
            let Some(filled) = other.target().filter(|_| is_copied) else {
                return false;
            };
            filled.copy.host == target || other.source().is_some_and(|copy| copy.host == source)
        })
    }

    /// Whether the host copies a region to itself.
    pub(super) fn is_filled(&self, host: HostIndex) -> bool {
        self.regions.iter().any(|region| {
            let is_copied = matches!(
                region.task,
                Task::Draining(_) | Task::Fencing(_) | Task::Filling(_)
            );
            is_copied && region.target_host() == Some(host)
        })
    }

    /// Whether the host makes memory for a region. Zeroing takes longer than copying: beside it a stop of
    /// writes would be several times as long.
    fn makes_memory(&self, host: HostIndex) -> bool {
        let is_asked = |region: &Region| matches!(&region.task, Task::Placing(placing) if placing.host == host);
        self.regions.iter().any(is_asked)
    }

    /// Nobody uses a copy any more. A host that leaves has no use for its memory either, and would free it
    /// beside the copy of its next region: it gets everything back behind the last one.
    fn give_back(&mut self, copy: Copy) {
        let is_read = self.regions.iter().any(|region| match &region.task {
            Task::Placing(placing) => placing.purpose.replaces() == Some(copy.host),
            _ => {
                let reads = |source: &Copy| source.host == copy.host;
                region.target().is_some() && region.source().is_some_and(reads)
            }
        });
        if is_read && self.hosts[copy.host].is_leaving() {
            self.idle.push(copy);
        } else {
            self.unmap(&copy);
        }
    }

    /// Gives back what there is no reason to keep any more.
    pub(super) fn give_idle_back(&mut self) {
        for copy in std::mem::take(&mut self.idle) {
            self.give_back(copy);
        }
    }

    /// No client writes any more: what may still land is fenced off, and the copy begins.
    fn end_draining(&mut self, region: usize, now: Time) {
        if !self.is_known(region, now) {
            return;
        }
        let Task::Draining(target) = &self.regions[region].task else {
            return;
        };
        let target = target.clone();
        if self.is_doubtful(region) {
            return self.fence_and_fill(region, target, now);
        }
        self.begin_filling(region, target, now);
    }

    pub(super) fn begin_filling(&mut self, region: usize, target: Target, now: Time) {
        self.regions[region].task = Task::Filling(Filling {
            target,
            next: 0,
            under_way: Vec::new(),
            failed: BTreeSet::new(),
            failures: 0,
            resume_at: now,
            begun_at: now,
            heard_at: now,
        });
        self.fill(region, now);
    }

    /// Keeps fills under way; once all are done the new copy counts.
    fn fill(&mut self, region: usize, now: Time) {
        let region_bytes = self.settings.region_bytes();
        loop {
            let Task::Filling(filling) = &mut self.regions[region].task else {
                return;
            };
            let is_begun = filling.next >= region_bytes && filling.failed.is_empty();
            if is_begun && filling.under_way.is_empty()
                || is_injected(InjectedFault::FlipBeforeCopy)
            {
                return self.flip(region);
            }
            if is_begun || now < filling.resume_at || filling.under_way.len() >= FILLS_AHEAD {
                return;
            }
            self.ask_fill(region, now);
        }
    }

    fn ask_fill(&mut self, region: usize, now: Time) {
        let slab_bytes = self.settings.slab_bytes;
        let Some(source) = self.regions[region].source().cloned() else {
            return;
        };
        let Task::Filling(filling) = &mut self.regions[region].task else {
            return;
        };
        if filling.under_way.is_empty() {
            filling.heard_at = now;
        }
        let begin = filling.failed.pop_first().unwrap_or(filling.next);
        let slab = usize::try_from(begin / slab_bytes).expect("an index");
        let offset = begin % slab_bytes;
        let len_bytes = FILL_BYTES_MAX.min(slab_bytes - offset);
        filling.next = filling.next.max(begin + len_bytes);
        self.requests += 1;
        filling.under_way.push(Fill {
            request: self.requests,
            begin,
            round: filling.failures,
        });
        self.actions.push_back(Action::Fill {
            host: filling.target.copy.host,
            request: self.requests,
            target: filling.target.copy.windows[slab],
            source: source.host,
            source_window: source.windows[slab],
            offset,
            len_bytes,
        });
    }

    pub(super) fn take_filled(
        &mut self,
        now: Time,
        host: HostIndex,
        request: u64,
        result: FillResult,
    ) {
        let found = (0..self.regions.len()).find_map(|at| {
            let answered = self.regions[at].take_answered(now, host, request)?;
            Some((at, answered))
        });
        let Some((region, Fill { begin, round, .. })) = found else {
            return;
        };
        let Task::Filling(filling) = &mut self.regions[region].task else {
            return;
        };
        match result {
            FillResult::Done => {}
            FillResult::SourceFailed { .. } | FillResult::Disagree
                if filling.failures < FAILURES_MAX =>
            {
                // What was asked for together fails together, however long the answers take.
                filling.failures += u32::from(round == filling.failures);
                filling.failed.insert(begin);
                filling.resume_at = now.after(PAUSE);
            }
            _ => {
                if matches!(result, FillResult::SourceFailed { .. }) {
                    self.note_apart(region, now);
                    if is_injected(InjectedFault::ApartTakenForEqual) {
                        self.regions[region].make_sure();
                    }
                }
                self.hosts[host].avoid_until = now.after(PAUSE * 5);
                self.end_failed(region, now);
            }
        }
    }

    /// The host that is filled does not get what it is to copy, though both are up.
    fn note_apart(&mut self, region: usize, now: Time) {
        let copied = &self.regions[region];
        let (source, target) = (copied.source().map(|copy| copy.host), copied.target_host());
        let (Some(source), Some(target)) = (source, target) else {
            return;
        };
        if self.hosts[source].is_up() && self.hosts[target].is_up() {
            tracing::warn!(region, source, target, "a host does not reach another");
            self.apart.note(source, target, now);
        }
    }

    /// The new copy holds everything: it counts, and what it replaces does not.
    fn flip(&mut self, region: usize) {
        let moved = &mut self.regions[region];
        let source = moved.source().map(|copy| copy.host);
        let Task::Filling(filling) = std::mem::take(&mut moved.task) else {
            unreachable!("it was filled");
        };
        let Target { copy, purpose, .. } = filling.target;
        let equal = [source, Some(copy.host)];
        match purpose {
            Purpose::Converge => {}
            Purpose::Add => moved.copies.push(copy),
            Purpose::Replace(from) => {
                moved.copies.push(copy);
                let (gone, kept) = std::mem::take(&mut moved.copies)
                    .into_iter()
                    .partition(|copy| copy.host == from);
                moved.copies = kept;
                moved.retiring.extend::<Vec<_>>(gone);
                if source == Some(from) {
                    // Readers go on with what they have read so far.
                    moved.copies.rotate_right(1);
                }
            }
        }
        let is_equal = |copy: &Copy| equal.contains(&Some(copy.host));
        if moved.copies.iter().all(is_equal) {
            moved.make_sure();
        }
        if let [Some(source), Some(target)] = equal {
            self.apart.note_copied(source, target);
        }
        self.switch(region, Vec::new());
    }

    /// Every client knows which copies count: the others go, and writes go on.
    fn end_switching(&mut self, region: usize, now: Time) {
        let switched = &mut self.regions[region];
        let Task::Switching(switching) = &mut switched.task else {
            return;
        };
        if !switching.quiet.is_empty() {
            switching.heard_at.get_or_insert(now);
            return;
        }
        let is_unlearned = switched.copies.iter().any(Copy::is_unlearned);
        if is_unlearned || !self.is_known(region, now) {
            return;
        }
        for copy in std::mem::take(&mut self.regions[region].retiring) {
            self.give_back(copy);
        }
        let switched = &mut self.regions[region];
        switched.task = Task::None;
        if !switched.copies.is_empty() {
            self.open(region);
        }
    }

    pub(super) fn open(&mut self, region: usize) {
        self.regions[region].task = Task::None;
        self.publish(region, Access::Open);
    }

    /// Ends the relocations that need a host.
    pub(super) fn end_relocations_with(&mut self, host: HostIndex, now: Time) {
        for at in 0..self.regions.len() {
            let region = &mut self.regions[at];
            let reads = |copy: &Copy| copy.host == host;
            let is_copied = matches!(
                region.task,
                Task::Draining(_) | Task::Fencing(_) | Task::Filling(_)
            );
            let is_source = is_copied && region.source().is_some_and(reads);
            if is_source || region.target_host() == Some(host) {
                self.end_relocation(at, now);
            }
        }
    }

    /// Nothing that an earlier session to a host asked for is under way any more: a host answers
    /// who owns it again only then. Until that session began it may have been.
    pub(super) fn end_fills_by(&mut self, host: HostIndex) {
        for region in &mut self.regions {
            if let Task::Switching(switching) = &mut region.task {
                switching.quiet.retain(|&(there, _)| there != host);
            }
        }
    }

    /// Gives a relocation up before its new copy counts: everything is as before.
    pub(super) fn end_relocation(&mut self, region: usize, now: Time) {
        let Some(quiet) = self.abandon(region) else {
            return;
        };
        self.regions[region].rest_until = now.after(PAUSE * 5);
        if !quiet.is_empty() {
            self.switch(region, quiet);
        } else if self.regions[region].access == Access::Frozen {
            self.open(region);
        }
    }

    /// [`Owner::end_relocation`] of what would fail with other memory, too: that is not asked for
    /// at once. If a copy failed, writes go on for twice as long as it stopped them: nobody may
    /// reach the copies, and each host would be tried in turn. Bytes on a host that leaves do not
    /// wait for that.
    pub(super) fn end_failed(&mut self, region: usize, now: Time) {
        let failed = &self.regions[region];
        let is_leaving = failed
            .copies
            .iter()
            .any(|copy| self.hosts[copy.host].is_leaving());
        let stopped = match &failed.task {
            Task::Filling(filling)
                if filling.target.purpose != Purpose::Converge && !is_leaving =>
            {
                now.since(filling.begun_at)
            }
            _ => Duration::ZERO,
        };
        self.end_relocation(region, now);
        self.regions[region].place_at = now.after((PAUSE * 5).max(stopped * 2));
    }

    /// Leaves what is under way, and gives back the memory that a region was to have. `None`:
    /// nothing was under way. Otherwise fills that may still land in a copy that counts: host and
    /// request.
    pub(super) fn abandon(&mut self, region: usize) -> Option<Vec<(HostIndex, u64)>> {
        let left = &mut self.regions[region];
        let new_copy = left.new_copy().cloned();
        let mut quiet = Vec::new();
        let given_back = match std::mem::take(&mut left.task) {
            Task::None => return None,
            task @ (Task::Switching(_) | Task::Held(_)) => {
                left.task = task;
                return None;
            }
            Task::Placing(placing) => {
                let windows = placing.windows.iter().copied().flatten().collect();
                Some(Copy::new(placing.host, windows))
            }
            Task::Filling(filling) if filling.target.purpose == Purpose::Converge => {
                let host = filling.target.copy.host;
                quiet.extend(filling.under_way.iter().map(|fill| (host, fill.request)));
                None
            }
            Task::Ready(_)
            | Task::Draining(_)
            | Task::Fencing(_)
            | Task::Filling(_)
            | Task::Restoring(_) => new_copy,
        };
        if let Some(copy) = given_back {
            self.unmap(&copy);
        }
        Some(quiet)
    }
}
