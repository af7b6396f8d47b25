//! Files that somebody made up: checksums are right, and what they cover is not. And what a process
//! that was killed left in caches.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::Arc;

use cenote_fabric::Region;

use super::*;
use crate::format::{ENTRY_COUNT_MAX, FLAG_AT, LEASE, SEQUENCE_END, flag};
use crate::medium::{FileMedium, ModelMedium};
use crate::pool::{Cleaned, Condition, PoolConfig, Source};

const CONFIG: PoolConfig = PoolConfig {
    entry_count: 16,
    seed: 42,
};
const POOL_BYTES: u64 = 64 << 10;
const ALWAYS: Condition = Condition::Always;

fn head(entry_count: u64, len: u64) -> Head {
    Head {
        seed: CONFIG.seed,
        entry_count,
        len,
        shard: (0, 1),
    }
}

/// A pool with one object in a file of that length, mostly holes.
fn file_of(len: u64) -> File {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(len).unwrap();
    let medium = FileMedium::open(file.try_clone().unwrap()).unwrap();
    let mut pool = Pool::create(medium, CONFIG).unwrap();
    pool.put_durable(b"key", b"value", ALWAYS).unwrap();
    pool.close().unwrap();
    file
}

fn bytes_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().unwrap().len() as usize];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn refused(file: &File) -> String {
    let before = bytes_of(file);
    let checked = identify(file).unwrap_err();
    let Err(opened) = Pool::open(FileMedium::open(file.try_clone().unwrap()).unwrap()) else {
        panic!("it was opened");
    };
    assert!(matches!(opened, StoreError::Head(_)), "{opened:?}");
    assert_eq!(checked.to_string(), opened.to_string());
    assert!(bytes_of(file) == before, "it was changed");
    opened.to_string()
}

/// Has a pool's file hold a record in place of the one that counts.
fn tell(file: &File, change: impl FnOnce(Space) -> Space) {
    let mut first = vec![0; HEAD_BYTES as usize];
    file.read_exact_at(&mut first, 0).unwrap();
    let space = change(Space::decode(&first).unwrap());
    file.write_all_at(&space.encode(), space.at()).unwrap();
}

/// Bytes of memory that were taken so far.
fn taken_by_index<M: Medium>(pool: &Pool<M>) -> u64 {
    let memory = pool.index_memory().as_fd().try_clone_to_owned().unwrap();
    File::from(memory).metadata().unwrap().blocks() * 512
}

/// Its flag is on the disk, as a part of a block that was written for another version.
#[test]
fn a_value_that_rotted_counts_as_one_that_never_came() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES as usize, 512), CONFIG).unwrap();
    let older = pool.put_durable(b"key", b"older", ALWAYS).unwrap();
    let rotten = pool.put_durable(b"key", b"value", ALWAYS).unwrap();
    pool.put_durable(b"other", b"value", ALWAYS).unwrap();
    let medium = pool.close().unwrap();
    let left = medium.crashed(|| true);
    let is_flagged = |medium: &ModelMedium, at: u64| {
        let mut bytes = [0; 8];
        medium.read(at + FLAG_AT, &mut bytes);
        bytes != [0; 8]
    };
    assert!(is_flagged(&left, rotten.at));
    left.write(rotten.value_at, b"VALUE");
    let (mut pool, found) = Pool::open(left).unwrap();
    assert_eq!((found.damaged, found.objects, found.versions), (1, 2, 3));
    // Clients go by the flag.
    assert!(!is_flagged(pool.medium(), rotten.at) && is_flagged(pool.medium(), older.at));
    assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"older");
    assert_eq!(pool.get(b"other").unwrap().unwrap().value, b"value");
}

