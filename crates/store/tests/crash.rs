//! Crashes at every write-back and every fence, with any of the unfenced units surviving.
//!
//! A workload of puts whose values come late, in part, wrong or change under the store's eyes, of durable
//! puts, deletions and reads runs on a model of a medium. Then: what was read or acknowledged is there or
//! a newer version is, a value is one that a client wrote whole, and no sequence number comes twice.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex};

use cenote_store::{
    Batch, Cleaned, Condition, FileMedium, Group, Landing, MISTAKES, Medium as _, ModelMedium,
    Pool, PoolConfig, Source, StoreError, plant,
};

const POOL_BYTES: usize = 40 << 10;
const KEYS: u64 = 5;
const CONFIG: PoolConfig = PoolConfig {
    entry_count: 16,
    seed: 42,
};

/// Random numbers by a seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

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

/// What is known from outside.
#[derive(Default)]
struct Oracle {
    /// Of each key, what each version is meant to be; `None` is a deletion.
    meant: HashMap<u64, BTreeMap<u64, Option<Vec<u8>>>>,
    /// Values, and deletions, that were asked for when the crash came.
    unknown: Vec<(u64, Option<Vec<u8>>)>,
    /// The newest version of a key that was told.
    told: HashMap<u64, u64>,
    sequences: HashSet<u64>,
    /// Versions of earlier lives that were not there any more when somebody looked.
    gone: HashSet<u64>,
    /// Sequences of earlier lives are below this.
    life_floor: u64,
}

type Checked = Result<(), String>;

impl Oracle {
    fn allocated(&mut self, key: u64, sequence: u64, value: Option<Vec<u8>>) -> Checked {
        if !self.sequences.insert(sequence) {
            return Err(format!("sequence {sequence} comes twice"));
        }
        self.meant.entry(key).or_default().insert(sequence, value);
        Ok(())
    }

    fn tell(&mut self, key: u64, sequence: u64) {
        let told = self.told.entry(key).or_default();
        *told = sequence.max(*told);
    }

    /// A read said this.
    fn check(&mut self, key: u64, said: Option<(u64, Vec<u8>)>) -> Checked {
        let meant = self.meant.entry(key).or_default();
        let told = self.told.get(&key).copied().unwrap_or(0);
        match said {
            Some((sequence, value)) => {
                let is_meant = meant.get(&sequence) == Some(&Some(value.clone()));
                let is_unknown = !meant.contains_key(&sequence)
                    && self.unknown.contains(&(key, Some(value.clone())));
                if !is_meant && !is_unknown {
                    return Err(format!(
                        "key {key}, version {sequence}: {value:?}, which nobody wrote; meant {:?}",
                        meant.get(&sequence)
                    ));
                }
                if self.gone.contains(&sequence) {
                    return Err(format!("key {key}: {sequence} was gone and is back"));
                }
                let earlier = meant.range(sequence + 1..self.life_floor.max(sequence + 1));
                self.gone.extend(earlier.map(|(later, _)| *later));
                if sequence < told {
                    return Err(format!("key {key}: {sequence} after {told} was told"));
                }
                meant.insert(sequence, Some(value));
                self.sequences.insert(sequence);
                self.tell(key, sequence);
            }
            None => {
                let mut later = meant.range(told.max(1)..);
                let is_deleted = later.any(|(_, value)| value.is_none());
                let may_be = self.unknown.contains(&(key, None));
                if told > 0 && !is_deleted && !may_be {
                    return Err(format!("key {key}: version {told} was told and is gone"));
                }
            }
        }
        Ok(())
    }
}

/// One life of a pool: until the crash, or through.
struct Life<'a> {
    pool: Pool<ModelMedium>,
    oracle: &'a mut Oracle,
    /// Versions that another thread is making durable, and what it is copying.
    group: Option<Group<ModelMedium>>,
    batch: Option<Batch<ModelMedium>>,
    /// Landings whose clients are not done, and what they are to hold.
    late: Vec<(Bytes, Vec<u8>)>,
    next_value: u64,
}

/// Whether it went on to the end, or crashed.
enum Ended {
    Through,
    Crashed,
}

