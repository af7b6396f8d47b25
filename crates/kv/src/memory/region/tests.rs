use std::thread;

use proptest::prelude::*;

use super::*;

/// Two chunks and a short one.
const BYTES: u64 = 2 * CHUNK_BYTES + 4096;

#[derive(Clone, Debug)]
enum Step {
    Write(u64, Vec<u8>),
    Xor(u64, Vec<u8>),
    Add(usize, u64, Vec<u8>),
    Release(u64, u64),
}

/// Addresses near the ends of chunks, so that ranges span them.
fn addresses() -> impl Strategy<Value = u64> {
    let near = prop_oneof![Just(200), Just(CHUNK_BYTES), Just(2 * CHUNK_BYTES)];
    (near, 0_u64..400).prop_map(|(near, by)| near + by - 200)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => prop::collection::vec(any::<u8>(), 0..300),
        1 => (0_usize..300).prop_map(|length| vec![0; length]),
    ]
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (addresses(), bytes()).prop_map(|(at, bytes)| Step::Write(at, bytes)),
        3 => (addresses(), bytes()).prop_map(|(at, bytes)| Step::Xor(at, bytes)),
        3 => (0_usize..3, addresses(), bytes()).prop_map(|(split, at, bytes)| Step::Add(split, at, bytes)),
        1 => (addresses(), 0..=CHUNK_BYTES + 300).prop_map(|(at, length)| Step::Release(at, length)),
    ]
}

fn at(address: u64) -> usize {
    usize::try_from(address).unwrap()
}

fn joined(region: &Region, address: u64, bytes: usize) -> Vec<u8> {
    region.with_parts(address, bytes, |parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_vector_of_bytes(steps in prop::collection::vec(steps(), 1..24)) {
        let code = Code::new(3, 2).unwrap();
        let region = Region::new(BYTES);
        let mut model = vec![0_u8; at(BYTES)];
        for step in steps {
            match step {
                Step::Write(address, bytes) => {
                    region.write(address, &bytes);
                    model[at(address)..][..bytes.len()].copy_from_slice(&bytes);
                }
                Step::Xor(address, delta) => {
                    region.xor(address, &delta);
                    let old = &mut model[at(address)..][..delta.len()];
                    old.iter_mut().zip(&delta).for_each(|(old, delta)| *old ^= delta);
                }
                Step::Add(split, address, delta) => {
                    region.add_scaled(&code, 1, split, address, &delta);
                    code.update(1, split, &delta, &mut model[at(address)..][..delta.len()]);
                }
                Step::Release(address, bytes) => {
                    let bytes = bytes.min(BYTES - address);
                    region.release(address, bytes);
                    model[at(address)..][..at(bytes)].fill(0);
                }
            }
        }
        prop_assert!(joined(&region, 0, at(BYTES)) == model, "parts differ");
        let mut copy = vec![0xff; 700];
        for near in [0, CHUNK_BYTES - 350, 2 * CHUNK_BYTES - 350] {
            region.copy_out(near, &mut copy);
            prop_assert!(copy == model[at(near)..][..700], "copies differ at {}", near);
        }
    }
}

#[test]
fn takes_memory_where_touched_and_gives_it_back() {
    let region = Region::new(64 << 30);
    assert_eq!(region.touched_bytes(), 0);
    region.xor(5 * CHUNK_BYTES - 1, &[0, 0]);
    assert_eq!(region.touched_bytes(), 0, "zeros were kept");
    region.xor(5 * CHUNK_BYTES - 1, &[0, 7]);
    assert_eq!(region.touched_bytes(), CHUNK_BYTES);
    assert!(!region.is_touched(5 * CHUNK_BYTES - 1, 1));
    assert!(region.is_touched(5 * CHUNK_BYTES - 1, 2));
    region.write((64 << 30) - 3, &[1, 2, 3]);
    assert_eq!(region.touched_bytes(), 2 * CHUNK_BYTES);
    assert_eq!(joined(&region, 5 * CHUNK_BYTES - 1, 3), [0, 7, 0]);

    region.release(5 * CHUNK_BYTES + 1, CHUNK_BYTES);
    assert_eq!(
        region.touched_bytes(),
        2 * CHUNK_BYTES,
        "a part of a chunk is not given back"
    );
    region.release(5 * CHUNK_BYTES, CHUNK_BYTES);
    assert_eq!(region.touched_bytes(), CHUNK_BYTES);
    assert_eq!(joined(&region, 5 * CHUNK_BYTES, 1), [0]);
    region.release(0, 64 << 30);
    assert_eq!(region.touched_bytes(), 0);
    assert_eq!(joined(&region, (64 << 30) - 3, 3), [0, 0, 0]);
}

#[test]
fn the_last_chunk_of_an_odd_region_is_given_back() {
    let region = Region::new(CHUNK_BYTES + 10);
    region.write(CHUNK_BYTES, &[1; 10]);
    region.release(CHUNK_BYTES, 10);
    assert_eq!(region.touched_bytes(), 0);
}

#[test]
fn threads_that_feed_one_parity_leave_the_sum() {
    let code = Code::new(4, 2).unwrap();
    let region = Region::new(BYTES);
    // Each split's deltas overlap those of the others, and the ends of a chunk.
    let delta = |split: usize, step: usize| -> (u64, Vec<u8>) {
        let address = CHUNK_BYTES - 1000 + (step * 37) as u64;
        let bytes = (0..500).map(|byte| (byte * 7 + split * 31 + step) as u8);
        (address, bytes.collect())
    };
    thread::scope(|scope| {
        for split in 0..4 {
            let (region, code) = (&region, &code);
            scope.spawn(move || {
                for step in 0..50 {
                    let (address, bytes) = delta(split, step);
                    region.add_scaled(code, 1, split, address, &bytes);
                }
            });
        }
    });

    let mut data = vec![0_u8; 4 * at(BYTES)];
    for split in 0..4 {
        for step in 0..50 {
            let (address, bytes) = delta(split, step);
            let old = &mut data[split * at(BYTES) + at(address)..][..bytes.len()];
            old.iter_mut()
                .zip(&bytes)
                .for_each(|(old, delta)| *old ^= delta);
        }
    }
    let mut parities = vec![0; 2 * at(BYTES)];
    code.encode(&data, &mut parities);
    assert!(joined(&region, 0, at(BYTES)) == parities[at(BYTES)..]);
}

#[test]
#[should_panic(expected = "a range of the region")]
fn a_range_that_passes_the_end_is_refused() {
    Region::new(CHUNK_BYTES + 10).write(CHUNK_BYTES + 5, &[1; 6]);
}
