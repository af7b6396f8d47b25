//! What procedures cost on local memory: empty ones in batches, a hop of a list, a load, and how
//! long requests of an uneven load wait with and without threads that help.
//!
//! `cargo run --release -p cenote-proc --example procedures`. Best of five rounds.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cenote_fabric::{Region, RegionOptions};
use cenote_proc::executor::{Action, Ended, Executor, Limits, Run, Shelf};
use cenote_proc::message::{Message, Sender, write_requests, write_responses};
use cenote_proc::spread::{ROUND, whom_to_help};
use cenote_proc::wasm::{self, Runtime};
use cenote_proc::{
    Access, CacheId, ClientId, Grants, Machine, Outcome, ProcedureId, Procedures, RegionLocation,
    Registry, Request, Slot, Table,
};
use cenote_proc_sdk::procedures::{Aggregate, Echo, Filter, Lookup, Select, Walk, WalkList};
use cenote_proc_sdk::{Away, Memory as _};

const REGION: u64 = 64 << 20;
const NODE: usize = 64;
const CACHE: CacheId = CacheId(1);

fn main() {
    let registry = registry();
    let (memory, order) = list();
    println!("empty procedures, one thread, million a second, from message to message");
    for batch in [1, 16, 128] {
        let native = best(|| empty(&registry, 1, batch));
        let guest = best(|| empty(&registry, 11, batch));
        println!(
            "  batch {batch:>3}: native {:.2}, WebAssembly {:.2}",
            1e3 / native,
            1e3 / guest
        );
    }
    println!(
        "a step alone, ns: native {:.1}, WebAssembly {:.1}",
        best(|| step(&registry, 1)),
        best(|| step(&registry, 11))
    );
    for (nodes, what) in [(2048, "128 KiB"), (REGION as usize / NODE, "64 MiB")] {
        let native = best(|| hop(&registry, 2, &memory, nodes, &order));
        let guest = best(|| hop(&registry, 12, &memory, nodes, &order));
        let plain = best(|| chase(&order, nodes));
        println!(
            "a hop, list of {what}, ns: plain {plain:.1}, native {native:.1}, WebAssembly {guest:.1}"
        );
    }
    for record in [64, 1024, 4096] {
        let native = best(|| scan(&registry, 4, &memory, record));
        let guest = best(|| scan(&registry, 14, &memory, record));
        println!(
            "filter, records of {record} bytes, GB/s: native {:.2}, WebAssembly {:.2}",
            1.0 / native,
            1.0 / guest
        );
    }
    for size in [8, 512, 4096] {
        println!(
            "a load of {size} bytes, ns: native {:.1}",
            best(|| load(&memory, size))
        );
    }
    for helped in [false, true] {
        let mut waits = uneven(&registry, helped);
        waits.sort_unstable();
        let at = |share: usize| waits[(waits.len() - 1) * share / 1000].as_secs_f64() * 1e6;
        let how = if helped { "with" } else { "without" };
        println!(
            "uneven load, two threads, {how} help: p50 {:.0} us, p99 {:.0} us",
            at(500),
            at(990)
        );
    }
}

/// Native 1 to 4, guests 11 to 14.
fn registry() -> Arc<Registry> {
    let registry = Registry::default();
    registry
        .link::<Echo>(ProcedureId(1), "echo", Grants::All(Access::ReadWrite))
        .expect("new");
    registry
        .link::<WalkList>(ProcedureId(2), "walk", Grants::All(Access::ReadWrite))
        .expect("new");
    registry
        .link::<Lookup>(ProcedureId(3), "lookup", Grants::All(Access::ReadWrite))
        .expect("new");
    registry
        .link::<Filter>(ProcedureId(4), "filter", Grants::All(Access::ReadWrite))
        .expect("new");
    let runtime = Runtime::new(wasm::Limits::default()).expect("a processor for guests");
    let modules: [(&str, &[u8]); 4] = [
        ("echo", include_bytes!("../guests/echo.wasm")),
        ("walk", include_bytes!("../guests/walk.wasm")),
        ("lookup", include_bytes!("../guests/lookup.wasm")),
        ("filter", include_bytes!("../guests/filter.wasm")),
    ];
    for (at, (name, module)) in (11..).zip(modules) {
        let start = Instant::now();
        let guest = runtime.compile(module).expect("a good module");
        println!(
            "{name}: {} bytes, compiled in {:.1?}",
            module.len(),
            start.elapsed()
        );
        registry
            .load(ProcedureId(at), name, 1, Grants::All(Access::Read), guest)
            .expect("new");
    }
    Arc::new(registry)
}

