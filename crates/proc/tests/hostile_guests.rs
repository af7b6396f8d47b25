//! Guests that loop, trap, grow, recurse or lie harm nobody but their own request.

use std::sync::Arc;

use cenote_fabric::{Region, RegionOptions};
use cenote_proc::executor::Run;
use cenote_proc::wasm::{Limits, ModuleError, Runtime};
use cenote_proc::{
    Access, CacheId, ClientId, Grants, Outcome, ProcedureId, Procedures, RegionLocation, Registry,
    RegistryError, Request, Slot, Table, Trap,
};
use proptest::prelude::*;

/// A module whose step is `body`, with a frame at 64 KiB.
fn guest(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "cenote" "load" (func $load (param i64 i32 i32) (result i32)))
            (import "cenote" "store" (func $store (param i64 i32 i32) (result i32)))
            (import "cenote" "here" (func $here (param i64 i64) (result i64)))
            (memory (export "memory") 2)
            (global $kept (mut i32) (i32.const 0))
            (func (export "frame") (result i32) (i32.const 65536))
            (func $step (export "step") (result i32) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

struct Bench {
    runtime: Arc<Runtime>,
    registry: Arc<Registry>,
    procedures: Procedures,
    next: u32,
}

impl Bench {
    fn new() -> Self {
        let registry = Arc::new(Registry::default());
        Self {
            runtime: Runtime::new(Limits::default()).unwrap(),
            procedures: Procedures::new(Arc::clone(&registry)),
            registry,
            next: 0,
        }
    }

    fn load(&mut self, module: &[u8]) -> ProcedureId {
        self.load_for(module, Grants::All(Access::ReadWrite))
    }

    fn load_for(&mut self, module: &[u8], grants: Grants) -> ProcedureId {
        self.next += 1;
        let id = ProcedureId(self.next);
        let guest = self.runtime.compile(module).unwrap();
        self.registry
            .load(id, "guest", self.next, grants, guest)
            .unwrap();
        id
    }

    fn step(&mut self, id: ProcedureId, cache: u128, table: &mut Table) -> (Outcome, Vec<u8>) {
        let mut request = Request::new(ClientId(1), 1, CacheId(cache), id, b"argument");
        let outcome = self.procedures.step(&mut request, table, 0, &[]);
        (outcome, request.state.into_vec())
    }
}

fn table(writable: bool) -> (Table, Arc<Region>) {
    let memory = Region::create("proc-test", 4096, RegionOptions::default()).unwrap();
    let memory = Arc::new(memory);
    let mut table = Table::new(4096, 1, writable);
    let place = RegionLocation::Here {
        memory: Arc::clone(&memory).into(),
        offset: 0,
    };
    table.set(
        0,
        Slot {
            generation: 1,
            place,
        },
    );
    (table, memory)
}

#[test]
fn a_guest_that_does_harm_is_ended_and_the_next_request_is_answered() {
    let mut bench = Bench::new();
    let (mut table, _memory) = table(true);
    let good = bench.load(&guest("(i32.const 0)"));
    let cases = [
        ("loops", "(loop $l (br $l)) (i32.const 0)", Trap::TooLong),
        ("recurses", "(call $step)", Trap::Crashed),
        ("traps", "unreachable", Trap::Crashed),
        (
            "divides",
            "(i32.div_u (i32.const 1) (i32.const 0))",
            Trap::Crashed,
        ),
        ("reads beyond", "(i32.load (i32.const -4))", Trap::Crashed),
        (
            "has loads beyond",
            "(call $load (i64.const 0) (i32.const -8) (i32.const 64))",
            Trap::Crashed,
        ),
        (
            "has stores beyond",
            "(call $store (i64.const 0) (i32.const 131068) (i32.const 64))",
            Trap::Crashed,
        ),
        ("has no such verdict", "(i32.const 77)", Trap::BadVerdict),
        ("wants nothing", "(i32.const 1)", Trap::BadVerdict),
        (
            "wants more than a fetch",
            "(i32.store (i32.const 65544) (i32.const 4097)) (i32.const 1)",
            Trap::BadVerdict,
        ),
        (
            "says too long a state",
            "(i32.store (i32.const 65548) (i32.const 1025)) (i32.const 0)",
            Trap::BadVerdict,
        ),
    ];
    for (what, body, trap) in cases {
        let bad = bench.load(&guest(body));
        for _ in 0..2 {
            assert_eq!(
                bench.step(bad, 1, &mut table).0,
                Outcome::Trap(trap),
                "{what}"
            );
            let (outcome, answer) = bench.step(good, 1, &mut table);
            assert_eq!(
                (outcome, &answer[..]),
                (Outcome::Done, &b"argument"[..]),
                "{what}"
            );
        }
    }
}

#[test]
fn a_guest_that_grows_gets_no_more_than_its_share() {
    let mut bench = Bench::new();
    let (mut table, _memory) = table(false);
    // Grows until it is refused, and answers its pages.
    let module = guest(
        "(loop $l (br_if $l (i32.ge_s (memory.grow (i32.const 1)) (i32.const 0))))
         (i32.store (i32.const 65560) (memory.size)) (i32.const 0)",
    );
    let id = bench.load(&module);
    for _ in 0..3 {
        let (outcome, answer) = bench.step(id, 1, &mut table);
        assert_eq!(outcome, Outcome::Done);
        let pages = u32::from_le_bytes(answer[..4].try_into().unwrap());
        assert_eq!(pages as usize * 65536, Limits::default().memory_bytes);
    }
}

#[test]
fn a_guest_reaches_one_cache_and_keeps_nothing_for_another() {
    let mut bench = Bench::new();
    // Answers what the last step of this instance left, then leaves 1.
    let module = guest(
        "(i32.store (i32.const 65560) (global.get $kept))
         (global.set $kept (i32.const 1)) (i32.const 0)",
    );
    let id = bench.load(&module);
    let (mut one, _) = table(false);
    let (mut two, _) = table(false);
    let kept = |answer: Vec<u8>| answer[0];
    assert_eq!(kept(bench.step(id, 1, &mut one).1), 0);
    assert_eq!(kept(bench.step(id, 1, &mut one).1), 1);
    assert_eq!(kept(bench.step(id, 2, &mut two).1), 0);
}

/// Who could put another module under a number that is in use would get its instances, its grants,
/// and the states of its requests.
#[test]
fn a_number_that_was_taken_away_is_no_other_modules() {
    let mut bench = Bench::new();
    let (mut table, _memory) = table(true);
    let id = bench.load(&guest("(i32.const 0)"));
    assert_eq!(bench.step(id, 1, &mut table).0, Outcome::Done);
    assert!(bench.registry.remove(id));

    let other = bench.runtime.compile(&guest("unreachable")).unwrap();
    let loaded = bench
        .registry
        .load(id, "other", 1, Grants::All(Access::Read), other);

    assert_eq!(loaded, Err(RegistryError::Taken));
    bench.procedures.begin();
    let (outcome, _) = bench.step(id, 1, &mut table);
    assert_eq!(outcome, Outcome::Trap(Trap::Unknown));
}

#[test]
fn a_guest_that_trapped_starts_afresh() {
    let mut bench = Bench::new();
    let module = guest(
        "(if (global.get $kept) (then (unreachable)))
         (global.set $kept (i32.const 1)) (i32.const 0)",
    );
    let id = bench.load(&module);
    let (mut table, _) = table(false);
    let mut ends = Vec::new();
    for _ in 0..4 {
        ends.push(bench.step(id, 1, &mut table).0);
    }
    let crash = Outcome::Trap(Trap::Crashed);
    assert_eq!(ends, [Outcome::Done, crash.clone(), Outcome::Done, crash]);
}

#[test]
fn bytes_are_written_only_where_procedures_may_write() {
    let mut bench = Bench::new();
    let module = guest(
        "(i32.store (i32.const 65560)
            (call $store (i64.const 100) (i32.const 65564) (i32.const 4)))
         (i32.const 0)",
    );
    let caches = vec![(CacheId(1), Access::Read), (CacheId(2), Access::ReadWrite)];
    let id = bench.load_for(&module, Grants::Caches(caches));
    // The cache's own word counts as well as the procedure's.
    for (cache, writable, code) in [(2, true, 0), (2, false, 2), (1, true, 2), (1, false, 2)] {
        let (mut table, memory) = table(writable);
        let (outcome, answer) = bench.step(id, cache, &mut table);
        assert_eq!((outcome, answer[0]), (Outcome::Done, code));
        let mut bytes = [0; 4];
        memory.read(100, &mut bytes).unwrap();
        assert_eq!(&bytes == b"ment", code == 0, "{bytes:?}");
    }
    let (mut other, _) = table(true);
    let (outcome, _) = bench.step(id, 3, &mut other);
    assert_eq!(outcome, Outcome::Trap(Trap::Denied));
}

