//! How often a batch of evicted slabs spares every busy one.
//!
//! The formula of figure 8 beside the evictor of `cenote_pool`, which hosts call: it draws E + E'
//! of the slabs of a host, is told their activities, and gives up the E least active. Each slab is
//! busy with probability p on its own; a batch succeeds when no victim is busy.
//!
//! Paper: \[infiniswap17\] 4.4, figure 8.

/// The paper's formula: at least E of E + E' slabs are idle, each busy with probability `busy`.
///
/// Sums in logarithms, so that large batches neither overflow nor vanish.
#[must_use]
pub fn analytic(evict: u32, extra: u32, busy: f64) -> f64 {
    let asked = evict + extra;
    let (idle_ln, busy_ln) = ((1.0 - busy).ln(), busy.ln());
    let mut choose_ln = 0.0_f64;
    let mut sum = 0.0_f64;
    // From all idle (i = asked) down to E of them; C(n, n) = 1, C(n, i-1) = C(n, i) i / (n-i+1).
    for idle in (evict..=asked).rev() {
        let busy_count = asked - idle;
        let of_busy = if busy_count == 0 {
            0.0
        } else {
            f64::from(busy_count) * busy_ln
        };
        let of_idle = if idle == 0 {
            0.0
        } else {
            f64::from(idle) * idle_ln
        };
        sum += (choose_ln + of_idle + of_busy).exp();
        if idle > 0 {
            choose_ln += (f64::from(idle) / f64::from(busy_count + 1)).ln();
        }
    }
    sum.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Figure 8 for E = 10: p, then E' = 0, 1, 2, 3, 5 and 10; digits as they were read off.
    const FIGURE_8: [(f64, [&str; 6]); 7] = [
        (0.05, ["0.599", "0.898", "0.980", "0.997", "1.000", "1.000"]),
        (0.10, ["0.349", "0.697", "0.889", "0.966", "0.998", "1.000"]),
        (0.20, ["0.107", "0.322", "0.558", "0.747", "0.939", "0.999"]),
        (0.30, ["0.028", "0.113", "0.253", "0.421", "0.722", "0.983"]),
        (0.40, ["0.006", "0.030", "0.083", "0.169", "0.403", "0.872"]),
        (0.50, ["0.001", "0.006", "0.019", "0.046", "0.151", "0.588"]),
        (
            0.60,
            ["0.0001", "0.0007", "0.0028", "0.0078", "0.034", "0.245"],
        ),
    ];

    #[test]
    fn the_formula_gives_figure_8_to_its_digits() {
        for (busy, row) in FIGURE_8 {
            for (extra, text) in [0, 1, 2, 3, 5, 10].into_iter().zip(row) {
                let digits = text.len() - 2;
                let found = analytic(10, extra, busy);
                assert_eq!(format!("{found:.digits$}"), text, "p {busy}, E' {extra}");
            }
        }
    }

    #[test]
    fn the_edges_are_certain() {
        for extra in [0, 1, 10] {
            assert!((analytic(10, extra, 0.0) - 1.0).abs() < 1e-12);
            assert!(analytic(10, extra, 1.0) < 1e-300);
            assert!((analytic(0, extra, 0.3) - 1.0).abs() < 1e-12);
        }
    }

    proptest! {
        /// Small enough to try every pattern of busy slabs.
        #[test]
        fn the_formula_is_the_sum_over_all_patterns(
            evict in 0_u32..6,
            extra in 0_u32..6,
            busy in 0.0_f64..1.0,
        ) {
            let asked = evict + extra;
            let patterns = 0_u32..1 << asked;
            let likely = patterns
                .filter(|pattern| asked - pattern.count_ones() >= evict)
                .map(|pattern| {
                    let busy_count = pattern.count_ones();
                    busy.powi(busy_count.cast_signed())
                        * (1.0 - busy).powi((asked - busy_count).cast_signed())
                })
                .sum::<f64>();
            prop_assert!((analytic(evict, extra, busy) - likely).abs() < 1e-9);
        }

        #[test]
        fn asking_more_or_being_less_busy_never_hurts(
            evict in 1_u32..40,
            extra in 0_u32..40,
            busy in 0.01_f64..0.99,
        ) {
            let here = analytic(evict, extra, busy);
            prop_assert!(analytic(evict, extra + 1, busy) >= here - 1e-9);
            prop_assert!(analytic(evict, extra, busy * 0.9) >= here - 1e-9);
            prop_assert!((0.0..=1.0).contains(&here));
        }
    }
}
