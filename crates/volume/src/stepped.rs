//! A volume without a thread: its caller decides when the control side runs, and in what time.
//!
//! For simulators. Control, directory and workers are those of a real volume.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use cenote_fabric::{ClientId, Generation, Time, WindowId};

use crate::backing::{Backing, DiskQueue};
use crate::control::{Control, Dialer};
use crate::directory::{MemberState, Stripe};
use crate::journal::Image;
use crate::marks::Unfinished;
use crate::migrator::run::SteppedMigrator;
use crate::volume::{Assembly, Opened};
use crate::{Kept, Relocation, Volume, VolumeConfig, VolumeError, VolumeStatus, Worker};

/// Every process of a simulation runs on this machine, as far as it says.
const MACHINE: u128 = 1;

/// A slab's place in a volume's directory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Seat {
    /// The extent.
    pub extent: usize,
    /// The member of its stripe.
    pub split: usize,
    /// Index among the volume's hosts.
    pub host: usize,
    /// The slab's window there.
    pub window: WindowId,
    /// And its generation.
    pub generation: Generation,
    /// The first generation that it was granted with.
    pub birth: u64,
    /// Read as well as written.
    pub is_live: bool,
    /// Every write of its extent reaches it: it may be named to the next owner.
    pub is_reached: bool,
}

/// An extent of which every split is there.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Whole {
    /// The extent.
    pub extent: usize,
    /// Splits that it can lose.
    pub spare: usize,
    /// Its hosts, indices among the volume's.
    pub hosts: Vec<usize>,
}

/// A volume that its caller runs step by step.
pub struct Stepped {
    volume: Volume,
    control: Control,
    queues: Vec<DiskQueue>,
    opened: Option<Opened>,
    /// Once pages are in two layouts.
    migrator: Option<SteppedMigrator>,
}

impl Stepped {
    /// A volume of hosts that lend slabs of at least `slab_bytes`. It connects to them as `client`
    /// through `dialer`, in its first turns.
    ///
    /// # Errors
    /// As [`Volume::open`], but for what hosts answer.
    pub fn open(
        config: VolumeConfig,
        slab_bytes: u64,
        client: ClientId,
        dialer: Arc<dyn Dialer>,
        clock: fn() -> Time,
    ) -> Result<Self, VolumeError> {
        Self::assemble(config, slab_bytes, client, dialer, clock, None, None)
    }

    /// As [`Volume::open_backed`].
    ///
    /// # Errors
    /// As [`Volume::open_backed`], but for what hosts answer.
    pub fn open_backed(
        config: VolumeConfig,
        backing: Backing,
        slab_bytes: u64,
        client: ClientId,
        dialer: Arc<dyn Dialer>,
        clock: fn() -> Time,
    ) -> Result<Self, VolumeError> {
        let backing = Some(backing);
        Self::assemble(config, slab_bytes, client, dialer, clock, None, backing)
    }

    /// As [`Volume::open_kept`]. It is taken over in its next turns; see [`Stepped::is_open`].
    ///
    /// # Errors
    /// As [`Volume::open_kept`], but for what hosts answer.
    pub fn open_kept(
        config: VolumeConfig,
        mut kept: Kept,
        slab_bytes: u64,
        client: ClientId,
        dialer: Arc<dyn Dialer>,
        clock: fn() -> Time,
    ) -> Result<Self, VolumeError> {
        let left = kept.read(&config)?;
        let kept = Some((kept, left));
        Self::assemble(config, slab_bytes, client, dialer, clock, kept, None)
    }

    fn assemble(
        config: VolumeConfig,
        slab_bytes: u64,
        client: ClientId,
        dialer: Arc<dyn Dialer>,
        clock: fn() -> Time,
        kept: Option<(Kept, Option<Image>)>,
        backing: Option<Backing>,
    ) -> Result<Self, VolumeError> {
        let links = Vec::new();
        let assembled = Volume::assemble(
            config,
            Assembly {
                client,
                machine: MACHINE,
                slab_bytes,
                links,
                dialer,
                clock,
                kept,
                backing,
            },
        )?;
        Ok(Self {
            volume: assembled.volume,
            control: assembled.control,
            queues: assembled.queues,
            opened: assembled.opened,
            migrator: None,
        })
    }

