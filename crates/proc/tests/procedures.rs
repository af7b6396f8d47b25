//! The procedures answer what plain client code finds, native and as WebAssembly, wherever the
//! bytes are.

use std::sync::Arc;

use cenote_fabric::{Region, RegionOptions};
use cenote_proc::executor::Run;
use cenote_proc::wasm::{Limits, Runtime};
use cenote_proc::{
    Access, CacheId, ClientId, Grants, Machine, Outcome, ProcedureId, Procedures, RegionLocation,
    Registry, Request, Slot, Table, Trap, client,
};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{
    Aggregate, Echo, FANOUT, Filter, Lookup, NODE_BYTES, Reached, Search, Select, Walk, WalkList,
};
use proptest::prelude::*;

const REGION: u64 = 8192;
const REGIONS: usize = 8;
const BYTES: usize = REGION as usize * REGIONS;

/// Native procedures are 1 to 4, the same as guests 11 to 14.
fn registry() -> Arc<Registry> {
    let registry = Registry::default();
    registry
        .link::<Echo>(ProcedureId(1), "echo", Grants::All(Access::ReadWrite))
        .unwrap();
    registry
        .link::<WalkList>(ProcedureId(2), "walk", Grants::All(Access::ReadWrite))
        .unwrap();
    registry
        .link::<Lookup>(ProcedureId(3), "lookup", Grants::All(Access::ReadWrite))
        .unwrap();
    registry
        .link::<Filter>(ProcedureId(4), "filter", Grants::All(Access::ReadWrite))
        .unwrap();
    let runtime = Runtime::new(Limits::default()).unwrap();
    let modules: [(&str, &[u8]); 4] = [
        ("echo", include_bytes!("../guests/echo.wasm")),
        ("walk", include_bytes!("../guests/walk.wasm")),
        ("lookup", include_bytes!("../guests/lookup.wasm")),
        ("filter", include_bytes!("../guests/filter.wasm")),
    ];
    for (at, (name, module)) in (11..).zip(modules) {
        let guest = runtime.compile(module).unwrap();
        registry
            .load(ProcedureId(at), name, 1, Grants::All(Access::Read), guest)
            .unwrap();
    }
    Arc::new(registry)
}

/// A cache whose regions named in `away` are on another machine.
fn table(bytes: &[u8], away: &[usize]) -> Table {
    let memory = Region::create("proc-test", BYTES as u64, RegionOptions::default()).unwrap();
    memory.write(0, bytes).unwrap();
    let memory = Arc::new(memory);
    let mut table = Table::new(REGION, REGIONS, false);
    for index in 0..REGIONS {
        let place = if away.contains(&index) {
            RegionLocation::At(Machine(2))
        } else {
            RegionLocation::Here {
                memory: Arc::clone(&memory).into(),
                offset: index as u64 * REGION,
            }
        };
        table.set(
            index,
            Slot {
                generation: 1,
                place,
            },
        );
    }
    table
}

/// Steps a request to its end, bringing what it asks for; the answer, and how often it asked.
fn run(
    procedures: &mut Procedures,
    table: &mut Table,
    bytes: &[u8],
    procedure: u32,
    argument: &[u8],
) -> (Outcome, Vec<u8>, usize) {
    let procedure = ProcedureId(procedure);
    let mut request = Request::new(ClientId(1), 1, CacheId(1), procedure, argument);
    let (mut addr, mut data, mut asked) = (0, Vec::new(), 0);
    for _ in 0..100_000 {
        let outcome = procedures.step(&mut request, table, addr, &data);
        data.clear();
        match outcome {
            Outcome::DataNeeded { addr: from, size } => {
                asked += 1;
                addr = from;
                let start = from as usize;
                data.extend_from_slice(&bytes[start..start + size as usize]);
            }
            Outcome::Again => {}
            end => return (end, request.state.into_vec(), asked),
        }
    }
    panic!("the procedure does not end");
}

fn read_of(bytes: &[u8]) -> impl FnMut(u64, &mut [u8]) -> Result<(), ()> {
    move |addr, target| {
        let start = usize::try_from(addr).map_err(|_| ())?;
        let end = start.checked_add(target.len()).ok_or(())?;
        target.copy_from_slice(bytes.get(start..end).ok_or(())?);
        Ok(())
    }
}

fn put(bytes: &mut [u8], at: usize, number: u64) {
    bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
}

