//! Comparing the books: what a host says that this client holds there, and what the client knows.
//!
//! A grant may be lost on its way, and so may the word that a slab is given back. So at each
//! connection, once the volume is owned there and what is unreachable was asked for, the client asks
//! for a list of what it holds (`HELD`). A slab on it that nothing here has a use for goes back;
//! one that is not on it is gone. The same tells after this process was stopped for long, when a
//! slab could not be read, and when a host wants something back that nobody here knows.
//!
//! Why it is exact: a host answers in order. Whatever it granted on this connection before it made
//! the list has arrived before the list, and whatever was given back before it was asked is not on
//! it.
//!
//! Invariants: a slab that is unreachable stays until that is decided; while it is not known what the
//! journal says, nothing goes back. Decision 43.

use std::collections::BTreeSet;

use cenote_pool::control::{HELD_SLABS_MAX, HeldSlab, Request, Window};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::context::Context;
use super::windows::pool_window;
use crate::directory::{HostIndex, Member};

/// What one host says that this client holds, as it comes page by page.
#[derive(Debug, Default)]
pub(super) struct Listing(Stage);

#[derive(Debug, Default)]
enum Stage {
    /// Nobody wants to know.
    #[default]
    Idle,
    /// To be asked for from the beginning.
    Due,
    /// Asked for what comes after these, and for the last of them once more: if it is where it was,
    /// nothing before it has gone meanwhile, since later grants only come behind.
    Asked {
        listed: Vec<HeldSlab>,
        /// Somebody wants to know since.
        is_due: bool,
    },
}

/// What came of a page.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Page {
    /// There is more, after so many.
    Next(u32),
    /// That was all of it, and is exact.
    Whole(Vec<HeldSlab>),
    /// It is of no use; if somebody still wants to know, the list is due again.
    Void,
}

/// Most slabs of one host that are listened to; far more than a volume has on one.
const LISTED_MAX: usize = 1 << 20;

/// Slabs that go back at a time: few beside what a connection takes. For others the host is asked
/// again.
pub(super) const RETURNED_MAX: usize = 64;

impl Listing {
    /// Somebody wants to know.
    pub fn request(&mut self) {
        match &mut self.0 {
            Stage::Asked { is_due, .. } => *is_due = true,
            stage => *stage = Stage::Due,
        }
    }

    /// The connection is gone. The next one begins with a list.
    pub fn forget(&mut self) {
        self.0 = Stage::Idle;
    }

    fn is_due(&self) -> bool {
        matches!(self.0, Stage::Due)
    }

    pub fn is_idle(&self) -> bool {
        matches!(self.0, Stage::Idle)
    }

    /// Begins, if somebody wants to know: how many slabs to skip.
    pub fn begin(&mut self) -> Option<u32> {
        self.is_due().then(|| {
            self.0 = Stage::Asked {
                listed: Vec::new(),
                is_due: false,
            };
            0
        })
    }

    /// A page came: slabs after `skip`, fewer than [`HELD_SLABS_MAX`] if they are the last.
    fn handle_page(&mut self, skip: u32, slabs: &[HeldSlab]) -> Page {
        let Stage::Asked { listed, is_due } = &mut self.0 else {
            return Page::Void;
        };
        let is_answer = skip == skip_after(listed);
        let news = match listed.last() {
            None => Some(slabs),
            Some(last) => slabs.strip_prefix(std::slice::from_ref(last)),
        };
        let Some(news) = news.filter(|news| is_answer && listed.len() + news.len() <= LISTED_MAX)
        else {
            // Something has gone from the front: from the beginning again.
            self.0 = if is_answer { Stage::Due } else { Stage::Idle };
            return Page::Void;
        };
        listed.extend(news);
        if slabs.len() >= HELD_SLABS_MAX {
            return Page::Next(skip_after(listed));
        }
        let (listed, is_due) = (std::mem::take(listed), *is_due);
        self.0 = if is_due { Stage::Due } else { Stage::Idle };
        Page::Whole(listed)
    }
}

fn skip_after(listed: &[HeldSlab]) -> u32 {
    u32::try_from(listed.len().saturating_sub(1)).expect("bounded")
}

/// Slabs that something of the volume has, or is about to give back by itself: their hosts and windows.
pub(super) type Known<'a> = dyn Iterator<Item = (HostIndex, Window)> + 'a;