    /// Whether what an earlier owner left is taken over, so that workers may begin.
    ///
    /// # Errors
    /// As [`Volume::open_kept`]: it cannot be.
    pub fn is_open(&mut self) -> Result<bool, VolumeError> {
        let Some(opened) = &self.opened else {
            return Ok(true);
        };
        match opened.try_recv() {
            Err(TryRecvError::Empty) => Ok(false),
            Err(TryRecvError::Disconnected) => Err(VolumeError::Closed),
            Ok(result) => {
                self.opened = None;
                result.map(|()| true)
            }
        }
    }

    /// Writes that the last owner did not end: to be redone before anything else is done.
    #[must_use]
    pub fn unfinished(&self) -> Vec<Unfinished> {
        self.volume.unfinished()
    }

    /// Pages of which it is not known what the last owner was writing: to be read and written again then.
    #[must_use]
    pub fn doubtful_pages(&self) -> Vec<u64> {
        self.volume.doubtful_pages()
    }

    /// Handles what has arrived and all else that is due; false once the volume is closed.
    pub fn turn(&mut self) -> bool {
        let is_open = self.turn_control();
        if is_open && self.step_migrator() {
            return self.turn_control();
        }
        is_open
    }

    /// Moves pages on that are on their way to the volume's other layout; whether the control side has
    /// to look.
    fn step_migrator(&mut self) -> bool {
        let core = Arc::clone(self.control.core());
        if self.migrator.is_none() && self.opened.is_none() && core.layouts.is_mixed() {
            self.migrator = self.worker().ok().map(SteppedMigrator::new);
        }
        self.migrator
            .as_mut()
            .is_some_and(|migrator| migrator.step(&core))
    }

    fn turn_control(&mut self) -> bool {
        for queue in &mut self.queues {
            if let Err(error) = queue.turn(false) {
                tracing::error!(%error, "ask the backing store's disk");
            }
        }
        let connected = self.control.connected();
        self.control.turn(connected)
    }

