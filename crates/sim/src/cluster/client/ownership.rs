//! A client's volume from owner to owner: how it is opened, ends, is taken over and mended.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{ClientId, Connector, sim};
use cenote_volume::{
    IoError, Op, PAGE_BYTES, RETURN_MAX, Resilience, Stepped, Unfinished, VolumeConfig, VolumeError,
};

use super::super::dialer::Dialing;
use super::super::disk::Disk;
use super::super::estate::Estate;
use super::super::model::{Model, SECTOR_BYTES};
use super::{Client, Kind, Trouble, to_index};

/// Pause before a volume is opened again that could not be.
const REOPEN: Duration = Duration::from_millis(500);

/// A write that the last owner did not end.
pub(super) struct Redo {
    write: Unfinished,
    /// Once it is under way.
    request: Option<u16>,
}

impl Redo {
    fn of(write: Unfinished) -> Self {
        Self {
            write,
            request: None,
        }
    }
}

impl Client {
    /// A volume that holds nothing.
    pub(super) fn renew(&mut self) {
        self.volume_id = self.random.u128();
        self.estate = Estate::new();
        self.known.clear();
        self.tally.disk_refusals += self.disk.refusals();
        self.disk = Disk::new(self.random.next());
        self.model = Model::new(self.random.next(), self.plan.size_bytes);
    }

    /// Opens the volume, with what its last owner left; its workers come once that is taken over
    /// and enough hosts are connected.
    pub(super) fn open(&mut self) {
        let config = VolumeConfig {
            name: self.name.clone(),
            id: self.volume_id,
            protection: self.plan.protection.clone(),
            resilience: self.plan.resilience,
            placement: self.plan.placement,
            size_bytes: self.plan.size_bytes,
            size_bytes_max: self.plan.size_bytes,
            hosts: self.plan.hosts.clone(),
            return_max: RETURN_MAX,
        };
        self.id = ClientId(self.random.u128());
        let orders = self.dialing.orders();
        let (slab_bytes, id) = (self.plan.slab_bytes, self.id);
        let volume = if self.plan.is_backed {
            let backing = self.disk.backing();
            Stepped::open_backed(config, backing, slab_bytes, id, orders, sim::now)
        } else {
            let kept = self.estate.kept(&mut self.random);
            Stepped::open_kept(config, kept, slab_bytes, id, orders, sim::now)
        };
        self.reopen_at = None;
        self.is_opening = true;
        self.volume = match volume {
            Ok(volume) => Some(volume),
            // It could not begin its journal, or ended while it did.
            Err(error) => {
                let is_disk = matches!(error, VolumeError::Journal(_));
                assert!(is_disk, "open a simulated volume: {error}");
                self.reopen_at = Some(sim::now().after(REOPEN));
                None
            }
        };
    }

    /// Has the volume expect something else of its hosts, from now on and of its next owners.
    pub fn reshape(&mut self, resilience: Resilience) {
        self.plan.resilience = resilience;
        if let Some(volume) = &self.volume {
            let begun = volume.volume().set_resilience(resilience);
            begun.expect("there are hosts for it");
        }
    }

    /// Data splits that its pages have, or are to have.
    pub fn k(&self) -> usize {
        self.plan.resilience.scheme().k()
    }

    /// Has the volume's pages cut otherwise; false where they are on their way between two others.
    pub fn restripe(&mut self, resilience: Resilience) -> bool {
        let Some(volume) = &self.volume else {
            return false;
        };
        match volume.volume().set_resilience(resilience) {
            Ok(()) => {
                self.plan.resilience = resilience;
                self.is_restriped = true;
                true
            }
            Err(VolumeError::Cut { .. }) => false,
            Err(error) => panic!("there are hosts for it: {error}"),
        }
    }

    /// Its process ends without a word.
    pub fn crash(&mut self, step: u64) {
        for client_worker in self.workers.drain(..) {
            client_worker.worker.abandon();
        }
        self.model.end_all(step);
        let (wrong, healed) = self.errors();
        self.errors_before = (wrong, healed);
        self.moved_before = self.pages_moved();
        self.tally.pages_promoted = self.pages_promoted();
        self.mending.clear();
        self.redoing.clear();
        self.suspects.clear();
        self.missing.clear();
        self.missing_epoch = 0;
        self.few_epoch = 0;
        self.forget_losses();
        self.volume = None;
        self.epoch = 0;
        self.seats.clear();
    }

    /// Its next process, with the volume that the last one left, or a new one.
    pub fn restart(&mut self, connector: Arc<dyn Connector>, is_new: bool) {
        self.dialing = Dialing::new(Arc::clone(&connector));
        self.connector = connector;
        // Nothing of a volume with a disk behind it survives its owner.
        if is_new || self.plan.is_backed {
            self.renew();
        }
        self.is_resting = false;
        self.open();
    }

    /// Whether its process has ended by itself, in the middle of something.
    pub fn has_ended(&self) -> bool {
        self.volume.is_some() && self.estate.is_dead()
    }

