mod cluster;
mod copies;
mod ends;
mod leases;
mod stalls;

use std::cell::Cell;
use std::collections::HashMap;

use cenote_fabric::{Region, RegionOptions};
use cenote_proc_sdk::procedures::{Echo, WalkList};
use proptest::prelude::*;

use super::turns::BATCH_TIME;
use super::*;
use crate::injected_faults::{InjectedFault, inject};
use crate::message::Message;
use crate::message::tests::message;
use crate::{Access, Grants, ProcedureId, Procedures, RegionLocation, Registry};
use cluster::Cluster;

/// Runs some seeds; the first complaint.
fn complaint(seeds: std::ops::Range<u64>) -> Option<String> {
    seeds.into_iter().find_map(|seed| {
        let said = Cluster::new(seed).run().err()?;
        Some(format!("seed {seed}: {said}"))
    })
}

#[test]
fn every_request_is_answered_once_and_right_while_regions_move_and_machines_leave() {
    assert_eq!(complaint(0..300), None);
}

#[test]
fn every_injected_fault_is_found() {
    for mistake in [
        InjectedFault::WriteLeaving,
        InjectedFault::ServeOld,
        InjectedFault::OldWord,
        InjectedFault::ForwardTwice,
        InjectedFault::ForgetInactive,
        InjectedFault::LeaveInactive,
        InjectedFault::HalfData,
        InjectedFault::SleepOn,
        InjectedFault::AnswerTwice,
    ] {
        inject(Some(mistake));
        let found = complaint(0..300);
        inject(None);
        let found = found.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}: {found}");
    }
}

fn echo_executor(limits: Limits) -> (Executor, Procedures) {
    let registry = Registry::default();
    registry
        .link::<Echo>(ProcedureId(1), "echo", Grants::All(Access::ReadWrite))
        .unwrap();
    let mut executor = Executor::new(Machine(1), limits);
    executor.handle_cache(CacheId(1), Table::new(4096, 1, false));
    (executor, Procedures::new(Arc::new(registry)))
}

pub(super) fn echo(client: u64, number: u64) -> Request {
    Request::new(ClientId(client), number, CacheId(1), ProcedureId(1), b"hi")
}

/// Answers by client, in order, and how many messages they came in.
fn answers(executor: &mut Executor) -> (HashMap<ClientId, Vec<Response>>, usize) {
    let (mut all, mut messages) = (HashMap::<_, Vec<_>>::new(), 0);
    while let Some(action) = executor.poll_action() {
        let Action::Answer { client, responses } = action else {
            panic!("{action:?}");
        };
        messages += 1;
        all.entry(client).or_default().extend(responses);
    }
    (all, messages)
}

#[test]
fn who_floods_is_told_so_and_hinders_nobody() {
    let limits = Limits {
        client_requests: 100,
        ..Limits::default()
    };
    let (mut executor, mut runner) = echo_executor(limits);
    executor.handle_requests((0..1000).map(|number| echo(1, number)));
    executor.handle_requests([echo(2, 0)]);
    executor.run(&mut runner, 16);
    let (first, _) = answers(&mut executor);
    assert_eq!(
        first[&ClientId(2)][0].status,
        Status::Done,
        "in the first round"
    );
    while executor.run(&mut runner, 16) > 0 {}
    let (rest, _) = answers(&mut executor);
    let flood: Vec<_> = first[&ClientId(1)]
        .iter()
        .chain(&rest[&ClientId(1)])
        .collect();
    let count = |status| flood.iter().filter(|r| r.status == status).count();
    assert_eq!(
        (flood.len(), count(Status::Done), count(Status::Busy)),
        (1000, 100, 900)
    );
    // What was answered makes room.
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut runner, 16);
    assert_eq!(
        answers(&mut executor).0[&ClientId(1)][0].status,
        Status::Done
    );
}

