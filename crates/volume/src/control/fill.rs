//! The chunk of a repair that is fenced and drained: what its target is asked for, and what it
//! answers.
//!
//! A chunk is one fill or, when nobody else asks for anything, several at once: the target goes from
//! one to the next without a round trip. It carries them out in order, and a chunk that failed is
//! asked for again when all of them have been answered: no fill of an earlier try is
//! under way beside one of a later. What a write went into meanwhile is begun again (`backoff`).

use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, Request, Source};

use super::repair::Stage;
use super::{Control, pool_window};
use crate::directory::{HostIndex, Member, MemberState};

/// The fills of one chunk.
#[derive(Clone, Copy)]
pub(super) struct Fills {
    /// Number of the first request; the others follow.
    first: u64,
    count: u64,
    /// Not answered yet.
    left: u64,
    /// Slab bytes of each but the last.
    fill_bytes: u64,
    /// Slab bytes of all.
    len_bytes: u64,
    start: u32,
    /// Where these fills end, ...
    until: u32,
    /// ... and where the chunk does.
    pub end: u32,
    pub asked_at: Time,
    /// Whether the slab that is replaced is read, and no others.
    copies: bool,
    /// The splits that it was told to read, as it names them.
    asked: u64,
    failed: bool,
    /// Whether sources were compared and are not of one code word.
    disagree: bool,
    /// Whether nothing is fenced, and this is only there to reach the sources.
    is_trial: bool,
}

impl Fills {
    fn contains(&self, request: u64) -> bool {
        (self.first..self.first + self.count).contains(&request)
    }

    /// Slab bytes of one of them.
    fn bytes_of(&self, request: u64) -> u64 {
        let begin = (request - self.first) * self.fill_bytes;
        self.fill_bytes.min(self.len_bytes - begin)
    }
}

/// Pauses in a row after which another target is looked for.
const PAUSES_MAX: u32 = 5;

/// How long such a target is given no other slab to rebuild.
const NO_REPAIRS: Duration = Duration::from_secs(10);

/// A copy is a fill of a code in which both splits are the same: (k, r, the split to fill), ...
const COPY: (usize, usize, usize) = (1, 1, 0);
/// ... and the split that is read.
const COPY_SOURCE: usize = 1;

/// Pause before sources that failed are tried again, and before looking for space again.
pub(super) const PAUSE: Duration = Duration::from_millis(200);

impl Control {
    /// Has the target reach its sources before anything is fenced, for connecting takes longer than a
    /// chunk: it rebuilds a page that nobody reads before it is rebuilt again, under a fence.
    pub(super) fn reach_sources(&mut self, at: usize, now: Time) {
        let layout = self.core.layout_of(self.repairs[at].extent);
        self.repairs[at].fill_bytes = layout.cut().split_bytes() as u64;
        self.fill(at, 0, 0, now);
    }

