//! Pools on the model of a medium and on files: what is read, refused, cleaned and left behind.
//!
//! Crashes at each boundary of random workloads are `cenote-sim`'s (`store`).

#[path = "pools/torn.rs"]
mod torn;

use std::sync::{Arc, Mutex};

use cenote_store::schemes::Named;
use cenote_store::{
    Cleaned, Condition, FileMedium, InjectedFault, Landing, Medium as _, ModelMedium, Pool,
    PoolConfig, Source, StoreError, inject,
};
use cenote_test_kit::Random;

const POOL_BYTES: usize = 40 << 10;
const CONFIG: PoolConfig = PoolConfig {
    entry_count: 16,
    seed: 42,
};

type Bytes = Arc<Mutex<Vec<u8>>>;

/// A client's landing: another thread's to change, whenever it is read.
struct Shared {
    bytes: Bytes,
    /// What the client writes after it was read once.
    afterwards: Option<Vec<u8>>,
}

impl Landing for Shared {
    fn read(&mut self, out: &mut [u8]) {
        let mut bytes = self.bytes.lock().unwrap();
        out.copy_from_slice(&bytes);
        if let Some(next) = self.afterwards.take() {
            *bytes = next;
        }
    }
}

#[test]
fn a_file_has_what_was_put_durably() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(1 << 20).unwrap();
    let medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
    let config = PoolConfig {
        entry_count: 1024,
        ..CONFIG
    };
    let mut pool = Pool::create(medium, config).unwrap();
    for index in 0..500_u32 {
        let key = format!("key {}", index % 200);
        let value = index.to_le_bytes().repeat(10);
        pool.put_durable(key.as_bytes(), &value, Condition::Always)
            .unwrap();
    }
    pool.delete(b"key 7", Condition::Always).unwrap();
    let sequence = pool.get(b"key 8").unwrap().unwrap().sequence;
    let stale = pool.put_durable(b"key 8", b"no", Condition::Sequence(sequence - 1));
    assert!(matches!(stale, Err(StoreError::Condition(Some(now))) if now == sequence));
    pool.put_durable(b"key 8", b"yes", Condition::Sequence(sequence))
        .unwrap();
    drop(pool);

    let (mut pool, recovered) = Pool::open(FileMedium::open(file).unwrap()).unwrap();
    assert_eq!((recovered.objects, recovered.versions), (199, 502));
    assert_eq!(recovered.invalid, 0);
    assert_eq!(pool.get(b"key 7").unwrap(), None);
    assert_eq!(pool.get(b"key 8").unwrap().unwrap().value, b"yes");
    for index in (300..500_u32).filter(|index| ![7, 8].contains(&(index % 200))) {
        let key = format!("key {}", index % 200);
        let value = pool.get(key.as_bytes()).unwrap().unwrap().value;
        assert_eq!(value, index.to_le_bytes().repeat(10), "{key}");
    }
    assert_eq!(pool.keys(b"key 1").count(), 111);
    let absent = pool.put_durable(b"key 9", b"no", Condition::Absent);
    assert!(matches!(absent, Err(StoreError::Condition(Some(_)))));
}

#[test]
fn what_asks_for_more_than_there_is_changes_nothing() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 8), CONFIG).unwrap();
    let put = |pool: &mut Pool<ModelMedium>, key: &[u8], value: &[u8]| {
        pool.put_durable(key, value, Condition::Always)
    };
    put(&mut pool, b"first", b"value").unwrap();
    assert!(matches!(put(&mut pool, b"", b""), Err(StoreError::Key(0))));
    assert!(matches!(
        put(&mut pool, &[1; 251], b""),
        Err(StoreError::Key(251))
    ));
    let large = vec![0; (1 << 20) + 1];
    assert!(matches!(
        put(&mut pool, b"k", &large),
        Err(StoreError::Value(_))
    ));
    assert!(matches!(
        put(&mut pool, b"k", &large[..POOL_BYTES]),
        Err(StoreError::Full)
    ));
    let oops = Source::Landing(Box::new(b"oops".to_vec()));
    let wrong = pool.allocate(b"first", 4, 1, oops, Condition::Always);
    // Its checksum was a lie: the older version is told, for good.
    let wrong = wrong.unwrap();
    assert_eq!(pool.get(b"first").unwrap().unwrap().value, b"value");
    assert_eq!(pool.persist(10).unwrap(), 0);
    assert!(pool.give_up(wrong.sequence) && !pool.give_up(wrong.sequence));
    assert_eq!(pool.backlog(), 0);
    for index in 0..14 {
        put(&mut pool, format!("more {index}").as_bytes(), b"x").unwrap();
    }
    assert!(matches!(
        put(&mut pool, b"one too many", b"x"),
        Err(StoreError::Full)
    ));
    assert_eq!(pool.get(b"first").unwrap().unwrap().value, b"value");
}

