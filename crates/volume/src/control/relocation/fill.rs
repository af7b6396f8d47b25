//! The chunk that is fenced and drained: what its target is asked for, and what it answers.
//!
//! A chunk is one fill or, when nobody else asks for anything, several at once: the target goes from
//! one to the next without a round trip. It carries them out in order, and a chunk that failed is
//! asked for again when all of them have been answered: no fill of an earlier try is
//! under way beside one of a later. What a write went into meanwhile is begun again (`backoff`).

use std::ops::Range;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{Request, Window};

use super::sources::{Sources, Step, choose, is_copied};
use super::{PAUSE, Relocation, Site, Stage};
use crate::control::context::Context;
use crate::control::fate::Fate;

/// The fills of one chunk.
#[derive(Clone, Copy)]
pub(super) struct Fills {
    /// Number of the first request; the others follow.
    first: u64,
    count: u64,
    /// Not answered yet.
    pub left: u64,
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
    pub failed: bool,
    /// Whether sources were compared and are not of one code word.
    pub disagree: bool,
    /// Whether nothing is fenced, and this is only there to reach the sources.
    pub is_trial: bool,
}

impl Fills {
    pub fn contains(&self, request: u64) -> bool {
        (self.first..self.first + self.count).contains(&request)
    }

    /// Slab bytes of one of them.
    pub fn bytes_of(&self, request: u64) -> u64 {
        let begin = (request - self.first) * self.fill_bytes;
        self.fill_bytes.min(self.len_bytes - begin)
    }
}

/// Pauses in a row after which another target is looked for.
const PAUSES_MAX: u32 = 5;

/// How long such a target is given no other slab to rebuild.
const NO_REPAIRS: Duration = Duration::from_secs(10);

impl Relocation {
    /// Has the target reach its sources before anything is fenced, for connecting takes longer than a
    /// chunk: it rebuilds a page that nobody reads before it is rebuilt again, under a fence.
    pub(super) fn reach_sources(&mut self, site: &mut Site<'_>, now: Time) -> Fate {
        let layout = site.cx.core.layout_of(self.extent);
        self.chunk.fill_bytes = layout.cut().split_bytes() as u64;
        self.fill(site, 0, 0, now)
    }

    /// The chunk is drained: has the target rebuild its written part, or skips it. Before there was
    /// one: the first page that is written, as a trial.
    pub(super) fn fill(&mut self, site: &mut Site<'_>, start: u32, end: u32, now: Time) -> Fate {
        if self.chunk.gate.was_passed() {
            return self.end_chunk(site, end);
        }
        let Some((start, until)) = self.written_part(site.cx, start, end) else {
            return self.end_chunk(site, end);
        };
        let snapshot = site.cx.core.directory.snapshot();
        let stripe = snapshot.extents[self.extent].as_deref();
        let Some(stripe) = stripe.filter(|stripe| stripe.is_there()) else {
            return self.abandon(site.cx);
        };
        let Some(Some(member)) = stripe.members.get(self.slot) else {
            return self.abandon(site.cx);
        };
        let k = stripe.cut.k();
        if self.split < k && k > 1 && !self.chunk.is_trial && !is_copied(self, site.cx, stripe) {
            // A write of the chunk may have ended unknown since the relocation began.
            let base = site.cx.core.pages(self.extent).start;
            let pages = base + u64::from(start)..base + u64::from(end);
            site.cx.core.tear_doubtful(self.extent, pages);
        }
        let step = Step {
            pages: start..until,
            is_judged: self.unjudged != Some(start),
        };
        let Some(sources) = choose(self, site.cx, stripe, &step) else {
            return self.abandon(site.cx);
        };
        if sources.are_too_few() {
            return self.pause(site.cx, start, now);
        }
        let is_blind = sources.are_blind && !self.chunk.is_trial && site.cx.is_tagged();
        if is_blind && !self.is_mended(start, until) {
            return self.mend(site, start, until);
        }
        let target = member.window.name();
        self.ask(site.cx, &sources, target, start..until, end, now);
        Fate::GoesOn
    }

    /// The first pages from `start` on that hold data, as many as are filled at a time; `None`: there are none.
    fn written_part(&self, cx: &Context, start: u32, end: u32) -> Option<(u32, u32)> {
        let base = cx.core.pages(self.extent).start;
        let is_trial = self.chunk.is_trial;
        let last = match is_trial {
            true => cx.core.layout_of(self.extent).extent_pages(),
            false => u64::from(end),
        };
        let from = base + u64::from(start);
        let first = cx.core.held(self.extent, from, base + last)?;
        let start = u32::try_from(first - base).expect("inside the chunk");
        let until = match is_trial {
            true => start + 1,
            false => end.min(start.saturating_add(self.chunk.pages_max)),
        };
        Some((start, until))
    }