#[test]
fn modules_that_want_more_than_is_offered_are_refused() {
    let bench = Bench::new();
    let refused = |text: &str| {
        let module = wat::parse_str(text).unwrap();
        match bench.runtime.compile(&module) {
            Ok(_) => panic!("taken: {text}"),
            Err(error) => error,
        }
    };
    let whole = r#"(memory (export "memory") 2)
        (func (export "frame") (result i32) (i32.const 65536))
        (func (export "step") (result i32) (i32.const 0))"#;
    let wasi = refused(&format!(
        r#"(module (import "wasi_snapshot_preview1" "proc_exit" (func (param i32))) {whole})"#
    ));
    assert!(matches!(wasi, ModuleError::Import { .. }), "{wasi}");
    let other = refused(&format!(
        r#"(module (import "cenote" "open" (func)) {whole})"#
    ));
    assert!(matches!(other, ModuleError::Import { .. }), "{other}");
    let typed = refused(&format!(
        r#"(module (import "cenote" "load" (func)) {whole})"#
    ));
    assert!(matches!(typed, ModuleError::Invalid(_)), "{typed}");
    let bare = refused("(module)");
    assert!(matches!(bare, ModuleError::Export("frame")), "{bare}");
    let frame = whole.replace("65536", "131000");
    let outside = refused(&format!("(module {frame})"));
    assert!(matches!(outside, ModuleError::Export("frame")), "{outside}");
    let large = whole.replace(r#""memory") 2"#, r#""memory") 1000"#);
    let large = refused(&format!("(module {large})"));
    assert!(matches!(large, ModuleError::Start(_)), "{large}");
    let starts = refused(&format!(
        "(module {whole} (func $s (loop $l (br $l))) (start $s))"
    ));
    assert!(matches!(starts, ModuleError::Start(_)), "{starts}");
    let calls = refused(&format!(
        r#"(module (import "cenote" "here" (func $here (param i64 i64) (result i64)))
           (import "cenote" "load" (func $load (param i64 i32 i32) (result i32))) {whole}
           (func $s (drop (call $load (i64.const 0) (i32.const 0) (i32.const 8)))) (start $s))"#
    ));
    assert!(matches!(calls, ModuleError::Start(_)), "{calls}");
    let many = refused(&format!(
        r#"(module (type (func (result i32 i32))) {whole})"#
    ));
    assert!(matches!(many, ModuleError::Invalid(_)), "{many}");
    let long = vec![0; Limits::default().module_bytes + 1];
    assert!(matches!(
        bench.runtime.compile(&long),
        Err(ModuleError::TooLong { .. })
    ));
}