/// Bytes may be anything: what is read is whole, or not there.
#[test]
fn a_damaged_pool_is_refused_or_read_in_part() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 8), CONFIG).unwrap();
    for index in 0..30 {
        let key = format!("key {}", index % 10);
        pool.put_durable(key.as_bytes(), key.repeat(3).as_bytes(), Condition::Always)
            .unwrap();
    }
    let good = ModelMedium::clone(&pool.close().unwrap());
    let mut random = Random(9);
    for _ in 0..3_000 {
        let damaged = good.clone();
        for _ in 0..1 + random.below(4) {
            let at = random.below(POOL_BYTES as u64 - 8);
            let bytes = (random.below(u64::MAX) >> random.below(64)).to_le_bytes();
            damaged.write(at, &bytes);
        }
        let Ok((mut pool, _)) = Pool::open(damaged) else {
            continue;
        };
        for index in 0..10 {
            let key = format!("key {index}");
            pool.get(key.as_bytes()).unwrap();
        }
        pool.keys(b"").count();
        match pool.put_durable(b"another", b"value", Condition::Always) {
            Ok(_) | Err(StoreError::Full | StoreError::Backlog(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_pool_that_is_cleaned_takes_many_times_what_its_log_holds() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
    let (_, all) = pool.log_bytes();
    let mut written = 0;
    let mut cleanings = 0;
    for round in 0..2_000_u64 {
        let key = format!("key {}", round % 7);
        let value = round.to_le_bytes().repeat(1 + round as usize % 50);
        pool.put_durable(key.as_bytes(), &value, Condition::Always)
            .unwrap();
        written += value.len() as u64;
        if round % 5 == 0 {
            let gone = format!("key {}", (round + 3) % 7);
            pool.delete(gone.as_bytes(), Condition::Always).unwrap();
        }
        if pool.is_cleaning_due() && pool.clean(3).unwrap() == Cleaned::Done {
            cleanings += 1;
        }
        let read = pool.get(key.as_bytes()).unwrap().unwrap();
        assert_eq!(read.value, value);
    }
    assert!(
        cleanings > 10 && written > 20 * all,
        "{cleanings}, {written} of {all}"
    );
    let before: Vec<Vec<u8>> = pool.keys(b"").collect();
    let medium = pool.close().unwrap().crashed(|| false);
    let (pool, _) = Pool::open(medium).unwrap();
    let mut after: Vec<Vec<u8>> = pool.keys(b"").collect();
    after.sort();
    let mut before = before;
    before.sort();
    assert_eq!(after, before);
}

#[test]
fn a_version_that_waits_for_its_value_outlives_cleaning_and_one_that_was_given_up_does_not() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 8), CONFIG).unwrap();
    pool.put_durable(b"key", b"old", Condition::Always).unwrap();
    let value: Bytes = Arc::new(Mutex::new(vec![0; 3]));
    let landing = |bytes: &Bytes| {
        let bytes = Arc::clone(bytes);
        Source::Landing(Box::new(Shared {
            bytes,
            afterwards: None,
        }))
    };
    let sum = Pool::<ModelMedium>::checksum(b"key", b"new");
    let always = Condition::Always;
    pool.allocate(b"key", 3, sum, landing(&value), always)
        .unwrap();
    let (batch, _) = pool.begin_clean(1).unwrap();
    let fenced = batch.fence();
    assert_eq!(pool.end_clean(batch, fenced).unwrap(), Cleaned::Going);
    // And one that comes while the log is cleaned.
    let never: Bytes = Arc::new(Mutex::new(vec![0; 3]));
    let given_up = pool
        .allocate(b"key", 3, sum, landing(&never), always)
        .unwrap();
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Waiting);
    assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"old");
    let another = pool.allocate(b"key", 3, sum, landing(&never), always);
    let waits = matches!(another, Err(StoreError::Backlog(2)));
    assert!(waits, "cleaning comes back to the key: {another:?}");
    *value.lock().unwrap() = b"new".to_vec();
    assert_eq!(pool.persist(10).unwrap(), 1);
    assert_eq!(
        pool.clean(1000).unwrap(),
        Cleaned::Waiting,
        "the later one waits"
    );
    assert!(pool.give_up(given_up.sequence));
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Done);
    assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"new");
    let (mut pool, _) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"new");
}

