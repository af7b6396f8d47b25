//! Taking leave of other nodes, when this one ends and others have its places.
//!
//! Each other node is told of the views in which this one has nothing, and then that it leaves. Once it
//! has answered, all requests that it sent here have come; they are passed on. Once all of these are
//! answered it is told again, and its second answer says that it has read them.

use super::super::NodeId;
use super::super::frame::{self, kind};
use super::super::node::Parting;
use super::{Goodbye, Lane};
use bytes::Bytes;
use cenote_kv::group::progress::Leave;

/// How long an answer may take before it is asked for again: there was no room for the question.
const PATIENCE_NS: u64 = 50_000_000;

impl Lane {
    pub(super) fn take_left(&mut self, peer: NodeId, number: u64) {
        if let Some(goodbye) = self.goodbyes.get_mut(&peer)
            && goodbye.asked.is_some_and(|(asked, _)| asked == number)
        {
            goodbye.answered = number;
        }
    }

    /// Says what is due, if the node ends. To be called when all that members say has been posted.
    pub(super) fn say_goodbye(&mut self, now: u64) {
        if self.shared.leave() != Leave::Soon {
            return;
        }
        self.busy_at = now;
        let me = self.me;
        let has_place = |view: &cenote_kv::group::view::View| view.has(me);
        if self
            .seats
            .iter()
            .any(|seat| seat.member.view().is_some_and(has_place))
        {
            self.goodbyes.clear();
            return self.shared.set_parting(self.index, Parting::Begun);
        }
        let mut has_left = true;
        let linked: Vec<_> = self.membership.all_linked().collect();
        for (peer, process) in linked {
            let goodbye = self.goodbyes.get(&peer).copied();
            let owes_nothing = self.forwarding.owes_nothing(peer);
            has_left &= owes_nothing && goodbye.is_some_and(|goodbye| goodbye.answered == 2);
            let Some(goodbye) = goodbye else {
                // They leave before the question, which is not asked in this turn.
                for seat in &mut self.seats {
                    seat.member.tell_view(process);
                }
                self.goodbyes.insert(peer, Goodbye::default());
                continue;
            };
            let number = match goodbye.answered {
                0 => 1,
                1 if owes_nothing => 2,
                _ => continue,
            };
            let is_asked = goodbye
                .asked
                .is_some_and(|(asked, at)| asked == number && now.saturating_sub(at) < PATIENCE_NS);
            let is_told = self
                .outboxes
                .get(&peer)
                .is_none_or(|outbox| outbox.is_empty());
            if is_told && !is_asked {
                let asked = Some((number, now));
                self.goodbyes.insert(peer, Goodbye { asked, ..goodbye });
                self.put(peer, kind::LEAVE, [frame::ping(number), Bytes::new()]);
            }
        }
        let parting = match has_left {
            false => Parting::Begun,
            true if self.forwarding.is_quiet() => Parting::Done,
            true => Parting::Apart,
        };
        self.shared.set_parting(self.index, parting);
    }
}
