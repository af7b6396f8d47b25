//! How the resident pages are divided between those who want some: as much as each wants, and where
//! that is too much, equally.

use cenote_preload::wire;

use crate::rooms::ROOM_MIN;

/// Pages that an address space may have beyond what it has, so that a growing one is noticed. At
/// most this part of an equal share, so that many that are idle keep little from one that is not.
/// Both arbitrary.
const GROWTH: u32 = 256;
const GROWTH_PART: u32 = 8;

/// Most pages on their way out, of an address space with a large share and with a small one.
pub(crate) const LEAVING_MAX: u32 = 2 * wire::RANGES_MAX as u32;
const LEAVING_MIN: u32 = 4;
/// Between these it is this part of the share. Arbitrary: an eighth of the smallest `--local` of a
/// handler, 4 MiB, is [`LEAVING_MAX`].
const LEAVING_PART: u32 = 8;

/// Pages that an address space may have in memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Share {
    /// Resident, or on their way in.
    pub room: u32,
    /// On their way out, beyond these.
    pub leaving: u32,
}

impl Share {
    fn of(pages: u32) -> Self {
        let leaving = (pages / LEAVING_PART).clamp(LEAVING_MIN, LEAVING_MAX);
        Self {
            room: pages.saturating_sub(leaving).max(ROOM_MIN),
            leaving,
        }
    }
}

/// A share for each address space, given what is resident of it. Together they exceed `room` where
/// that is not enough for the least of each.
pub(crate) fn divide(room: u32, resident: &[u32]) -> Vec<Share> {
    let growth = GROWTH.min(room / (GROWTH_PART * resident.len().max(1) as u32));
    let wanted = resident
        .iter()
        .map(|had| had + (had / 4).max(growth) + LEAVING_MIN);
    let shares = fill(room, &wanted.collect::<Vec<_>>());
    shares.into_iter().map(Share::of).collect()
}

/// Parts of `room` for those who want so much. What is left is the largest one's.
pub(crate) fn fill(room: u32, wanted: &[u32]) -> Vec<u32> {
    let mut shares = vec![0; wanted.len()];
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by_key(|at| wanted[*at]);
    let mut left = room;
    for (done, at) in order.iter().enumerate() {
        let equal = left / (wanted.len() - done) as u32;
        shares[*at] = wanted[*at].min(equal);
        left -= shares[*at];
    }
    if let Some(largest) = order.last() {
        shares[*largest] += left;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rooms, where each address space has pages on their way out beyond its own.
    fn rooms(room: u32, resident: &[u32]) -> Vec<u32> {
        let shares = divide(room, resident).into_iter();
        shares.map(|share| share.room).collect()
    }

    #[test]
    fn one_has_all_and_equals_have_the_same() {
        assert_eq!(rooms(10_128, &[5]), [10_000]);
        assert_eq!(rooms(10_256, &[9_000, 9_000]), [5_000, 5_000]);
        assert_eq!(rooms(10_000, &[0, 9_000]), [228, 9_612]);
        assert_eq!(rooms(100, &[9_000, 9_000, 1]), [40, 41, 8]);
    }

    #[test]
    fn no_more_is_given_than_there_is() {
        for count in 1..8_u32 {
            let resident: Vec<u32> = (0..count).map(|at| at * at * 900).collect();
            let shares = divide(20_000, &resident);
            let given = shares.iter().map(|share| share.room + share.leaving);
            assert_eq!(given.sum::<u32>(), 20_000, "{shares:?}");
        }
    }

    #[test]
    fn many_that_are_idle_leave_the_room_to_one_that_is_not() {
        let mut resident = vec![10; 31];
        resident.push(4_000);
        let shares = divide(4_096, &resident);
        let given = shares.iter().map(|share| share.room + share.leaving);
        assert!(given.sum::<u32>() <= 4_096, "{shares:?}");
        assert!(shares[31].room > 3_000, "{shares:?}");
        // Each of the others keeps what it has, and can grow.
        assert!(
            shares[..31].iter().all(|share| share.room > 20),
            "{shares:?}"
        );
    }
}
