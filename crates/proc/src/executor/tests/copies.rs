//! Steps that store into a region with two copies, one thing at a time.

mod silence;

use super::cluster::Add;
use super::*;
use crate::message::{Piece, Replicate, Replicated};
use crate::table::Clock;

const CACHE: CacheId = CacheId(1);
const SECOND: Machine = Machine(7);
const OTHER: Machine = Machine(8);
const REGION: u64 = 1 << 20;

fn region() -> Arc<Region> {
    Arc::new(Region::create("proc-test", REGION, RegionOptions::default()).unwrap())
}

/// A thread that has the first copy of one region.
struct Thread {
    executor: Executor,
    procedures: Procedures,
    memory: Arc<Region>,
    asked: u64,
}

impl Thread {
    fn new() -> Self {
        let registry = Registry::default();
        let all = || Grants::All(Access::ReadWrite);
        registry.link::<Add>(ProcedureId(1), "add", all()).unwrap();
        let mut executor = Executor::new(Machine(1), Limits::default());
        let mut table = Table::new(REGION, 1, true);
        table.keep_stores_back();
        executor.handle_cache(CACHE, table);
        executor.handle_permit(CACHE);
        let mut thread = Self {
            executor,
            procedures: Procedures::new(Arc::new(registry)),
            memory: region(),
            asked: 0,
        };
        assert!(thread.map(1));
        thread
    }

    /// The same, with another region behind it, whose second copy is on [`OTHER`].
    fn of_two_regions() -> Self {
        let mut thread = Self::new();
        let mut table = Table::new(REGION, 2, true);
        table.keep_stores_back();
        thread.executor.handle_cache(CACHE, table);
        assert_eq!(thread.executor.write_state(CACHE), WriteState::Writes);
        assert!(thread.map(1));
        let place = RegionLocation::First {
            memory: region().into(),
            offset: 0,
            second: OTHER,
        };
        let generation = 1;
        let slot = Slot { generation, place };
        assert!(thread.executor.handle_map(CACHE, 1, slot));
        thread
    }

    /// A word of this generation: the first copy has other memory, as if its window was renewed.
    fn renew(&mut self, generation: u64) -> bool {
        let mut bytes = vec![0; usize::try_from(REGION).unwrap()];
        self.memory.read(0, &mut bytes).unwrap();
        self.memory = region();
        self.memory.write(0, &bytes).unwrap();
        self.map(generation)
    }

    /// A word of this generation: the copies are where they were.
    fn map(&mut self, generation: u64) -> bool {
        let place = RegionLocation::First {
            memory: Arc::clone(&self.memory).into(),
            offset: 0,
            second: SECOND,
        };
        let slot = Slot { generation, place };
        self.executor.handle_map(CACHE, 0, slot)
    }

    fn add(&mut self, addr: u64) {
        let (number, argument) = (self.asked, addr.to_le_bytes());
        let request = Request::new(ClientId(1), number, CACHE, ProcedureId(1), &argument);
        self.asked += 1;
        self.executor.handle_requests([request]);
    }

    /// Takes steps; what is sent to second copies, and how requests ended.
    fn run(&mut self) -> (Vec<Replicate>, Vec<Status>) {
        self.executor.run(&mut self.procedures, 16);
        self.sent()
    }