    /// How long until it wants a turn even if nothing arrives.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let migrator = self.migrator.as_ref().and_then(SteppedMigrator::deadline);
        let patience = self.control.patience();
        migrator.map_or(patience, |deadline| patience.min(deadline))
    }

    /// How every extent and host stands now.
    #[must_use]
    pub fn status(&self) -> VolumeStatus {
        self.control.status()
    }

    /// The directory's epoch: it moves with every change of a stripe.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.control.core().directory.snapshot().epoch
    }

    /// Every slab in the directory.
    #[must_use]
    pub fn seats(&self) -> Vec<Seat> {
        let snapshot = self.control.core().directory.snapshot();
        let mapped = snapshot.extents.numbered();
        let stripes = mapped.filter_map(|(extent, stripe)| Some((extent, stripe.as_ref()?)));
        let members = stripes.flat_map(|(extent, stripe)| {
            let present = stripe.members.iter().enumerate();
            present.filter_map(move |(split, member)| Some((extent, split, member.as_ref()?)))
        });
        let is_whole = |extent: usize, watermark: u32| {
            watermark >= self.control.core().layout_of(extent).extent_end()
        };
        members
            .map(|(extent, split, member)| Seat {
                extent,
                split,
                is_reached: match member.state {
                    MemberState::Live => true,
                    MemberState::Filling { watermark } => is_whole(extent, watermark),
                },
                host: member.session.host,
                window: member.window.descriptor.id,
                generation: member.window.descriptor.generation,
                birth: member.birth,
                is_live: member.state == MemberState::Live,
            })
            .collect()
    }

    /// Every extent that is whole.
    #[must_use]
    pub fn whole(&self) -> Vec<Whole> {
        let snapshot = self.control.core().directory.snapshot();
        let mapped = snapshot.extents.numbered();
        let stripes = mapped.filter_map(|(extent, stripe)| Some((extent, stripe.as_deref()?)));
        let is_whole =
            |stripe: &Stripe| stripe.readable().count_ones() as usize == stripe.members.len();
        stripes
            .filter(|(_, stripe)| is_whole(stripe))
            .map(|(extent, stripe)| Whole {
                extent,
                spare: stripe.parities(),
                hosts: stripe
                    .members
                    .iter()
                    .flatten()
                    .map(|member| member.session.host)
                    .collect(),
            })
            .collect()
    }

    /// Pages that are errors until they are written whole.
    #[must_use]
    pub fn torn_pages(&self) -> Vec<u64> {
        let core = self.control.core();
        core.pages.marks.torn_pages(0, core.page_count()).collect()
    }

    /// Whether slabs have a page of a volume with a disk behind it, or will when they are back.
    #[must_use]
    pub fn is_on_slabs(&self, page: u64) -> bool {
        let store = self.control.core().backing.as_ref();
        store.is_some_and(|store| store.pages.remote.contains(page))
    }

    /// How far the relocation of each slab is that is being rebuilt.
    #[must_use]
    pub fn relocations(&self) -> Vec<Relocation> {
        self.control.relocations()
    }

    /// The extent that a page is in now.
    #[must_use]
    pub fn extent_of(&self, page: u64) -> usize {
        self.control.core().layouts.locate(page).extent
    }

    /// The page that is at `index` of an extent now.
    #[must_use]
    pub fn page_at(&self, extent: usize, index: u64) -> Option<u64> {
        let core = self.control.core();
        let pages = core.pages(extent);
        let page = pages.start.checked_add(index)?;
        let is_there = pages.contains(&page) && self.extent_of(page) == extent;
        is_there.then_some(page)
    }

    /// Data splits of the pages of an extent.
    #[must_use]
    pub fn k_of(&self, extent: usize) -> usize {
        self.control.core().layout_of(extent).cut().k()
    }

    /// Bytes of a split of the pages of an extent.
    #[must_use]
    pub fn split_bytes_of(&self, extent: usize) -> usize {
        self.control.core().layout_of(extent).cut().split_bytes()
    }

    /// Most members that the stripe of an extent may have.
    #[must_use]
    pub fn splits_max(&self, extent: usize) -> usize {
        self.control.core().layout_of(extent).cut().splits_max()
    }

    /// Hosts that are connected, and lend to this volume.
    #[must_use]
    pub fn connected_count(&self) -> usize {
        let hosts = self.control.host_states();
        hosts.iter().filter(|host| host.connected).count()
    }

    /// A new worker. The dialer must have run what it is given when it returns.
    ///
    /// # Errors
    /// As [`Volume::worker`]; `Closed` as well when the dialer left something for later.
    pub fn worker(&mut self) -> Result<Worker, VolumeError> {
        let newcomer = self.volume.ask_for_worker()?;
        // The first takes the order, the second what was opened.
        for _ in 0..2 {
            self.turn_control();
            match newcomer.ready.try_recv() {
                Ok(answer) => return self.volume.make_worker(newcomer, answer),
                Err(TryRecvError::Empty) => {}
                Err(TryRecvError::Disconnected) => break,
            }
        }
        Err(VolumeError::Closed)
    }

    /// The volume, for all that needs no control thread to answer.
    #[must_use]
    pub fn volume(&self) -> &Volume {
        &self.volume
    }
}

impl Drop for Stepped {
    /// A worker that is dropped waits for what is on its way, and nobody moves that any more.
    fn drop(&mut self) {
        if let Some(migrator) = self.migrator.take() {
            migrator.abandon();
        }
    }
}
