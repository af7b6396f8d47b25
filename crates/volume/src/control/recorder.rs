//! Keeping the journal true: every change of which slabs hold current data is on the disk before
//! a write that depends on it is acknowledged.
//!
//! [`Record`] has the journal say what the directory says, at every moment and whether or not it
//! could be written: what an attempt that failed had wanted is wanted no longer once the directory
//! has moved on. A slab that is dropped, mapped or unmapped is noted after the directory has it:
//! workers wait with their acknowledgement until [`crate::core::Core::journaled`] has passed the
//! change. One that was regenerated is noted first: whoever relies on it must find it named.
//!
//! While the disk refuses, what it holds is not known: it may name a slab of a failed attempt. Such a
//! slab gets every write until the directory drops it, which is a change of its own that
//! acknowledgements wait for; and nothing is given back (`books`).

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::hosts::Hosts;
use crate::core::Core;
use crate::directory::{HostIndex, Member, MemberState, Snapshot, Stripe};
use crate::extents::LayoutId;
use crate::journal::{At, Held, Journal, Shape};
use crate::status::JournalStatus;

/// A journal, and how much of the directory it is to say.
struct Record {
    journal: Journal,
    described: Option<Arc<Snapshot>>,
    trouble: Option<Trouble>,
}

/// The journal cannot be written.
struct Trouble {
    since: Time,
    retry_at: Time,
    error: io::Error,
}

/// Pause between attempts to write a journal that the disk refuses.
const RETRY: Duration = Duration::from_millis(250);

impl Record {
    pub fn new(journal: Journal) -> Self {
        Self {
            journal,
            described: None,
            trouble: None,
        }
    }

    pub fn epoch(&self) -> u64 {
        self.journal.wanted().epoch
    }

    pub fn volume(&self) -> u128 {
        self.journal.wanted().identity.volume
    }

    /// Whether the next owner would find what this one knows it to.
    pub fn is_known(&self) -> bool {
        self.journal.is_known()
    }

    /// Has the journal say what a snapshot says, from the next write on.
    fn describe(&mut self, snapshot: &Arc<Snapshot>, name_of: &dyn Fn(HostIndex) -> String) {
        for (extent, _) in snapshot.extents.numbered() {
            let described = self.described.as_ref();
            let before = described.and_then(|before| before.stripe(extent));
            let stripe = snapshot.stripe(extent);
            let is_same = match (before, stripe) {
                (Some(before), Some(stripe)) => Arc::ptr_eq(before, stripe),
                (None, None) => self.described.is_some(),
                _ => false,
            };
            if !is_same {
                self.describe_extent(extent, stripe.map(|stripe| &**stripe), name_of);
            }
        }
        self.described = Some(Arc::clone(snapshot));
    }

    fn describe_extent(
        &mut self,
        extent: usize,
        stripe: Option<&Stripe>,
        name_of: &dyn Fn(HostIndex) -> String,
    ) {
        let number = number_of(extent);
        let named = self
            .journal
            .wanted()
            .held
            .range((number, 0)..=(number, u8::MAX));
        // Those that the stripe has had as well.
        let named: Vec<At> = named.map(|(&at, _)| at).collect();
        let current = stripe.map(current_slabs).unwrap_or_default();
        for at in named {
            let is_current = current.iter().any(|&(split, ..)| at.1 == split);
            if !is_current && !is_injected(InjectedFault::KeepStale) {
                self.journal.set(at, None);
            }
        }
        for (split, host, birth) in current {
            let at = (number, split);
            let held = Held {
                host: name_of(host),
                birth,
            };
            if self.journal.wanted().held.get(&at) != Some(&held) {
                self.journal.set(at, Some(held));
            }
        }
    }

    /// Notes a slab that the directory is about to have.
    fn write_ahead(&mut self, now: Time, at: At, held: Held) -> bool {
        let before = self.journal.wanted().held.get(&at).cloned();
        self.journal.set(at, Some(held));
        let is_written = self.write(now);
        if !is_written {
            self.journal.set(at, before);
        }
        is_written
    }

    /// Notes that a layout is about to be there, or not to be.
    fn write_layout(&mut self, now: Time, layout_id: LayoutId, shape: Option<Shape>) -> bool {
        let layout_id = layout_id as u8;
        let before = self.journal.wanted().layouts[usize::from(layout_id)];
        self.journal.set_layout(layout_id, shape);
        let is_written = self.write(now);
        if !is_written {
            self.journal.set_layout(layout_id, before);
        }
        is_written
    }

    /// Notes that the volume holds nothing any more.
    fn write_end(&mut self) -> io::Result<()> {
        self.journal.clear();
        self.journal.write()
    }