    /// The chunk is drained: has the target rebuild its written part, or skips it. Before there was
    /// one: the first page that is written, as a trial.
    pub(super) fn fill(&mut self, at: usize, start: u32, end: u32, now: Time) {
        if self.repairs[at].gate.was_passed() {
            return self.end_chunk(at, end);
        }
        let repair = &self.repairs[at];
        let (extent, split, slot) = (repair.extent, repair.split, repair.slot);
        let (target, shunned, fill_bytes) = (repair.target, repair.shunned, repair.fill_bytes);
        let is_trial = repair.is_trial;
        let layout = self.core.layout_of(extent);
        let base = self.core.pages(extent).start;
        let last = if is_trial {
            layout.extent_pages()
        } else {
            u64::from(end)
        };
        let (from, last) = (base + u64::from(start), base + last);
        let Some(first) = self.core.held(extent, from, last) else {
            return self.end_chunk(at, end);
        };
        let start = u32::try_from(first - base).expect("inside the chunk");
        let until = if is_trial {
            start + 1
        } else {
            end.min(start.saturating_add(self.repairs[at].pages_max))
        };
        let (k, split_bytes) = (layout.cut().k(), layout.cut().split_bytes() as u64);
        let snapshot = self.core.directory.snapshot();
        let (Some(stripe), Some(target)) = (&snapshot.extents[extent], target) else {
            return self.abandon(at);
        };
        let Some(Some(member)) = stripe.members.get(slot) else {
            return self.abandon(at);
        };
        if !stripe.is_there() {
            return self.abandon(at);
        }
        let usable = |index: usize| shunned >> index & 1 == 0;
        let source = |index: usize, member: &Member| Source {
            split: u8::try_from(index).expect("at most 40 members"),
            address: self.hosts[member.session.host].config.address.to_string(),
            window: pool_window(&member.window.descriptor),
        };
        let copies = slot != split && !self.is_rebuilt(stripe, split);
        // Whether pages are to be right before they are read, since reading would not show it.
        let is_blind;
        let (code, sources) = if copies {
            // Copying costs a k-th of decoding, needs no other host, and is right also for pages
            // that decoding would get wrong.
            let replaced = stripe.members[split].as_ref();
            let Some(replaced) = replaced.filter(|member| member.state == MemberState::Live) else {
                return self.abandon(at);
            };
            is_blind = self.is_excluded(replaced.session.host);
            let sources = usable(split).then(|| source(COPY_SOURCE, replaced));
            (COPY, sources.into_iter().collect::<Vec<Source>>())
        } else {
            if split < k && k > 1 && !is_trial {
                // A write of the chunk may have ended unknown since the repair began.
                let pages = base + u64::from(start)..base + u64::from(end);
                self.core.tear_doubtful(extent, pages);
            }
            let scheme = stripe.cut.with_parities(stripe.parities());
            let others = stripe.members.iter().enumerate();
            let mut others: Vec<(usize, &Member)> = others
                .filter(|&(index, _)| usable(index) && index != split)
                .filter_map(|(index, member)| Some((index, member.as_ref()?)))
                .filter(|(_, member)| member.state == MemberState::Live)
                .collect();
            others
                .sort_by_key(|(_, member)| self.core.integrity.is_suspicious(member.session.host));
            let is_judged = self.repairs[at].unjudged != Some(start);
            let count = self.source_count(target.host, scheme, first, until - start, is_judged);
            let sources = others.iter().take(count);
            let sources = sources.map(|&(index, member)| source(index, member));
            let there = (stripe.readable() & !(1 << split)).count_ones() as usize;
            is_blind = others.len() < count.min(there);
            ((k, stripe.parities(), split), sources.collect())
        };
        let (k, r, code_split) = code;
        if sources.len() < k {
            return self.pause(at, start, now);
        }
        if is_blind && !is_trial && self.is_tagged() && !self.is_mended(at, start, until) {
            return self.mend(at, start, until);
        }
        let from = u64::from(start);
        let len_bytes = u64::from(until - start) * split_bytes;
        let count = len_bytes.div_ceil(fill_bytes);
        let fills = Fills {
            first: self.requests_made + 1,
            count,
            left: count,
            fill_bytes,
            len_bytes,
            start,
            until,
            end,
            asked_at: now,
            copies,
            asked: sources
                .iter()
                .fold(0, |all, source| all | 1 << source.split),
            failed: false,
            disagree: false,
            is_trial,
        };
        self.requests_made += count;
        self.repairs[at].stage = Stage::Filling(fills);
        let window = pool_window(&member.window.descriptor);
        for request in fills.first..fills.first + count {
            let message = Request::Fill {
                request,
                target: window,
                split: u8::try_from(code_split).expect("at most 40 members"),
                k: u8::try_from(k).expect("at most 32"),
                r: u8::try_from(r).expect("at most 8"),
                offset: from * split_bytes + (request - fills.first) * fill_bytes,
                len_bytes: fills.bytes_of(request),
                sources: sources.clone(),
            };
            // Losing the target ends the repair as well.
            if !self.send(target.host, &message) {
                return;
            }
        }
    }