#[test]
fn a_claim_of_more_places_than_the_log_has_room_for_keys_takes_no_memory() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES as usize, 512), CONFIG).unwrap();
    pool.put_durable(b"key", b"value", ALWAYS).unwrap();
    // A gigabyte; the largest claim would be sixteen.
    let medium = pool.close().unwrap();
    medium.write(0, &head(1 << 26, POOL_BYTES).encode());
    let (mut pool, found) = Pool::open(medium.crashed(|| true)).unwrap();
    assert_eq!(found.objects, 1);
    let (_, places) = pool.hashing();
    let keys_max = POOL_BYTES / 80;
    assert!((keys_max..=4 * keys_max).contains(&places), "{places}");
    assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"value");
    // As many keys as the log has room for have their places.
    let mut keys = 1;
    while pool
        .put_durable(format!("{keys}").as_bytes(), b"", ALWAYS)
        .is_ok()
    {
        keys += 1;
    }
    // Of keys that are not there: the end of the log is for these.
    while pool.delete(format!("{keys}").as_bytes(), ALWAYS).is_ok() {
        keys += 1;
    }
    let (used, all) = pool.log_bytes();
    assert!(all - used < 80, "the log is full before the index is");
}

#[test]
fn a_file_of_holes_takes_memory_for_what_it_holds() {
    let len = 1 << 30;
    let file = file_of(len);
    file.write_all_at(&head(1 << 24, len).encode(), 0).unwrap();
    let (mut pool, found) = Pool::open(FileMedium::open(file).unwrap()).unwrap();
    assert_eq!((found.objects, pool.hashing().1), (1, 1 << 24));
    assert_eq!(pool.keys(b"").count(), 1);
    while pool.clean(64).unwrap() != crate::Cleaned::Done {}
    assert_eq!(pool.get(b"absent").unwrap(), None);
    let taken = taken_by_index(&pool);
    assert!(taken <= 64 << 10, "{taken} bytes for one key");
}

#[test]
fn a_head_that_says_what_cannot_be_is_refused_by_the_name_of_its_field() {
    let cases = [
        (
            2 * ENTRY_COUNT_MAX,
            "places of the index is 2147483648, and may be 1073741824 at most",
        ),
        (u64::MAX, "places of the index"),
        (24, "places of the index: no power of two"),
        (0, "places of the index: no power of two"),
        // Fewer than the log has keys.
        (1, "places of the index: fewer than the log has keys"),
    ];
    for (entry_count, named) in cases {
        let file = file_of(POOL_BYTES);
        let claim = head(entry_count, POOL_BYTES).encode();
        file.write_all_at(&claim, 0).unwrap();
        if entry_count == 1 {
            let Err(error) = Pool::open(FileMedium::look(file).unwrap()) else {
                panic!("it was opened");
            };
            assert!(error.to_string().contains(named), "{error}");
            continue;
        }
        let told = refused(&file);
        assert!(told.contains(named), "{told}");
    }
    let file = file_of(POOL_BYTES);
    file.write_all_at(&head(16, 1 << 40).encode(), 0).unwrap();
    assert!(refused(&file).contains("1099511627776 bytes and has 65536"));
}

#[test]
fn a_record_that_counts_beyond_its_limits_is_refused_and_not_the_older_one_taken() {
    type Change = fn(Space) -> Space;
    let cases: [(&str, Change); 3] = [
        ("serial of its record", |space| Space {
            serial: space.serial | 1 << 63,
            ..space
        }),
        ("epoch of its record", |space| Space {
            epoch: u64::MAX,
            ..space.next()
        }),
        ("ceiling of its record", |space| Space {
            ceiling: u64::MAX,
            ..space.next()
        }),
    ];
    for (named, change) in cases {
        let file = file_of(POOL_BYTES);
        tell(&file, change);
        let told = refused(&file);
        assert!(told.contains(named), "{told}");
    }
}

#[test]
fn a_pool_at_the_end_of_its_sequences_is_read_and_takes_no_more() {
    let file = file_of(POOL_BYTES);
    tell(&file, |space| Space {
        ceiling: SEQUENCE_END - 2,
        ..space.next()
    });
    let (mut pool, _) = Pool::open(FileMedium::open(file).unwrap()).unwrap();
    for number in 0..2 {
        let put = pool.put_durable(b"last", &[number], ALWAYS).unwrap();
        assert_eq!(put.sequence, SEQUENCE_END - 2 + u64::from(number));
    }
    for _ in 0..2 {
        let put = pool.put_durable(b"more", b"", ALWAYS);
        assert!(matches!(put, Err(StoreError::Full)), "{put:?}");
        assert!(!pool.is_lease_short(), "nothing is left to be leased");
        assert_eq!(pool.get(b"last").unwrap().unwrap().value, [1]);
        assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"value");
    }
}

