//! The keys of a test and its values, each of which stands for a number.

use std::collections::BTreeMap;

use cenote_cache::log::Secret;
use siphasher::sip::SipHasher13;

/// Keys of a test. Half of them share bucket and tag with another.
pub const KEYS: usize = 16;
pub const SECRET: Secret = Secret {
    hash_key: *b"not very secret.",
    store: 77,
};

/// Keys chosen for their hashes, of several lengths.
pub fn keys() -> Vec<Vec<u8>> {
    let mut places = BTreeMap::<u64, Vec<Vec<u8>>>::new();
    for number in 0..3000 {
        let width = 3 + number % 9;
        let key = format!("{number:0width$}").into_bytes();
        let hash = SipHasher13::new_with_key(&SECRET.hash_key).hash(&key);
        places.entry(hash >> 50).or_default().push(key);
    }
    let (pairs, single): (Vec<_>, Vec<_>) = places.into_values().partition(|keys| keys.len() > 1);
    let pairs = pairs.into_iter().flat_map(|keys| keys.into_iter().take(2));
    let pairs: Vec<_> = pairs.take(KEYS / 2).collect();
    let single = single.into_iter().flatten().take(KEYS / 2);
    pairs.into_iter().chain(single).collect()
}

pub fn value_of(number: u64) -> Vec<u8> {
    let mut value = number.to_le_bytes().to_vec();
    value.resize(8 + (number % 37) as usize, number as u8);
    value
}

pub fn number_of(value: &[u8]) -> Result<u64, String> {
    let number = value.get(..8).ok_or("a value of fewer than 8 bytes")?;
    let number = u64::from_le_bytes(number.try_into().unwrap());
    if value == value_of(number) {
        Ok(number)
    } else {
        Err(format!("a value that was never written: {value:?}"))
    }
}

pub fn add(old: Option<&[u8]>, operand: &[u8], new: &mut Vec<u8>) {
    // Bytes of a mistake that was injected may be no value.
    let old = old.and_then(|value| value.get(..8));
    let old = old.map_or(0, |old| u64::from_le_bytes(old.try_into().unwrap()));
    let operand = u64::from_le_bytes(operand.try_into().unwrap());
    new.extend(value_of(old.wrapping_add(operand)));
}