    /// Lets writers into the chunk until sources are tried again: what stands in the way may
    /// take long to pass. A target that can reach too few for too often is replaced.
    pub(super) fn pause(&mut self, at: usize, start: u32, now: Time) {
        self.repairs[at].pauses += 1;
        if self.repairs[at].pauses > PAUSES_MAX {
            if let Some(target) = self.repairs[at].target {
                self.hosts[target.host].no_repairs_until = now.after(NO_REPAIRS);
            }
            return self.abandon(at);
        }
        let start = self.lift_fence(at, start);
        self.repairs[at].stage = Stage::Pausing {
            until: now.after(PAUSE),
            start,
        };
    }

    pub(super) fn on_filled(&mut self, host: HostIndex, request: u64, result: FillResult) {
        let is_of = |repair: &super::repair::Repair| {
            matches!(repair.stage, Stage::Filling(fills) if fills.contains(request))
                && repair.target.is_some_and(|target| target.host == host)
        };
        let Some(at) = self.repairs.iter().position(is_of) else {
            return;
        };
        let Stage::Filling(fills) = &mut self.repairs[at].stage else {
            return;
        };
        fills.left -= 1;
        match result {
            FillResult::Done if fills.is_trial => {}
            FillResult::Done => {
                let bytes = fills.bytes_of(request);
                self.repairs[at].filled_bytes += bytes;
            }
            FillResult::SourceFailed { split } => {
                fills.failed = true;
                if !self.shun(at, split) {
                    // Not one that it was told to read: no more of this.
                    return self.abandon(at);
                }
            }
            FillResult::Disagree => fills.disagree = true,
            FillResult::TargetStale | FillResult::Bad => return self.abandon(at),
        }
        self.end_fills(host, request);
    }

    /// Goes on when the last of the fills has been answered.
    fn end_fills(&mut self, host: HostIndex, request: u64) {
        // Asking after a source may have lost a host, and with it repairs.
        let found = self.repairs.iter().position(|repair| {
            matches!(repair.stage, Stage::Filling(fills) if fills.contains(request))
                && repair.target.is_some_and(|target| target.host == host)
        });
        let Some(at) = found else { return };
        let Stage::Filling(fills) = self.repairs[at].stage else {
            return;
        };
        if fills.left > 0 {
            return;
        }
        if fills.failed {
            let now = self.now().max(fills.asked_at);
            return self.fill(at, fills.start, fills.end, now);
        }
        // Beside writes, what is compared may not agree.
        if fills.disagree && !fills.is_trial {
            if self.repairs[at].gate.was_passed() {
                return self.end_chunk(at, fills.end);
            }
            return self.on_disagreement(at, fills.start, fills.until, fills.end);
        }
        let repair = &mut self.repairs[at];
        repair.pauses = 0;
        if fills.until < fills.end {
            repair.pages_max = repair.pages_max.saturating_mul(2);
            return self.fill(at, fills.until, fills.end, self.now());
        }
        self.end_chunk(at, fills.end);
    }

    /// Leaves a source out for the rest of the chunk and asks after it; false when it is none
    /// of the repair's.
    fn shun(&mut self, at: usize, split: u8) -> bool {
        let repair = &mut self.repairs[at];
        let extent = repair.extent;
        let Stage::Filling(fills) = repair.stage else {
            return false;
        };
        tracing::warn!(extent, split, "a source could not be read");
        let is_asked = |bit: u64| bit & fills.asked != 0;
        if !1_u64.checked_shl(split.into()).is_some_and(is_asked) {
            return false;
        }
        let split = if fills.copies {
            repair.split
        } else {
            usize::from(split)
        };
        let bit = 1 << split;
        // Several fills of a chunk may fail for one source.
        if repair.shunned & bit == 0 {
            repair.shunned |= bit;
            self.ask_after(extent, split);
        }
        true
    }
}
