//! Fills under way, by the volume of their target, and who waits for their end to own the volume: a
//! fill that an earlier session asked for writes on, over what the next owner has there.

use std::collections::BTreeMap;

use cenote_fabric::PeerId;

/// Most questions that wait; who asks one more is told to ask again. Arbitrary.
const WAITING_MAX: usize = 256;

/// Who asked to own a volume.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Owning {
    pub peer: PeerId,
    pub client: u128,
    pub request: u64,
    pub volume: u128,
    pub epoch: u64,
}

/// See the module's text.
#[derive(Default)]
pub struct VolumeFills {
    /// How many each session asked for in each volume, also one that has ended.
    under_way: BTreeMap<(u128, PeerId), usize>,
    /// One of each session in each volume.
    waiting: Vec<Owning>,
}

impl VolumeFills {
    /// A session asked for a fill in a volume.
    pub fn begin(&mut self, volume: u128, peer: PeerId) {
        *self.under_way.entry((volume, peer)).or_default() += 1;
    }

    /// Such a fill ended. Returns who waited for it, to be looked at again.
    ///
    /// # Panics
    /// If none was under way: a caller's bug.
    pub fn end(&mut self, volume: u128, peer: PeerId) -> Vec<Owning> {
        let fills = self.under_way.get_mut(&(volume, peer)).expect("under way");
        *fills -= 1;
        if *fills == 0 {
            self.under_way.remove(&(volume, peer));
        }
        self.waiting
            .extract_if(.., |owning| owning.volume == volume)
            .collect()
    }

    /// Whether a fill in a volume is under way that another session asked for.
    pub fn has_others(&self, volume: u128, peer: PeerId) -> bool {
        let of_volume = (volume, PeerId(0))..=(volume, PeerId(u64::MAX));
        let mut fills = self.under_way.range(of_volume);
        fills.any(|(&(_, other), _)| other != peer)
    }

    /// Has a question wait, in place of an earlier one of its session and volume; false where too
    /// many do.
    pub fn wait(&mut self, owning: Owning) -> bool {
        let of = |owning: &Owning| (owning.peer, owning.volume);
        self.waiting.retain(|earlier| of(earlier) != of(&owning));
        let has_room = self.waiting.len() < WAITING_MAX;
        if has_room {
            self.waiting.push(owning);
        }
        has_room
    }

    /// A session has ended: nobody is there to be answered.
    pub fn forget_waiting(&mut self, peer: PeerId) {
        self.waiting.retain(|owning| owning.peer != peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owning(peer: u64, volume: u128, request: u64) -> Owning {
        Owning {
            peer: PeerId(peer),
            client: 7,
            request,
            volume,
            epoch: 1,
        }
    }

    #[test]
    fn fills_of_other_sessions_in_the_volume_count_and_no_others() {
        let mut fills = VolumeFills::default();
        for (volume, peer) in [(1, 5), (1, 5), (2, 6)] {
            fills.begin(volume, PeerId(peer));
        }
        assert!(fills.has_others(1, PeerId(6)));
        assert!(!fills.has_others(1, PeerId(5)), "its own");
        assert!(!fills.has_others(3, PeerId(5)), "of another volume");
        fills.end(1, PeerId(5));
        assert!(fills.has_others(1, PeerId(6)), "one of two");
        fills.end(1, PeerId(5));
        assert!(!fills.has_others(1, PeerId(6)));
    }

    #[test]
    fn the_end_of_a_fill_returns_who_waits_for_its_volume() {
        let mut fills = VolumeFills::default();
        fills.begin(1, PeerId(5));
        assert!(fills.wait(owning(6, 1, 1)) && fills.wait(owning(6, 2, 2)));
        assert!(fills.wait(owning(6, 1, 3)), "in place of the first");
        assert!(fills.wait(owning(8, 1, 4)));
        fills.forget_waiting(PeerId(8));
        assert_eq!(fills.end(1, PeerId(5)), [owning(6, 1, 3)]);
    }

    #[test]
    fn one_session_takes_no_more_room_by_asking_again_and_all_have_a_bound() {
        let mut fills = VolumeFills::default();
        for request in 0..2 * WAITING_MAX as u64 {
            assert!(fills.wait(owning(5, 1, request)));
        }
        for peer in 6..5 + WAITING_MAX as u64 {
            assert!(fills.wait(owning(peer, 1, 0)));
        }
        assert!(!fills.wait(owning(1000, 1, 0)));
        fills.forget_waiting(PeerId(5));
        assert!(fills.wait(owning(1000, 1, 0)));
    }
}