    /// Takes the volume over, as far as hosts have answered; whether workers may begin.
    pub(super) fn take_over(&mut self, trouble: &mut Vec<Trouble>) -> bool {
        let Some(volume) = self.volume.as_mut().filter(|_| self.is_opening) else {
            return self.volume.is_some();
        };
        match volume.is_open() {
            Ok(true) => {
                self.is_opening = false;
                let unfinished = volume.unfinished().into_iter();
                self.redoing = unfinished.map(Redo::of).collect();
                self.look_for_doubtful();
                true
            }
            Ok(false) => false,
            Err(VolumeError::Unreachable { hosts }) => {
                trouble.push(Trouble::Unreachable(format!("{}: {hosts}", self.name)));
                self.volume = None;
                self.reopen_at = Some(sim::now().after(REOPEN));
                false
            }
            Err(error) => {
                let what = format!("{}: cannot be taken over: {error}", self.name);
                trouble.push(Trouble::Wrong(what));
                false
            }
        }
    }

    /// Notes which members of which extents lack a slab.
    pub(super) fn note_missing(&mut self, step: u64) {
        let epoch = self.volume.as_ref().map_or(0, Stepped::epoch);
        if epoch == self.missing_epoch {
            return;
        }
        self.missing_epoch = epoch;
        let seats = self.seats();
        // One that every write reaches may be named by a journal that was not to be written.
        let live: BTreeSet<(usize, usize)> = seats
            .iter()
            .filter(|seat| seat.is_reached)
            .map(|seat| (seat.extent, seat.split))
            .collect();
        let Some(volume) = &self.volume else { return };
        // Those that a stripe has given up as well.
        let extents: BTreeSet<usize> = seats.iter().map(|seat| seat.extent).collect();
        let all = extents.iter().flat_map(|&extent| {
            let splits = 0..volume.splits_max(extent);
            splits.map(move |split| (extent, split))
        });
        let missing: BTreeSet<_> = all.filter(|place| !live.contains(place)).collect();
        self.missing.retain(|place, _| missing.contains(place));
        for place in missing {
            self.missing.entry(place).or_insert(step);
        }
    }

    /// The journal is ahead of the acknowledgement: of a write that began when a slab had been
    /// dropped, none may name that slab to the next owner.
    pub(super) fn check_journal(
        &self,
        (first, count): (usize, usize),
        start: u64,
    ) -> Option<String> {
        const SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
        let volume = self.volume.as_ref()?;
        let pages = first / SECTORS..(first + count).div_ceil(SECTORS);
        let extents: BTreeSet<usize> = pages.map(|page| volume.extent_of(page as u64)).collect();
        let places = extents
            .iter()
            .map(|&extent| (extent, 0)..=(extent, usize::MAX));
        let mut missed = places
            .flat_map(|places| self.missing.range(places))
            .filter(|&(_, &since)| since < start);
        let &(extent, split) = missed
            .find(|&(&(extent, split), _)| self.estate.names(extent, split))?
            .0;
        Some(format!(
            "{}: a write of extent {extent} is acknowledged without split {split}, which the journal names",
            self.name
        ))
    }

    /// Goes on with the last of the writes to be redone. Where no stripe lost more than it survives, it can be.
    pub(super) fn redo(&mut self, trouble: &mut Vec<Trouble>) {
        let (Some(redo), Some(client_worker)) = (self.redoing.last_mut(), self.workers.first_mut())
        else {
            return;
        };
        let Redo { write, request } = *redo;
        let Some(request) = request else {
            redo.request = Some(client_worker.worker.submit_redo(write));
            return;
        };
        let Some(result) = client_worker.worker.redone(request, write) else {
            return;
        };
        if matches!(result, Err(IoError::Lost | IoError::NoSpace)) {
            // Not now: the next try, as the next owner's, finds what is left of it.
            redo.request = None;
            return;
        }
        self.redoing.pop();
        self.tally.writes_redone += u64::from(result.is_ok());
        if let Err(error) = result {
            self.model.leave_unfinished(to_index(write.page()));
            let what = format!("{} redoes page {}: {error}", self.name, write.page());
            trouble.push(Trouble::Failed(error, what));
        }
        self.look_for_doubtful();
    }

    /// Once all is redone that can be: what is left is to be mended, and may be an error.
    fn look_for_doubtful(&mut self) {
        if let (Some(volume), true) = (&self.volume, self.redoing.is_empty()) {
            self.mending = volume.doubtful_pages();
            for &page in &self.mending {
                self.model.leave_unfinished(to_index(page));
            }
        }
    }

    /// Goes on with the last page of those to be mended.
    pub(super) fn mend(&mut self, steps: &mut u64) {
        const SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
        if let (Some(&page), Some(client_worker)) = (self.mending.last(), self.workers.first_mut())
            && client_worker.running.is_empty()
        {
            *steps += 1;
            self.model.begin_read(*steps);
            let op = Op::Read(vec![0xa5; PAGE_BYTES]);
            client_worker.start(to_index(page) * SECTORS, SECTORS, *steps, Kind::Mend, op);
        }
    }
}