    fn sent(&mut self) -> (Vec<Replicate>, Vec<Status>) {
        let (mut sent_on, mut ends) = (Vec::new(), Vec::new());
        while let Some(action) = self.executor.poll_action() {
            match action {
                Action::Replicate { to, replicate } => {
                    let is_other = replicate.pieces.iter().any(|piece| piece.addr >= REGION);
                    assert!(to == SECOND || is_other && to == OTHER);
                    sent_on.push(replicate);
                }
                Action::Answer { responses, .. } => {
                    ends.extend(responses.into_iter().map(|response| response.status));
                }
                Action::Doubt { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        (sent_on, ends)
    }

    fn number(&self, addr: u64) -> u64 {
        let mut bytes = [0; 8];
        self.memory.read(addr, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    }
}

fn piece(addr: u64, generation: u64, number: u64) -> Piece {
    Piece {
        addr,
        generation,
        bytes: number.to_le_bytes().to_vec(),
    }
}

#[test]
fn steps_see_each_others_stores_at_once_and_nobody_else_before_both_copies_have_them() {
    let mut thread = Thread::new();
    for addr in [64, 64, 200] {
        thread.add(addr);
    }
    let (first, ends) = thread.run();
    assert_eq!(first.len(), 1, "one message for all of them");
    assert_eq!(first[0].pieces, [piece(64, 1, 2), piece(200, 1, 1)]);
    assert_eq!((ends.as_slice(), thread.number(64)), (&[][..], 0));
    // What comes meanwhile goes out behind it, and builds on it.
    thread.add(64);
    assert_eq!(thread.run(), (vec![], vec![]));
    thread.executor.handle_fetch(Fetch {
        from: Machine(2),
        token: 7,
        cache: CACHE,
        addr: 64,
        size: 8,
        generation: 1,
        forwarded: false,
    });
    let fetched = thread.executor.poll_action();
    assert!(
        matches!(&fetched, Some(Action::Data { data, .. }) if data.bytes == Ok(vec![0; 8])),
        "{fetched:?}"
    );

    let written = Delivery::Answered(Replicated::Written);
    thread.executor.handle_replicated(first[0].token, written);
    assert_eq!((thread.number(64), thread.number(200)), (2, 1));
    let (second, ends) = thread.run();
    assert_eq!(ends, [Status::Done; 3]);
    assert_eq!(second[0].pieces, [piece(64, 1, 3)]);
    thread.executor.handle_replicated(second[0].token, written);
    assert_eq!(thread.run().1, [Status::Done]);
    assert_eq!(thread.number(64), 3);
}

#[test]
fn stores_that_are_refused_are_made_again_once_until_their_time_is_over() {
    let mut thread = Thread::new();
    thread.add(64);
    let (sent, _) = thread.run();
    // It is behind what is refused, and is taken again with it.
    thread.add(64);
    thread.run();
    let refused = Delivery::Answered(Replicated::Refused);
    thread.executor.handle_replicated(sent[0].token, refused);
    let mut now = Time(0);
    let mut sent = Vec::new();
    while sent.is_empty() {
        now = now.after(Duration::from_millis(1));
        thread.executor.handle_tick(now);
        sent = thread.run().0;
    }
    for token in sent
        .iter()
        .map(|replicate| replicate.token)
        .collect::<Vec<_>>()
    {
        thread
            .executor
            .handle_replicated(token, Delivery::Answered(Replicated::Written));
    }
    let (more, mut ends) = thread.run();
    for replicate in more {
        thread
            .executor
            .handle_replicated(replicate.token, Delivery::Answered(Replicated::Written));
    }
    now = now.after(Duration::from_millis(1));
    thread.executor.handle_tick(now);
    for replicate in thread.run().0 {
        thread
            .executor
            .handle_replicated(replicate.token, Delivery::Answered(Replicated::Written));
    }
    ends.extend(thread.run().1);
    assert_eq!(
        (ends.as_slice(), thread.number(64)),
        (&[Status::Done; 2][..], 2)
    );

    thread.add(64);
    let mut ends = Vec::new();
    while ends.is_empty() {
        now = now.after(Duration::from_millis(100));
        thread.executor.handle_tick(now);
        let (sent, ended) = thread.run();
        for replicate in sent {
            thread.executor.handle_replicated(replicate.token, refused);
        }
        ends = ended;
    }
    assert_eq!(
        (ends.as_slice(), thread.number(64)),
        (&[Status::TimedOut][..], 2)
    );
}

#[test]
fn a_region_of_whose_second_copy_nobody_knows_takes_no_stores_before_its_window_is_renewed() {
    let mut thread = Thread::new();
    thread.add(64);
    let (sent, _) = thread.run();
    thread
        .executor
        .handle_replicated(sent[0].token, Delivery::Answered(Replicated::InDoubt));
    assert_eq!(thread.run(), (vec![], vec![Status::TimedOut]));
    assert_eq!(thread.number(64), 0);
    let doubts = |thread: &Thread| thread.executor.doubts(CACHE).collect::<Vec<_>>();
    assert_eq!(doubts(&thread), [(0, 1)]);

    thread.add(64);
    assert!(thread.map(1), "the same again");
    assert_eq!(thread.run(), (vec![], vec![]));
    // Another generation alone says nothing of what may still land.
    for generation in 2..5 {
        assert!(thread.map(generation));
        assert_eq!(thread.run(), (vec![], vec![]));
        assert_eq!(doubts(&thread), [(0, 1)]);
    }
    assert!(thread.renew(5));
    assert_eq!(doubts(&thread), []);
    let (sent, _) = thread.run();
    assert_eq!(sent[0].pieces, [piece(64, 5, 1)]);
}

#[test]
fn nothing_is_sent_before_the_owner_knows_that_steps_store() {
    let mut thread = Thread::new();
    thread.executor.handle_deleted(CACHE);
    let mut table = Table::new(REGION, 1, true);
    table.keep_stores_back();
    thread.executor.handle_cache(CACHE, table);
    assert!(thread.map(1));
    let state = |thread: &Thread| thread.executor.write_state(CACHE);
    assert_eq!(state(&thread), WriteState::Idle);
    thread.add(64);
    assert_eq!(thread.run(), (vec![], vec![]));
    assert_eq!(state(&thread), WriteState::Wants);
    thread.executor.handle_permit(CACHE);
    let (sent, _) = thread.run();
    assert_eq!((sent.len(), state(&thread)), (1, WriteState::Writes));
    let written = Delivery::Answered(Replicated::Written);
    thread.executor.handle_replicated(sent[0].token, written);

    // With another number of regions it is the same cache still.
    let mut longer = Table::new(REGION, 2, true);
    longer.keep_stores_back();
    thread.executor.handle_cache(CACHE, longer);
    assert_eq!(state(&thread), WriteState::Writes);
}

/// Stores a line at each multiple of its length that it can, and says how many.
struct Fills {
    len: usize,
    stored: usize,
    ends: Outcome,
}

impl Run for Fills {
    fn step(&mut self, _: &mut Request, table: &mut Table, _: u64, _: &[u8]) -> Outcome {
        table.begin_step(true);
        let line = vec![1; self.len];
        while table.store((self.stored * self.len) as u64, &line).is_ok() {
            self.stored += 1;
        }
        self.ends.clone()
    }
}

#[test]
fn a_step_stores_so_much_and_goes_on_when_that_is_in_both_copies() {
    let mut thread = Thread::new();
    let mut fills = Fills {
        len: 64,
        stored: 0,
        ends: Outcome::Forward { addr: 0, size: 1 },
    };
    thread.add(0);
    for round in 1..=3 {
        thread.executor.run(&mut fills, 16);
        assert_eq!(fills.stored, 1024 * round);
        let (sent, _) = thread.sent();
        let bytes = |replicate: &Replicate| {
            replicate
                .pieces
                .iter()
                .map(|p| p.bytes.len())
                .sum::<usize>()
        };
        assert_eq!(sent.iter().map(bytes).sum::<usize>(), 64 * 1024);
        for replicate in sent {
            let mut message = Vec::new();
            Message::Replicate(replicate.clone()).write(&mut message);
            assert!(message.len() <= crate::message::MESSAGE_MAX);
            thread
                .executor
                .handle_replicated(replicate.token, Delivery::Answered(Replicated::Written));
        }
    }
    // More at once it may not store at all.
    let mut table = Table::new(REGION, 1, true);
    table.keep_stores_back();
    let place = RegionLocation::Here {
        memory: region().into(),
        offset: 0,
    };
    let generation = 1;
    assert!(table.set(0, Slot { generation, place }));
    table.permit_writes();
    let denied = table.store(0, &[0; 64 * 1024 + 1]);
    assert_eq!(denied, Err(cenote_proc_sdk::Fault::Denied));
}

#[test]
fn a_step_that_is_cut_off_has_stored_nothing() {
    let mut thread = Thread::new();
    thread.add(0);
    let mut fills = Fills {
        len: 64,
        stored: 0,
        ends: Outcome::Trap(Trap::Crashed),
    };
    thread.executor.run(&mut fills, 16);
    let ended = Status::Trapped(Trap::Crashed);
    assert_eq!(thread.sent(), (vec![], vec![ended]));
    thread.add(0);
    let (sent, _) = thread.run();
    assert_eq!(sent[0].pieces, [piece(0, 1, 1)]);
}

#[test]
fn no_other_thread_takes_steps_that_find_what_this_one_stored() {
    let (mut owner, mut helper) = (Thread::new(), Thread::new());
    for _ in 0..40 {
        owner.add(64);
    }
    assert!(owner.executor.shelf().is_empty() && owner.executor.has_own_work());
    assert_eq!(owner.executor.own(), 40);
    let (sent, _) = owner.run();
    assert_eq!(owner.executor.own(), 40, "queued or held");
    let written = Delivery::Answered(Replicated::Written);
    owner.executor.handle_replicated(sent[0].token, written);
    assert_eq!(owner.number(64), 16);

    // One that took a request before it was known to have two copies leaves it where it was.
    let shelf = owner.executor.shelf();
    let request = Request::new(
        ClientId(1),
        99,
        CACHE,
        ProcedureId(1),
        &64_u64.to_le_bytes(),
    );
    shelf.extend([Ready::from(request)]);
    let ended = helper.executor.help(&shelf, &mut helper.procedures, 16);
    assert!(ended.iter().all(|ended| ended.outcome.is_none()), "not run");
    for ended in ended {
        owner.executor.settle(ended);
    }
    assert_eq!((helper.number(64), owner.executor.own()), (0, 25));
}

#[test]
fn requests_that_go_back_after_slow_ones_are_still_for_no_other_thread() {
    let mut thread = Thread::new();
    thread.executor.clock = Clock(|| Time(NOW.get()));
    for _ in 0..100 {
        thread.add(64);
    }
    assert!(thread.executor.run(&mut Slowly, 100) < 100);
    assert!(thread.executor.shelf().is_empty() && thread.executor.has_own_work());
}

/// Stores at one address, once.
struct Stores;

impl Run for Stores {
    fn step(&mut self, _: &mut Request, table: &mut Table, _: u64, _: &[u8]) -> Outcome {
        table.begin_step(true);
        table.load(64, &mut [0]).expect("it is here");
        table.store(64, b"x").expect("it is here");
        Outcome::Done
    }
}

#[test]
fn steps_that_loaded_too_late_are_taken_again_with_the_next_lease() {
    let mut thread = Thread::new();
    let table = thread.executor.caches.get_mut(&CACHE).unwrap();
    table.end_reads_with_writes();
    table.allow_writes(Time(u64::MAX));
    thread.executor.clock = Clock(|| Time(u64::MAX));
    thread.add(0);
    thread.executor.run(&mut Stores, 16);
    assert_eq!(thread.sent(), (vec![], vec![]));
    assert!(thread.executor.has_own_work());
}

#[test]
fn a_word_has_steps_taken_again_whose_stores_wait_behind_a_flight() {
    let mut thread = Thread::of_two_regions();
    thread.add(REGION);
    let (first, _) = thread.run();
    thread.add(64);
    assert_eq!(thread.run(), (vec![], vec![]));
    // Meanwhile the other region was elsewhere, and was added to there.
    let slot = Slot {
        generation: 2,
        place: RegionLocation::At(Machine(3)),
    };
    assert!(thread.executor.handle_map(CACHE, 0, slot));
    thread.memory.write(64, &7_u64.to_le_bytes()).unwrap();
    assert!(thread.map(3));
    let written = Delivery::Answered(Replicated::Written);
    thread.executor.handle_replicated(first[0].token, written);
    let (sent, _) = thread.run();
    assert_eq!(sent[0].pieces, [piece(64, 3, 8)]);
}

#[test]
fn a_second_copy_takes_all_of_a_message_or_nothing() {
    let mut executor = Executor::new(Machine(1), Limits::default());
    executor.handle_cache(CACHE, Table::new(REGION, 3, true));
    let memory = region();
    let second = |generation| {
        let place = RegionLocation::Second {
            memory: Arc::clone(&memory).into(),
            offset: 0,
            first: Machine(2),
        };
        Slot { generation, place }
    };
    assert!(executor.handle_map(CACHE, 0, second(4)));
    let mut take = |pieces: &[Piece]| {
        let replicate = Replicate {
            token: 1,
            cache: CACHE,
            pieces: pieces.to_vec(),
        };
        executor.handle_replicate(&replicate)
    };
    let fine = piece(0, 4, 5);
    let others = [
        piece(64, 3, 5),
        piece(64, 5, 5),
        piece(REGION - 4, 4, 5),
        piece(REGION, 4, 5),
        piece(9 * REGION, 4, 5),
        piece(u64::MAX - 3, 4, 5),
    ];
    for other in others {
        assert_eq!(take(&[fine.clone(), other]), Replicated::Refused);
        let mut bytes = [9; 8];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
    }
    assert_eq!(take(std::slice::from_ref(&fine)), Replicated::Written);
    let mut bytes = [0; 8];
    memory.read(0, &mut bytes).unwrap();
    assert_eq!(u64::from_le_bytes(bytes), 5);
    // It is not read there.
    assert!(
        executor
            .table(CACHE)
            .unwrap()
            .clone()
            .load(0, &mut bytes)
            .is_err()
    );
    // Too late.
    executor
        .caches
        .get_mut(&CACHE)
        .unwrap()
        .allow_writes(Time(0));
    let replicate = Replicate {
        token: 2,
        cache: CACHE,
        pieces: vec![fine],
    };
    assert_eq!(executor.handle_replicate(&replicate), Replicated::Refused);
}
