//! What a slab is made from, and how many sources are compared with each other.
//!
//! k splits always form a code word: from survivors of which one is wrong a new split would be made
//! that agrees with it, and the page would be wrong for good without anybody noticing (soundness Y4).
//! So, where the volume's mode compares or its pages have tags, the new host gets more sources than it needs
//! and compares them (`host::fill::comparison`). Where they disagree beyond what tells which are wrong, the
//! steps become smaller until it is one page; that one is **torn**, an error until it is written whole.
//!
//! With tags one source more than k is enough: where they disagree the client, which has the tags, looks
//! the pages through and heals them (`mender`) before the relocation goes on. A page that still disagrees
//! when it alone was looked through is rebuilt from what is there: its tag goes on telling that it is wrong.

use std::ops::Range;

use cenote_pool::control::Source;

use super::Relocation;
use crate::control::context::Context;
use crate::directory::{HostIndex, Member, MemberState, Stripe};
use crate::marks::Soundness;
use crate::{Mode, Resilience, Scheme};

/// What the target of a relocation reads.
pub(super) struct Sources {
    pub list: Vec<Source>,
    /// How many splits of the code make another.
    pub k: usize,
    pub r: usize,
    /// The split of the code that is made.
    pub code_split: usize,
    /// Whether the slab that is replaced is read, and no others.
    pub is_copy: bool,
    /// Whether pages are to be right before they are read, since reading would not show it.
    pub are_blind: bool,
}

/// The step that they are for.
pub(super) struct Step {
    /// Its pages, of the extent.
    pub pages: Range<u32>,
    /// Whether the step's first page is not known to disagree for good.
    pub is_judged: bool,
}

/// A copy is a fill of a code in which both splits are the same: (k, r, the split to fill), ...
const COPY: (usize, usize, usize) = (1, 1, 0);
/// ... and the split that is read.
const COPY_SOURCE: usize = 1;

/// The version of the messages in which a fill may have more sources than k.
const COMPARES_SINCE: u8 = 4;

const _: () = assert!(cenote_pool::control::VERSION >= COMPARES_SINCE);

impl Sources {
    pub fn are_too_few(&self) -> bool {
        self.list.len() < self.k
    }

    /// The splits that are read, as the target names them.
    pub fn mask(&self) -> u64 {
        let splits = self.list.iter().map(|source| source.split);
        splits.fold(0, |all, split| all | 1 << split)
    }
}

/// Chooses the sources of a step; `None` when the slab that was to be copied is there no more.
pub(super) fn choose(
    relocation: &Relocation,
    cx: &Context,
    stripe: &Stripe,
    step: &Step,
) -> Option<Sources> {
    let Relocation { extent, split, .. } = *relocation;
    let shunned = relocation.chunk.shunned;
    let usable = |index: usize| shunned >> index & 1 == 0;
    let source = |index: usize, member: &Member| Source {
        split: u8::try_from(index).expect("at most 40 members"),
        address: cx.hosts[member.session.host].config.address.to_string(),
        window: member.window.name(),
    };
    if is_copied(relocation, cx, stripe) {
        // Copying costs a k-th of decoding, needs no other host, and is right also for pages
        // that decoding would get wrong.
        let replaced = stripe.members[split].as_ref();
        let replaced = replaced.filter(|member| member.state == MemberState::Live)?;
        let (k, r, code_split) = COPY;
        let list = usable(split).then(|| source(COPY_SOURCE, replaced));
        return Some(Sources {
            list: list.into_iter().collect(),
            k,
            r,
            code_split,
            is_copy: true,
            are_blind: cx.reputations.is_excluded(replaced.session.host),
        });
    }
    let members = stripe.members.iter().enumerate();
    let mut others: Vec<(usize, &Member)> = members
        .filter(|&(index, _)| usable(index) && index != split)
        .filter_map(|(index, member)| Some((index, member.as_ref()?)))
        .filter(|(_, member)| member.state == MemberState::Live)
        .collect();
    others.sort_by_key(|(_, member)| cx.core.pages.integrity.is_suspicious(member.session.host));
    let target = relocation.target?.host;
    let count = source_count(cx, target, stripe, cx.core.pages(extent).start, step);
    let there = (stripe.readable() & !(1 << split)).count_ones() as usize;
    let list = others.iter().take(count);
    Some(Sources {
        list: list.map(|&(index, member)| source(index, member)).collect(),
        k: stripe.cut.k(),
        r: stripe.parities(),
        code_split: split,
        is_copy: false,
        are_blind: others.len() < count.min(there),
    })
}

/// Whether the slab that is replaced is read, and no others: what is rebuilt from others is
/// decoded, or coded anew.
pub(super) fn is_copied(relocation: &Relocation, cx: &Context, stripe: &Stripe) -> bool {
    relocation.moves() && !is_rebuilt(cx, stripe, relocation.split)
}

/// How many sources a step is rebuilt from by `target`: k at least. The extent's pages begin at `base`.
fn source_count(cx: &Context, target: HostIndex, stripe: &Stripe, base: u64, step: &Step) -> usize {
    // The stripe's own, which is not the volume's while that changes.
    let scheme: Scheme = stripe.cut.with_parities(stripe.parities());
    let expected = cx.core.resilience();
    let resilience = Resilience::in_stripe(expected.mode(), expected.delta(), scheme);
    let (k, is_tagged) = (scheme.k(), cx.is_tagged());
    let (page, count) = (base + u64::from(step.pages.start), step.pages.len());
    // Splits of a page that holds nothing, or whose last write ended unknown or at the disk, may
    // disagree by right.
    let (marks, store) = (&cx.core.pages.marks, cx.core.backing.as_ref());
    let is_judged = step.is_judged
        && marks.written.contains(page)
        && store.is_none_or(|store| store.pages.remote.contains(page))
        && marks.soundness(page) == Soundness::Sound;
    if !(resilience.compares() || is_tagged) || (count == 1 && !is_judged) {
        return k;
    }
    if !cx.hosts[target].speaks(COMPARES_SINCE) {
        tracing::warn!(host = %cx.hosts.name(target), "host cannot compare what it rebuilds a slab from");
        return k;
    }
    match resilience.mode() {
        // Its tag says what a page is, once it is known that something is wrong.
        _ if is_tagged => k + 1,
        Mode::Correction => resilience.correction_splits(),
        _ => resilience.read_splits(),
    }
}

/// Whether the copy in the making of a split is made from others: its host's bytes are doubted,
/// and enough are left without them. Where tags tell what is right, enough to be compared: a copy
/// takes away nothing that a page could be made from.
fn is_rebuilt(cx: &Context, stripe: &Stripe, split: usize) -> bool {
    let member = stripe.members[split].as_ref();
    let others = stripe.readable() & !(1 << split);
    member.is_some_and(|member| cx.reputations.is_excluded(member.session.host))
        && others.count_ones() as usize >= stripe.cut.k() + usize::from(cx.is_tagged())
}