#[test]
fn requests_that_go_on_for_ever_end_with_their_client_and_with_no_other() {
    let (mut executor, _) = echo_executor(Limits::default());
    executor.handle_requests((0..3).map(|number| echo(1, number)));
    executor.handle_requests([echo(2, 0)]);
    let mut again = Wants(Outcome::Again);
    for _ in 0..10 {
        assert_eq!(executor.run(&mut again, 16), 4);
    }
    executor.handle_client_left(ClientId(1));
    assert_eq!(executor.run(&mut again, 16), 4, "one step more");
    assert_eq!(executor.run(&mut again, 16), 1);
    let (ended, _) = answers(&mut executor);
    let ended = ended[&ClientId(1)].iter().map(|response| response.status);
    assert_eq!(ended.collect::<Vec<_>>(), [Status::TimedOut; 3]);
    // One that comes to its end is none the worse.
    executor.handle_requests([echo(3, 0)]);
    executor.handle_client_left(ClientId(3));
    executor.run(&mut Wants(Outcome::Done), 16);
    let (ended, _) = answers(&mut executor);
    assert_eq!(ended[&ClientId(3)][0].status, Status::Done);
}

/// Its first client's steps take too long.
struct SlowForOne;

impl Run for SlowForOne {
    fn step(&mut self, request: &mut Request, _: &mut Table, _: u64, _: &[u8]) -> Outcome {
        match request.client {
            ClientId(1) => Outcome::Trap(Trap::TooLong),
            _ => Outcome::Done,
        }
    }
}

#[test]
fn a_step_that_took_too_long_ends_the_turn_and_the_next_client_follows() {
    let (mut executor, _) = echo_executor(Limits::default());
    executor.handle_requests((0..20).map(|number| echo(1, number)));
    executor.handle_requests((0..2).map(|number| echo(2, number)));

    assert_eq!(executor.run(&mut SlowForOne, 16), 1);
    assert_eq!(
        executor.run(&mut SlowForOne, 16),
        3,
        "two of the other, then one"
    );
    let mut steps = 4;
    loop {
        match executor.run(&mut SlowForOne, 16) {
            0 => break,
            taken => steps += taken,
        }
    }
    assert_eq!(steps, 22);
    let (all, _) = answers(&mut executor);
    let numbers = |client| {
        let of = all[&ClientId(client)].iter();
        of.map(|response| response.number).collect::<Vec<_>>()
    };
    assert_eq!(numbers(1), (0..20).collect::<Vec<_>>(), "in their order");
    assert_eq!(numbers(2), [0, 1]);
}

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// Each step takes almost as long as one may.
struct Slowly;

impl Run for Slowly {
    fn step(&mut self, _: &mut Request, _: &mut Table, _: u64, _: &[u8]) -> Outcome {
        NOW.set(NOW.get() + 9_000_000);
        Outcome::Done
    }
}

#[test]
fn steps_that_take_long_together_end_the_turn_of_who_helps_and_the_others_go_back() {
    let (mut owner, mut runner) = echo_executor(Limits::default());
    let (mut helper, _) = echo_executor(Limits::default());
    helper.clock = Clock(|| Time(NOW.get()));
    owner.handle_requests((0..128).map(|number| echo(1, number)));
    let shelf = owner.shelf();
    let ended = helper.help(&shelf, &mut Slowly, 64);
    let took = Time(NOW.get()).since(Time(0));
    assert!(took < 3 * BATCH_TIME, "{took:?}");
    assert_eq!((ended.len() + shelf.len(), shelf.is_empty()), (128, false));
    for ended in ended {
        owner.settle(ended);
    }
    while owner.run(&mut runner, 16) > 0 {}
    let (all, _) = answers(&mut owner);
    let numbers = all[&ClientId(1)].iter().map(|response| response.number);
    assert!(numbers.eq(0..128), "in their order");
}

