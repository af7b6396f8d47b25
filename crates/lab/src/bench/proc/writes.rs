//! Additions to numbers: verbs that read and write, beside a procedure, in one copy and in two.

use anyhow::{Result, ensure};
use bytes::{Bytes, BytesMut};
use cenote_cache::path::{OneSided, Operation};
use cenote_proc::{Access, ProcedureId};

use super::site::{self, Site};
use super::{BATCH, Line, Seen, ask, flood};

const MEMORY: u64 = 16 << 20;
const ADD: ProcedureId = ProcedureId(1005);
/// Numbers that are added to in turn, each in a line of its own.
const NUMBERS: u64 = 4096;

/// Adds one to the number at the address that is its argument.
const MODULE: &str = r#"(module
    (import "cenote" "load" (func $load (param i64 i32 i32) (result i32)))
    (import "cenote" "store" (func $store (param i64 i32 i32) (result i32)))
    (memory (export "memory") 2)
    (func (export "frame") (result i32) (i32.const 65536))
    (func (export "step") (result i32)
        (if (call $load (i64.load (i32.const 65560)) (i32.const 512) (i32.const 8))
            (then (i32.store (i32.const 65544) (i32.const 1)) (return (i32.const 5))))
        (i64.store (i32.const 512) (i64.add (i64.load (i32.const 512)) (i64.const 1)))
        (if (call $store (i64.load (i32.const 65560)) (i32.const 512) (i32.const 8))
            (then (i32.store (i32.const 65544) (i32.const 2)) (return (i32.const 5))))
        (i32.const 0)))"#;

/// Addresses in turn.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0 % NUMBERS * 64
    }
}

/// The hosts that have the number, the first copy first.
struct Copies {
    sites: Vec<Site>,
    paths: Vec<OneSided>,
    numbers: Numbers,
    /// Additions that were acknowledged.
    added: u64,
}

impl Copies {
    fn new(sites: Vec<Site>) -> Result<Self> {
        let module = wat::parse_str(MODULE)?;
        sites[0].put("add", ADD, &module, Access::ReadWrite)?;
        let paths = sites.iter().map(|site| site.path(1));
        let paths = paths.collect::<Result<_>>()?;
        Ok(Self {
            sites,
            paths,
            numbers: Numbers(0),
            added: 0,
        })
    }

    fn by_verbs(&mut self) -> Result<Seen> {
        Seen::measure(|| {
            let at = self.numbers.next();
            let first = &self.sites[0];
            let buffer = BytesMut::zeroed(8);
            let bytes = site::read(&mut self.paths[0], &first.window, at, buffer)?;
            let number = u64::from_le_bytes(bytes[..].try_into()?) + 1;
            // The copy that is read is written last.
            for (site, path) in self.sites.iter().zip(&mut self.paths).rev() {
                let bytes = Bytes::copy_from_slice(&number.to_le_bytes());
                site::verb(path, &site.window, at, Operation::Write(bytes))?;
            }
            self.added += 1;
            Ok(())
        })
    }

    fn by_procedure(&mut self) -> Result<Seen> {
        let mut remote = self.sites[0].remote(1)?;
        Seen::measure(|| {
            ask(&mut remote, ADD, &self.numbers.next().to_le_bytes())?;
            self.added += 1;
            Ok(())
        })
    }

    fn by_procedures(&mut self) -> Result<Seen> {
        let mut remote = self.sites[0].remote(BATCH)?;
        let numbers = &mut self.numbers;
        let seen = flood(&mut remote, ADD, || numbers.next().to_le_bytes().to_vec())?;
        self.added += seen.latencies.len() as u64;
        Ok(seen)
    }

    /// All copies have all additions.
    fn check(&mut self) -> Result<()> {
        for (site, path) in self.sites.iter().zip(&mut self.paths) {
            let mut sum = 0;
            for number in 0..NUMBERS {
                let buffer = BytesMut::zeroed(8);
                let bytes = site::read(path, &site.window, number * 64, buffer)?;
                sum += u64::from_le_bytes(bytes[..].try_into()?);
            }
            ensure!(sum == self.added, "{sum} of {} additions", self.added);
        }
        Ok(())
    }
}

type Measure = fn(&mut Copies) -> Result<Seen>;

pub(super) fn run(transport: &str, rounds: usize) -> Result<Vec<Line>> {
    let one = Copies::new(vec![Site::alone(transport, MEMORY)?])?;
    let two = Copies::new(Site::pair(transport, MEMORY)?.into())?;
    let ways: [([&str; 2], Measure); 3] = [
        (["verbs-one-copy", "verbs-two-copies"], Copies::by_verbs),
        (["add-one-copy", "add-two-copies"], Copies::by_procedure),
        (
            ["add-one-copy-batches", "add-two-copies-batches"],
            Copies::by_procedures,
        ),
    ];
    let mut all = [one, two];
    let mut figures = [const { [const { (Vec::new(), Vec::new()) }; 2] }; 3];
    for _ in 0..rounds {
        for ((_, measure), figures) in ways.iter().zip(&mut figures) {
            for (copies, figures) in all.iter_mut().zip(figures) {
                let mut seen = measure(copies)?;
                figures.0.push(seen.ops_per_second());
                figures.1.push(seen.p50_us());
            }
        }
    }
    all.iter_mut().try_for_each(Copies::check)?;
    let names = ways.iter().flat_map(|(names, _)| names);
    let lines = names.zip(figures.into_iter().flatten());
    let lines = lines.map(|(variant, figures)| Line::of(variant, transport, figures));
    Ok(lines.collect())
}
