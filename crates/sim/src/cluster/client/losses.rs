//! What a client lost, and what may explain it.
//!
//! A page that is torn was lost, unless it was being written when a write of it ended unknown, or rotted. That
//! takes more hosts in trouble than its extent survives, counted from when it was whole last before that:
//! whatever else goes on, an extent that was whole and lost no more than r is not lost (`World::explain`). A
//! page that a write is under way for may be told of after its extent was mapped afresh, and is whole again.

use std::collections::BTreeSet;

use cenote_fabric::{Time, sim};
use cenote_volume::PAGE_BYTES;

use super::super::model::{Cause, Excuse, SECTOR_BYTES};
use super::{Client, Trouble, to_index};

/// A page that is an error from now on.
#[derive(Clone, Debug)]
pub struct Loss {
    pub page: usize,
    pub extent: usize,
    /// Its extent when it was whole last; `None`: never, as far as this owner knows.
    pub whole: Option<LastWhole>,
}

/// An extent when every split of it was there.
#[derive(Clone, Debug)]
pub struct LastWhole {
    pub hosts: Vec<usize>,
    /// Splits that it survives the loss of.
    pub spare: usize,
    pub since: Time,
}

impl Client {
    /// Looks for pages that were lost, and for extents that are whole.
    pub(super) fn note_losses(&mut self, step: u64, trouble: &mut Vec<Trouble>) {
        const SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
        let Some(volume) = self.volume.as_ref().filter(|_| !self.is_opening) else {
            return;
        };
        let torn = volume.torn_pages();
        self.torn_of
            .retain(|page, _| torn.binary_search(&(*page as u64)).is_ok());
        for page in torn.iter().map(|page| to_index(*page)) {
            let extent = volume.extent_of(page as u64);
            let before = || (extent, self.whole.get(&extent).cloned());
            self.torn_of.entry(page).or_insert_with(before);
        }
        // What a write that goes on will have made whole at its end is looked at then, also one that was
        // acknowledged and has not landed. Mostly nothing is torn, and this is looked at all the time.
        let client_workers = self.workers.iter().filter(|_| !torn.is_empty());
        let landing: BTreeSet<u64> = client_workers
            .flat_map(|client_worker| client_worker.worker.landing_pages())
            .collect();
        let torn = torn.into_iter().filter(|page| !landing.contains(page));
        let torn = torn.map(to_index);
        let is_left = |page: &usize| !self.model.is_being_written(page * SECTORS, SECTORS);
        let torn: BTreeSet<usize> = torn.filter(is_left).collect();
        // What its last owner left is held against what is read of it.
        let known = self.torn.get_or_insert_with(|| torn.clone());
        for &page in torn.difference(known) {
            let first = page * SECTORS;
            if self.model.may_fail(first, SECTORS, step, Excuse::Any) {
                continue;
            }
            let (extent, whole) = self.torn_of[&page].clone();
            // One that is on its way to another cut may have been lost where it was before.
            let whole = whole.filter(|_| !self.is_restriped);
            trouble.push(Trouble::Lost(Loss {
                page,
                extent,
                whole,
            }));
        }
        self.torn = Some(torn);
        let epoch = volume.epoch();
        if std::mem::replace(&mut self.whole_epoch, epoch) == epoch {
            return;
        }
        for whole in volume.whole() {
            let last = LastWhole {
                hosts: whole.hosts,
                spare: whole.spare,
                since: sim::now(),
            };
            self.whole.insert(whole.extent, last);
        }
    }

    /// A page is lost, as may be: it is an error, or what it was, until it is written whole.
    pub fn excuse_lost(&mut self, page: usize, step: u64) {
        self.model.risk(page, Cause::Lost, step);
    }

    /// The next owner of its volume begins.
    pub(super) fn forget_losses(&mut self) {
        self.torn = None;
        self.torn_of.clear();
        self.whole.clear();
        self.whole_epoch = 0;
    }
}
