//! One shard and its persister, in one thread: who is told what, and when.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_fabric::{ClientId, PeerId, Time, Waker};

use super::books::{CLIENT_VERSIONS_MAX, Waiter};
use super::fence::Fencer;
use super::note_end;
use super::outbox::{Outbox, Outboxes};
use super::persister::Persister;
use super::shard::{Reply, Shard};
use crate::landing::Area;
use crate::medium::{Medium, ModelMedium};
use crate::no_threads::without_threads;
use crate::pool::{Condition, Located, Pool, PoolConfig, Source, StoreError};
use crate::protocol::{Answer, INLINE_BYTES_MAX, Refusal, Request};
use crate::schemes::{Ca, EFactory, Forca, Scheme};

mod disk;
mod full;
mod late;
mod notices;
mod reads;

type Model = Pool<ModelMedium>;

const PATIENCE: Duration = Duration::from_secs(10);
const ONE: ClientId = ClientId(1);
const OTHER: ClientId = ClientId(2);
/// Units of persistent memory, and of a disk.
const MEMORY: usize = 8;
const DISK: usize = 512;

struct Bench<M> {
    shard: Arc<Shard<M>>,
    persister: Persister<M>,
    area: Arc<Area>,
    now: Time,
}

fn new_pool(len: usize, unit: usize, entry_count: u64) -> Model {
    let config = PoolConfig {
        entry_count,
        seed: 7,
    };
    Pool::create(ModelMedium::new(len, unit), config).unwrap()
}

impl<M: Medium> Bench<M> {
    fn new(pool: Pool<M>, scheme: impl Scheme + 'static) -> Self {
        let outboxes = Arc::new(Outboxes {
            threads: Vec::new(),
            peers: Outbox::new(Waker::new().unwrap()),
        });
        let scheme: Arc<dyn Scheme> = Arc::new(scheme);
        let shard = Arc::new(Shard::new(pool, &scheme, outboxes, 0));
        for client in [ONE, OTHER] {
            shard.lock().books.client_came(client);
        }
        Self {
            persister: Persister::new(Arc::clone(&shard), PATIENCE),
            shard,
            area: Area::new(16 << 20).unwrap(),
            now: Time(1),
        }
    }

    /// Asks as a peer of that number; `None`: it is told later.
    fn ask(&self, client: ClientId, peer: u64, request: Request<'_>) -> Option<Answer> {
        let waiter = Waiter::notice(PeerId(peer), 0, self.now);
        let area = Some(&self.area);
        match self.shard.handle(request, client, area, waiter, self.now) {
            Reply::Now(answer) => Some(answer),
            Reply::Later => None,
        }
    }

    /// Those who were told something since the last time.
    fn told(&self) -> Vec<u64> {
        let told = self.shard.outboxes.peers.take();
        told.into_iter().map(|(peer, ..)| peer.0).collect()
    }

    /// Space for a value that is on its way.
    fn space(&self, client: ClientId, key: &[u8], value: &[u8]) -> (u64, u64) {
        let request = Request::Space {
            condition: Condition::Always,
            value_bytes: value.len() as u32,
            checksum: Model::checksum(key, value),
            key,
        };
        match self.ask(client, 0, request) {
            Some(Answer::Space {
                sequence, offset, ..
            }) => (sequence, offset),
            other => panic!("{other:?}"),
        }
    }

    fn put(&self, client: ClientId, key: &[u8], value: &[u8]) -> Option<Answer> {
        let request = Request::Put {
            condition: Condition::Always,
            is_durable: false,
            key,
            value,
        };
        self.ask(client, 0, request)
    }

    fn delete(&self, key: &[u8]) -> Option<Answer> {
        let condition = Condition::Always;
        self.ask(ONE, 0, Request::Delete { condition, key })
    }

    fn sync(&self, client: ClientId, peer: u64) -> Option<Answer> {
        self.ask(client, peer, Request::Sync { shard: 0 })
    }

    fn settle(&self, client: ClientId, peer: u64, sequence: u64) -> Option<Answer> {
        self.ask(client, peer, Request::Settle { shard: 0, sequence })
    }

    /// As many turns as one thing needs, and more.
    fn turn(&mut self) {
        for _ in 0..50 {
            if self.persister.is_in_fence() {
                self.shard.end_fence();
            }
            self.step();
        }
    }

    fn step(&mut self) {
        self.now = Time(self.now.0 + 10_000_000);
        let state = self.shard.lock();
        let turned = (self.persister).turn(&self.shard, state, &Fencer::Later, self.now);
        drop(turned.unwrap());
    }
}