/// Puts an object into a medium, with its flag.
fn forge(medium: &ModelMedium, at: u64, epoch: u64, header: Header, key: &[u8]) {
    medium.write(at, &header.encode(at, epoch, key));
    medium.write(at + FLAG_AT, &flag(header.sequence, epoch).to_le_bytes());
    medium.write(at + crate::format::HEADER_BYTES, key);
}

#[test]
fn an_object_of_a_sequence_that_was_never_given_ends_the_log() {
    for beyond in [1 + LEASE, SEQUENCE_END - 1, u64::MAX] {
        let mut pool = Pool::create(ModelMedium::new(POOL_BYTES as usize, 512), CONFIG).unwrap();
        pool.put_durable(b"key", b"value", ALWAYS).unwrap();
        let header = Header {
            kind: Kind::Value,
            key_bytes: 5,
            value_bytes: 0,
            checksum: checksum(&[b"other"]),
            sequence: beyond,
            previous_at: 0,
            hash: pool.hash(b"other"),
            incarnation: 1,
        };
        forge(pool.medium(), pool.tail, 1, header, b"other");
        let (mut pool, found) = Pool::open(pool.medium().crashed(|| true)).unwrap();
        assert_eq!((found.objects, found.versions), (1, 1));
        assert_eq!(pool.get(b"other").unwrap(), None);
        let next = pool.put_durable(b"key", b"next", ALWAYS).unwrap();
        assert!(next.sequence <= 2 + LEASE, "{}", next.sequence);
    }
}

#[test]
fn a_version_before_that_is_at_no_place_of_an_object_is_none() {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES as usize, 512), CONFIG).unwrap();
    pool.put_durable(b"large", &[0; 1000], ALWAYS).unwrap();
    // Inside that value, and at no multiple of 16.
    let inside = pool.head.half(0).start + 200 + 5;
    let older = Header {
        kind: Kind::Value,
        key_bytes: 3,
        value_bytes: 0,
        checksum: checksum(&[b"key"]),
        sequence: 2,
        previous_at: 0,
        hash: pool.hash(b"key"),
        incarnation: 1,
    };
    forge(pool.medium(), inside, 1, older, b"key");
    // Its value never came: a read goes on to the one before.
    let newer = Header {
        value_bytes: 16,
        sequence: 3,
        previous_at: inside,
        ..older
    };
    let at = pool.tail;
    forge(pool.medium(), at, 1, newer, b"key");
    pool.medium().write(at + FLAG_AT, &[0; 8]);
    let slot = pool.head.entry_count - 1;
    let word = Word::to(at, newer.object_bytes(), 1);
    pool.index.add(slot, newer.hash, b"key", word);
    let named = pool.object(word).expect("it is whole");
    assert!(pool.older(&named).is_none());
    assert_eq!(pool.key_at(slot, b""), None);
}

/// It is whole in the processor's caches, and what comes behind it is told to be durable.
#[test]
fn a_header_that_a_killed_process_left_is_durable_before_what_comes_behind_it() {
    let model = ModelMedium::new(POOL_BYTES as usize, 8);
    let mut pool = Pool::create(model, CONFIG).unwrap();
    pool.put_durable(b"before", b"value", ALWAYS).unwrap();
    // Killed between the stores and the write-back.
    pool.medium().crash_at(Some(0));
    let sum = Pool::<ModelMedium>::checksum(b"left", b"value");
    let source = Source::Landing(Box::new(b"value".to_vec()));
    let left = pool.allocate(b"left", 5, sum, source, ALWAYS);
    assert!(matches!(left, Err(StoreError::Io(_))), "{left:?}");
    let (mut pool, found) = Pool::open(pool.medium().killed()).unwrap();
    assert_eq!((found.versions, found.invalid), (2, 1));
    pool.put_durable(b"after", b"value", ALWAYS).unwrap();
    let (mut pool, found) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    assert_eq!((found.versions, found.objects), (3, 2));
    for key in [&b"before"[..], b"after"] {
        assert_eq!(pool.get(key).unwrap().unwrap().value, b"value");
    }
}