/// A region, and its nodes in an order that no prefetcher guesses.
fn list() -> (Arc<Region>, Vec<usize>) {
    let options = RegionOptions {
        huge: true,
        ..RegionOptions::default()
    };
    let memory = Region::create("proc-bench", REGION, options).expect("64 MiB");
    let mut order: Vec<usize> = (0..REGION as usize / NODE).collect();
    let mut random = 7u64;
    for at in (1..order.len()).rev() {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        order.swap(at, (random >> 33) as usize % (at + 1));
    }
    (Arc::new(memory), order)
}

fn table(memory: Option<&Arc<Region>>) -> Table {
    let mut table = Table::new(REGION, 1, false);
    if let Some(memory) = memory {
        let memory = Arc::clone(memory);
        let place = RegionLocation::Here {
            memory: memory.into(),
            offset: 0,
        };
        table.set(
            0,
            Slot {
                generation: 1,
                place,
            },
        );
    }
    table
}

/// Nanoseconds of one of `count`.
fn per(count: usize, start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e9 / count as f64
}

fn best(mut round: impl FnMut() -> f64) -> f64 {
    (0..5).map(|_| round()).fold(f64::INFINITY, f64::min)
}

/// From the bytes of a batch to the bytes of its answers.
fn empty(registry: &Arc<Registry>, procedure: u32, batch: usize) -> f64 {
    let mut executor = Executor::new(Machine(1), Limits::default());
    executor.handle_cache(CACHE, table(None));
    let mut runner = Procedures::new(Arc::clone(registry));
    let request = |number| {
        Request::new(
            ClientId(1),
            number,
            CACHE,
            ProcedureId(procedure),
            b"16 bytes of data",
        )
    };
    let requests: Vec<_> = (0..batch as u64).map(request).collect();
    let (mut message, mut out) = (Vec::new(), Vec::new());
    write_requests(&requests, &mut message);
    let rounds = 400_000 / batch;
    let start = Instant::now();
    let mut answered = 0;
    for _ in 0..rounds {
        let Ok(Message::Requests(requests)) = Message::read(&message, Sender::Client(ClientId(1)))
        else {
            panic!("our own message");
        };
        executor.handle_requests(requests);
        while executor.run(&mut runner, ROUND) > 0 {}
        while let Some(action) = executor.poll_action() {
            if let Action::Answer { responses, .. } = action {
                answered += responses.len();
                out.clear();
                write_responses(&responses, &mut out);
            }
        }
    }
    assert_eq!(answered, rounds * batch);
    per(rounds * batch, start)
}

fn step(registry: &Arc<Registry>, procedure: u32) -> f64 {
    let mut runner = Procedures::new(Arc::clone(registry));
    let mut request = Request::new(
        ClientId(1),
        1,
        CACHE,
        ProcedureId(procedure),
        b"16 bytes of data",
    );
    let mut table = table(None);
    let start = Instant::now();
    for _ in 0..400_000 {
        assert_eq!(runner.step(&mut request, &mut table, 0, &[]), Outcome::Done);
    }
    per(400_000, start)
}

/// A walk of a ring of so many nodes, all hops in steps of one request.
fn hop(
    registry: &Arc<Registry>,
    procedure: u32,
    memory: &Arc<Region>,
    nodes: usize,
    order: &[usize],
) -> f64 {
    let inside: Vec<usize> = order.iter().copied().filter(|node| *node < nodes).collect();
    for (at, node) in inside.iter().enumerate() {
        let next = inside[(at + 1) % inside.len()] * NODE + 8;
        let link = (next as u64).to_le_bytes();
        memory
            .write((*node * NODE + 8) as u64, &link)
            .expect("alive");
    }
    let hops = 1_000_000;
    let walk = Walk {
        node: (inside[0] * NODE + 8) as u64,
        hops,
        next_at: 0,
        value_at: 8,
        away: Away::Stop,
    };
    let mut runner = Procedures::new(Arc::clone(registry));
    let mut table = table(Some(memory));
    let id = ProcedureId(procedure);
    let mut request = Request::new(ClientId(1), 1, CACHE, id, &walk.to_bytes());
    let start = Instant::now();
    while runner.step(&mut request, &mut table, 0, &[]) == Outcome::Again {}
    per(hops as usize, start)
}

/// The same list in memory of this process, without anything between: what the machine takes.
fn chase(order: &[usize], nodes: usize) -> f64 {
    let inside: Vec<usize> = order.iter().copied().filter(|node| *node < nodes).collect();
    let mut memory = vec![0usize; nodes * NODE / 8];
    for (at, node) in inside.iter().enumerate() {
        memory[node * NODE / 8 + 1] = inside[(at + 1) % inside.len()] * NODE / 8 + 1;
    }
    let mut at = inside[0] * NODE / 8 + 1;
    let start = Instant::now();
    for _ in 0..1_000_000 {
        at = memory[at];
    }
    std::hint::black_box(at);
    per(1_000_000, start)
}