#[test]
fn a_key_takes_versions_while_cleaning_waits_for_what_nothing_names_yet() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 8), CONFIG).unwrap();
    pool.name_versions(Named::WhenDurable);
    let always = Condition::Always;
    let never = Source::Landing(Box::new(vec![0; 3]));
    let given = pool.allocate(b"key", 3, 1, never, always).unwrap();
    pool.delete(b"other", always).unwrap();
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Waiting);
    for key in [&b"key"[..], b"other"] {
        pool.put_durable(key, b"new", always).unwrap();
    }
    assert!(pool.give_up(given.sequence));
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Done);
    assert_eq!(pool.get(b"other").unwrap().unwrap().value, b"new");
}

#[test]
fn a_deletion_that_becomes_durable_while_the_log_is_cleaned_deletes_what_was_copied() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
    pool.name_versions(Named::WhenDurable);
    let always = Condition::Always;
    pool.put_durable(b"key", b"value", always).unwrap();
    let deletion = pool.begin_delete(b"key", always).unwrap();
    let mut group = pool.group_of(&[deletion.sequence]);
    group.write_back().unwrap();
    // Nothing names the deletion yet, so the value is copied.
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Waiting);
    let fenced = group.fence();
    pool.end_group(group, fenced).unwrap();
    let clean = |pool: &mut Pool<ModelMedium>| while pool.clean(1000).unwrap() != Cleaned::Done {};
    clean(&mut pool);
    assert_eq!(pool.get(b"key").unwrap(), None);
    let (mut pool, _) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    assert_eq!(pool.get(b"key").unwrap(), None);
    // By now nothing is left that it deletes.
    clean(&mut pool);
    assert_eq!(pool.log_bytes().0, 0);
}

/// As above, for several keys, with the power cut after each step of the cleaning: the pool that is found
/// then, and cleaned again, has the same keys.
#[test]
fn a_late_deletion_stays_one_wherever_the_power_is_cut_while_the_log_is_cleaned() {
    const KEYS: u64 = 12;
    let name = |index: u64| format!("key {index}").into_bytes();
    let check = |pool: &mut Pool<ModelMedium>| {
        for index in 0..KEYS {
            let found = pool.get(&name(index)).unwrap().map(|found| found.value);
            let wanted = (index % 3 == 0).then(|| name(index));
            assert_eq!(found, wanted, "key {index}");
        }
    };
    let mut random = Random(7);
    for unit in [8, 512] {
        let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, unit), CONFIG).unwrap();
        pool.name_versions(Named::WhenDurable);
        let always = Condition::Always;
        for index in 0..KEYS {
            pool.put_durable(&name(index), &name(index), always)
                .unwrap();
        }
        let gone = (0..KEYS).filter(|index| index % 3 > 0);
        let deletions: Vec<u64> = gone
            .map(|index| pool.begin_delete(&name(index), always).unwrap().sequence)
            .collect();
        let mut group = pool.group_of(&deletions);
        group.write_back().unwrap();
        assert_eq!(pool.clean(1000).unwrap(), Cleaned::Waiting);
        let fenced = group.fence();
        pool.end_group(group, fenced).unwrap();
        check(&mut pool);
        let mut steps = 0;
        loop {
            for odds in [0, 1, 2] {
                let survives = || random.below(2) < odds;
                let (mut found, _) = Pool::open(pool.medium().crashed(survives)).unwrap();
                check(&mut found);
                while found.clean(1000).unwrap() != Cleaned::Done {}
                check(&mut found);
                let (mut found, _) = Pool::open(found.medium().crashed(|| false)).unwrap();
                check(&mut found);
            }
            if pool.clean(1).unwrap() == Cleaned::Done {
                break;
            }
            steps += 1;
        }
        assert!(steps > 3, "{steps}");
        check(&mut pool);
    }
}

#[test]
fn new_versions_leave_room_for_copies_also_where_large_ones_were_given_up() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 8), CONFIG).unwrap();
    let always = Condition::Always;
    let large = vec![7; 2_000];
    for index in 0..5 {
        let key = format!("key {index}");
        pool.put_durable(key.as_bytes(), &large, always).unwrap();
    }
    // A small one in front of each large one never comes.
    let given_up: Vec<_> = (0..5)
        .map(|index| {
            let key = format!("key {index}");
            let landing = Source::Landing(Box::new(b"no".to_vec()));
            pool.allocate(key.as_bytes(), 2, 1, landing, always)
                .unwrap()
        })
        .collect();
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Waiting);
    let mut added = 0;
    while pool
        .put_durable(format!("more {}", added % 4).as_bytes(), &[1; 500], always)
        .is_ok()
    {
        added += 1;
    }
    assert!(added > 0);
    for one in given_up {
        assert!(pool.give_up(one.sequence));
    }
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Done);
    for index in 0..5 {
        let found = pool.get(format!("key {index}").as_bytes()).unwrap();
        assert_eq!(found.unwrap().value, large);
    }
}

