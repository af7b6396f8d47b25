//! Mapping an extent: k+r slabs on as many failure domains, or fewer and degraded.
//!
//! A host that refuses, dies or stays silent is replaced by the next candidate; when there is
//! none, the extent is mapped DEGRADED on at least k (completed later by `repairer`), and
//! with fewer than k everything is given back and the writers get "no space", unless hosts that
//! are silent may make it k: then it is tried again.
//!
//! Invariant: an extent has one mapping under way at most, and none while anything else is done to it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::Time;

use super::acquires::{Granted, Purpose};
use super::context::Context;
use super::placement::lenders_awaited;
use crate::core::{Core, Mapping};
use crate::directory::{HostIndex, Member, MemberState, Session, Stripe};
use crate::extents::LayoutId;

/// Extents on their way to being mapped, and those that are to be.
#[derive(Default)]
pub(super) struct Mapper {
    jobs: BTreeMap<usize, Job>,
    // Extents that were refused, and when to forget that.
    refused: Vec<(usize, Time)>,
    // Extents that are to be mapped when hosts have had time to answer again.
    postponed: Vec<(usize, Time)>,
    // Extents that were mapped ahead and lost, and are to be mapped again by themselves.
    lost: BTreeSet<usize>,
}

/// One of them.
struct Job {
    members: Vec<Option<Member>>,
    tried: Vec<HostIndex>,
    begun: Time,
    /// Why a slab that a host gave could not be used.
    shortage: Option<io::Error>,
}

/// How long an extent stays refused before a write may ask again, and until it is tried again by itself where
/// hosts are silent.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Lost extents that are mapped again per tick: a few keep every host busy.
const AGAIN_PER_TICK: usize = 8;

impl Mapper {
    /// Begins to map an extent. `is_busy`: something else is done to it; slabs that are on their way back are
    /// gone first.
    pub fn begin(&mut self, cx: &mut Context, extent: usize, is_busy: bool) {
        let snapshot = cx.core.directory.snapshot();
        let is_mapped = snapshot.extents.get(extent).is_some_and(Option::is_some);
        if is_mapped || is_busy || !is_of_use(&cx.core, extent) {
            return cx.core.mapping_ended(extent, Mapping::Idle);
        }
        if self.jobs.contains_key(&extent) {
            return;
        }
        let members = cx.core.layouts.scheme(LayoutId::of(extent)).members();
        self.jobs.insert(
            extent,
            Job {
                members: vec![None; members],
                tried: Vec::new(),
                begun: cx.now(),
                shortage: None,
            },
        );
        self.pursue(cx, extent);
    }

    /// Whether an extent of a layout is on its way.
    pub fn has_any(&self, layout_id: LayoutId) -> bool {
        let mut extents = self.jobs.keys();
        extents.any(|&extent| LayoutId::of(extent) == layout_id)
    }