/// Nanoseconds of a byte.
fn scan(registry: &Arc<Registry>, procedure: u32, memory: &Arc<Region>, record: u32) -> f64 {
    let select = Select {
        from: 0,
        to: REGION,
        low: 0,
        high: u64::MAX / 2,
        record,
        field_at: 8,
        sum_at: 16,
        away: Away::Stop,
        collect: false,
    };
    let mut runner = Procedures::new(Arc::clone(registry));
    let mut table = table(Some(memory));
    let id = ProcedureId(procedure);
    let argument = select.to_bytes(Aggregate::new());
    let mut request = Request::new(ClientId(1), 1, CACHE, id, &argument);
    let start = Instant::now();
    let end = loop {
        match runner.step(&mut request, &mut table, 0, &[]) {
            Outcome::Again => {}
            end => break end,
        }
    };
    assert_eq!(end, Outcome::Done);
    per(REGION as usize, start)
}

fn load(memory: &Arc<Region>, size: usize) -> f64 {
    let mut table = table(Some(memory));
    let mut target = vec![0; size];
    let start = Instant::now();
    for at in 0..1_000_000u64 {
        let loaded = table.load(at % 16 * 4096, std::hint::black_box(&mut target));
        assert_eq!(loaded, Ok(()));
    }
    per(1_000_000, start)
}

/// One client's requests come to the first of two threads, faster than it can run them; how long
/// each waited. Each walks 200 hops of a list in the cache.
fn uneven(registry: &Arc<Registry>, helped: bool) -> Vec<Duration> {
    let (memory, order) = list();
    hop(registry, 2, &memory, 2048, &order);
    let first = order
        .iter()
        .find(|node| **node < 2048)
        .map_or(0, |node| node * NODE + 8);
    let new = || {
        let mut executor = Executor::new(Machine(1), Limits::default());
        executor.handle_cache(CACHE, table(Some(&memory)));
        executor
    };
    let mut busy = new();
    let shelves: [Arc<Shelf>; 2] = [busy.shelf(), Arc::default()];
    let (ends, barrier) = (AtomicBool::new(false), Barrier::new(2));
    let (sender, ended) = channel::<Vec<Ended>>();
    std::thread::scope(|scope| {
        let (shelves, ends, barrier) = (&shelves, &ends, &barrier);
        let mut idle = new();
        scope.spawn(move || {
            let mut runner = Procedures::new(Arc::clone(registry));
            barrier.wait();
            while !ends.load(Ordering::Relaxed) {
                let lengths = [shelves[0].len(), shelves[1].len()];
                match whom_to_help(&lengths, 1).filter(|_| helped) {
                    Some((other, most)) => {
                        let done = idle.help(&shelves[other], &mut runner, most);
                        sender.send(done).expect("the busy thread listens");
                    }
                    None => std::hint::spin_loop(),
                }
            }
        });
        let mut runner = Procedures::new(Arc::clone(registry));
        let (mut sent, mut waits) = (Vec::new(), Vec::new());
        barrier.wait();
        let start = Instant::now();
        while waits.len() < REQUESTS {
            let due = (start.elapsed().as_nanos() as usize / INTERVAL_NS).min(REQUESTS);
            let now = Instant::now();
            let from = sent.len();
            sent.resize(due.max(from), now);
            ask(&mut busy, from..due, first as u64);
            busy.run(&mut runner, ROUND);
            for done in ended.try_iter() {
                done.into_iter().for_each(|ended| busy.settle(ended));
            }
            while let Some(action) = busy.poll_action() {
                if let Action::Answer { responses, .. } = action {
                    let now = Instant::now();
                    waits.extend(responses.iter().map(|r| now - sent[r.number as usize]));
                }
            }
        }
        ends.store(true, Ordering::Relaxed);
        waits
    })
}

fn ask(executor: &mut Executor, numbers: std::ops::Range<usize>, node: u64) {
    let walk = Walk {
        node,
        hops: 200,
        next_at: 0,
        value_at: 8,
        away: Away::Stop,
    };
    let argument = walk.to_bytes();
    let request = |number: usize| {
        Request::new(
            ClientId(number as u64 % 8),
            number as u64,
            CACHE,
            ProcedureId(2),
            &argument,
        )
    };
    executor.handle_requests(numbers.map(request));
}

const REQUESTS: usize = 20_000;
/// Between two requests of the uneven load.
const INTERVAL_NS: usize = 1000;
