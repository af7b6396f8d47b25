//! How fast codes are on one core: `code_speed [K+R]...`, of itself 4+1, 3+2 and 2+3 (Cocytus, Table 1).
//!
//! Blocks of K splits of 4 KiB, 16 MiB of data in all. Encoding makes R parities, decoding as many lost data
//! splits as the code bears, at most K. Printed are GB of data each second, the median of rounds in turn, and
//! memcpy of the same data beside it.

use std::env;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use cenote_codec::Code;

const SPLIT_BYTES: usize = 4096;
const DATA_BYTES: usize = 16 << 20;
const ROUNDS: usize = 41;

fn main() -> Result<(), Box<dyn Error>> {
    let mut codes: Vec<String> = env::args().skip(1).collect();
    if codes.is_empty() {
        codes.extend(["4+1", "3+2", "2+3"].map(str::to_owned));
    }
    for code in &codes {
        let (k, r) = code.split_once('+').ok_or("write a code as K+R")?;
        measure(Code::new(k.parse()?, r.parse()?)?)?;
    }
    Ok(())
}

fn measure(code: Code) -> Result<(), Box<dyn Error>> {
    let (k, r) = (code.k(), code.r());
    let block = k * SPLIT_BYTES;
    let blocks = DATA_BYTES / block;
    let mut state = 1_u64;
    let mut noise = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    let original: Vec<u8> = (0..blocks * block).map(|_| noise()).collect();
    let mut data = original.clone();
    let mut copy = vec![0; data.len()];
    let mut parity = vec![0; blocks * r * SPLIT_BYTES];
    let lost = r.min(k);
    let present = (u64::MAX >> (64 - k - r)) & (u64::MAX << lost);
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        for (data, parity) in data.chunks(block).zip(parity.chunks_mut(r * SPLIT_BYTES)) {
            code.encode(data, parity);
        }
        rates[0].push(data.len() as f64 / begun.elapsed().as_secs_f64() / 1e9);
        for data in data.chunks_mut(block) {
            data[..lost * SPLIT_BYTES].fill(0);
        }
        let begun = Instant::now();
        for (data, parity) in data.chunks_mut(block).zip(parity.chunks(r * SPLIT_BYTES)) {
            code.reconstruct(present, data, parity)?;
        }
        rates[1].push(data.len() as f64 / begun.elapsed().as_secs_f64() / 1e9);
        assert!(data == original, "decoding gives what was encoded");
        let begun = Instant::now();
        copy.copy_from_slice(black_box(&data));
        rates[2].push(data.len() as f64 / begun.elapsed().as_secs_f64() / 1e9);
        black_box(&mut copy);
    }
    let [encode, decode, memcpy] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!(
        "{k}+{r}: encode {encode:.2} GB/s, decode {lost} lost {decode:.2} GB/s, memcpy {memcpy:.2} GB/s"
    );
    Ok(())
}
