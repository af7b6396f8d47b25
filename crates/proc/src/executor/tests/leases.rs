//! Machines whose time with a cache ends: what they begin, finish and say.

use super::*;

/// Stores at address 64 and then says so, or wants to be there.
struct Stores;

impl Run for Stores {
    fn step(&mut self, _: &mut Request, table: &mut Table, _: u64, _: &[u8]) -> Outcome {
        table.begin_step(true);
        match table.store(64, b"x") {
            Ok(()) => Outcome::Done,
            Err(_) => Outcome::Forward { addr: 64, size: 1 },
        }
    }
}

/// Loads.
struct Loads;

impl Run for Loads {
    fn step(&mut self, _: &mut Request, table: &mut Table, _: u64, _: &[u8]) -> Outcome {
        table.load(64, &mut [0]).expect("it is here");
        Outcome::Done
    }
}

fn leased(until: Time) -> Executor {
    let (mut executor, _) = echo_executor(Limits::default());
    let mut table = Table::new(4096, 1, true);
    table.allow_writes(until);
    table.end_reads_with_writes();
    executor.handle_cache(CacheId(1), table);
    let memory = Arc::new(Region::create("proc-test", 4096, RegionOptions::default()).unwrap());
    let place = RegionLocation::Here {
        memory: memory.into(),
        offset: 0,
    };
    let slot = Slot {
        generation: 1,
        place,
    };
    assert!(executor.handle_map(CacheId(1), 0, slot));
    executor
}

fn ends(executor: &mut Executor) -> Vec<Status> {
    let (all, _) = answers(executor);
    let all = all.into_values().flatten();
    all.map(|response| response.status).collect()
}

#[test]
fn no_step_begins_without_a_lease_and_those_that_wait_go_on_with_the_next() {
    let mut executor = leased(Time(0));
    executor.handle_tick(Time::now());
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut Stores, 16);
    assert_eq!((ends(&mut executor), executor.inactive()), (vec![], 1));
    // A word about the region is none about the lease.
    executor.handle_tick(Time::now());
    executor.run(&mut Stores, 16);
    assert_eq!(executor.inactive(), 1);
    executor.handle_lease(CacheId(1), Time(u64::MAX));
    executor.run(&mut Stores, 16);
    assert_eq!(ends(&mut executor), [Status::Done]);
}

#[test]
fn what_was_loaded_by_the_time_that_the_lease_is_over_is_not_answered() {
    // The thread believes that there is time: it looked at the clock long ago.
    let mut executor = leased(Time::now());
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut Loads, 16);
    let ends = ends(&mut executor);
    assert_eq!(ends, [Status::TimedOut]);
    assert!(ends[0].is_retryable() && ends[0].may_have_run());
}

#[test]
fn a_request_that_waits_for_a_lease_leaves_with_its_machine() {
    let mut executor = leased(Time(0));
    executor.handle_tick(Time::now());
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut Stores, 16);
    executor.handle_leave(CacheId(1), Machine(2));
    let sent = executor.poll_action();
    let is_sent =
        matches!(&sent, Some(Action::Move { to: Machine(2), moved, .. }) if moved.need.is_none());
    assert!(is_sent, "{sent:?}");
    assert_eq!(executor.inactive(), 0);
}

#[test]
fn other_machines_get_no_bytes_after_the_lease() {
    let mut executor = leased(Time(0));
    executor.handle_fetch(Fetch {
        from: Machine(2),
        token: 7,
        cache: CacheId(1),
        addr: 64,
        size: 8,
        generation: 1,
        forwarded: false,
    });
    let sent = executor.poll_action();
    let Some(Action::Data { data, .. }) = sent else {
        panic!("{sent:?}");
    };
    assert_eq!(data.bytes, Err(crate::message::Refusal::Early));
}

/// A write to two regions of which one is on the move changes neither; one that was cut off in its
/// middle by the end of the time is in doubt.
#[test]
fn a_store_is_whole_waits_or_is_in_doubt() {
    let region = || Arc::new(Region::create("proc-test", 64, RegionOptions::default()).unwrap());
    let (first, second) = (region(), region());
    let mut table = Table::new(64, 2, true);
    let slot = |generation, memory: &Arc<Region>, leaving| {
        let (memory, offset) = (Arc::clone(memory).into(), 0);
        let place = match leaving {
            true => RegionLocation::Leaving { memory, offset },
            false => RegionLocation::Here { memory, offset },
        };
        Slot { generation, place }
    };
    assert!(table.set(0, slot(1, &first, false)));
    assert!(table.set(1, slot(1, &second, true)));
    assert!(table.store(60, &[1; 8]).is_err());
    assert_eq!(table.take_stores(), crate::Stores::Wait { index: 1 });
    let mut bytes = [9; 4];
    first.read(60, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 4], "nothing of it was written");
    assert!(table.set(1, slot(2, &second, false)));
    assert!(table.store(60, &[1; 8]).is_ok());
    assert_eq!(table.take_stores(), crate::Stores::Count);
    // A long store during which the time ends: some of them are cut off in the middle.
    let long = Arc::new(Region::create("proc-test", 8 << 20, RegionOptions::default()).unwrap());
    let bytes = vec![7; 8 << 20];
    let in_doubt = (0..100).any(|_| {
        let mut table = Table::new(8 << 20, 1, true);
        assert!(table.set(0, slot(1, &long, false)));
        table.allow_writes(Time::now().after(Duration::from_micros(100)));
        let stored = table.store(0, &bytes);
        let stores = table.take_stores();
        assert_eq!(stored.is_ok(), stores == crate::Stores::Count);
        stores == crate::Stores::InDoubt
    });
    assert!(in_doubt, "no store was cut off");
}
