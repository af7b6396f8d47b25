//! Doors for the fuzz targets (`fuzz/` at the repository's root): bytes in, a panic where an
//! invariant breaks. No part of the interface; what users get is built without it.

use std::collections::BTreeMap;

use crate::format::{HEAD_BYTES, Header, KEYED_BYTES_MAX, SPACE_BYTES, Secret, checksum};
use crate::medium::{Medium, ModelMedium};
use crate::pool::{Condition, Pool, PoolConfig, StoreError};
use crate::protocol::{Answer, Greeting, Notice, Request};

/// What a server and its clients say to each other: what is read is written so that it is read the
/// same.
pub fn protocol(bytes: &[u8]) {
    let mut again = Vec::new();
    if let Ok(request) = Request::decode(bytes) {
        request.encode(&mut again);
        assert_eq!(Request::decode(&again), Ok(request));
    }
    if let Ok(answer) = Answer::decode(bytes) {
        answer.encode(&mut again);
        assert_eq!(Answer::decode(&again), Ok(answer));
    }
    if let Ok(greeting) = Greeting::decode(bytes) {
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    }
    if let Ok(notice) = Notice::decode(bytes) {
        assert_eq!(Notice::decode(&notice.encode()), Ok(notice));
    }
}

const POOL_BYTES: usize = HEAD_BYTES as usize + 2 * 4096;
const KEYS: [&[u8]; 4] = [b"a", b"key", b"another key", b"gone"];

/// A pool of a few objects to whose bytes something was done. The input is changes of four bytes:
/// what, where (two bytes), and how. A changed pool is refused as it is, or opened: then what it
/// lists can be read, it takes another object, and finds the same when it is opened once more.
pub fn recovery(changes: &[u8]) {
    let medium = ModelMedium::new(POOL_BYTES, 512);
    let config = PoolConfig {
        entry_count: 16,
        seed: 7,
    };
    let mut pool = Pool::create(medium, config).expect("there is room");
    // Four bytes are a change, so that one more has headers keyed.
    let secret = (changes.len() % 2 > 0).then_some(Secret::new([7; 16]));
    if secret.is_some() {
        let medium = pool.close().expect("a model does not fail");
        (pool, _) = Pool::open_with(medium, secret).expect("nothing is damaged");
    }
    for (number, key) in KEYS.iter().enumerate() {
        for version in 0..2 {
            let value = vec![version; number * 40];
            let put = pool.put_durable(key, &value, Condition::Always);
            put.expect("there is room");
        }
    }
    pool.delete(KEYS[3], Condition::Always)
        .expect("there is room");
    let medium = pool.close().expect("a model does not fail");
    for change in changes.chunks_exact(4) {
        let at = usize::from(change[1]) << 8 | usize::from(change[2]);
        damage(&*medium, change[0], at % POOL_BYTES, change[3]);
    }
    // What is there is what survives.
    let told = match Pool::open_with(medium.crashed(|| true), secret) {
        Ok((pool, _)) => used(pool),
        Err(error) => {
            assert!(matches!(error, StoreError::Head(_)), "{error}");
            return;
        }
    };
    let (first, medium) = told;
    let (pool, _) = Pool::open_with(medium, secret).expect("what was opened can be opened again");
    let (second, _) = used(pool);
    assert_eq!(first, second, "it comes back to something else");
}

type Values = BTreeMap<Vec<u8>, Vec<u8>>;

/// What an opened pool says, and what is left when it dies after one more object.
fn used(mut pool: Pool<ModelMedium>) -> (Values, ModelMedium) {
    let keys: Vec<Vec<u8>> = pool.keys(b"").collect();
    let mut values = Values::new();
    for key in keys {
        let version = pool.get(&key).expect("a model does not fail");
        if let Some(version) = version {
            values.insert(key, version.value);
        }
    }
    let left = pool.medium().crashed(|| true);
    match pool.put_durable(b"one more", b"value", Condition::Always) {
        Ok(_) => {
            let found = pool.get(b"one more").expect("a model does not fail");
            assert_eq!(found.expect("it was put").value, b"value");
        }
        Err(error) => assert!(matches!(error, StoreError::Full), "{error}"),
    }
    (values, left)
}

/// Changes a byte, or makes the checksums right of what stands there.
fn damage(medium: &ModelMedium, what: u8, at: usize, how: u8) {
    let mut bytes = [0; KEYED_BYTES_MAX];
    match what % 4 {
        0 | 1 => {
            medium.read(at as u64, &mut bytes[..1]);
            let changed = if what.is_multiple_of(4) {
                bytes[0] ^ how
            } else {
                how
            };
            medium.write(at as u64, &[changed]);
        }
        2 => {
            // Not of the head, which is written once.
            let (at, len) = (512 << (how % 2), SPACE_BYTES - 4);
            medium.read(at, &mut bytes[..len]);
            let sum = checksum(&[&bytes[..len]]);
            medium.write(at + len as u64, &sum.to_le_bytes());
        }
        _ => {
            let at = at / 16 * 16;
            let len = KEYED_BYTES_MAX.min(POOL_BYTES - at);
            medium.read(at as u64, &mut bytes[..len]);
            let Some(header) = Header::peek(&bytes[..len]) else {
                return;
            };
            let key = crate::format::HEADER_BYTES as usize..;
            let Some(key) = bytes[key].get(..usize::from(header.key_bytes)) else {
                return;
            };
            let header = header.encode(at as u64, u64::from(how % 4), key);
            medium.write(at as u64, &header[..header.len().min(POOL_BYTES - at)]);
        }
    }
}