impl Life<'_> {
    fn value(&mut self, random: &mut Random) -> Vec<u8> {
        self.next_value += 1;
        let len = 1 + random.below(60) as usize;
        let mut value = vec![self.next_value as u8; len];
        let tag = self.next_value.to_le_bytes();
        value[..len.min(8)].copy_from_slice(&tag[..len.min(8)]);
        value
    }

    fn step(&mut self, random: &mut Random) -> Result<Ended, String> {
        let key = random.below(KEYS);
        let name = format!("key {key}").into_bytes();
        match random.below(15) {
            0..4 => {
                let value = self.value(random);
                let sum = Pool::<ModelMedium>::checksum(&name, &value);
                let bytes = Arc::new(Mutex::new(vec![0; value.len()]));
                let mut afterwards = None;
                match random.below(5) {
                    // Never whole.
                    0 => bytes.lock().unwrap()[0] = value[0] ^ 0x55,
                    // Changed once it was looked at.
                    1 => {
                        *bytes.lock().unwrap() = value.clone();
                        afterwards = Some(vec![0xff; value.len()]);
                    }
                    // Comes late.
                    2 => self.late.push((Arc::clone(&bytes), value.clone())),
                    _ => *bytes.lock().unwrap() = value.clone(),
                }
                let landing = Source::Landing(Box::new(Shared { bytes, afterwards }));
                let always = Condition::Always;
                match self.pool.allocate(&name, value.len(), sum, landing, always) {
                    Ok(one) => self.oracle.allocated(key, one.sequence, Some(value))?,
                    Err(error) => return crashed(&error),
                }
            }
            4 => {
                let value = self.value(random);
                self.oracle.unknown.push((key, Some(value.clone())));
                match self.pool.put_durable(&name, &value, Condition::Always) {
                    Ok(one) => {
                        self.oracle.unknown.pop();
                        self.oracle.allocated(key, one.sequence, Some(value))?;
                        self.oracle.tell(key, one.sequence);
                    }
                    Err(error) => return crashed(&error),
                }
            }
            5 => {
                self.oracle.unknown.push((key, None));
                match self.pool.delete(&name, Condition::Always) {
                    Ok(one) => {
                        self.oracle.unknown.pop();
                        self.oracle.allocated(key, one.sequence, None)?;
                        self.oracle.tell(key, one.sequence);
                    }
                    Err(error) => return crashed(&error),
                }
            }
            6 | 7 => {
                if let Some((bytes, value)) = self.late.pop() {
                    *bytes.lock().unwrap() = value;
                }
            }
            12.. => return self.clean(random),
            8 | 9 => return self.persist(random),
            // What another thread is making durable is not settled by this one.
            _ if self.pool.is_busy() => return self.end_group(),
            _ => match self.pool.get(&name) {
                Ok(said) => {
                    let said = said.map(|version| (version.sequence, version.value));
                    self.oracle.check(key, said)?;
                }
                Err(error) => return crashed(&error),
            },
        }
        Ok(Ended::Through)
    }
}

impl Life<'_> {
    /// A group in one go, or begun now and ended some steps later.
    fn persist(&mut self, random: &mut Random) -> Result<Ended, String> {
        if self.group.is_some() {
            return self.end_group();
        }
        let mut group = self.pool.begin_group(1 + random.below(4) as usize);
        if let Err(error) = group.write_back() {
            return crashed(&error.into());
        }
        self.group = Some(group);
        match random.below(2) {
            0 => self.end_group(),
            _ => Ok(Ended::Through),
        }
    }

    fn end_group(&mut self) -> Result<Ended, String> {
        let Some(group) = self.group.take() else {
            return Ok(Ended::Through);
        };
        let fenced = group.fence();
        match self.pool.end_group(group, fenced) {
            Ok(_) => Ok(Ended::Through),
            Err(error) => crashed(&error),
        }
    }

    fn clean(&mut self, random: &mut Random) -> Result<Ended, String> {
        let entries = 1 + random.below(20) as usize;
        let batch = match self.batch.take() {
            Some(batch) => batch,
            None => match self.pool.begin_clean(entries) {
                Ok((batch, _)) => batch,
                Err(error) => return crashed(&error),
            },
        };
        if random.below(3) == 0 {
            self.batch = Some(batch);
            return Ok(Ended::Through);
        }
        let done = batch.write_back().and_then(|()| batch.fence());
        match self.pool.end_clean(batch, done) {
            Ok(_) => Ok(Ended::Through),
            Err(error) => crashed(&error),
        }
    }
}

fn crashed(error: &StoreError) -> Result<Ended, String> {
    match error {
        StoreError::Io(_) => Ok(Ended::Crashed),
        StoreError::Full => Ok(Ended::Through),
        error => Err(error.to_string()),
    }
}

