//! Pages that are reclaimed by themselves when this machine has memory to spare (RECLAIM).
//!
//! All of them or none: Linux gives up slots of a swap area for good by `swapoff` alone. So the
//! area is turned off as soon as what is out fits into what is to spare, with a margin, and on
//! again, empty, at once. Reading ahead (`MADV_WILLNEED`) would leave the slots in use and hold
//! every page twice.
//!
//! Invariants: nothing is reclaimed that a control group has no room for, since the kernel would kill
//! for it; nor while a page may be unreadable that could be read later, since swapoff loses it for
//! good; it stops when there is less to spare than what is left; the area is off for no longer than
//! it takes to turn it on. Paper: \[hydra22\] section 4.2.

use std::time::{Duration, Instant};

use super::control::Status;
use super::{Device, cgroup};
use crate::disk::Disk;

/// Beside what is out, this much must be to spare: an eighth of it, and at least 4 MiB for what
/// bringing it back takes. Arbitrary.
const MARGIN_SHARE: u64 = 8;
const MARGIN_BYTES: u64 = 4 << 20;
/// Between two attempts, so that a machine that swaps again soon does not go back and forth.
const REST: Duration = Duration::from_secs(30);
/// After a look at control groups, all of which are read.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Longest that clients of the server wait for one attempt; the next goes on where it ended.
const SLICE: Duration = Duration::from_secs(5);

/// What was reclaimed so far, and when to look again.
#[derive(Debug, Default)]
pub(super) struct Reclaim {
    rests_until: Option<Instant>,
    reclaims: u64,
    reclaimed_bytes: u64,
    cut: u64,
    /// Pages that could not be read after the last attempt, if it found some: until there are fewer
    /// the next would lose more.
    unreadable_pages: Option<u64>,
    /// What stood in the way last, so that it is said once.
    complaint: String,
}

/// Whether `used_bytes` may be reclaimed into `spare_bytes`.
fn fits(used_bytes: u64, spare_bytes: u64) -> bool {
    let margin = (used_bytes / MARGIN_SHARE).max(MARGIN_BYTES);
    let needed = used_bytes.checked_add(margin);
    used_bytes > 0 && needed.is_some_and(|bytes| bytes <= spare_bytes)
}

impl Reclaim {
    /// Says what is out, and reclaims it if that may be. Blocks for [`SLICE`] at most;
    /// `is_called` ends it before.
    pub fn tend(&mut self, device: &mut Device, disk: &dyn Disk, is_called: impl Fn() -> bool) {
        if !device.is_on() {
            if let Err(error) = device.swap_on_again() {
                self.complain(format!("turn swap on again: {error}"));
            }
            return;
        }
        let used_bytes = device.used_bytes().unwrap_or(0);
        disk.note_away(used_bytes);
        let now = Instant::now();
        let rests = self.rests_until.is_some_and(|until| now < until);
        if rests || !fits(used_bytes, disk.spare_bytes()) {
            return;
        }
        self.rests_until = Some(now + LOOK_AGAIN);
        if !disk.is_in_reach() {
            let why = "hosts that hold some of them cannot be reached";
            return self.complain(format!("pages stay out: {why}"));
        }
        let unreadable_before = device.counters().unreadable_pages();
        if self
            .unreadable_pages
            .is_some_and(|pages| unreadable_before >= pages)
        {
            let why = "some of them could not be read, and were not written since";
            return self.complain(format!("pages stay out: {why}"));
        }
        match cgroup::without_room() {
            Ok(None) => {}
            Ok(Some(group)) => {
                let group = group.display();
                return self.complain(format!("pages stay out: no room for them in {group}"));
            }
            Err(error) => return self.complain(format!("pages stay out: control groups: {error}")),
        }
        self.complaint.clear();
        self.rests_until = Some(now + REST);
        let span = tracing::info_span!(
            "reclaim swapped pages",
            cenote.bytes = used_bytes as i64,
            cenote.bytes_left = tracing::field::Empty,
        );
        let home = device.reclaim(|left_bytes| {
            let is_wanted = left_bytes <= disk.spare_bytes() && now.elapsed() < SLICE;
            is_wanted && disk.is_in_reach() && !is_called()
        });
        let left_bytes = device.used_bytes().unwrap_or(0);
        let unreadable = device.counters().unreadable_pages();
        self.unreadable_pages = (unreadable > unreadable_before).then_some(unreadable);
        span.record("cenote.bytes_left", left_bytes as i64);
        drop(span);
        self.reclaimed_bytes += used_bytes.saturating_sub(left_bytes);
        match home {
            // Cut when the last page had come is whole.
            Ok(is_whole) if is_whole || left_bytes == 0 => {
                self.reclaims += 1;
                tracing::info!(bytes = used_bytes, took = ?now.elapsed(), "every page was reclaimed");
                if let Some(pages) = self.unreadable_pages.take() {
                    let lost_pages = pages - unreadable_before;
                    tracing::error!(lost_pages, "but for those that could not be read");
                }
            }
            Ok(_) => {
                self.cut += 1;
                // Not for want of memory: the rest may follow when others were heard.
                let is_sound = self.unreadable_pages.is_none() && disk.is_in_reach();
                if is_sound && disk.spare_bytes() >= left_bytes && left_bytes < used_bytes {
                    self.rests_until = None;
                }
                tracing::info!(bytes = left_bytes, "pages that were not reclaimed");
            }
            Err(error) => self.complain(format!("turn swap on again: {error}")),
        }
        disk.note_away(left_bytes);
    }

    /// What a status says of it.
    pub fn told(&self) -> Status {
        Status {
            reclaims: self.reclaims,
            reclaimed_bytes: self.reclaimed_bytes,
            reclaims_cut: self.cut,
            ..Status::default()
        }
    }

    fn complain(&mut self, complaint: String) {
        if complaint != self.complaint {
            tracing::warn!("{complaint}");
            self.complaint = complaint;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_out_must_fit_with_a_margin() {
        const MIB: u64 = 1 << 20;
        assert!(!fits(0, u64::MAX), "nothing is out");
        assert!(fits(MIB, 5 * MIB));
        assert!(!fits(MIB, 5 * MIB - 1));
        assert!(fits(800 * MIB, 900 * MIB));
        assert!(!fits(800 * MIB, 900 * MIB - 1));
        assert!(!fits(u64::MAX, u64::MAX));
    }
}
