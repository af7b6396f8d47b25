//! Early acknowledgement: a write that is acknowledged before all its splits have landed.
//!
//! Modes other than failure recovery wait for fewer than k+r splits (`Resilience::write_acks`). The
//! caller then has its buffer back, so the page is copied into scratch before anything is posted
//! from it (soundness Y3). The operation keeps the page's claim until every member has the page,
//! or another has taken the place of one that failed: till then writers of it wait, and readers use
//! what has landed (`claim`). Without that 2663 of 4000 modelled runs were bad, with it none.
//!
//! While its owner lives, such a write survives what any other does: its page is in scratch, and
//! goes to whoever takes a lost member's place. While fewer than k members are in reach it waits for them, for
//! as long as they may come back. Should the owner end before that, the next one redoes it from
//! the list of pages in flight. Should fewer than k members be left for good, or the owner leave nothing, some
//! of its splits may be old: the page is torn, an error and never other bytes.
//!
//! Not where verbs complete when they are posted (nothing is out by then), not with a backing
//! store, whose order of writes counts on hosts that have all of a page, and not where a write is redone.
//!
//! Paper: \[hydra22\] 4.1, Table 1. Decision 23.

use std::sync::atomic::Ordering;

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::state::{Heard, Page};
use super::write::Write;
use crate::worker::data_path::{DataPath, Landing};
use crate::worker::switches::Work;
use crate::worker::verbs::ENCODING;

impl Write {
    /// Decides from where a write is posted, and after how many splits it is acknowledged.
    pub(super) fn prepare_acknowledgement(&mut self, page: &mut Page, path: &DataPath) {
        if !path.switches.in_place && !page.disk.is_in_entry() {
            copy_to_scratch(page, path);
        }
        let acks = page.resilience().write_acks();
        let waits_for_all = acks >= page.split_count();
        let is_waited_for = path.is_backed() || page.is_redo();
        if waits_for_all || is_waited_for || path.completes_at_once() {
            return;
        }
        copy_to_scratch(page, path);
        self.acks_wanted = acks as u32;
    }

    /// Acknowledges a write whose last splits are still out, if enough of those that are read have
    /// landed and the next owner would know of the slabs: whether it does.
    pub(super) fn acknowledge_early(&self, page: &mut Page, path: &mut DataPath) -> bool {
        let wanted = self.acks_wanted;
        let verbs = page.verbs;
        let may_be = wanted != 0
            && self.is_writing()
            && !verbs.failed
            && verbs.pending & ENCODING == 0
            && verbs.acked.count_ones() >= wanted;
        if !may_be {
            return false;
        }
        let stripe = page.stripe(&path.views);
        let stripe = stripe.expect("a write works in a mapped extent");
        let landed = (verbs.acked & stripe.readable()).count_ones();
        let changed_in = stripe.changed_in;
        let is_known =
            path.core.directory.is_settled(changed_in) && path.core.is_journaled(changed_in);
        if landed < wanted || !is_known {
            return false;
        }
        if !is_injected(InjectedFault::ForgetEarly) {
            page.commit_listing(path);
        }
        page.heard = Heard::Written;
        path.landing.push(Landing {
            op: page.op,
            page: page.number,
            scratch: page.memory.scratch(),
        });
        // Who reads the page from now on is to know it; should this not be its end, it is torn.
        page.decide_tag(path);
        page.publish_landed(path);
        if is_injected(InjectedFault::ReleaseEarly) {
            page.unclaim(&path.core);
        }
        let counters = &path.core.measures.counters;
        counters.writes_early.fetch_add(1, Ordering::Relaxed);
        true
    }
}

/// Has the page be in scratch, though the request's buffer covers it.
fn copy_to_scratch(page: &mut Page, path: &DataPath) {
    if page.memory.copy_to_scratch() {
        path.spend(Work::Copy);
    }
}