fn is_stored(answer: Option<Answer>) -> bool {
    matches!(answer, Some(Answer::Done { .. }))
}

fn refused(refusal: Refusal) -> Option<Answer> {
    Some(Answer::Refused(refusal))
}

fn synced(lost: u64) -> Option<Answer> {
    Some(Answer::Synced { lost })
}

#[test]
fn what_a_read_made_durable_is_waited_for_no_more() {
    let mut bench = Bench::new(new_pool(1 << 20, MEMORY, 64), Forca { memo: true });
    let written = |bench: &Bench<ModelMedium>, key: &[u8]| {
        let (_, offset) = bench.space(ONE, key, b"value");
        bench.shard.medium.write(offset, b"value");
    };
    let read = |bench: &Bench<ModelMedium>, key: &'static [u8]| {
        bench.ask(OTHER, 0, Request::Locate { key })
    };
    written(&bench, b"first");
    assert!(matches!(read(&bench, b"first"), Some(Answer::Place { .. })));
    assert_eq!(bench.sync(ONE, 5), synced(0));
    // The same while it is waited for.
    written(&bench, b"second");
    assert_eq!(bench.sync(ONE, 6), None);
    assert!(matches!(
        read(&bench, b"second"),
        Some(Answer::Place { .. })
    ));
    assert_eq!(bench.told(), [6]);
    bench.shard.client_gone(ONE);
    bench.turn();
    assert!(bench.shard.is_done_with(ONE, u64::MAX));
    assert!(!bench.shard.lock().books.has_gone());
}

#[test]
fn who_waits_for_all_is_told_when_a_server_thread_makes_the_last_durable() {
    let bench = Bench::new(new_pool(1 << 20, MEMORY, 64), EFactory);
    let (first, offset) = bench.space(ONE, b"key", b"value");
    (bench.area.region()).write(offset, b"value").unwrap();
    assert_eq!(bench.sync(ONE, 5), None);
    assert!(is_stored(bench.settle(ONE, 0, first)));
    assert_eq!(bench.told(), [5]);
    // One that is not there ends the wait as well.
    let (second, _) = bench.space(ONE, b"key", b"another");
    assert_eq!(bench.sync(ONE, 6), None);
    let incomplete = refused(Refusal::Incomplete);
    assert_eq!(bench.settle(ONE, 0, second), incomplete);
    assert_eq!(bench.told(), [6]);
}

#[test]
fn what_cleaning_gives_up_is_waited_for_no_more() {
    for unit in [MEMORY, DISK] {
        let mut bench = Bench::new(new_pool(1 << 20, unit, 64), EFactory);
        let (late, _) = bench.space(ONE, b"key", b"on its way");
        assert!(is_stored(bench.put(OTHER, b"key", b"newer")));
        bench.turn();
        assert_eq!(bench.sync(ONE, 5), None);
        assert_eq!(bench.told(), []);
        assert_eq!(
            bench.ask(OTHER, 0, Request::Clean { shard: 0 }),
            Some(Answer::Done { sequence: 0 })
        );
        bench.turn();
        assert!(!bench.shard.lock().pool.is_cleaning());
        assert_eq!(bench.told(), [5]);
        let incomplete = refused(Refusal::Incomplete);
        assert_eq!(bench.settle(ONE, 0, late), incomplete);
        assert!(bench.shard.is_done_with(ONE, u64::MAX));
    }
}

/// The persister looks at some megabytes at a time: what is whole may be behind them.
#[test]
fn an_orderly_end_makes_durable_what_is_whole_behind_values_that_never_come() {
    for unit in [MEMORY, DISK] {
        let bench = Bench::new(new_pool(32 << 20, unit, 4096), EFactory);
        let large = vec![1; 1 << 20];
        let absent = 1100;
        for number in 0..absent {
            // On a disk a group is full by bytes, in memory by their number.
            let value: &[u8] = if number < 8 { &large[..] } else { b"small" };
            let key: &[u8] = if number % 2 == 0 {
                b"never"
            } else {
                b"nor this"
            };
            bench.space(ONE, key, value);
        }
        assert!(is_stored(bench.put(OTHER, b"key", b"value")));
        let Bench {
            shard, persister, ..
        } = bench;
        shard.stop();
        persister.run().unwrap();
        let state = shard.lock();
        let found = state.pool.locate(b"key", u64::MAX).unwrap();
        assert!(matches!(found, Located::Durable(_)), "{found:?}");
        let never = state.pool.locate(b"never", u64::MAX).unwrap();
        assert!(!matches!(never, Located::Durable(_)), "{never:?}");
    }
}

