//! Which kernel codes pages here: where a CPU has both Galois-field kernels, the faster by a short
//! measurement when the first code is made.
//!
//! 64-byte vectors are not always the faster ones: hot pages take both kernels as long, and a CPU may
//! slow down for the wide ones. Every kernel writes the same bytes, so nothing but time depends on
//! what is measured, and a machine that is busy meanwhile does no harm.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::code::Code;
use crate::kernel::Kernel;

/// The fastest kernel that this CPU can run. The first call may measure, for some milliseconds.
pub(crate) fn best() -> Kernel {
    static BEST: OnceLock<Kernel> = OnceLock::new();
    *BEST.get_or_init(|| {
        let wide = [Kernel::Gfni256, Kernel::Gfni512];
        if wide.into_iter().all(Kernel::is_supported) {
            return faster(wide, ROUNDS, Pages::new().timer());
        }
        let first = Kernel::ALL.into_iter().find(|kernel| kernel.is_supported());
        first.expect("the portable kernel runs anywhere")
    })
}

/// Shape of what is measured: a page of 4 KiB with two parities.
const K: usize = 8;
const R: usize = 2;
const SPLIT_BYTES: usize = 512;
/// 2 MiB with parities: beyond most second-level caches, where some of the work is waiting.
const PAGES: usize = 400;
const ROUNDS: usize = 4;

/// Of two kernels the one whose fastest round is the faster, by a twentieth at least; else the first.
fn faster(
    [first, second]: [Kernel; 2],
    rounds: usize,
    mut time: impl FnMut(Kernel) -> Duration,
) -> Kernel {
    let mut least = [Duration::MAX; 2];
    for _ in 0..rounds {
        least[0] = least[0].min(time(first));
        least[1] = least[1].min(time(second));
    }
    if least[1] + least[1] / 20 < least[0] {
        second
    } else {
        first
    }
}

/// Pages to code, with their parities.
struct Pages(Vec<u8>);

impl Pages {
    fn new() -> Self {
        Self(vec![1; PAGES * (K + R) * SPLIT_BYTES])
    }

    /// Encodes each page, and decodes it with two splits lost.
    fn timer(mut self) -> impl FnMut(Kernel) -> Duration {
        move |kernel| {
            let code = Code::with_kernel(K, R, kernel).expect("a shape that there is");
            let all = (1 << (K + R)) - 1;
            let begun = Instant::now();
            for page in self.0.chunks_exact_mut((K + R) * SPLIT_BYTES) {
                let (data, parity) = page.split_at_mut(K * SPLIT_BYTES);
                code.encode(data, parity);
                let done = code.reconstruct(all ^ 0b11, data, parity);
                done.expect("K splits are present");
            }
            begun.elapsed()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: [Kernel; 2] = [Kernel::Avx2, Kernel::Portable];

    /// By kernel and round.
    fn chosen(times: [&[u64]; 2]) -> Kernel {
        let mut rounds = [0; 2];
        faster(TWO, times[0].len(), |kernel| {
            let at = TWO.iter().position(|one| *one == kernel).unwrap();
            rounds[at] += 1;
            Duration::from_nanos(times[at][rounds[at] - 1])
        })
    }

    #[test]
    fn the_faster_kernel_is_chosen_and_of_equals_the_first() {
        assert_eq!(chosen([&[1000, 1000], &[1000, 1000]]), TWO[0]);
        assert_eq!(chosen([&[1000, 1000], &[980, 990]]), TWO[0]);
        assert_eq!(chosen([&[1000, 1000], &[2000, 500]]), TWO[1]);
        // A round in which the machine was busy says nothing.
        assert_eq!(chosen([&[9000, 500], &[700, 600]]), TWO[0]);
    }

    #[test]
    fn pages_that_are_measured_stay_as_they_were() {
        let mut time = Pages::new().timer();
        assert!(time(Kernel::Portable) > Duration::ZERO);
        assert!(best().is_supported());
        assert_eq!(best(), best());
    }
}