#[test]
fn more_clients_than_allowed_are_refused_until_others_are_done() {
    let limits = Limits {
        clients: 2,
        ..Limits::default()
    };
    let (mut executor, mut runner) = echo_executor(limits);
    executor.handle_requests([echo(1, 0), echo(2, 0), echo(3, 0)]);
    executor.run(&mut runner, 16);
    let status = |all: &HashMap<_, Vec<Response>>, client| all[&ClientId(client)][0].status;
    let (all, _) = answers(&mut executor);
    assert_eq!(
        (status(&all, 2), status(&all, 3)),
        (Status::Done, Status::Busy)
    );
    executor.handle_requests([echo(3, 0)]);
    executor.run(&mut runner, 16);
    assert_eq!(status(&answers(&mut executor).0, 3), Status::Done);
}

#[test]
fn answers_travel_together_under_load_and_alone_without() {
    let (mut executor, mut runner) = echo_executor(Limits::default());
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut runner, 16);
    assert_eq!(answers(&mut executor).1, 1, "a lone answer does not wait");
    executor.handle_requests((0..128).map(|number| echo(1, number)));
    while executor.run(&mut runner, 16) > 0 {}
    let (all, messages) = answers(&mut executor);
    assert_eq!((all[&ClientId(1)].len(), messages), (128, 1));
    // A client whose queue never ends gets its answers by bytes, and by rounds.
    executor.handle_requests((0..4096).map(|number| echo(1, number)));
    for _ in 0..9 {
        executor.run(&mut runner, 4);
    }
    assert_eq!(answers(&mut executor).0[&ClientId(1)].len() % 4, 0);
}

#[test]
fn a_cache_that_is_not_here_is_answered_so() {
    let (mut executor, mut runner) = echo_executor(Limits::default());
    let mut request = echo(1, 0);
    request.cache = CacheId(9);
    executor.handle_requests([request]);
    let mut unknown = echo(1, 1);
    unknown.procedure = ProcedureId(9);
    executor.handle_requests([unknown]);
    executor.run(&mut runner, 16);
    let status: Vec<_> = answers(&mut executor).0[&ClientId(1)]
        .iter()
        .map(|response| response.status)
        .collect();
    assert_eq!(
        status,
        [Status::OutOfBounds, Status::Trapped(Trap::Unknown)]
    );
}

/// Always wants the same of the cache.
struct Wants(Outcome);

impl Run for Wants {
    fn step(&mut self, _: &mut Request, _: &mut Table, _: u64, _: &[u8]) -> Outcome {
        self.0.clone()
    }
}

#[test]
fn a_request_that_never_ends_is_ended() {
    let limits = Limits {
        steps: 10,
        ..Limits::default()
    };
    let memory = Region::create("proc-test", 4096, RegionOptions::default()).unwrap();
    let memory = Arc::new(memory);
    for outcome in [
        Outcome::Again,
        Outcome::DataNeeded { addr: 0, size: 8 },
        Outcome::Forward { addr: 0, size: 8 },
    ] {
        let (mut executor, _) = echo_executor(limits);
        let place = RegionLocation::Here {
            memory: Arc::clone(&memory).into(),
            offset: 0,
        };
        executor.handle_map(
            CacheId(1),
            0,
            Slot {
                generation: 1,
                place,
            },
        );
        executor.handle_requests([echo(1, 0)]);
        let mut steps = 0;
        loop {
            match executor.run(&mut Wants(outcome.clone()), 16) {
                0 => break,
                taken => steps += taken,
            }
        }
        assert_eq!(steps, 10);
        let (all, _) = answers(&mut executor);
        assert_eq!(all[&ClientId(1)][0].status, Status::TooManySteps);
    }
}

