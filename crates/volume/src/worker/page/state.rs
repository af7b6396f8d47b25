//! The page of an operation, and what the operation wants done with it.

use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::claim::Claim;
use super::disk::AtDisk;
use super::listing::Listing;
use super::memory::Memory;
use crate::core::Core;
use crate::directory::Stripe;
use crate::integrity::Tag;
use crate::layout::PageLocation;
use crate::scheme::Cut;
use crate::worker::data_path::DataPath;
use crate::worker::order::Kind;
use crate::worker::scratch::Scratch;
use crate::worker::splits::Splits;
use crate::worker::switches::Work;
use crate::worker::verbs::Verbs;
use crate::worker::views::{Expected, Views};
use crate::{IoError, Resilience};

/// The page of an operation: what every kind of operation has of it.
#[derive(Clone, Copy, Default)]
pub(in crate::worker) struct Page {
    /// Number of the operation.
    pub op: u16,
    /// Number of the request that it is part of.
    pub request: u16,
    pub kind: Kind,
    /// Number of the page.
    pub number: u64,
    pub place: PageLocation,
    pub verbs: Verbs,
    pub memory: Memory,
    pub(super) view: Expected,
    pub(super) listing: Listing,
    pub(super) claim: Claim,
    pub(super) disk: AtDisk,
    /// What the client keeps of the page, or is to keep.
    pub(super) tag: Tag,
    /// Splits that were read and found wrong.
    pub(super) wrong: u64,
    /// What its request has heard of its end, before that.
    pub(in crate::worker) heard: Heard,
}

/// What the request of an operation that goes on has heard of its end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(in crate::worker) enum Heard {
    #[default]
    Nothing,
    /// That it is written, though not all of it has landed.
    Written,
    /// That it has failed, though its page is still to be written.
    Failed,
}

/// What an operation wants done, beyond what it did itself.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::worker) enum Next {
    /// Something of it is out, whose end moves it on.
    Wait,
    /// These members' splits are read; as many as it waits for move it on.
    Read { splits: u64 },
    /// The page's splits are written to these members, parities once they are encoded; the last end
    /// moves it on.
    Write { members: u64 },
    /// It lets go of everything, and begins again in a later turn.
    Park,
    /// It is tried again in a later turn, as it is.
    Pause,
    /// As [`Next::Pause`], and its request ends with this error.
    Refuse(IoError),
    /// It goes on with no verb out: as another operation, while verbs of this one are.
    Apart(Then),
    /// It has ended, and nothing that is out can land.
    End(Result<(), IoError>),
}

/// How an operation goes on that has no verb out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::worker) enum Then {
    /// As if its verbs had ended just now.
    Step,
    /// From the start, later.
    Park,
    /// It reads all there is of its page.
    Widen,
}

impl Page {
    /// How the page is cut.
    #[inline]
    pub fn cut(&self) -> Cut {
        self.place.cut
    }

    /// What the operation expects of its stripe's hosts.
    #[inline]
    pub(super) fn resilience(&self) -> Resilience {
        self.view.resilience(self.cut())
    }

    /// Splits of the page.
    #[inline]
    pub(super) fn split_count(&self) -> usize {
        self.cut().k() + usize::from(self.view.parities)
    }

    /// The stripe of the page's extent, in the epoch that the operation works in.
    #[inline]
    pub fn stripe<'a>(&self, views: &'a Views) -> Option<&'a Stripe> {
        views.stripe(self.view.epoch, &self.place)
    }

    /// Looks where the page is: again whenever an operation begins, for it may have moved.
    #[inline]
    pub(super) fn locate(&mut self, core: &Core) {
        self.place = core.layouts.locate(self.number);
    }

    /// Enters the newest epoch.
    #[inline]
    pub(super) fn enter(&mut self, path: &mut DataPath) {
        self.view = path.enter(self.place.extent, self.verbs.failed);
        path.scratch.reserve(self.cut(), self.view.parities.into());
    }

    /// Leaves the operation's epoch, if it is in one, and publishes the oldest that is still worked in. No
    /// verb is out.
    #[inline]
    pub(super) fn leave(&mut self, path: &mut DataPath) {
        debug_assert!(self.verbs.is_over(), "what is out speaks of the epoch");
        let epoch = std::mem::take(&mut self.view.epoch);
        if epoch != 0 {
            path.views.leave(epoch, false);
        }
    }

    /// As [`Page::leave`], while verbs are out: what they speak of is kept until they have ended.
    #[inline]
    pub(super) fn linger(&mut self, path: &mut DataPath) {
        path.views.leave(self.view.epoch, true);
    }

    /// Its splits, as they lie in memory.
    #[inline]
    pub fn splits<'a>(&self, path: &'a DataPath) -> Splits<'a> {
        self.splits_in(&path.scratch, &path.core)
    }

    #[inline]
    pub(super) fn splits_in<'a>(&self, scratch: &Scratch, core: &'a Core) -> Splits<'a> {
        Splits {
            cut: self.cut(),
            codes: &core.codes,
            page: self.memory.page(),
            parities: scratch.parities(self.memory.block, self.cut()),
            parity_count: self.view.parities.into(),
            primary: self.verbs.primary,
        }
    }

    /// Makes the page's parities.
    pub fn encode(&mut self, path: &DataPath) {
        if is_injected(InjectedFault::EncodeByScheme) {
            self.view.parities = path.views.known().resilience.scheme().r() as u8;
        }
        self.splits(path).encode();
        path.spend(Work::Encode);
    }

    /// Whether its write is acknowledged, and not all of it has landed.
    #[inline]
    pub(super) fn is_acknowledged(&self) -> bool {
        self.heard == Heard::Written
    }

    #[inline]
    pub(super) fn is_scrub(&self) -> bool {
        self.kind == Kind::Scrub
    }

    #[inline]
    pub(super) fn is_move(&self) -> bool {
        self.kind == Kind::Move
    }

    #[inline]
    pub(super) fn is_redo(&self) -> bool {
        self.kind == Kind::Redo
    }

    #[inline]
    pub(super) fn is_discard(&self) -> bool {
        self.kind == Kind::Discard
    }

    /// Whether its bytes go to nobody.
    #[inline]
    pub(super) fn is_nobodys(&self) -> bool {
        self.is_scrub() || self.is_move()
    }
}