#[test]
fn keys_that_were_deleted_or_never_written_leave_room_for_others() {
    const PLACES: u64 = 256;
    let key = |number: u64| format!("key {number}").into_bytes();
    let full = refused(Refusal::Full);
    let busy = refused(Refusal::Busy);
    let mut bench = Bench::new(new_pool(8 << 20, MEMORY, PLACES), EFactory);
    for number in 0..PLACES - 1 {
        assert!(is_stored(bench.put(ONE, &key(number), b"value")));
    }
    bench.turn();
    assert_eq!(bench.put(ONE, b"one more", b"value"), full);
    for number in 0..PLACES - 1 {
        assert!(is_stored(bench.delete(&key(number))));
    }
    assert_eq!(bench.put(ONE, b"one more", b"value"), busy);
    bench.turn();
    for number in 0..PLACES - 1 {
        // Not what lies in the landing from before.
        bench.space(OTHER, &key(1000 + number), b"never");
    }
    assert_eq!(bench.put(ONE, b"one more", b"value"), full);
    bench.shard.client_gone(OTHER);
    bench.turn();
    assert_eq!(bench.shard.lock().pool.backlog(), 0);
    assert_eq!(bench.put(ONE, b"one more", b"value"), busy);
    bench.turn();
    assert!(is_stored(bench.put(ONE, b"one more", b"value")));
}

/// A deletion adds next to nothing to the log, and is one key of many.
#[test]
fn a_few_large_values_that_were_deleted_leave_room_for_others() {
    let full = refused(Refusal::Full);
    let busy = refused(Refusal::Busy);
    let large = vec![7; 200_000];
    let mut bench = Bench::new(new_pool(8 << 20, MEMORY, 4096), EFactory);
    let key = |number: usize| format!("key {number}").into_bytes();
    let mut count = 0;
    loop {
        let put = bench.put(ONE, &key(count), &large);
        bench.turn();
        match put {
            put if put == full => break,
            put if put == busy => {}
            put => {
                assert!(is_stored(put));
                count += 1;
            }
        }
    }
    assert!(count > 10, "{count} values");
    for number in [1, 4] {
        assert!(is_stored(bench.delete(&key(number))));
        bench.turn();
    }
    assert_eq!(bench.put(ONE, b"one more", &large), busy);
    for _ in 0..100 {
        bench.turn();
    }
    for more in [&b"one more"[..], b"another"] {
        assert!(is_stored(bench.put(ONE, more, &large)));
        bench.turn();
    }
    assert_eq!(bench.put(ONE, b"one too many", &large), full);
}

/// A store that begins again counts keys that the one before it had emptied.
#[test]
fn keys_that_were_emptied_in_another_life_leave_room_for_others() {
    const PLACES: u64 = 256;
    let busy = refused(Refusal::Busy);
    for is_deleted in [true, false] {
        let mut pool = new_pool(8 << 20, MEMORY, PLACES);
        for number in 0..PLACES - 1 {
            let key = format!("key {number}").into_bytes();
            if is_deleted {
                pool.put_durable(&key, b"value", Condition::Always).unwrap();
                pool.delete(&key, Condition::Always).unwrap();
            } else {
                let sum = Model::checksum(&key, b"value");
                let never = Source::Landing(Box::new(b"other".to_vec()));
                let taken = pool.allocate(&key, 5, sum, never, Condition::Always);
                assert!(pool.give_up(taken.unwrap().sequence));
            }
        }
        let (pool, _) = Pool::open(pool.medium().crashed(|| true)).unwrap();
        let mut bench = Bench::new(pool, EFactory);
        assert_eq!(bench.put(ONE, b"one more", b"value"), busy);
        bench.turn();
        assert!(is_stored(bench.put(ONE, b"one more", b"value")));
    }
}

/// What is left by one cleaning is not cleaned again, turn after turn.
#[test]
fn a_log_that_is_full_of_values_is_cleaned_once() {
    let mut pool = new_pool(256 << 10, MEMORY, 64);
    for number in 0..62_u8 {
        let put = pool.put_durable(&[number], &[number; 1600], Condition::Always);
        put.unwrap();
    }
    assert!(pool.is_cleaning_due(), "{:?}", pool.log_bytes());
    let mut bench = Bench::new(pool, EFactory);
    let free = |bench: &Bench<ModelMedium>| bench.shard.lock().pool.unused();
    let before = free(&bench);
    for _ in 0..10 {
        bench.turn();
    }
    let cleaned = free(&bench);
    assert_ne!(cleaned, before, "once, as nobody knows what is in it");
    for _ in 0..10 {
        bench.turn();
        assert_eq!(free(&bench), cleaned);
    }
}