#[test]
fn who_waits_too_long_is_told_so_and_late_bytes_find_nobody() {
    let (mut executor, _) = echo_executor(Limits::default());
    let place = RegionLocation::At(Machine(2));
    executor.handle_map(
        CacheId(1),
        0,
        Slot {
            generation: 1,
            place,
        },
    );
    executor.handle_requests([echo(1, 0)]);
    executor.run(&mut Wants(Outcome::DataNeeded { addr: 0, size: 8 }), 16);
    let Some(Action::Fetch { fetch, .. }) = executor.poll_action() else {
        panic!("no fetch");
    };
    assert_eq!(executor.inactive(), 1);
    let due = executor.next_tick().expect("a time");
    executor.handle_tick(Time(due.0 - 1));
    assert_eq!(executor.inactive(), 1);
    executor.handle_tick(due);
    executor.run(&mut Wants(Outcome::Again), 16);
    let (all, _) = answers(&mut executor);
    assert_eq!(all[&ClientId(1)][0].status, Status::TimedOut);
    let token = fetch.token;
    let bytes = Ok(vec![0; 8]);
    executor.handle_data(Data { token, bytes });
    assert_eq!((executor.inactive(), executor.shelf().len()), (0, 0));
}

#[test]
fn fetches_of_peers_reach_one_region_and_no_further() {
    let (mut executor, _) = echo_executor(Limits::default());
    let memory = Region::create("proc-test", 4096, RegionOptions::default()).unwrap();
    let memory = Arc::new(memory);
    let place = RegionLocation::Here {
        memory: memory.into(),
        offset: 0,
    };
    executor.handle_map(
        CacheId(1),
        0,
        Slot {
            generation: 5,
            place,
        },
    );
    let fetch = Fetch {
        from: Machine(2),
        token: 1,
        cache: CacheId(1),
        addr: 0,
        size: 8,
        generation: 5,
        forwarded: false,
    };
    let mut answer = |change: &dyn Fn(&mut Fetch)| {
        let mut fetch = fetch.clone();
        change(&mut fetch);
        executor.handle_fetch(fetch);
        match executor.poll_action() {
            Some(Action::Data { data, .. }) => data.bytes.map(|bytes| bytes.len()),
            other => panic!("{other:?}"),
        }
    };
    use crate::message::Refusal::{Early, OutOfBounds, Stale};
    assert_eq!(answer(&|_| ()), Ok(8));
    assert_eq!(
        answer(&|f| f.generation = 1),
        Ok(8),
        "older, and still here"
    );
    assert_eq!(answer(&|f| f.generation = 6), Err(Early));
    assert_eq!(answer(&|f| f.addr = 4089), Err(OutOfBounds));
    assert_eq!(answer(&|f| f.addr = u64::MAX), Err(OutOfBounds));
    assert_eq!(answer(&|f| f.size = 0), Err(OutOfBounds));
    assert_eq!(answer(&|f| f.size = u32::MAX), Err(OutOfBounds));
    assert_eq!(answer(&|f| f.cache = CacheId(9)), Err(Stale));
}

#[test]
fn threads_that_help_lose_nothing_and_answer_through_the_owner() {
    let (mut owner, mut runner) = echo_executor(Limits::default());
    owner.handle_requests((0..4000).map(|number| echo(number % 7, number)));
    let shelf = owner.shelf();
    let (sender, ended) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let (shelf, sender) = (Arc::clone(&shelf), sender.clone());
            scope.spawn(move || {
                let (mut helper, mut runner) = echo_executor(Limits::default());
                while !shelf.is_empty() {
                    let done = helper.help(&shelf, &mut runner, 16);
                    sender.send(done).expect("the owner listens");
                }
            });
        }
        while owner.run(&mut runner, 16) > 0 {}
    });
    drop(sender);
    for ended in ended.into_iter().flatten() {
        owner.settle(ended);
    }
    owner.run(&mut runner, 16);
    let (all, _) = answers(&mut owner);
    let mut numbers: Vec<_> = all.values().flatten().map(|r| r.number).collect();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..4000));
}