/// Runs a workload over several lives. The first crashes at boundary `crash_at`; how many boundaries
/// it had.
fn run(seed: u64, unit: usize, crash_at: Option<u64>) -> Result<u64, String> {
    let mut random = Random(seed);
    let mut chance = Random(seed ^ crash_at.unwrap_or(u64::MAX) << 32);
    let mut oracle = Oracle::default();
    let medium = ModelMedium::new(POOL_BYTES, unit);
    let mut medium = ModelMedium::clone(Pool::create(medium, CONFIG).unwrap().medium());
    let mut boundaries = 0;
    let mut next_value = 0;
    for life in 0..3 {
        oracle.life_floor = oracle.sequences.iter().max().map_or(0, |max| max + 1);
        medium.crash_at(match life {
            0 => crash_at,
            // Later lives end somewhere, perhaps in their recovery.
            1 => Some(chance.below(40)),
            _ => None,
        });
        let before = medium.clone();
        let mut after = match Pool::open(medium) {
            Err(StoreError::Io(_)) => before,
            Err(error) => return Err(format!("life {life}: {error}")),
            Ok((pool, _)) => {
                let mut one = Life {
                    pool,
                    oracle: &mut oracle,
                    group: None,
                    batch: None,
                    late: Vec::new(),
                    next_value,
                };
                let mut steps = 0..20;
                let mut ended = Ended::Through;
                while matches!(ended, Ended::Through) && steps.next().is_some() {
                    ended = one
                        .step(&mut random)
                        .map_err(|wrong| format!("life {life}: {wrong}"))?;
                }
                next_value = one.next_value;
                ModelMedium::clone(one.pool.medium())
            }
        };
        if life == 0 {
            boundaries = after.boundaries();
        }
        after = after.crashed(|| chance.below(2) == 0);
        medium = after;
    }
    let (mut pool, _) = Pool::open(medium).map_err(|error| error.to_string())?;
    for key in 0..KEYS {
        let said = pool.get(format!("key {key}").as_bytes()).unwrap();
        oracle.check(key, said.map(|one| (one.sequence, one.value)))?;
    }
    Ok(boundaries)
}

/// How many seeds are tried: more by hand.
fn seeds() -> u64 {
    std::env::var("CENOTE_STORE_SEEDS").map_or(25, |seeds| seeds.parse().unwrap())
}

/// Every boundary of the first life, for each seed and unit.
fn every_boundary(seeds: std::ops::Range<u64>) -> Result<u64, String> {
    let mut runs = 0;
    for seed in seeds {
        for unit in [8, 512] {
            let told = |wrong| format!("seed {seed}, units of {unit}: {wrong}");
            let boundaries = run(seed, unit, None).map_err(told)?;
            for at in 0..boundaries {
                run(seed, unit, Some(at)).map_err(|wrong| {
                    format!("seed {seed}, units of {unit}, boundary {at}: {wrong}")
                })?;
                runs += 1;
            }
        }
    }
    Ok(runs)
}

/// Of two versions that were being written when the power went, the disk has the second alone. The log ends
/// before the first, and does not go on with the second once another version of that length is there.
fn left_behind_the_end() -> Result<(), String> {
    let mut pool = Pool::create(ModelMedium::new(POOL_BYTES, 512), CONFIG).unwrap();
    let value = vec![7; 1000];
    let mut put = |key: &[u8], landing: &[u8]| {
        let sum = Pool::<ModelMedium>::checksum(key, &value);
        let landing = Source::Landing(Box::new(landing.to_vec()));
        let allocation = pool.allocate(key, value.len(), sum, landing, Condition::Always);
        allocation.unwrap().sequence
    };
    put(b"first", b"not yet");
    let second = put(b"second", &value);
    let mut group = pool.group_of(&[second]);
    group.write_back().unwrap();
    // The first sector is neither as it was last, nor as it was written back.
    let mut asked = 0;
    let crashed = pool.medium().crashed(|| {
        asked += 1;
        asked > 2
    });
    let (mut pool, _) = Pool::open(crashed).unwrap();
    if pool.get(b"second").unwrap().is_some() {
        return Err("a version behind a hole".to_owned());
    }
    pool.put_durable(b"first", &value, Condition::Always)
        .unwrap();
    let (mut pool, _) = Pool::open(pool.medium().crashed(|| false)).unwrap();
    match pool.get(b"second").unwrap() {
        None => Ok(()),
        Some(_) => Err("a version was gone and is back".to_owned()),
    }
}

#[test]
fn what_is_left_behind_the_end_of_the_log_does_not_come_back() {
    left_behind_the_end().unwrap();
}

#[test]
fn a_crash_at_any_boundary_loses_nothing_that_was_told() {
    let runs = every_boundary(0..seeds()).unwrap_or_else(|wrong| panic!("{wrong}"));
    assert!(runs > 1_000, "{runs} crashes");
}

#[test]
fn each_planted_mistake_is_found() {
    // Those of clients are found by clients: `served`, and tests of `client::operation`.
    let of_clients = [Planted::ValueBeforeFlag, Planted::EpochUnread];
    for (name, mistake) in MISTAKES {
        if of_clients.contains(&mistake) {
            continue;
        }
        plant(Some(mistake));
        let found = std::panic::catch_unwind(|| {
            left_behind_the_end()?;
            every_boundary(0..200)
        });
        plant(None);
        match found {
            Ok(Err(how)) => println!("{name}: {how}"),
            Ok(Ok(_)) => panic!("{name} is not found"),
            Err(_) => panic!("{name} panics before it is found"),
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
    assert_eq!(pool.clean(1000).unwrap(), Cleaned::Waiting);
    assert_eq!(pool.get(b"key").unwrap().unwrap().value, b"old");
    // And one that comes while the log is cleaned.
    let never: Bytes = Arc::new(Mutex::new(vec![0; 3]));
    let given_up = pool
        .allocate(b"key", 3, sum, landing(&never), always)
        .unwrap();
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