    /// Asks the target to fill these pages of its slab.
    fn ask(
        &mut self,
        cx: &mut Context,
        sources: &Sources,
        slab: Window,
        pages: Range<u32>,
        end: u32,
        now: Time,
    ) {
        let split_bytes = cx.core.layout_of(self.extent).cut().split_bytes() as u64;
        let len_bytes = u64::from(pages.end - pages.start) * split_bytes;
        let fill_bytes = self.chunk.fill_bytes;
        let count = len_bytes.div_ceil(fill_bytes);
        let fills = Fills {
            first: cx.hosts.next_requests(count),
            count,
            left: count,
            fill_bytes,
            len_bytes,
            start: pages.start,
            until: pages.end,
            end,
            asked_at: now,
            copies: sources.is_copy,
            asked: sources.mask(),
            failed: false,
            disagree: false,
            is_trial: self.chunk.is_trial,
        };
        self.stage = Stage::Filling(fills);
        let target = self.target.expect("a slab that is filled has a host");
        for request in fills.first..fills.first + count {
            let begin = (request - fills.first) * fill_bytes;
            let message = Request::Fill {
                request,
                target: slab,
                split: u8::try_from(sources.code_split).expect("at most 40 members"),
                k: u8::try_from(sources.k).expect("at most 32"),
                r: u8::try_from(sources.r).expect("at most 8"),
                offset: u64::from(pages.start) * split_bytes + begin,
                len_bytes: fills.bytes_of(request),
                sources: sources.list.clone(),
            };
            // Losing the target ends the relocation as well.
            if !cx.hosts.send(target.host, &message) {
                return;
            }
        }
    }

    /// Lets writers into the chunk until sources are tried again: what stands in the way may
    /// take long to pass. A target that can reach too few for too often is replaced.
    fn pause(&mut self, cx: &mut Context, start: u32, now: Time) -> Fate {
        self.pauses += 1;
        if self.pauses > PAUSES_MAX {
            if let Some(target) = self.target {
                cx.hosts[target.host].no_repairs_until = now.after(NO_REPAIRS);
            }
            return self.abandon(cx);
        }
        let start = self.lift_fence(&cx.core, start);
        self.stage = Stage::Pausing {
            until: now.after(PAUSE),
            start,
        };
        Fate::GoesOn
    }

    /// Goes on when the last of the fills has been answered.
    pub(super) fn end_fills(&mut self, site: &mut Site<'_>) -> Fate {
        let Stage::Filling(fills) = self.stage else {
            return Fate::GoesOn;
        };
        if fills.left > 0 {
            return Fate::GoesOn;
        }
        let now = site.cx.now();
        if fills.failed {
            return self.fill(site, fills.start, fills.end, now.max(fills.asked_at));
        }
        // Beside writes, what is compared may not agree.
        if fills.disagree && !fills.is_trial {
            if self.chunk.gate.was_passed() {
                return self.end_chunk(site, fills.end);
            }
            return self.on_disagreement(site, fills.start, fills.until, fills.end);
        }
        self.pauses = 0;
        if fills.until < fills.end {
            self.chunk.pages_max = self.chunk.pages_max.saturating_mul(2);
            return self.fill(site, fills.until, fills.end, now);
        }
        self.end_chunk(site, fills.end)
    }

    /// Leaves a source out for the rest of the chunk and asks after it; false when it is none
    /// of the relocation's.
    pub(super) fn shun(&mut self, cx: &mut Context, split: u8) -> bool {
        let Stage::Filling(fills) = self.stage else {
            return false;
        };
        tracing::warn!(extent = self.extent, split, "a source could not be read");
        let is_asked = |bit: u64| bit & fills.asked != 0;
        if !1_u64.checked_shl(split.into()).is_some_and(is_asked) {
            return false;
        }
        let split = match fills.copies {
            true => self.split,
            false => usize::from(split),
        };
        let bit = 1 << split;
        // Several fills of a chunk may fail for one source.
        if self.chunk.shunned & bit == 0 {
            self.chunk.shunned |= bit;
            cx.ask_after(self.extent, split);
        }
        true
    }

    /// The sources of a step disagree: goes on in smaller ones, to the page that they disagree about.
    fn on_disagreement(&mut self, site: &mut Site<'_>, start: u32, until: u32, end: u32) -> Fate {
        let (count, now) = (until - start, site.cx.now());
        if site.cx.is_tagged() {
            if count == 1 && self.mended == (start..until) {
                self.unjudged = Some(start);
                return self.fill(site, start, end, now);
            }
            if count == 1 || !self.is_mended(start, until) {
                return self.mend(site, start, until);
            }
        } else if count == 1 {
            // First: a write that went through has made the page whole, and one that comes now waits.
            if !self.chunk.gate.close() {
                return self.end_chunk(site, end);
            }
            let page = site.cx.core.pages(self.extent).start + u64::from(start);
            if site.cx.core.tear(self.extent, page) {
                tracing::warn!(
                    extent = self.extent,
                    page,
                    "splits of a page disagree: it is an error until it is written whole"
                );
            }
            // Else somebody is at the page: its splits are compared once more.
        }
        self.chunk.pages_max = (count / 2).max(1);
        self.fill(site, start, end, now)
    }

    /// Lets writers into the chunk while its pages from `start` to `until` are looked through;
    /// then it goes on.
    fn mend(&mut self, site: &mut Site<'_>, start: u32, until: u32) -> Fate {
        let from = self.lift_fence(&site.cx.core, start);
        self.mended = start..until;
        self.pages_after = until - start;
        self.stage = Stage::Mending { start: from };
        tracing::info!(
            extent = self.extent,
            start,
            until,
            "pages are looked through"
        );
        let base = site.cx.core.pages(self.extent).start;
        let pages = base + u64::from(start)..base + u64::from(until);
        site.mender.ask(self.extent, pages);
        Fate::GoesOn
    }

    /// Whether the pages were looked through since the relocation came to them.
    fn is_mended(&self, start: u32, until: u32) -> bool {
        self.mended.start <= start && until <= self.mended.end
    }
}
