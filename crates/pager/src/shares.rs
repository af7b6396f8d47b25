//! How the resident pages are divided between address spaces: as much as each wants, and where that
//! is too much, equally.

/// Pages that an address space has at least.
const LEAST: u32 = 64;

/// Room for each, given what is resident of it.
pub fn divide(room: u32, resident: &[u32]) -> Vec<u32> {
    let mut shares = vec![0; resident.len()];
    // Room to grow, so that a growing one is noticed.
    let wanted = |at: usize| resident[at] + (resident[at] / 4).max(4 * LEAST);
    let mut order: Vec<usize> = (0..resident.len()).collect();
    order.sort_by_key(|at| wanted(*at));
    let mut left = room;
    for (done, at) in order.iter().enumerate() {
        let equal = left / (resident.len() - done) as u32;
        shares[*at] = wanted(*at).min(equal);
        left -= shares[*at];
    }
    if let Some(largest) = order.last() {
        shares[*largest] += left;
    }
    shares.iter().map(|share| (*share).max(LEAST)).collect()
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
