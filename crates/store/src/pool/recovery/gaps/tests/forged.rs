//! Values of clients who know all that clients can read, and make headers of it.

use std::sync::Arc;

use super::super::super::tests::Shared;
use super::*;
use crate::format::{
    FLAG_AT, HEADER_BYTES, Header, Kind, NOTED_BYTES, Notes, Secret, checksum, flag,
};
use crate::pool::hash;

const SECRET: Secret = Secret::new([3; 16]);
const OTHER: Secret = Secret::new([4; 16]);
/// Bytes of a forged object: its key has up to 8, and its value none.
const FORGED_BYTES: u64 = 80;
const EVIL: &[u8] = b"evil";

fn reopened(medium: ModelMedium, secret: Option<Secret>) -> (Pool<ModelMedium>, Recovered) {
    Pool::open_with(medium, secret).unwrap()
}

/// An empty pool that was opened with a secret, or not.
fn opened(secret: Option<Secret>) -> Pool<ModelMedium> {
    let config = PoolConfig {
        entry_count: 16,
        ..CONFIG
    };
    let pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), config).unwrap();
    reopened(left(pool, true), secret).0
}

/// A value that has durable objects of these keys in it, if its own begins at `value_at`.
fn forgery(
    pool: &Pool<ModelMedium>,
    value_at: u64,
    epoch: u64,
    incarnation: u32,
    keys: &[Vec<u8>],
) -> Vec<u8> {
    let first = value_at.next_multiple_of(GRAIN_BYTES);
    let mut value = vec![0; (first - value_at) as usize];
    for (place, key) in (first..).step_by(FORGED_BYTES as usize).zip(keys) {
        let header = Header {
            kind: Kind::Value,
            key_bytes: key.len() as u16,
            value_bytes: 0,
            checksum: checksum(&[key]),
            sequence: pool.next_sequence + 1000,
            previous_at: 0,
            hash: hash(CONFIG.seed, key),
            incarnation,
        };
        let mut bytes = header.encode(place, epoch, key);
        // Nothing is known of the secret: the sum of a header beside it is as good as any.
        Notes::default().write(&mut bytes, place, epoch, place);
        let mut object = vec![0; FORGED_BYTES as usize];
        object[..NOTED_BYTES].copy_from_slice(&bytes);
        object[FLAG_AT as usize..][..8]
            .copy_from_slice(&flag(header.sequence, epoch).to_le_bytes());
        object[HEADER_BYTES as usize..][..key.len()].copy_from_slice(key);
        value.extend(object);
    }
    value
}

/// What is left of a pool with a victim's objects and a value of forged ones, whose own header was
/// damaged.
fn attacked(secret: Option<Secret>, keys: &[Vec<u8>]) -> ModelMedium {
    let mut pool = opened(secret);
    pool.put_durable(b"victim", b"value", ALWAYS).unwrap();
    let at = pool.tail;
    let value_at = at + HEADER_BYTES + 8;
    let (epoch, incarnation) = (pool.space.epoch, pool.space.incarnation);
    let value = forgery(&pool, value_at, epoch, incarnation, keys);
    let put = pool.put_durable(EVIL, &value, ALWAYS).unwrap();
    assert_eq!((put.at, put.value_at), (at, value_at));
    pool.put_durable(b"behind", b"value", ALWAYS).unwrap();
    let medium = left(pool, false);
    damage(&medium, at..at + 1, |byte| byte ^ 1);
    medium
}

fn values(pool: &mut Pool<ModelMedium>, keys: &[&[u8]]) -> Vec<Option<Vec<u8>>> {
    let value = |key: &&[u8]| pool.get(key).unwrap().map(|version| version.value);
    keys.iter().map(value).collect()
}

#[test]
fn bytes_of_a_value_behind_a_damaged_header_hide_no_object_and_fill_no_index() {
    let forged: [(&str, Vec<Vec<u8>>); 2] = [
        ("a newer version", vec![b"victim".to_vec()]),
        (
            "more keys than places",
            (0..16).map(|one| vec![one]).collect(),
        ),
    ];
    for (name, keys) in forged {
        let (mut pool, found) = reopened(attacked(Some(SECRET), &keys), Some(SECRET));
        assert_eq!((found.lost, found.versions), (1, 2), "{name}: {found:?}");
        let there = values(&mut pool, &[b"victim", b"behind", EVIL]);
        let value = Some(b"value".to_vec());
        assert_eq!(there, [value.clone(), value, None], "{name}");
        // So that the test tests something: without a secret they are taken for headers.
        match Pool::open(attacked(None, &keys)) {
            Ok((mut pool, _)) => assert_eq!(values(&mut pool, &[b"victim"]), [Some(vec![])]),
            Err(error) => assert!(error.to_string().contains("fewer than the log has keys")),
        }
    }
}

