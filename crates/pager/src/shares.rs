//! How the resident pages are divided between those who want some: as much as each wants, and where
//! that is too much, equally.

/// Pages that an address space has at least.
const LEAST: u32 = 64;

/// Room for each address space, given what is resident of it.
pub(crate) fn divide(room: u32, resident: &[u32]) -> Vec<u32> {
    // Room to grow, so that a growing one is noticed.
    let wanted = resident.iter().map(|had| had + (had / 4).max(4 * LEAST));
    let shares = fill(room, &wanted.collect::<Vec<_>>());
    shares.iter().map(|share| (*share).max(LEAST)).collect()
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

    #[test]
    fn one_has_all_and_equals_have_the_same() {
        assert_eq!(divide(10_000, &[5]), [10_000]);
        assert_eq!(divide(10_000, &[9_000, 9_000]), [5_000, 5_000]);
        assert_eq!(divide(10_000, &[0, 9_000]), [256, 9_744]);
        assert_eq!(divide(100, &[9_000, 9_000, 1]), [64, 64, 64]);
    }

    #[test]
    fn no_more_is_given_than_there_is() {
        for count in 1..8_u32 {
            let resident: Vec<u32> = (0..count).map(|at| at * at * 900).collect();
            let shares = divide(20_000, &resident);
            assert_eq!(shares.iter().sum::<u32>(), 20_000, "{shares:?}");
        }
    }
}