/// Windows of one host, by their names.
pub(super) struct Names(BTreeSet<(u32, u64)>);

impl Names {
    /// Those of them that are of this host.
    pub fn of_host(host: HostIndex, slabs: &mut Known<'_>) -> Self {
        let of_host = slabs.filter(|&(of, _)| of == host);
        Self(of_host.map(|(_, window)| name(&window)).collect())
    }

    pub fn contains(&self, window: &Window) -> bool {
        self.0.contains(&name(window))
    }
}

/// A host has sent a page of what this client holds there. All of it, when that was the last.
pub(super) fn take_page(
    cx: &mut Context,
    host: HostIndex,
    skip: u32,
    slabs: &[HeldSlab],
) -> Option<Vec<HeldSlab>> {
    match cx.hosts[host].listing.handle_page(skip, slabs) {
        Page::Next(skip) => {
            cx.hosts.send(host, &Request::Held { skip });
            None
        }
        Page::Whole(_) if is_injected(InjectedFault::ForgetHeld) => None,
        Page::Whole(listed) => Some(listed),
        Page::Void => None,
    }
}

/// Drops what a host does not list.
pub(super) fn drop_unlisted(cx: &mut Context, host: HostIndex, listed: &[HeldSlab]) {
    let listed: BTreeSet<_> = listed.iter().map(|slab| name(&slab.window)).collect();
    drop_slabs(cx, host, |window| !listed.contains(&name(window)));
}

/// Gives back what a host lists and nobody here knows.
pub(super) fn return_strange(
    cx: &mut Context,
    host: HostIndex,
    listed: &[HeldSlab],
    known: &Names,
) {
    let unreachable = unreachable_on(cx, host);
    let strange = listed.iter().filter(|slab| {
        let place = (slab.extent as usize, usize::from(slab.member));
        !known.contains(&slab.window) && !unreachable.contains(&place)
    });
    let strange: Vec<Window> = strange.map(|slab| slab.window).collect();
    if strange.is_empty() {
        return;
    }
    tracing::info!(host = %cx.hosts.name(host), slabs = strange.len(), "the host has slabs for this volume that it has no use for; they go back");
    for &window in strange.iter().take(RETURNED_MAX) {
        if !cx.hosts.send(host, &Request::Unmap { window }) {
            return;
        }
    }
    if strange.len() > RETURNED_MAX {
        cx.hosts[host].listing.request();
    }
}

/// A slab was given back; or its host took it, which was about to be out of memory: then it is still
/// part of something here.
pub(super) fn on_unmapped(cx: &mut Context, host: HostIndex, window: Window) {
    drop_slabs(cx, host, |gone| name(gone) == name(&window));
}

/// Drops the slabs that a host has no more.
fn drop_slabs(cx: &mut Context, host: HostIndex, is_gone: impl Fn(&Window) -> bool) {
    let Some(session) = cx.hosts[host].session() else {
        return;
    };
    let is_gone = |member: &Member| {
        member.session == session && is_gone(&pool_window(&member.window.descriptor))
    };
    let snapshot = cx.core.directory.snapshot();
    for (extent, stripe) in snapshot.stripes() {
        for (split, member) in stripe.members.iter().enumerate() {
            let Some(member) = member.as_ref().filter(|member| is_gone(member)) else {
                continue;
            };
            tracing::warn!(extent, split, host = %cx.hosts.name(host), "a slab is gone");
            let generation = member.window.descriptor.generation;
            let directory = &cx.core.directory;
            directory.fail_window(extent, split, session, generation);
            cx.search_soon();
        }
    }
}

/// Places of the slabs that are awaited from a host.
fn unreachable_on(cx: &Context, host: HostIndex) -> BTreeSet<(usize, usize)> {
    let snapshot = cx.core.directory.snapshot();
    let slabs = snapshot.stripes().flat_map(|(extent, stripe)| {
        let slabs = stripe.unreachable.iter().enumerate();
        slabs.map(move |(split, slab)| (extent, split, *slab))
    });
    slabs
        .filter(|(.., slab)| slab.is_some_and(|slab| slab.host == host))
        .map(|(extent, split, _)| (extent, split))
        .collect()
}

/// What tells a window from all others of its host.
fn name(window: &Window) -> (u32, u64) {
    (window.id, window.generation)
}

#[cfg(test)]
mod tests;