/// A key that was deleted has its place until nothing in the log names it.
#[test]
fn a_pool_that_takes_new_keys_while_it_is_cleaned_is_opened_after_a_crash() {
    let keys = (CONFIG.entry_count - 1) as usize;
    for named in [Named::AtAllocation, Named::WhenDurable] {
        let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
        pool.name_versions(named);
        for key in 0..keys {
            let key = format!("old {key}");
            pool.put_durable(key.as_bytes(), b"x", Condition::Always)
                .unwrap();
            pool.delete(key.as_bytes(), Condition::Always).unwrap();
        }
        let put = |pool: &mut Pool<ModelMedium>| pool.put_durable(b"new", b"y", Condition::Always);
        assert!(matches!(put(&mut pool), Err(StoreError::Full)));
        let mut cleaned = Cleaned::Going;
        while cleaned != Cleaned::Done {
            cleaned = pool.clean(1).unwrap();
            let is_taken = put(&mut pool).is_ok();
            assert!(is_taken || cleaned != Cleaned::Done, "there is room now");
            let crashed = pool.medium().crashed(|| false);
            let (mut opened, _) = Pool::open(crashed).unwrap();
            assert_eq!(opened.get(b"new").unwrap().is_some(), is_taken);
        }
    }
}

/// Keys of which versions that never came are in the new half, and nothing else is left: one was deleted
/// before, the other is new.
#[test]
fn a_key_that_cleaning_leaves_a_lost_version_of_has_its_place() {
    let take = |pool: &mut Pool<ModelMedium>, key: &[u8]| {
        let landing = Source::Landing(Box::new(b"other".to_vec()));
        let taken = pool.allocate(key, 5, 1, landing, Condition::Always);
        let sequence = taken.unwrap().sequence;
        assert!(pool.give_up(sequence));
    };
    let cases =
        [Named::AtAllocation, Named::WhenDurable].map(|named| [(named, false), (named, true)]);
    for (named, is_killed) in cases.into_iter().flatten() {
        let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
        pool.name_versions(named);
        pool.put_durable(b"deleted", b"x", Condition::Always)
            .unwrap();
        pool.delete(b"deleted", Condition::Always).unwrap();
        let (record, _) = pool.begin_clean(1).unwrap();
        let fenced = record.fence();
        assert_eq!(pool.end_clean(record, fenced).unwrap(), Cleaned::Going);
        take(&mut pool, b"deleted");
        take(&mut pool, b"new");
        pool.put_durable(b"last", b"x", Condition::Always).unwrap();
        if is_killed {
            (pool, _) = Pool::open(pool.medium().crashed(|| true)).unwrap();
            pool.name_versions(named);
        }
        while pool.clean(64).unwrap() != Cleaned::Done {}
        let mut added = 0;
        while pool
            .put_durable(format!("{added}").as_bytes(), b"y", Condition::Always)
            .is_ok()
        {
            added += 1;
        }
        assert_eq!(added, CONFIG.entry_count - 4, "{named:?}, {is_killed}");
        let (mut opened, found) = Pool::open(pool.medium().crashed(|| false)).unwrap();
        assert_eq!(found.objects, added + 1);
        // Once they are gone from the log their places are others'.
        while opened.clean(64).unwrap() != Cleaned::Done {}
        for more in ["more", "and more"] {
            opened
                .put_durable(more.as_bytes(), b"y", Condition::Always)
                .unwrap();
        }
    }
}

/// Space that was taken and never written to has its place, too, in one life after the other.
#[test]
fn a_pool_whose_values_never_came_is_opened_again_and_again() {
    for named in [Named::AtAllocation, Named::WhenDurable] {
        let mut medium = ModelMedium::new(POOL_BYTES, 512);
        let mut pool = Pool::create(medium, CONFIG).unwrap();
        for life in 0..4 {
            pool.name_versions(named);
            for key in 0..CONFIG.entry_count / 2 {
                let key = format!("{life} {key}");
                let sum = Pool::<ModelMedium>::checksum(key.as_bytes(), b"never");
                let landing = Source::Landing(Box::new(b"other".to_vec()));
                let taken = pool.allocate(key.as_bytes(), 5, sum, landing, Condition::Always);
                if let Ok(allocation) = taken {
                    assert!(pool.give_up(allocation.sequence));
                }
            }
            // Their headers are there, as after a later group's fence.
            medium = pool.medium().crashed(|| true);
            (pool, _) = Pool::open(medium).unwrap();
        }
        while pool.clean(8).unwrap() != Cleaned::Done {}
        pool.put_durable(b"key", b"value", Condition::Always)
            .unwrap();
    }
}

