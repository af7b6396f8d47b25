//! Memory of hosts that goes wrong: bytes are changed where they lie, behind everybody's back.
//!
//! A slab is a memfd. Whoever may open a process's descriptors can write to it, and the hosts of a
//! test are threads of its own process. Bytes are found by what they are: a test's pages are random.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};

use cenote_codec::Code;
use cenote_volume::Scheme;

/// Most bytes of a split that are looked for.
const LOOKED_FOR: usize = 64;

/// The splits of a page: data, then parities or copies.
pub fn splits_of(page: &[u8], scheme: Scheme) -> Vec<Vec<u8>> {
    let (k, r) = (scheme.k(), scheme.r());
    if k == 1 {
        return vec![page.to_vec(); 1 + r];
    }
    let mut parities = vec![0; r * scheme.split_bytes()];
    Code::new(k, r).unwrap().encode(page, &mut parities);
    let all = page.chunks(scheme.split_bytes());
    all.chain(parities.chunks(scheme.split_bytes()))
        .map(<[u8]>::to_vec)
        .collect()
}

/// Turns bytes of a split over in the memory of this process's hosts; where it lies more than once,
/// in the `nth` place. Panics if it is not there.
pub fn rot(split: &[u8], nth: usize) {
    let mut places = places_of(split);
    assert!(places.len() > nth, "{} places of a split", places.len());
    let (file, offset) = places.swap_remove(nth);
    let wrong: Vec<u8> = split[..LOOKED_FOR].iter().map(|byte| byte ^ 0x5a).collect();
    file.write_all_at(&wrong, offset).unwrap();
}

/// Whether some host of this process holds the split as it should be.
pub fn holds(split: &[u8]) -> bool {
    !places_of(split).is_empty()
}

/// Where a split lies, each place once and in a fixed order.
fn places_of(split: &[u8]) -> Vec<(File, u64)> {
    let place = |(file, bytes): (File, Vec<u8>)| {
        let index = bytes
            .chunks(split.len())
            .position(|chunk| chunk.starts_with(&split[..LOOKED_FOR]))?;
        Some((file, (index * split.len()) as u64))
    };
    memories().into_values().filter_map(place).collect()
}

/// Slabs of this process that hold something in their first page, each with all that it holds, in
/// a fixed order. For test files whose tests run one after the other.
pub fn slabs() -> Vec<(File, Vec<u8>)> {
    let holds = |(_, bytes): &(File, Vec<u8>)| bytes.iter().take(4096).any(|&byte| byte != 0);
    memories().into_values().filter(holds).collect()
}

/// The memory of this process's hosts, by inode: each slab once, with its bytes.
fn memories() -> BTreeMap<u64, (File, Vec<u8>)> {
    let mut memories = BTreeMap::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let is_slab = std::fs::read_link(entry.path())
            .is_ok_and(|target| target.to_string_lossy().contains("memfd:"));
        // Other tests of this process close theirs at any time.
        let opened = OpenOptions::new().read(true).write(true).open(entry.path());
        let Some(file) = opened.ok().filter(|_| is_slab) else {
            continue;
        };
        let metadata = file.metadata().unwrap();
        let mut bytes = vec![0; usize::try_from(metadata.len()).unwrap()];
        if file.read_exact_at(&mut bytes, 0).is_ok() {
            memories.entry(metadata.ino()).or_insert((file, bytes));
        }
    }
    memories
}

/// Turns the first bytes of a slab over.
pub fn rot_first((file, bytes): &(File, Vec<u8>)) {
    let wrong: Vec<u8> = bytes[..LOOKED_FOR].iter().map(|byte| byte ^ 0x5a).collect();
    file.write_all_at(&wrong, 0).unwrap();
}

/// Makes a slab what it was.
pub fn replay((file, bytes): &(File, Vec<u8>)) {
    file.write_all_at(bytes, 0).unwrap();
}
