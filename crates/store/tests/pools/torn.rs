//! What a crash tore, and what is behind it.

use super::*;

/// Versions that were being written when the power went: the disk has the last one alone, so that
/// the log has a hole of `values` in front of it.
fn torn(values: &[Vec<u8>]) -> ModelMedium {
    let mut pool = Pool::create(ModelMedium::new(32 << 20, 512), CONFIG).unwrap();
    let mut put = |key: &[u8], value: &[u8], landing: &[u8]| {
        let sum = Pool::<ModelMedium>::checksum(key, value);
        let landing = Source::Landing(Box::new(landing.to_vec()));
        let allocation = pool.allocate(key, value.len(), sum, landing, Condition::Always);
        allocation.unwrap()
    };
    let missing: Vec<u64> = values
        .iter()
        .map(|value| put(b"first", value, b"not yet").value_at - 72)
        .collect();
    let last = put(b"last", b"value", b"value").sequence;
    let mut group = pool.group_of(&[last]);
    group.write_back().unwrap();
    let crashed = pool.medium().crashed(|| true);
    for at in missing {
        crashed.write(at, &[0; 72]);
        crashed.write_back(at..at + 72).unwrap();
    }
    crashed.fence().unwrap();
    crashed
}

/// The log ends before a hole that is larger than what is searched, and does not go on behind it
/// once other versions of that length are in it.
fn left_behind_the_end() -> Result<(), String> {
    let values = vec![vec![7; 1 << 20]; 5];
    let (mut pool, _) = Pool::open(torn(&values)).unwrap();
    assert_eq!(pool.get(b"last").unwrap(), None);
    for value in &values {
        pool.put_durable(b"first", value, Condition::Always)
            .unwrap();
    }
    let (mut pool, _) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    match pool.get(b"last").unwrap() {
        None => Ok(()),
        Some(_) => Err("a version was gone and is back".to_owned()),
    }
}

/// Nobody was told of it, so it may be lost. It is whole, so it may be there, and then it stays.
#[test]
fn a_whole_version_behind_what_a_crash_tore_is_there_for_good_and_nothing_counts_as_damage() {
    for is_closed in [false, true] {
        let mut medium = torn(&[vec![7; 1000], vec![8; 100]]);
        for life in 0..4 {
            let (mut pool, found) = Pool::open(medium).unwrap();
            assert_eq!((found.torn, found.lost), (1, 0), "life {life}: {found:?}");
            assert_eq!(pool.get(b"last").unwrap().unwrap().value, b"value");
            for earlier in 0..life {
                assert!(pool.get(&[earlier]).unwrap().is_some(), "{earlier}");
            }
            pool.put_durable(&[life], b"value", Condition::Always)
                .unwrap();
            let medium_of = |pool: Pool<ModelMedium>| match is_closed {
                true => pool.close().unwrap(),
                false => Arc::clone(pool.medium()),
            };
            medium = medium_of(pool).crashed(|| false);
        }
    }
}

#[test]
fn what_is_left_behind_the_end_of_the_log_does_not_come_back() {
    left_behind_the_end().unwrap();
}

#[test]
fn a_version_behind_the_end_that_counts_is_found() {
    inject(Some(InjectedFault::IncarnationIgnored));
    let found = left_behind_the_end();
    inject(None);
    assert!(found.is_err());
}