    /// The slabs that are there already, of extents on their way.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.jobs
            .values()
            .flat_map(|job| job.members.iter().flatten())
    }

    /// Asks hosts for the slabs that an extent lacks; ends its mapping when nothing more can be asked.
    fn pursue(&mut self, cx: &mut Context, extent: usize) {
        let Some(job) = self.jobs.get_mut(&extent) else {
            return;
        };
        let pending: Vec<(usize, Session)> = cx
            .acquires
            .mapping(extent)
            .map(|acquire| (acquire.member, acquire.session))
            .collect();
        let lacking: Vec<usize> = (0..job.members.len())
            .filter(|&member| {
                job.members[member].is_none() && pending.iter().all(|&(at, _)| at != member)
            })
            .collect();
        let members = job.members.iter().flatten();
        let held = members.map(|member| member.session.host);
        let asked = pending.iter().map(|&(_, session)| session.host);
        let taken: Vec<HostIndex> = held.chain(asked).collect();
        let mut candidates = cx.candidates(cx.now());
        candidates.retain(|candidate| !job.tried.contains(&candidate.host));
        let placing = cx.placing();
        let chosen = placing.members(extent, &taken, lacking.len(), &candidates);
        job.tried.extend(&chosen);
        let noted: Vec<u64> = lacking
            .iter()
            .zip(&chosen)
            .filter_map(|(&member, &host)| {
                let acquires = &mut cx.acquires;
                acquires.note(&mut cx.hosts, extent, member, host, Purpose::Map)
            })
            .collect();
        for request in noted {
            cx.acquires.ask(&mut cx.hosts, request);
        }
        if cx.acquires.mapping(extent).next().is_none() {
            self.end(cx, extent);
        }
    }

    /// A slab has come.
    pub fn on_granted(&mut self, cx: &mut Context, extent: usize, member: usize, granted: Granted) {
        let Some(job) = self.jobs.get_mut(&extent) else {
            return cx.give_back(granted.session, granted.slab());
        };
        job.members[member] = Some(granted.into_member(MemberState::Live));
        if cx.acquires.mapping(extent).next().is_none() {
            self.pursue(cx, extent);
        }
    }

    /// A slab will not come: others may.
    pub fn on_failed(&mut self, cx: &mut Context, extent: usize) {
        self.pursue(cx, extent);
    }

    /// A slab was granted, and this machine lacks what it takes to use it.
    pub fn on_short(&mut self, cx: &mut Context, extent: usize, shortage: io::Error) {
        if let Some(job) = self.jobs.get_mut(&extent) {
            job.shortage = Some(shortage);
        }
        self.pursue(cx, extent);
    }

    /// Publishes what was got, or gives it back when it is too little.
    fn end(&mut self, cx: &mut Context, extent: usize) {
        let job = self.jobs.remove(&extent).expect("it is under way");
        let mut members = job.members;
        for slot in &mut members {
            // A host may have gone since it granted; it gets its slab back when it returns.
            if let Some(gone) = slot.take_if(|member| !cx.hosts.session_is_up(member.session)) {
                cx.give_back(gone.session, gone.window.name());
            }
        }
        let live = members.iter().flatten().count();
        let cut = cx.core.layout_of(extent).cut();
        if live < cut.k() {
            return self.refuse(cx, extent, members, job.shortage);
        }
        if live < members.len() {
            tracing::warn!(
                extent,
                live,
                wanted = members.len(),
                "extent mapped degraded"
            );
            cx.search_soon();
        }
        cx.core.directory.publish(|next| {
            next.extents[extent] = Some(Arc::new(Stripe {
                cut,
                members,
                changed_in: next.epoch,
                ..Stripe::default()
            }));
            true
        });
        cx.core.mapping_ended(extent, Mapping::Idle);
        let took = cx.now().since(job.begun);
        cx.core.measures.timings.map.note(took);
    }

    /// Too few hosts have a slab for an extent, or this machine cannot use them: what was given goes
    /// back.
    fn refuse(
        &mut self,
        cx: &mut Context,
        extent: usize,
        members: Vec<Option<Member>>,
        shortage: Option<io::Error>,
    ) {
        let (live, needed) = (
            members.iter().flatten().count(),
            cx.core.layout_of(extent).cut().k(),
        );
        for member in members.into_iter().flatten() {
            cx.give_back(member.session, member.window.name());
        }
        let now = cx.now();
        let until = now.after(REFUSED_FOR);
        // With a disk behind it the volume does without, and asks again while it is busy.
        if cx.core.backing.is_none() {
            if live + lenders_awaited(&cx.hosts, now) >= needed {
                // Whoever asked for it waits.
                return self.postponed.push((extent, until));
            }
            let reason = match shortage {
                Some(error) => format!("this process can attach no more slabs: {error}"),
                None => "too few hosts have memory left".to_owned(),
            };
            tracing::warn!(extent, live, needed, "no space: {reason}");
        }
        cx.core.mapping_ended(extent, Mapping::Refused);
        self.refused.push((extent, until));
    }

    /// Lets writes ask again for extents that were refused a while ago. The extents that are to be tried again
    /// now, for which too few hosts answered.
    pub fn tend(&mut self, core: &Core, now: Time) -> Vec<usize> {
        let is_due = |(_, at): &mut (usize, Time)| now >= *at;
        for (extent, _) in self.refused.extract_if(.., is_due) {
            core.mapping_ended(extent, Mapping::Idle);
        }
        let due = self.postponed.extract_if(.., is_due);
        due.map(|(extent, _)| extent).collect()
    }

    /// An extent was mapped ahead and is lost: it is not to be without slabs for long.
    pub fn note_lost(&mut self, extent: usize) {
        self.lost.insert(extent);
    }

    /// Maps extents again that were mapped ahead and lost, a few at a time, as soon as hosts have room for whole
    /// ones. What is written before that asks for its extent by itself.
    pub fn map_again(&mut self, cx: &Context, now: Time) {
        if self.lost.is_empty() {
            return;
        }
        let (snapshot, core) = (cx.core.directory.snapshot(), &cx.core);
        let target = core.layouts.target();
        self.lost.retain(|&extent| {
            let is_mapped = snapshot.extents.get(extent).is_none_or(Option::is_some);
            !is_mapped && LayoutId::of(extent) == target
        });
        if cx.candidates(now).len() < core.layouts.scheme(target).members() {
            return;
        }
        for &extent in self.lost.iter().take(AGAIN_PER_TICK) {
            if core.want(extent) == Mapping::Refused {
                tracing::debug!(extent, "no room to map it again yet");
            }
        }
    }
}

/// Whether an extent has pages, or is to have some: those of whoever asked for it may be in the other
/// layout by now, or that layout gone.
fn is_of_use(core: &Core, extent: usize) -> bool {
    let (layouts, layout_id) = (&core.layouts, LayoutId::of(extent));
    let pages = core.pages(extent);
    let has_pages = || layouts.next_in(layout_id, pages.start, pages.end).is_some();
    !pages.is_empty() && (layout_id == layouts.target() || has_pages())
}