/// Nothing has to be damaged for this: behind the log's end is what was there before.
#[test]
fn bytes_of_a_value_of_an_earlier_use_of_the_half_are_no_headers() {
    for secret in [Some(SECRET), None] {
        let mut pool = opened(secret);
        let value_at = pool.tail + HEADER_BYTES + 8;
        let keys = vec![b"victim".to_vec(); 200];
        let (epoch, incarnation) = (pool.space.epoch + 2, pool.space.incarnation);
        let value = forgery(&pool, value_at, epoch, incarnation, &keys);
        pool.put_durable(EVIL, &value, ALWAYS).unwrap();
        pool.delete(EVIL, ALWAYS).unwrap();
        pool.put_durable(b"victim", b"value", ALWAYS).unwrap();
        for _ in 0..2 {
            while pool.clean(64).unwrap() != Cleaned::Done {}
        }
        assert_eq!((pool.space.active, pool.space.epoch), (0, epoch));
        let (mut pool, found) = reopened(left(pool, false), secret);
        let there = values(&mut pool, &[b"victim"]);
        match secret {
            Some(_) => {
                assert_eq!(
                    (found.versions, found.torn, found.lost),
                    (1, 0, 0),
                    "{found:?}"
                );
                assert_eq!(there, [Some(b"value".to_vec())]);
            }
            None => assert_eq!(there, [Some(vec![])], "{found:?}"),
        }
    }
}

/// As by an earlier version of the program, by one that lost the secret, and back.
#[test]
fn objects_stay_whoever_opens_a_pool_with_or_without_a_secret() {
    let who = [None, Some(SECRET), Some(OTHER)];
    for round in 0..27 {
        for (unit, is_closed) in [(8, false), (512, true), (512, false)] {
            let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, unit), CONFIG).unwrap();
            for life in 0..6_u8 {
                // All sequences of three, and then again.
                let secret = who[round / 3_usize.pow(u32::from(life % 3)) % 3];
                let (next, found) = reopened(left(pool, is_closed), secret);
                pool = next;
                let told = format!("round {round}, life {life}: {found:?}");
                assert_eq!((found.lost, found.torn), (0, 0), "{told}");
                for earlier in 0..life {
                    assert!(pool.get(&[earlier]).unwrap().is_some(), "{told}");
                }
                pool.put_durable(&[life], b"value", ALWAYS).unwrap();
                if life == 3 && round % 2 == 0 {
                    while pool.clean(64).unwrap() != Cleaned::Done {}
                }
            }
        }
    }
}

/// Where headers are keyed from is durable before the record that says that they are: else what an
/// opening with the secret said before would count for what one without it wrote since.
#[test]
fn a_crash_while_a_pool_is_opened_with_its_secret_again_loses_nothing() {
    let mut random = 7_u64;
    for unit in UNITS {
        for boundary in 0.. {
            let (pool, _) = filled(unit);
            let (mut pool, _) = reopened(left(pool, false), Some(SECRET));
            pool.put_durable(b"keyed", b"value", ALWAYS).unwrap();
            let (mut pool, _) = reopened(left(pool, false), None);
            pool.put_durable(b"not keyed", b"value", ALWAYS).unwrap();
            let medium = Arc::new(left(pool, false));
            medium.crash_at(Some(boundary));
            let opened = Pool::open_with(Shared(Arc::clone(&medium)), Some(SECRET));
            for _ in 0..20 {
                let crashed = medium.crashed(|| {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    random >> 63 == 0
                });
                let (mut pool, found) = reopened(crashed, Some(SECRET));
                let told = format!("cut at {boundary}: {found:?}");
                assert_eq!((found.lost, found.torn), (0, 0), "{told}");
                assert_eq!(present(&mut pool), all_but(&[]), "{told}");
                let both = values(&mut pool, &[b"keyed", b"not keyed"]);
                assert!(both.iter().all(Option::is_some), "{told}");
            }
            if opened.is_ok() {
                break;
            }
        }
    }
}

/// Its note is in another sector than its beginning.
#[test]
fn a_keyed_header_without_its_note_is_none() {
    let mut pool = opened(Some(SECRET));
    let first = pool.put_durable(b"first", b"value", ALWAYS).unwrap().at;
    pool.put_durable(b"second", b"value", ALWAYS).unwrap();
    let medium = left(pool, false);
    damage(&medium, first + 48..first + 56, |_| 0);
    let (mut pool, found) = reopened(medium, Some(SECRET));
    assert_eq!((found.lost, found.versions), (1, 1), "{found:?}");
    assert_eq!(values(&mut pool, &[b"first"]), [None]);
}