/// What a test looks at after it was opened in vain.
pub(super) struct Shared(pub Arc<ModelMedium>);

impl Medium for Shared {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read(&self, at: u64, out: &mut [u8]) {
        self.0.read(at, out);
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write(at, bytes);
    }

    fn store(&self, at: u64, value: u64) {
        self.0.store(at, value);
    }

    fn write_back(&self, range: Range<u64>) -> io::Result<()> {
        self.0.write_back(range)
    }

    fn write_back_hint(&self, range: Range<u64>) -> io::Result<()> {
        self.0.write_back_hint(range)
    }

    fn fence(&self) -> io::Result<()> {
        self.0.fence()
    }

    fn is_quick(&self) -> bool {
        self.0.is_quick()
    }

    fn memory(&self) -> Option<&Arc<Region>> {
        self.0.memory()
    }
}

/// A cleaning that ends as its process is killed at a boundary; whether it ended before that.
fn killed_in_cleaning(boundary: u64) -> (ModelMedium, bool) {
    let model = ModelMedium::new(POOL_BYTES as usize, 8);
    let mut pool = Pool::create(model, CONFIG).unwrap();
    pool.put_durable(b"key", b"older", ALWAYS).unwrap();
    pool.put_durable(b"other", b"value", ALWAYS).unwrap();
    while !pool.is_cleaning() {
        pool.clean(1).unwrap();
    }
    pool.put_durable(b"key", b"newer", ALWAYS).unwrap();
    pool.medium().crash_at(Some(boundary));
    let end = std::iter::repeat_with(|| pool.clean(1))
        .find(|cleaned| !matches!(cleaned, Ok(Cleaned::Going)));
    (pool.medium().killed(), matches!(end, Some(Ok(_))))
}

/// The next record takes the place of the one before it, the last that was durable.
#[test]
fn a_record_that_a_killed_process_left_is_durable_before_the_next_one_is_written() {
    let mut random = 7_u64;
    for boundary in 0.. {
        let (killed, is_over) = killed_in_cleaning(boundary);
        for until in 0.. {
            let medium = Arc::new(killed.clone());
            medium.crash_at(Some(until));
            let is_open = Pool::open(Shared(Arc::clone(&medium))).is_ok();
            for _ in 0..20 {
                let crashed = medium.crashed(|| {
                    random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    random >> 63 == 0
                });
                let (mut pool, _) = Pool::open(crashed).unwrap();
                let newest = pool.get(b"key").unwrap().unwrap();
                assert_eq!(
                    newest.value, b"newer",
                    "killed at {boundary}, cut at {until}"
                );
                assert!(pool.get(b"other").unwrap().is_some());
            }
            if is_open {
                break;
            }
        }
        if is_over {
            break;
        }
    }
}

/// Entries that follow one which is taken away move, some of them behind those that were counted.
#[test]
fn each_object_is_counted_once_whatever_is_taken_away_beside_it() {
    for seed in 0..200 {
        let model = ModelMedium::new(POOL_BYTES as usize, 8);
        let mut pool = Pool::create(model, PoolConfig { seed, ..CONFIG }).unwrap();
        for key in 0..14_u8 {
            // The value of every other one never comes.
            let value = [b"value", b"other"][usize::from(key % 2)];
            let sum = Pool::<ModelMedium>::checksum(&[key], b"value");
            let source = Source::Landing(Box::new(value.to_vec()));
            let given = pool.allocate(&[key], 5, sum, source, ALWAYS).unwrap();
            pool.settle(&[given.sequence]).unwrap();
        }
        let (_, found) = Pool::open(pool.medium().crashed(|| false)).unwrap();
        assert_eq!(found.objects, 7, "seed {seed}");
    }
}