#[test]
fn a_copy_that_is_made_leads_from_a_new_version_past_one_that_was_given_up() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
    pool.put_durable(b"key", b"first", Condition::Always)
        .unwrap();
    let take = |pool: &mut Pool<ModelMedium>| {
        let sum = Pool::<ModelMedium>::checksum(b"key", b"later");
        let landing = Source::Landing(Box::new(b"never".to_vec()));
        let taken = pool.allocate(b"key", 5, sum, landing, Condition::Always);
        taken.unwrap().sequence
    };
    let second = take(&mut pool);
    assert!(pool.give_up(second));
    let (batch, _) = pool.begin_clean(64).unwrap();
    let third = take(&mut pool);
    let done = batch.write_back().and_then(|()| batch.fence());
    let mut cleaned = pool.end_clean(batch, done).unwrap();
    for _ in 0..8 {
        if cleaned == Cleaned::Done {
            break;
        }
        cleaned = pool.clean(64).unwrap();
    }
    let value = |pool: &mut Pool<ModelMedium>| pool.get(b"key").unwrap().map(|one| one.value);
    assert_eq!(value(&mut pool).as_deref(), Some(&b"first"[..]));
    pool.give_up(third);
    assert_eq!(value(&mut pool).as_deref(), Some(&b"first"[..]));
    while pool.clean(64).unwrap() != Cleaned::Done {}
    assert_eq!(value(&mut pool).as_deref(), Some(&b"first"[..]));
}

/// What was copied before a crash is not copied again: there would be no room for it.
#[test]
fn a_pool_that_is_killed_while_it_is_cleaned_is_cleaned_in_the_end() {
    // Flags of copies are not on the disk when the power goes.
    let (mut pool, keys) = more_than_half_full();
    for _ in 0..4 {
        for _ in 0..CONFIG.entry_count - 2 {
            assert_ne!(pool.clean(1).unwrap(), Cleaned::Done);
        }
        (pool, _) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    }
    while pool.clean(4).unwrap() != Cleaned::Done {}
    check_copied_once(&mut pool, keys);
}

/// Copies of which the disk has the headers alone, when the power goes, do not take the room of those that
/// are made instead.
#[test]
fn a_pool_that_is_killed_before_its_copies_are_written_is_cleaned_in_the_end() {
    let (mut pool, keys) = more_than_half_full();
    let (record, _) = pool.begin_clean(1).unwrap();
    let fenced = record.fence();
    assert_eq!(pool.end_clean(record, fenced).unwrap(), Cleaned::Going);
    for _ in 0..4 {
        let (batch, _) = pool.begin_clean(64).unwrap();
        assert!(batch.has_copies());
        (pool, _) = Pool::open(pool.medium().crashed(|| true)).unwrap();
    }
    while pool.clean(4).unwrap() != Cleaned::Done {}
    check_copied_once(&mut pool, keys);
    let (mut pool, found) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    assert_eq!((found.objects, found.versions), (keys, keys));
    check_copied_once(&mut pool, keys);
}

/// A pool of so many keys, whose flags are on the disk: a half of its log has no room for all of them twice.
fn more_than_half_full() -> (Pool<ModelMedium>, u64) {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
    let (_, half) = pool.log_bytes();
    let mut keys = 0;
    while pool.log_bytes().0 < half * 6 / 10 {
        pool.put_durable(
            format!("key {keys}").as_bytes(),
            &[7; 700],
            Condition::Always,
        )
        .unwrap();
        keys += 1;
    }
    let (pool, _) = Pool::open(pool.medium().crashed(|| true)).unwrap();
    (pool, keys)
}

fn check_copied_once(pool: &mut Pool<ModelMedium>, keys: u64) {
    for key in 0..keys {
        let version = pool.get(format!("key {key}").as_bytes()).unwrap();
        assert_eq!(version.expect("it was put").value, [7; 700], "{key}");
    }
    let (used, half) = pool.log_bytes();
    assert!(used < half * 7 / 10, "copied once: {used} of {half}");
}
