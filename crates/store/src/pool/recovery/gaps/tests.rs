mod forged;

use super::super::{Recovered, read_head, record};
use super::*;
use crate::format::Space;
use crate::medium::{FileMedium, ModelMedium};
use crate::pool::{Cleaned, Condition, PoolConfig};

const CONFIG: PoolConfig = PoolConfig {
    entry_count: 128,
    seed: 42,
};
const POOL_BYTES: usize = 128 << 10;
const OBJECTS: u8 = 40;
/// Units of persistent memory and of a disk.
const UNITS: [usize; 2] = [8, 512];
const ALWAYS: Condition = Condition::Always;

fn key(number: u8) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

/// A pool of durable objects, and where each of them is.
fn filled(unit: usize) -> (Pool<ModelMedium>, Vec<u64>) {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, unit), CONFIG).unwrap();
    let places = (0..OBJECTS).map(|number| {
        let put = pool.put_durable(&key(number), &[number; 100], ALWAYS);
        put.unwrap().at
    });
    let places = places.collect();
    (pool, places)
}

/// What is on the medium after the process ended: in order, or killed.
fn left(pool: Pool<ModelMedium>, is_closed: bool) -> ModelMedium {
    match is_closed {
        true => pool.close().unwrap().crashed(|| true),
        false => pool.medium().crashed(|| true),
    }
}

/// The medium damages some bytes.
fn damage(medium: &ModelMedium, range: Range<u64>, change: impl Fn(u8) -> u8) {
    let mut bytes = vec![0; (range.end - range.start) as usize];
    medium.read(range.start, &mut bytes);
    bytes.iter_mut().for_each(|byte| *byte = change(*byte));
    medium.write(range.start, &bytes);
    medium.write_back(range).unwrap();
    medium.fence().unwrap();
}

fn present(pool: &mut Pool<ModelMedium>) -> Vec<u8> {
    let numbers = 0..OBJECTS;
    let is_there = |number: &u8| match pool.get(&key(*number)).unwrap() {
        Some(version) => {
            assert_eq!(version.value, [*number; 100]);
            true
        }
        None => false,
    };
    numbers.filter(is_there).collect()
}

fn all_but(lost: &[u8]) -> Vec<u8> {
    (0..OBJECTS).filter(|one| !lost.contains(one)).collect()
}

#[test]
fn a_flipped_bit_of_a_header_costs_its_object_alone_and_is_found_until_the_log_is_cleaned() {
    // The magic, the kind, the lengths, the sequence, the checksum and the key.
    for at in [0, 4, 7, 9, 16, 45, 66] {
        for (unit, is_closed) in UNITS
            .into_iter()
            .flat_map(|unit| [(unit, false), (unit, true)])
        {
            let (pool, places) = filled(unit);
            let mut medium = left(pool, is_closed);
            let hit = places[10] + at;
            damage(&medium, hit..hit + 1, |byte| byte ^ 1);
            for life in 0..3_u8 {
                let (mut pool, found) = Pool::open(medium).unwrap();
                let told = format!("byte {at}, units of {unit}, {is_closed}, life {life}");
                assert_eq!((found.lost, found.torn), (1, 0), "{told}: {found:?}");
                assert_eq!(found.lost_bytes, places[11] - places[10], "{told}");
                assert_eq!(present(&mut pool), all_but(&[10]), "{told}");
                for earlier in 0..life {
                    assert!(pool.get(&[earlier]).unwrap().is_some(), "{told}");
                }
                pool.put_durable(&[life], b"value", ALWAYS).unwrap();
                medium = left(pool, is_closed);
            }
            let (mut pool, _) = Pool::open(medium).unwrap();
            while pool.clean(64).unwrap() != Cleaned::Done {}
            let (mut pool, found) = Pool::open(left(pool, is_closed)).unwrap();
            assert!(!found.is_damaged(), "{found:?}");
            assert_eq!(present(&mut pool), all_but(&[10]));
        }
    }
}

#[test]
fn a_block_of_zeros_costs_what_was_in_it() {
    for unit in UNITS {
        let (pool, places) = filled(unit);
        let medium = left(pool, false);
        let block = places[10] / 4096 * 4096;
        let block = block.max(places[0])..block + 4096;
        damage(&medium, block.clone(), |_| 0);
        let is_hit = |number: &u8| {
            let at = places[usize::from(*number)];
            at < block.end && at + 176 > block.start
        };
        let (mut pool, found) = Pool::open(medium).unwrap();
        assert_eq!(found.lost, 1, "{found:?}");
        let lost: Vec<u8> = (0..OBJECTS).filter(is_hit).collect();
        let mut found: Vec<u8> = present(&mut pool);
        found.extend(&lost);
        found.sort_unstable();
        found.dedup();
        assert_eq!(found, all_but(&[]), "more than {lost:?} is gone");
    }
}