proptest! {
    #[test]
    fn damaged_modules_are_refused_or_run_within_their_bounds(
        at in any::<prop::sample::Index>(),
        byte: u8,
        cut in any::<prop::sample::Index>(),
        cuts: bool,
    ) {
        let mut module = include_bytes!("../guests/walk.wasm").to_vec();
        let at = at.index(module.len());
        module[at] = byte;
        if cuts {
            module.truncate(cut.index(module.len()));
        }
        let mut bench = Bench::new();
        let (mut table, _memory) = table(false);
        if let Ok(guest) = bench.runtime.compile(&module) {
            bench.registry.load(ProcedureId(1), "damaged", 1, Grants::All(Access::Read), guest).unwrap();
            let (_outcome, state) = bench.step(ProcedureId(1), 1, &mut table);
            prop_assert!(state.len() <= cenote_proc_sdk::STATE_MAX);
        }
    }
}

/// A module with functions of these bodies beside its step, each with so many locals.
fn with_functions(locals: usize, bodies: &[String]) -> Vec<u8> {
    let declared = "i64 ".repeat(locals);
    let functions = bodies
        .iter()
        .map(|body| format!("(func (local {declared}) {body})"));
    let functions = functions.collect::<String>();
    let text = format!(
        r#"(module (memory (export "memory") 2) {functions}
            (func (export "frame") (result i32) (i32.const 65536))
            (func (export "step") (result i32) (i32.const 0)))"#
    );
    wat::parse_str(text).unwrap()
}

/// Loops in each other, in whose middle each local is used: each of them has to know where each
/// local is.
fn nest(depth: usize, locals: usize) -> String {
    let uses = (0..locals)
        .map(|local| format!("(local.set {local} (i64.add (local.get {local}) (i64.const 1)))"));
    let uses = uses.collect::<String>();
    let begin = "loop ".repeat(depth);
    let end = "i32.const 1 br_if 0 end ".repeat(depth);
    format!("{begin} {uses} {end}")
}

#[test]
fn modules_that_would_be_compiled_for_minutes_are_refused_before_that() {
    let bench = Bench::new();
    let refused = |module: &[u8]| {
        assert!(
            module.len() <= Limits::default().module_bytes,
            "{}",
            module.len()
        );
        match bench.runtime.compile(module) {
            Err(ModuleError::Shape { what, .. }) => what,
            Err(error) => panic!("{error}"),
            Ok(_) => panic!("taken"),
        }
    };
    let deep = with_functions(4000, &[nest(80_000, 4000)]);
    assert_eq!(refused(&deep), "bytes in a function");
    let wide = with_functions(5000, &[nest(10, 5000)]);
    assert_eq!(refused(&wide), "locals in a function");
    let nested = with_functions(50, &[nest(500, 50)]);
    assert_eq!(refused(&nested), "loops in each other");
    let square = format!("{} {}", nest(1, 1000), "nop ".repeat(100_000));
    let square = with_functions(1000, &[square]);
    assert_eq!(refused(&square), "bytes times locals in functions");
    let many = with_functions(200, &vec![nest(32, 200); 170]);
    assert_eq!(
        refused(&many),
        "loops times the square of locals in functions"
    );
    // Parameters are locals.
    let parameters = "i64 ".repeat(1000);
    let body = "(drop (i64.const 0))".repeat(20_000);
    let called = format!("(param {parameters}) {body}");
    let text = format!("(module (func {called}) (func {called}))");
    let called = wat::parse_str(text).unwrap();
    assert_eq!(refused(&called), "bytes times locals in functions");
    let empty = with_functions(0, &vec![String::new(); 20_000]);
    assert_eq!(refused(&empty), "functions");
    // As large as programs come.
    let large = with_functions(20, &vec![nest(3, 20); 500]);
    bench.runtime.compile(&large).expect("it is taken");
}