/// Whoever asks for it again and again does not keep the disk busy.
#[test]
fn a_log_is_cleaned_for_who_asks_if_that_leaves_something_out() {
    let mut bench = Bench::new(new_pool(1 << 20, DISK, 64), EFactory);
    let ask = |bench: &mut Bench<ModelMedium>| {
        let answer = bench.ask(OTHER, 0, Request::Clean { shard: 0 });
        assert!(is_stored(answer));
        bench.turn();
        bench.shard.lock().pool.unused()
    };
    let key = |number: u64| format!("key {number}").into_bytes();
    for number in 0..40 {
        assert!(is_stored(bench.put(ONE, &key(number), &[7; 1000])));
    }
    bench.turn();
    let before = bench.shard.lock().pool.unused();
    let cleaned = ask(&mut bench);
    assert_ne!(cleaned, before, "once, as nobody knows what is in it");
    for _ in 0..3 {
        assert_eq!(ask(&mut bench), cleaned);
    }
    // One value of 40.
    bench.delete(&key(7));
    bench.turn();
    let before = bench.shard.lock().pool.unused();
    let cleaned = ask(&mut bench);
    assert_ne!(cleaned, before);
    assert_eq!(ask(&mut bench), cleaned);
}

/// A cleaning has a record of its own, which waits for that of a lease.
#[test]
fn who_asks_for_a_cleaning_while_a_record_is_on_its_way_has_it_afterwards() {
    let mut bench = Bench::new(new_pool(1 << 20, DISK, 64), EFactory);
    bench.shard.lock().pool.use_lease_up();
    assert!(is_stored(bench.put(ONE, b"key", b"value")));
    bench.step();
    assert!(bench.shard.lock().pool.is_recording());
    let asked = bench.ask(OTHER, 0, Request::Clean { shard: 0 });
    assert!(is_stored(asked));
    bench.step();
    assert!(!bench.shard.lock().pool.is_cleaning());
    bench.turn();
    assert_ne!(bench.shard.lock().used_after_cleaning, 0);
}

/// A crash while the log is copied leaves copies that are none, in front of a version that counts.
#[test]
fn a_store_that_cannot_be_cleaned_says_that_it_is_full() {
    let mut pool = new_pool(256 << 10, MEMORY, 64);
    for number in 0..50_u8 {
        let put = pool.put_durable(&[number], &[number; 1500], Condition::Always);
        put.unwrap();
    }
    drop(pool.begin_clean(64).unwrap());
    let mut pool = Pool::open(pool.medium().crashed(|| true)).unwrap().0;
    drop(pool.begin_clean(64).unwrap());
    pool.put_durable(b"behind", b"", Condition::Always).unwrap();
    let pool = Pool::open(pool.medium().crashed(|| true)).unwrap().0;
    let mut bench = Bench::new(pool, EFactory);
    bench.turn();
    assert!(bench.shard.lock().pool.is_cleaning());
    assert_eq!(bench.put(ONE, b"key", &[7; 1500]), refused(Refusal::Full));
    let read = bench.ask(ONE, 0, Request::Locate { key: &[7] });
    assert!(matches!(read, Some(Answer::Place { .. })), "{read:?}");
}

#[test]
fn one_client_leaves_room_for_versions_of_others() {
    let bench = Bench::new(new_pool(24 << 20, DISK, 64), EFactory);
    for number in 0..CLIENT_VERSIONS_MAX {
        bench.space(ONE, &[(number % 60) as u8], b"");
    }
    let busy = refused(Refusal::Busy);
    assert_eq!(bench.put(ONE, b"key", b""), busy);
    assert_eq!(bench.delete(b"key"), busy);
    assert!(is_stored(bench.put(OTHER, b"key", b"")));
}

/// Also where nothing is made durable for its own sake.
#[test]
fn a_key_that_too_many_versions_wait_of_takes_more_once_the_newest_is_durable() {
    for unit in [MEMORY, DISK] {
        let mut bench = Bench::new(new_pool(8 << 20, unit, 64), Ca);
        for _ in 0..4 {
            let mut taken = 0;
            while is_stored(bench.put(ONE, b"key", b"value")) {
                taken += 1;
            }
            assert_eq!(taken, 1024);
            // Who asks again and again has it looked at once.
            for _ in 0..100 {
                bench.put(ONE, b"key", b"value");
            }
            assert!(bench.shard.lock().wanted.len() <= 1);
            assert!(is_stored(bench.put(ONE, b"other", b"value")));
            bench.turn();
        }
    }
}

