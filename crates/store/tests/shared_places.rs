//! Keys that their client chose so that all have one place of the index.

use cenote_store::{Cleaned, Condition, ModelMedium, Pool, PoolConfig};
use twox_hash::XxHash3_64;

const CONFIG: PoolConfig = PoolConfig {
    entry_count: 1024,
    seed: 42,
};
/// The place that the keys have, near the end: what finds none there goes on from the beginning.
const PLACE: u64 = 1000;
/// Places from there on that a key's entry may be at.
const WALK_MAX: u64 = 128;

type Model = Pool<ModelMedium>;

fn keys_of_one_place(count: usize) -> Vec<Vec<u8>> {
    let all = (0_u64..).map(|number| number.to_string().into_bytes());
    let is_at_place = |key: &Vec<u8>| {
        let hash = XxHash3_64::oneshot_with_seed(CONFIG.seed, key);
        hash % CONFIG.entry_count == PLACE
    };
    all.filter(is_at_place).take(count).collect()
}

/// How far from the place the index that clients read has entries.
fn farthest(pool: &Model) -> u64 {
    let hash_at = |slot: u64| pool.index_memory().load(64 + 16 * slot).unwrap();
    let used = (0..CONFIG.entry_count).filter(|slot| hash_at(*slot) != 0);
    let distances = used.map(|slot| slot.wrapping_sub(PLACE) % CONFIG.entry_count);
    distances.max().unwrap_or(0)
}

fn check(pool: &mut Model, there: &[Vec<u8>], gone: &[Vec<u8>]) {
    let farthest = farthest(pool);
    assert!(
        farthest < WALK_MAX,
        "who opens this pool looks at {farthest} places for each of its keys"
    );
    for key in there {
        let version = pool.get(key).unwrap().expect("it was put");
        assert_eq!(&version.value, key);
    }
    for key in gone {
        assert_eq!(pool.get(key).unwrap(), None);
    }
    let mut listed: Vec<_> = pool.keys(b"").collect();
    listed.sort_unstable();
    let mut expected = there.to_vec();
    expected.sort_unstable();
    assert_eq!(listed, expected);
}

/// Else opening it would take the square of their number.
#[test]
fn a_pool_whose_keys_share_a_place_is_opened_in_time_that_grows_with_their_number() {
    let mut pool = Pool::create(ModelMedium::new(1 << 20, 512), CONFIG).unwrap();
    let keys = keys_of_one_place(500);
    for key in &keys {
        pool.put_durable(key, key, Condition::Always).unwrap();
    }
    check(&mut pool, &keys, &[]);
    let (mut pool, recovered) = Pool::open(pool.medium().crashed(|| true)).unwrap();
    assert_eq!(recovered.objects, keys.len() as u64);
    check(&mut pool, &keys, &[]);

    // Of those near their place some go, and of the others.
    let (mut gone, mut there) = (Vec::new(), Vec::new());
    for (number, some) in keys.chunks(50).enumerate() {
        let part = if number % 2 == 0 {
            &mut gone
        } else {
            &mut there
        };
        part.extend_from_slice(some);
    }
    for key in &gone {
        pool.delete(key, Condition::Always).unwrap();
    }
    check(&mut pool, &there, &gone);
    while pool.clean(16).unwrap() != Cleaned::Done {}
    check(&mut pool, &there, &gone);
    for key in &gone {
        pool.put_durable(key, key, Condition::Absent).unwrap();
    }
    check(&mut pool, &keys, &[]);
    let (mut pool, _) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    check(&mut pool, &keys, &[]);
}