#[test]
fn the_end_of_a_log_that_was_closed_is_missed_although_nothing_is_behind_it() {
    for unit in UNITS {
        let (pool, places) = filled(unit);
        let mut medium = left(pool, true);
        damage(&medium, places[39]..places[39] + 1, |byte| byte ^ 1);
        for life in 0..3 {
            let (mut pool, found) = Pool::open(medium).unwrap();
            assert_eq!((found.lost, found.torn), (1, 0), "life {life}: {found:?}");
            assert_eq!(present(&mut pool), all_but(&[39]));
            pool.put_durable(b"next", b"value", ALWAYS).unwrap();
            medium = left(pool, life == 1);
        }
    }
}

#[test]
fn copies_that_cleaning_made_are_missed_as_well() {
    for (unit, is_closed) in UNITS
        .into_iter()
        .flat_map(|unit| [(unit, false), (unit, true)])
    {
        let (mut pool, _) = filled(unit);
        while pool.clean(64).unwrap() != Cleaned::Done {}
        let places: Vec<u64> = (0..OBJECTS)
            .map(|number| pool.settle_newest(&key(number)).unwrap().unwrap().at)
            .collect();
        let medium = left(pool, is_closed);
        damage(&medium, places[20]..places[20] + 1, |byte| byte ^ 1);
        let (mut pool, found) = Pool::open(medium).unwrap();
        assert_eq!((found.lost, found.torn), (1, 0), "{found:?}");
        assert_eq!(present(&mut pool), all_but(&[20]));
    }
}

#[test]
fn damage_of_the_half_that_is_being_copied_is_found() {
    for unit in UNITS {
        let (mut pool, places) = filled(unit);
        while !pool.is_cleaning() {
            pool.clean(1).unwrap();
        }
        let medium = left(pool, false);
        damage(&medium, places[10]..places[10] + 1, |byte| byte ^ 1);
        let (mut pool, found) = Pool::open(medium).unwrap();
        assert_eq!((found.lost, found.torn), (1, 0), "{found:?}");
        assert_eq!(present(&mut pool), all_but(&[10]));
    }
}

/// The half was used before, and whole objects of that time are behind the log's end.
#[test]
fn objects_of_an_earlier_use_of_the_half_do_not_count() {
    for (unit, is_closed) in UNITS
        .into_iter()
        .flat_map(|unit| [(unit, false), (unit, true)])
    {
        let (mut pool, _) = filled(unit);
        for number in 5..OBJECTS {
            pool.delete(&key(number), ALWAYS).unwrap();
        }
        for _ in 0..2 {
            while pool.clean(64).unwrap() != Cleaned::Done {}
        }
        assert_eq!(pool.space.active, 0);
        let newest = pool.put_durable(b"newest", b"value", ALWAYS).unwrap();
        let medium = left(pool, is_closed);
        damage(&medium, newest.at..newest.at + 1, |byte| byte ^ 1);
        let (mut pool, found) = Pool::open(medium).unwrap();
        assert_eq!((found.versions, found.torn), (5, 0), "{found:?}");
        assert_eq!(found.lost, u64::from(is_closed), "{found:?}");
        assert_eq!(present(&mut pool), [0, 1, 2, 3, 4]);
    }
}

/// So that who opens a large pool that is hardly used does not wait for it, or pay for it.
#[test]
fn the_end_of_a_log_is_looked_for_in_a_bounded_part_of_a_file() {
    let file = tempfile::tempfile_in("/var/tmp").unwrap();
    file.set_len(1 << 30).unwrap();
    let open = || FileMedium::open(file.try_clone().unwrap()).unwrap();
    let mut pool = Pool::create(open(), CONFIG).unwrap();
    pool.put_durable(b"key", b"value", ALWAYS).unwrap();
    drop(pool);
    let (pool, found) = Pool::open(open()).unwrap();
    assert_eq!((found.objects, found.is_damaged()), (1, false));
    let memory = std::os::fd::AsFd::as_fd(&**pool.medium().memory().unwrap());
    let memory = std::fs::File::from(memory.try_clone_to_owned().unwrap());
    let taken = std::os::unix::fs::MetadataExt::blocks(&memory.metadata().unwrap()) * 512;
    assert!(taken <= 2 * SEARCH_BYTES, "{taken} bytes");
}

fn found(gaps: &Gaps) -> (u64, u64) {
    (gaps.lost, gaps.torn())
}