/// A server that answers some of its clients and not others would be taken for alive.
#[test]
fn a_thread_that_ends_by_an_error_takes_the_store_with_it() {
    let has_failed = AtomicBool::new(false);
    note_end("test", &Ok::<(), StoreError>(()), &has_failed);
    assert!(!has_failed.load(Ordering::Acquire), "an orderly end");
    note_end("test", &Err(StoreError::Incomplete), &has_failed);
    note_end("test", &Ok::<(), StoreError>(()), &has_failed);
    assert!(has_failed.load(Ordering::Acquire));
}

/// While a disk is in its fence requests wait: who makes many takes no room from others.
#[test]
fn one_client_leaves_room_for_requests_of_others_that_wait() {
    let mut bench = Bench::new(new_pool(24 << 20, DISK, 64), EFactory);
    let busy = refused(Refusal::Busy);
    bench.space(OTHER, b"key", b"on its way");
    let large = vec![1; INLINE_BYTES_MAX];
    let put = |bench: &Bench<ModelMedium>, client, value: &[u8]| {
        let request = Request::Put {
            condition: Condition::Absent,
            is_durable: false,
            key: b"key",
            value,
        };
        bench.ask(client, 7, request)
    };
    for value in [&large[..], b""] {
        assert!(is_stored(bench.put(OTHER, b"other", b"value")));
        while !bench.persister.is_in_fence() {
            bench.step();
        }
        let mut taken = 0;
        while put(&bench, ONE, value).is_none() {
            taken += 1;
            assert!(taken < 10_000, "one client may have so many");
            if taken % 100 == 0 {
                // What the persister has taken counts until it is told.
                bench.step();
            }
        }
        assert_eq!(put(&bench, ONE, value), busy);
        assert_eq!(put(&bench, OTHER, value), None, "the other's is taken");
        bench.turn();
        assert_eq!(bench.told().len(), taken + 1, "each was told");
    }
    assert_eq!(put(&bench, ONE, &large), None, "there is room again");
}

/// A look that began before a value was there says nothing to who asks once it is.
#[test]
fn who_reads_after_a_value_was_written_is_told_of_it_whatever_an_earlier_look_found() {
    let mut bench = Bench::new(new_pool(1 << 20, DISK, 64), EFactory);
    assert!(is_stored(bench.put(ONE, b"key", b"older")));
    bench.turn();
    let (newer, offset) = bench.space(ONE, b"key", b"newer");
    // Something to wait in a fence for, which begins beside that value.
    assert!(is_stored(bench.put(OTHER, b"other", b"value")));
    while !bench.persister.is_in_fence() {
        bench.step();
    }
    bench.area.region().write(offset, b"newer").unwrap();
    assert_eq!(bench.ask(OTHER, 9, Request::Locate { key: b"key" }), None);
    assert_eq!(bench.settle(ONE, 8, newer), None);
    bench.step();
    let mut told = Vec::new();
    for _ in 0..50 {
        if bench.persister.is_in_fence() {
            bench.shard.end_fence();
        }
        bench.step();
        told.extend(bench.told());
        let located = bench.shard.lock().pool.locate(b"key", u64::MAX).unwrap();
        let is_there = matches!(located, Located::Durable(place) if place.sequence == newer);
        assert!(is_there || told.is_empty(), "{located:?}, {told:?}");
    }
    told.sort_unstable();
    assert_eq!(told, [8, 9]);
}

#[test]
fn a_read_passes_all_versions_that_one_look_finds_unwritten() {
    let mut bench = Bench::new(new_pool(1 << 20, DISK, 64), EFactory);
    assert!(is_stored(bench.put(ONE, b"key", b"older")));
    bench.turn();
    for _ in 0..100 {
        bench.space(ONE, b"key", b"newer");
    }
    assert_eq!(bench.ask(OTHER, 9, Request::Locate { key: b"key" }), None);
    for _ in 0..10 {
        if bench.persister.is_in_fence() {
            bench.shard.end_fence();
        }
        bench.step();
    }
    assert_eq!(bench.told(), [9]);
}

#[test]
fn a_persister_without_a_thread_for_its_fences_waits_for_them_itself() {
    let test = "server::tests::a_persister_without_a_thread_for_its_fences_waits_for_them_itself";
    without_threads(test, || {
        let bench = Bench::new(new_pool(1 << 20, DISK, 64), EFactory);
        assert!(is_stored(bench.put(ONE, b"key", b"value")));
        std::thread::scope(|scope| {
            let fencer = Fencer::start(scope, &bench.shard);
            fencer.fence(&bench.shard);
        });
        let fenced = bench.shard.lock().fenced.take();
        assert!(matches!(fenced, Some(Ok(()))), "{fenced:?}");
    });
}
