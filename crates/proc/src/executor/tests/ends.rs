//! How requests end that did run, or that others ran for a thread.

use super::*;
use crate::RegistryError;
use crate::service::Label;

fn slot(generation: u64, place: RegionLocation) -> Slot {
    Slot { generation, place }
}

fn memory() -> crate::Local {
    let region = Region::create("proc-test", 4096, RegionOptions::default()).unwrap();
    Arc::new(region).into()
}

fn came(number: u64, steps: u32) -> Moved {
    let mut request = echo(1, number);
    request.steps = steps;
    Moved {
        from: Machine(2),
        need: None,
        generation: 0,
        forwarded: false,
        request,
    }
}

fn ends(executor: &mut Executor) -> Vec<Status> {
    executor.run(&mut Wants(Outcome::Again), 0);
    let (all, _) = answers(executor);
    let mut all: Vec<_> = all.into_values().flatten().collect();
    all.sort_by_key(|response| response.number);
    all.into_iter().map(|response| response.status).collect()
}

#[test]
fn who_comes_where_there_is_no_room_is_told_whether_it_may_have_run() {
    let limits = Limits {
        client_requests: 1,
        ..Limits::default()
    };
    let (mut executor, _) = echo_executor(limits);
    executor.handle_moved(came(0, 0));
    executor.handle_moved(came(1, 0));
    executor.handle_moved(came(2, 1));
    let refused = Refused { moved: came(3, 1) };
    executor.handle_refused(refused);
    executor.handle_unsent(came(4, 1), Time(u64::MAX));

    let ends = ends(&mut executor);

    assert_eq!(
        ends,
        [Status::Busy, Status::Lost, Status::Lost, Status::Lost]
    );
    let may_have_run: Vec<_> = ends.iter().map(|status| status.may_have_run()).collect();
    assert_eq!(may_have_run, [false, true, true, true]);
}

#[test]
fn requests_of_a_cache_that_is_closed_and_of_a_procedure_that_is_gone_may_have_run() {
    let (mut executor, mut runner) = echo_executor(Limits::default());
    executor.handle_moved(came(0, 3));
    executor.handle_deleted(CacheId(1));
    executor.run(&mut runner, 16);
    let closed = ends(&mut executor);
    assert_eq!(closed, [Status::OutOfBounds]);

    let (mut executor, mut runner) = echo_executor(Limits::default());
    let mut began = came(0, 1);
    began.request.procedure = ProcedureId(9);
    let mut new = echo(1, 1);
    new.procedure = ProcedureId(9);
    executor.handle_moved(began);
    executor.handle_requests([new]);
    executor.run(&mut runner, 16);
    let gone = ends(&mut executor);
    assert_eq!(
        gone,
        [Status::Trapped(Trap::Gone), Status::Trapped(Trap::Unknown)]
    );
    assert!(closed[0].may_have_run() && gone[0].may_have_run() && !gone[1].may_have_run());
}

#[test]
fn requests_for_a_procedure_that_is_being_compiled_wait_if_they_have_run_or_come_again() {
    let registry = Arc::new(Registry::default());
    let label = Label {
        id: ProcedureId(1),
        name: "late".to_owned(),
        version: 1,
        grants: Grants::All(Access::Read),
        len_bytes: 8,
    };
    registry.expect(&label, 7).unwrap();
    assert_eq!(registry.expect(&label, 7), Err(RegistryError::Taken));
    let (mut executor, _) = echo_executor(Limits::default());
    let mut runner = Procedures::new(Arc::clone(&registry));
    executor.handle_requests([echo(1, 1)]);
    executor.handle_moved(came(0, 3));
    executor.run(&mut runner, 16);
    let early = ends(&mut executor);
    assert_eq!(early, [Status::Busy]);
    assert!(early[0].is_retryable() && !early[0].may_have_run());
    let waits = |executor: &mut Executor, runner: &mut _, seconds: u64| {
        executor.handle_tick(Time::default().after(Duration::from_secs(seconds)));
        executor.run(runner, 16);
        assert_eq!(ends(executor), []);
        assert_eq!(executor.inactive(), 1);
    };
    waits(&mut executor, &mut runner, 1);
    waits(&mut executor, &mut runner, 2);

    registry.give_up(label.id);
    let echoes = registry.link::<Echo>(label.id, "echo", Grants::All(Access::Read));
    echoes.unwrap();
    registry.give_up(label.id);
    executor.handle_tick(Time::default().after(Duration::from_secs(3)));
    executor.handle_requests([echo(1, 2)]);
    executor.run(&mut runner, 16);
    assert_eq!(ends(&mut executor), [Status::Done; 2]);
}

#[test]
fn a_request_waits_for_its_code_no_longer_than_for_anything_else() {
    let (mut executor, _) = echo_executor(Limits::default());
    let mut runner = Wants(Outcome::Coming);
    executor.handle_moved(came(0, 3));
    let wait = Limits::default().wait;
    let mut now = Time::default();
    let ended = loop {
        executor.run(&mut runner, 16);
        let ended = ends(&mut executor);
        if !ended.is_empty() {
            break ended;
        }
        now = executor.next_tick().expect("it waits");
        executor.handle_tick(now);
    };
    assert_eq!(ended, [Status::TimedOut]);
    assert!(ended[0].may_have_run());
    let last = Time::default().after(wait);
    assert!(now <= last && now.after(wait / 10) > last);
    assert_eq!(executor.inactive(), 0);
}

/// Stores at an address; where it may not, it wants to be at the first byte.
struct Stores(u64);