/// Puts a message where it means something: into a cache of five regions and a gap behind.
fn aimed(message: Message) -> Message {
    let near = |addr: u64| addr % (6 * 4096);
    let need = |need: Need| match need {
        Need::Data { addr, size } => Need::Data {
            addr: near(addr),
            size,
        },
        Need::Place { addr, size } => Need::Place {
            addr: near(addr),
            size,
        },
    };
    let aim = |mut moved: Moved| {
        moved.request.cache = CacheId(1);
        moved.request.procedure = ProcedureId(moved.request.procedure.0 % 3);
        moved.need = moved.need.map(need);
        moved.generation %= 4;
        moved
    };
    match message {
        Message::Requests(mut requests) => {
            for request in &mut requests {
                request.cache = CacheId(1);
                request.procedure = ProcedureId(request.procedure.0 % 3);
            }
            Message::Requests(requests)
        }
        Message::Moved(moved) => Message::Moved(aim(moved)),
        Message::Refused(refused) => {
            let moved = aim(refused.moved);
            Message::Refused(Refused { moved })
        }
        Message::Fetch(mut fetch) => {
            fetch.cache = CacheId(1);
            fetch.addr = near(fetch.addr);
            fetch.generation %= 4;
            Message::Fetch(fetch)
        }
        Message::Data(mut data) => {
            data.token %= 16;
            Message::Data(data)
        }
        Message::Replicate(mut replicate) => {
            replicate.cache = CacheId(1);
            for piece in &mut replicate.pieces {
                piece.addr = near(piece.addr);
                piece.generation %= 4;
            }
            Message::Replicate(replicate)
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn whatever_peers_say_is_answered_within_bounds(messages in prop::collection::vec(message(), 1..40)) {
        let registry = Registry::default();
        let all = || Grants::All(Access::Read);
        registry.link::<Echo>(ProcedureId(1), "echo", all()).unwrap();
        registry.link::<WalkList>(ProcedureId(2), "walk", all()).unwrap();
        let mut runner = Procedures::new(Arc::new(registry));
        let limits = Limits { client_requests: 5, clients: 20, ..Limits::default() };
        let mut executor = Executor::new(Machine(1), limits);
        let mut table = Table::new(4096, 5, false);
        let memory = Region::create("proc-test", 4096, RegionOptions::default()).unwrap();
        let memory = Arc::new(memory);
        let places = [
            RegionLocation::Here { memory: Arc::clone(&memory).into(), offset: 0 },
            RegionLocation::At(Machine(2)),
            RegionLocation::Leaving { memory: Arc::clone(&memory).into(), offset: 0 },
            RegionLocation::Nowhere,
            RegionLocation::Second { memory: memory.into(), offset: 0, first: Machine(2) },
        ];
        for (index, place) in places.into_iter().enumerate() {
            table.set(index, Slot { generation: 2, place });
        }
        executor.handle_cache(CacheId(1), table);
        for (at, message) in (0..).zip(messages) {
            let requests = match aimed(message) {
                Message::Requests(requests) => { let count = requests.len(); executor.handle_requests(requests); count }
                Message::Moved(moved) => { executor.handle_moved(moved); 1 }
                Message::Refused(refused) => { executor.handle_refused(refused); 1 }
                Message::Fetch(fetch) => { executor.handle_fetch(fetch); 1 }
                Message::Data(data) => { executor.handle_data(data); 1 }
                Message::Replicate(replicate) => { executor.handle_replicate(&replicate); 0 }
                Message::Responses(_) => 0,
            };
            executor.handle_tick(Time(at * 1000));
            executor.run(&mut runner, 16);
            prop_assert!(executor.inactive() + executor.shelf().len() <= 100);
            let mut actions = 0;
            while executor.poll_action().is_some() {
                actions += 1;
            }
            prop_assert!(actions <= requests + 16, "{} for {}", actions, requests);
        }
        // What is left ends when its time is over.
        executor.handle_tick(Time(u64::MAX));
        while executor.run(&mut runner, 16) > 0 {}
        executor.handle_tick(Time(u64::MAX));
        prop_assert_eq!(executor.inactive(), 0);
    }
}
