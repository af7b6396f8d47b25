//! How long checksums of a page take, beside each other: `cargo run --release -p cenote-codec --example
//! checksum_speed`.
//!
//! The sums take turns on the same pages, once on a few that stay in the caches and once on more than any
//! cache holds; medians over rounds.

use std::hint::black_box;
use std::time::Instant;

const PAGE: usize = 4096;
const ROUNDS: usize = 31;
/// Pages per round.
const BATCH: usize = 4096;

type Sum = fn(&[u8]) -> u64;

const SUMS: [(&str, Sum); 3] = [
    ("CRC-64/NVME", cenote_codec::crc64),
    ("CRC-32C", |bytes| cenote_codec::crc32c(bytes).into()),
    ("XXH3-64", cenote_codec::xxh3),
];

fn main() {
    for (name, pages) in [("warm", 4), ("cold", 1 << 16)] {
        let bytes: Vec<u8> = (0..pages * PAGE).map(|at| ((at * 31) >> 3) as u8).collect();
        let mut times = vec![Vec::new(); SUMS.len()];
        let mut next = 0;
        for _ in 0..ROUNDS {
            for ((_, sum), times) in SUMS.iter().zip(&mut times) {
                let began = Instant::now();
                for _ in 0..BATCH {
                    // Far apart, so that no prefetcher knows the next.
                    next = (next + 40_503) % pages;
                    black_box(sum(black_box(&bytes[next * PAGE..][..PAGE])));
                }
                times.push(began.elapsed().as_nanos() as f64 / BATCH as f64);
            }
        }
        for ((sum, _), times) in SUMS.iter().zip(&mut times) {
            times.sort_by(f64::total_cmp);
            let (low, high) = (times[0], times[ROUNDS - 1]);
            println!(
                "{name} {sum}: {:.0} ns ({low:.0} - {high:.0})",
                times[ROUNDS / 2]
            );
        }
    }
}