impl Run for Stores {
    fn step(&mut self, _: &mut Request, table: &mut Table, _: u64, _: &[u8]) -> Outcome {
        let addr = self.0;
        match table.store(addr, b"8 bytes.") {
            Ok(()) => Outcome::Done,
            Err(_) => Outcome::Forward { addr, size: 1 },
        }
    }
}

#[test]
fn a_store_into_a_region_that_stays_and_one_that_leaves_waits_for_the_second() {
    let here = || RegionLocation::Here {
        memory: memory(),
        offset: 0,
    };
    let leaving = RegionLocation::Leaving {
        memory: memory(),
        offset: 0,
    };
    let (mut executor, _) = echo_executor(Limits::default());
    executor.handle_cache(CacheId(1), Table::new(4096, 2, true));
    executor.handle_map(CacheId(1), 0, slot(1, here()));
    executor.handle_map(CacheId(1), 1, slot(1, leaving));
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut Stores(4092), 16);
    assert_eq!((executor.inactive(), executor.shelf().len()), (1, 0));
    // It moved within this machine.
    executor.handle_map(CacheId(1), 1, slot(2, here()));
    executor.run(&mut Stores(4092), 16);
    assert_eq!(ends(&mut executor), [Status::Done]);
}

#[test]
fn a_store_that_a_helper_held_back_goes_on_by_what_its_owner_knows() {
    let thread = |place| {
        let (mut executor, _) = echo_executor(Limits::default());
        executor.handle_cache(CacheId(1), Table::new(4096, 1, true));
        assert!(executor.handle_map(CacheId(1), 0, slot(1, place)));
        executor
    };
    let (mut owner, mut helper) = (
        thread(RegionLocation::Here {
            memory: memory(),
            offset: 0,
        }),
        thread(RegionLocation::Leaving {
            memory: memory(),
            offset: 0,
        }),
    );
    owner.handle_requests([echo(1, 0)]);
    let shelf = owner.shelf();
    let ended = helper.help(&shelf, &mut Stores(64), 1);
    // The owner of the request hears of the end of the move before it hears of the step.
    assert!(owner.handle_map(CacheId(1), 0, slot(2, RegionLocation::At(Machine(2)))));
    for ended in ended {
        owner.settle(ended);
    }
    assert!(
        matches!(
            owner.poll_action(),
            Some(Action::Move { to: Machine(2), .. })
        ),
        "nothing wakes it"
    );
    assert_eq!(owner.inactive(), 0);
}

#[test]
fn a_thread_that_helps_before_it_heard_of_the_cache_ends_nothing() {
    let (mut owner, mut runner) = echo_executor(Limits::default());
    let mut helper = Executor::new(Machine(1), Limits::default());
    owner.handle_requests([echo(1, 0)]);
    let shelf = owner.shelf();
    for ended in helper.help(&shelf, &mut runner, 1) {
        owner.settle(ended);
    }
    owner.run(&mut runner, 16);
    assert_eq!(ends(&mut owner), [Status::Done]);
}

/// Who was not sent says nothing about where the region is: no newer word will come.
#[test]
fn a_request_that_could_not_be_sent_goes_again_until_its_time_is_over() {
    let (mut executor, _) = echo_executor(Limits::default());
    executor.handle_map(CacheId(1), 0, slot(1, RegionLocation::At(Machine(2))));
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut Wants(Outcome::Forward { addr: 0, size: 1 }), 16);
    assert_eq!(end_of_unsent(executor), unsent());
}

#[test]
fn a_request_that_a_successor_does_not_get_goes_again_until_its_time_is_over() {
    let (mut executor, _) = echo_executor(Limits::default());
    executor.handle_requests([echo(1, 0)]);
    executor.handle_leave(CacheId(1), Machine(2));
    assert_eq!(end_of_unsent(executor), unsent());
}

/// When and how a request ends of which nothing can be sent, and which waits between any two tries.
fn end_of_unsent(mut executor: Executor) -> (Status, Time) {
    let mut now = Time(0);
    loop {
        match executor.poll_action() {
            Some(Action::Move { moved, give_up, .. }) => {
                executor.handle_unsent(moved, give_up);
                let due = executor.next_tick().expect("it waits");
                assert!(due > now);
                now = due;
                executor.handle_tick(now);
            }
            Some(Action::Answer { responses, .. }) => return (responses[0].status, now),
            _ => {
                executor.run(&mut Wants(Outcome::Again), 0);
            }
        }
    }
}

fn unsent() -> (Status, Time) {
    (Status::TimedOut, Time(0).after(Limits::default().wait))
}

#[test]
fn a_doubtful_step_is_not_done_though_its_cache_was_closed() {
    let doubtful = [
        (crate::Stores::InDoubt, None),
        (crate::Stores::Count, Some(Time(1))),
    ];
    for (stores, loaded_by) in doubtful {
        let (mut owner, mut runner) = echo_executor(Limits::default());
        let mut helper = Executor::new(Machine(1), Limits::default());
        helper.handle_cache(CacheId(1), Table::new(4096, 1, true));
        owner.handle_requests([echo(1, 0)]);
        let shelf = owner.shelf();
        let mut ended = helper.help(&shelf, &mut runner, 1);
        let mut step = ended.pop().expect("it helped");
        assert!(step.outcome.is_some());
        (step.stores, step.loaded_by) = (stores, loaded_by);
        // The owner of the request hears of the end of the cache before it hears of the step.
        owner.handle_deleted(CacheId(1));
        owner.settle(step);
        assert_eq!(ends(&mut owner), [Status::TimedOut], "{stores:?}");
    }
}
