//! Regeneration from splits that were compared with each other, where the volume's mode compares or its
//! pages have tags.
//!
//! k splits always form a code word: from survivors of which one is wrong a new split would be made
//! that agrees with it, and the page would be wrong for good without anybody noticing (soundness Y4).
//! So the new host gets more sources than it needs and compares them (`host::fill::comparison`). Where
//! they disagree beyond what tells which are wrong, the steps become smaller until it is one page;
//! that one is **torn**, an error until it is written whole.
//!
//! With tags one source more than k is enough: where they disagree the client, which has the tags, looks
//! the pages through and heals them (`mending`) before the rebuild goes on. A page that still disagrees
//! when it alone was looked through is rebuilt from what is there: its tag goes on telling that it is wrong.

use super::Control;
use crate::directory::HostIndex;
use crate::marks::Soundness;
use crate::{Mode, Resilience, Scheme};

impl Control {
    /// How many sources a step of `count` pages from `page` on is rebuilt from by `target`, in a
    /// stripe of this scheme: k at least. `is_judged`: whether the step's first page is not known to
    /// disagree for good.
    pub(super) fn source_count(
        &self,
        target: HostIndex,
        scheme: Scheme,
        page: u64,
        count: u32,
        is_judged: bool,
    ) -> usize {
        // The stripe's own, which is not the volume's while that changes.
        let expected = self.core.resilience();
        let resilience = Resilience::in_stripe(expected.mode(), expected.delta(), scheme);
        let (k, is_tagged) = (scheme.k(), self.is_tagged());
        // Splits of a page that holds nothing, or whose last write ended unknown or at the disk, may
        // disagree by right.
        let store = self.core.backing.as_ref();
        let is_judged = is_judged
            && self.core.marks.written.contains(page)
            && store.is_none_or(|store| store.pages.remote.contains(page))
            && self.core.marks.soundness(page) == Soundness::Sound;
        if !(resilience.compares() || is_tagged) || (count == 1 && !is_judged) {
            return k;
        }
        if !self.hosts[target].speaks(COMPARES_SINCE) {
            tracing::warn!(host = %self.hosts[target].config.name, "host cannot compare what it rebuilds a slab from");
            return k;
        }
        match resilience.mode() {
            // Its tag says what a page is, once it is known that something is wrong.
            _ if is_tagged => k + 1,
            Mode::Correction => resilience.correction_splits(),
            _ => resilience.read_splits(),
        }
    }

    /// The sources of a step disagree: goes on in smaller ones, to the page that they disagree about.
    pub(super) fn on_disagreement(&mut self, at: usize, start: u32, until: u32, end: u32) {
        let extent = self.repairs[at].extent;
        let (count, now) = (until - start, self.now());
        if self.is_tagged() {
            if count == 1 && self.repairs[at].mended == (start..until) {
                self.repairs[at].unjudged = Some(start);
                return self.fill(at, start, end, now);
            }
            if count == 1 || !self.is_mended(at, start, until) {
                return self.mend(at, start, until);
            }
        } else if count == 1 {
            // First: a write that went through has made the page whole, and one that comes now waits.
            if !self.repairs[at].gate.close() {
                return self.end_chunk(at, end);
            }
            let page = self.core.pages(extent).start + u64::from(start);
            if self.core.tear(extent, page) {
                tracing::warn!(
                    extent,
                    page,
                    "splits of a page disagree: it is an error until it is written whole"
                );
            }
            // Else somebody is at the page: its splits are compared once more.
        }
        self.repairs[at].pages_max = (count / 2).max(1);
        self.fill(at, start, end, now);
    }
}

/// The version of the messages in which a fill may have more sources than k.
const COMPARES_SINCE: u8 = 4;

const _: () = assert!(cenote_pool::control::VERSION >= COMPARES_SINCE);
