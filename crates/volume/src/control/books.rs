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

use cenote_pool::control::{HeldSlab, Page, Request, Window};
use cenote_pool::injected_faults::{InjectedFault, is_injected};

use super::context::Context;
use crate::directory::{HostIndex, Member};

/// Slabs that go back at a time: few beside what a connection takes. For others the host is asked
/// again.
pub(super) const RETURNED_MAX: usize = 64;

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
        Page::TooMany => {
            tracing::warn!(host = %cx.hosts.name(host), "it lists more slabs than any host has");
            None
        }
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
    let is_gone = |member: &Member| member.session == session && is_gone(&member.window.name());
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
