//! Bytes per second that a region takes: `region_speed`. Values of several lengths at places far apart, as a
//! data process adds them (`xor`) and a parity process (`add_scaled`, row 1 of a code of 3 + 2).

use std::{hint::black_box, time::Instant};

use cenote_codec::Code;
use cenote_kv::memory::region::Region;

/// More than caches hold.
const REGION_BYTES: u64 = 256 << 20;

fn main() {
    let code = Code::new(3, 2).expect("a code");
    let region = Region::new(REGION_BYTES);
    let ones = vec![1; 1 << 20];
    for address in (0..REGION_BYTES).step_by(ones.len()) {
        region.write(address, &ones);
    }
    for value_bytes in [64, 256, 1024, 4096, 16384, 65536] {
        let delta = vec![0x5a; value_bytes];
        let count = (1 << 28) / value_bytes as u64;
        let address = |number: u64| {
            let units = (REGION_BYTES - value_bytes as u64) / 16;
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15) % units * 16
        };
        let time = |what: &str, call: &dyn Fn(u64)| {
            let begun = Instant::now();
            (0..count).for_each(|number| call(address(number)));
            let seconds = begun.elapsed().as_secs_f64();
            let gb = (count * value_bytes as u64) as f64 / seconds / 1e9;
            println!(
                "{value_bytes:6} B  {what:<10} {gb:6.2} GB/s  {:7.0} ns each",
                seconds * 1e9 / count as f64
            );
        };
        time("xor", &|address| region.xor(address, black_box(&delta)));
        time("add_scaled", &|address| {
            region.add_scaled(&code, 1, 2, address, black_box(&delta))
        });
        time("with_parts", &|address| {
            region.with_parts(address, value_bytes, |parts| {
                let sum = |part: &&[u8]| part.iter().map(|byte| u64::from(*byte)).sum::<u64>();
                black_box(parts.iter().map(sum).sum::<u64>());
            });
        });
    }
}