/// A list through all of the cache: nodes of 16 bytes, next and value. Some lie across two regions.
fn list(order: &[usize]) -> (Vec<u8>, u64) {
    let mut bytes = vec![0; BYTES];
    let place = |node: usize| 8 + node * 24;
    for (at, node) in order.iter().enumerate() {
        let next = order.get(at + 1).map_or(0, |next| place(*next) as u64);
        put(&mut bytes, place(*node), next);
        put(&mut bytes, place(*node) + 8, *node as u64 * 3);
    }
    (bytes, place(order[0]) as u64)
}

/// A tree of the keys 2, 4, 6, … with values ten times as large; its root and levels.
fn tree(keys: u64) -> (Vec<u8>, u64, u32) {
    let mut bytes = vec![0; BYTES];
    let mut at = NODE_BYTES;
    let mut below: Vec<(u64, u64)> = (1..=keys).map(|key| (key * 2, key * 20)).collect();
    let mut level = 0u32;
    loop {
        let mut above = Vec::new();
        for pairs in below.chunks(FANOUT) {
            bytes[at..at + 2].copy_from_slice(&(pairs.len() as u16).to_le_bytes());
            bytes[at + 2..at + 4].copy_from_slice(&(level as u16).to_le_bytes());
            for (pair, (key, value)) in pairs.iter().enumerate() {
                put(&mut bytes, at + 16 + pair * 16, *key);
                put(&mut bytes, at + 24 + pair * 16, *value);
            }
            above.push((pairs[0].0, at as u64));
            at += NODE_BYTES;
        }
        level += 1;
        if above.len() == 1 {
            return (bytes, above[0].1, level);
        }
        below = above;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn a_walk_ends_where_plain_code_does(
        order in Just((0..2000).collect::<Vec<usize>>()).prop_shuffle(),
        hops in 0..3000u32,
        away in prop::collection::vec(0..REGIONS, 0..4),
    ) {
        let (bytes, node) = list(&order);
        let walk = Walk { node, hops, next_at: 0, value_at: 8, away: Away::Fetch };
        let expected = client::walk(read_of(&bytes), walk).unwrap();
        let (mut procedures, mut table) = (Procedures::new(registry()), table(&bytes, &away));
        for procedure in [2, 12] {
            let (end, answer, asked) =
                run(&mut procedures, &mut table, &bytes, procedure, &walk.to_bytes());
            prop_assert_eq!(end, Outcome::Done);
            prop_assert_eq!(Reached::of(&answer), Some(expected));
            prop_assert!(asked == 0 || !away.is_empty());
        }
    }

    #[test]
    fn a_key_is_found_or_not_as_by_plain_code(
        keys in 1..2500u64,
        key in 0..5100u64,
        away in prop::collection::vec(0..REGIONS, 0..8),
    ) {
        let (bytes, node, below) = tree(keys);
        let search = Search { node, key, away: Away::Fetch, below };
        let expected = (key % 2 == 0 && key > 0 && key <= keys * 2).then_some(key * 10);
        prop_assert_eq!(client::lookup(read_of(&bytes), search).unwrap(), expected);
        let (mut procedures, mut table) = (Procedures::new(registry()), table(&bytes, &away));
        for procedure in [3, 13] {
            let (end, answer, _) =
                run(&mut procedures, &mut table, &bytes, procedure, &search.to_bytes());
            prop_assert_eq!(end, Outcome::Done);
            let answer = answer.try_into().ok().map(u64::from_le_bytes);
            prop_assert_eq!(answer, expected);
        }
    }

    #[test]
    fn a_filter_counts_and_collects_as_plain_code(
        record in 16..200u32,
        low in 0..200u64,
        width in 0..200u64,
        first in 0..50u64,
        collect: bool,
        away in prop::collection::vec(0..REGIONS, 0..4),
        seed in 1..u64::MAX,
    ) {
        let mut bytes = vec![0; BYTES];
        let mut state = seed;
        for byte in &mut bytes {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (state >> 57) as u8;
        }
        let records = (BYTES as u64 - first) / u64::from(record);
        for at in 0..records {
            put(&mut bytes, (first + at * u64::from(record)) as usize, state.rotate_left(at as u32) % 200);
        }
        let mut select = Select {
            from: first,
            to: first + records * u64::from(record),
            low,
            high: low + width,
            record,
            field_at: 0,
            sum_at: record - 8,
            away: Away::Fetch,
            collect,
        };
        let mut matching = Vec::new();
        let expected = client::filter(read_of(&bytes), select, |bytes| matching.extend_from_slice(bytes)).unwrap();
        let (mut procedures, mut table) = (Procedures::new(registry()), table(&bytes, &away));
        for procedure in [4, 14] {
            let mut argument = select.to_bytes(cenote_proc_sdk::procedures::Aggregate::new());
            let mut collected = Vec::new();
            loop {
                let (end, answer, _) = run(&mut procedures, &mut table, &bytes, procedure, &argument);
                let (reached, aggregate, records) = Select::of(&answer).unwrap();
                collected.extend_from_slice(records);
                if end == Outcome::Done {
                    prop_assert_eq!(aggregate, expected);
                    break;
                }
                prop_assert_eq!(end, Outcome::Stop);
                prop_assert!(collect && !records.is_empty());
                argument = reached.to_bytes(aggregate);
            }
            prop_assert_eq!(&collected, if collect { &matching } else { &collected });
            prop_assert!(collect || collected.is_empty());
            select.away = Away::Fetch;
        }
    }

    #[test]
    fn arguments_of_any_bytes_end_in_an_answer_or_a_failure(
        argument in prop::collection::vec(any::<u8>(), 0..120),
        small in any::<bool>(),
    ) {
        let mut argument = argument;
        if small {
            // Numbers that may make sense.
            for (at, byte) in argument.iter_mut().enumerate() {
                *byte = if at % 8 < 2 { *byte } else { 0 };
            }
        }
        let bytes = vec![0; BYTES];
        let mut procedures = Procedures::new(registry());
        let mut table = table(&bytes, &[]);
        for procedure in [2, 3, 4, 12, 13, 14] {
            let mut request =
                Request::new(ClientId(1), 1, CacheId(1), ProcedureId(procedure), &argument);
            let outcome = procedures.step(&mut request, &mut table, 0, &[]);
            let is_crash = matches!(
                outcome,
                Outcome::Trap(Trap::Crashed | Trap::BadVerdict | Trap::TooLong | Trap::Unknown)
            );
            prop_assert!(!is_crash, "{:?}", outcome);
        }
    }
}

#[test]
fn both_kinds_choose_the_same_about_bytes_elsewhere() {
    let (bytes, node) = list(&(0..2000).collect::<Vec<usize>>());
    let mut procedures = Procedures::new(registry());
    let mut table = table(&bytes, &[1]);
    for (away, is_it) in [(Away::Move, true), (Away::Stop, false)] {
        let walk = Walk {
            node,
            hops: 1000,
            next_at: 0,
            value_at: 8,
            away,
        };
        let mut ends = Vec::new();
        for procedure in [2, 12] {
            let id = ProcedureId(procedure);
            let mut request = Request::new(ClientId(1), 1, CacheId(1), id, &walk.to_bytes());
            let outcome = procedures.step(&mut request, &mut table, 0, &[]);
            assert_eq!(
                matches!(outcome, Outcome::Forward { addr, size: 8 } if addr < 2 * REGION),
                is_it
            );
            assert_eq!(outcome == Outcome::Stop, !is_it);
            ends.push((outcome, request.state));
        }
        assert_eq!(ends[0], ends[1]);
    }
}

#[test]
fn a_ring_lets_others_run() {
    let mut bytes = vec![0; BYTES];
    put(&mut bytes, 64, 64);
    let walk = Walk {
        node: 64,
        hops: u32::MAX,
        next_at: 0,
        value_at: 8,
        away: Away::Stop,
    };
    let mut procedures = Procedures::new(registry());
    let mut table = table(&bytes, &[]);
    for procedure in [2, 12] {
        let id = ProcedureId(procedure);
        let mut request = Request::new(ClientId(1), 1, CacheId(1), id, &walk.to_bytes());
        for _ in 0..10 {
            assert_eq!(
                procedures.step(&mut request, &mut table, 0, &[]),
                Outcome::Again
            );
        }
    }
}

/// What is known so far is part of the argument, so it is the client's to say.
#[test]
fn a_count_at_its_end_is_counted_on_from() {
    let bytes = vec![0; BYTES];
    let select = Select {
        from: 0,
        to: 64,
        low: 0,
        high: 1,
        record: 8,
        field_at: 0,
        sum_at: 0,
        away: Away::Stop,
        collect: false,
    };
    let far = Aggregate {
        count: u64::MAX,
        sum: u64::MAX,
        min: 0,
        max: 0,
    };
    let (mut procedures, mut table) = (Procedures::new(registry()), table(&bytes, &[]));
    for procedure in [4, 14] {
        let argument = select.to_bytes(far);
        let (end, answer, _) = run(&mut procedures, &mut table, &bytes, procedure, &argument);
        assert_eq!(end, Outcome::Done);
        let (_, reached, _) = Select::of(&answer).unwrap();
        assert_eq!((reached.count, reached.sum), (7, u64::MAX));
    }
}