    /// Writes what is to be said, unless the disk refused a moment ago; whether it is said.
    fn write(&mut self, now: Time) -> bool {
        if self.trouble.as_ref().is_some_and(|it| now < it.retry_at) {
            return false;
        }
        match self.journal.write() {
            Ok(()) => {
                if self.trouble.take().is_some() {
                    tracing::info!("the volume's journal can be written again");
                }
                true
            }
            Err(error) => {
                if self.trouble.is_none() {
                    tracing::error!(%error, "the volume's journal cannot be written; writes wait where hosts have come or gone");
                }
                let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
                self.trouble = Some(Trouble {
                    since,
                    retry_at: now.after(RETRY),
                    error,
                });
                false
            }
        }
    }

    pub fn status(&self, now: Time) -> JournalStatus {
        let trouble = self.trouble.as_ref();
        JournalStatus {
            error: trouble.map(|trouble| trouble.error.to_string()),
            failing_s: trouble.map(|trouble| now.since(trouble.since).as_secs()),
        }
    }
}

/// Has the journal of a volume that outlives its owners be true; of any other it notes nothing.
pub(super) struct Recorder(Option<Record>);

impl Recorder {
    pub fn new(journal: Option<Journal>) -> Self {
        Self(journal.map(Record::new))
    }

    /// Whether the volume outlives its owner.
    pub fn is_kept(&self) -> bool {
        self.0.is_some()
    }

    /// The volume and the owner's epoch, of a volume that outlives its owner.
    pub fn identity(&self) -> Option<(u128, u64)> {
        self.0
            .as_ref()
            .map(|record| (record.volume(), record.epoch()))
    }

    /// Leaves the journal as it is from now on.
    pub fn leave(&mut self) {
        self.0 = None;
    }

    /// Notes what has changed in the directory since the last call; tried again later if it fails.
    pub fn note_changes(&mut self, core: &Core, hosts: &Hosts) {
        let Some(record) = &mut self.0 else {
            return;
        };
        let is_news = core.directory.epoch() > core.journaled.load(Ordering::Acquire);
        if is_news || !record.is_known() {
            let snapshot = core.directory.snapshot();
            record.describe(&snapshot, &|host| hosts.name(host).to_owned());
            if record.write((core.clock)()) {
                core.journaled.store(snapshot.epoch, Ordering::Release);
            }
        }
    }

    /// Notes a regenerated slab that is about to be published; false when that is to be tried again.
    pub fn note_filled(
        &mut self,
        now: Time,
        hosts: &Hosts,
        extent: usize,
        split: usize,
        member: &Member,
    ) -> bool {
        let Some(record) = &mut self.0 else {
            return true;
        };
        let host = hosts.name(member.session.host).to_owned();
        let birth = member.birth;
        let at = (number_of(extent), number_of_split(split));
        record.write_ahead(now, at, Held { host, birth })
    }

    /// Notes that a layout is there, or is not any more; false when that is to be tried again. It may not
    /// be: the change may be taken back meanwhile.
    pub fn note_layout(&mut self, now: Time, layout_id: LayoutId, shape: Option<Shape>) -> bool {
        let Some(record) = &mut self.0 else {
            return true;
        };
        record.write_layout(now, layout_id, shape)
    }

    /// Notes that the volume holds nothing any more; false when the next owner would look for it.
    pub fn note_end(&mut self, core: &Core) -> bool {
        let Some(record) = &mut self.0 else {
            return true;
        };
        match record.write_end() {
            Ok(()) => {
                core.pages.marks.disown();
                true
            }
            Err(error) => {
                tracing::error!(%error, "the volume's journal cannot be cleared; what the volume holds is left to the next owner");
                false
            }
        }
    }

    /// Whether the next owner may come to look for slabs that this one does not name.
    pub fn is_unknown(&self) -> bool {
        self.0.as_ref().is_some_and(|record| !record.is_known())
    }

    /// Of a volume that outlives its owner.
    pub fn status(&self, now: Time) -> Option<JournalStatus> {
        self.0.as_ref().map(|record| record.status(now))
    }
}

/// The slabs of a stripe with current data: split, host and birth.
fn current_slabs(stripe: &Stripe) -> Vec<(u8, HostIndex, u64)> {
    let splits = 0..stripe.splits().max(stripe.unreachable.len());
    let slab = |split: usize| {
        let member = stripe
            .members
            .get(split)
            .filter(|_| split < stripe.splits());
        let live = member
            .and_then(Option::as_ref)
            .filter(|member| member.state == MemberState::Live)
            .map(|member| (member.session.host, member.birth));
        let unreachable = stripe.unreachable.get(split).copied().flatten();
        let unreachable = unreachable.map(|slab| (slab.host, slab.birth));
        let (host, birth) = live.or(unreachable)?;
        Some((number_of_split(split), host, birth))
    };
    splits.filter_map(slab).collect()
}

fn number_of(extent: usize) -> u32 {
    u32::try_from(extent).expect("fewer than 2^32 extents")
}

fn number_of_split(split: usize) -> u8 {
    u8::try_from(split).expect("at most 40 members")
}

#[cfg(test)]
mod tests;