#[test]
fn a_stretch_is_lost_if_the_life_behind_it_knew_better() {
    let reach = |to, has_torn| Reach {
        to,
        has_torn,
        is_end: false,
    };
    for (reach, noted, lost) in [
        (reach(0, false), 160, false),
        (reach(0, false), 176, true),
        (reach(160, false), 0, false),
        (reach(176, false), 0, true),
        // Some of those before that place may be torn.
        (reach(176, true), 0, false),
        (reach(176, true), 176, true),
    ] {
        let mut gaps = Gaps::new(reach);
        gaps.pass(3, 0);
        gaps.begin(160..320, 3);
        gaps.pass(3, noted);
        assert_eq!(found(&gaps), (u64::from(lost), u64::from(!lost)));
        // What a crash left does not become damage by what later lives knew.
        gaps.pass(4, 4096);
        assert_eq!(found(&gaps), (u64::from(lost), u64::from(!lost)));
    }
}

#[test]
fn a_pool_that_is_made_of_a_used_medium_has_nothing_of_the_one_before() {
    for unit in UNITS {
        let (pool, _) = filled(unit);
        let medium = left(pool, false);
        let mut pool = Pool::create(medium, CONFIG).unwrap();
        pool.put_durable(b"new", b"value", ALWAYS).unwrap();
        let (mut pool, found) = Pool::open(left(pool, false)).unwrap();
        assert_eq!((found.objects, found.lost, found.torn), (1, 0, 0));
        assert_eq!(present(&mut pool), []);
    }
}

/// The log ended before a version that its life left behind, and the next life's first header did
/// not land on it: whole objects behind that are in the middle of the old version.
#[test]
fn what_one_life_left_out_counts_in_no_later_one() {
    for (unit, is_closed) in UNITS
        .into_iter()
        .flat_map(|unit| [(unit, false), (unit, true)])
    {
        let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, unit), CONFIG).unwrap();
        pool.put_durable(b"first", &[1; 100], ALWAYS).unwrap();
        let old = pool.put_durable(b"old", &[2; 4000], ALWAYS).unwrap().at;
        let medium = left(pool, is_closed);
        let mut header = [0; 128];
        medium.read(old, &mut header);
        let space = Space::decode(&read_head(&medium)).unwrap();
        let reach = Reach {
            to: old,
            ..Reach::default()
        };
        let incarnation = space.incarnation + 1;
        let ended = Space {
            incarnation,
            reach,
            ..space.next()
        };
        record::write(&medium, ended).unwrap();
        medium.fence().unwrap();

        let (mut pool, _) = Pool::open(medium).unwrap();
        assert!(pool.get(b"old").unwrap().is_none());
        let torn = pool.put_durable(b"torn", &[3; 100], ALWAYS).unwrap().at;
        assert_eq!(torn, old);
        pool.put_durable(b"last", &[4; 100], ALWAYS).unwrap();
        let medium = left(pool, false);
        medium.write(old, &header);
        medium.write_back(old..old + 128).unwrap();
        medium.fence().unwrap();

        let mut medium = medium;
        for life in 0..3 {
            let (mut pool, _) = Pool::open(medium).unwrap();
            assert!(pool.get(b"old").unwrap().is_none(), "life {life}");
            assert!(pool.get(b"last").unwrap().is_some(), "life {life}");
            for earlier in 0..life {
                assert!(pool.get(&[earlier]).unwrap().is_some(), "life {life}");
            }
            pool.put_durable(&[life], &[5; 100], ALWAYS).unwrap();
            medium = left(pool, is_closed);
        }
    }
}

/// A cleaning, and then a crash; the medium loses more of the half that is being copied than is
/// searched where nobody knows how far it goes.
#[test]
fn a_large_stretch_of_the_half_that_is_being_copied_costs_what_was_in_it() {
    for unit in UNITS {
        let medium = ModelMedium::new(32 << 20, unit);
        let mut pool = Pool::create(medium, CONFIG).unwrap();
        let put = |pool: &mut Pool<ModelMedium>, number: u8| {
            let put = pool.put_durable(&key(number), &vec![number; 1 << 20], ALWAYS);
            put.unwrap().at
        };
        let places: Vec<u64> = (0..8).map(|number| put(&mut pool, number)).collect();
        while !pool.is_cleaning() {
            pool.clean(1).unwrap();
        }
        let mut medium = left(pool, false);
        let stretch = places[1]..places[6];
        assert!(stretch.end - stretch.start > SEARCH_BYTES);
        damage(&medium, stretch.clone(), |_| 0);
        for life in 0..3 {
            let (mut pool, found) = Pool::open(medium).unwrap();
            let told = format!("life {life}: {found:?}");
            assert_eq!((found.lost, found.torn), (1, 0), "{told}");
            assert_eq!(found.lost_at, Some(stretch.start), "{told}");
            let is_there = |number: &u8| pool.get(&key(*number)).unwrap().is_some();
            let there: Vec<u8> = (0..8).filter(is_there).collect();
            assert_eq!(there, [0, 6, 7], "{told}");
            medium = left(pool, false);
        }
    }
}
