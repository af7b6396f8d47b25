//! What an item costs in a table, in bytes and in time: `table_speed [items] [key bytes]`.
//!
//! Prints the memory of the table as it counts it and as the system does, and the times of insertions, of
//! look-ups in another order, of a walk's stretches and of choices with removals. One insertion of about 300
//! splits a segment: p99.9 is among them. What is beyond p99.99 on a shared machine is the machine.

use std::{env, fs, time::Instant};

use cenote_kv::memory::key_hash::KeyHasher;
use cenote_kv::memory::table::{Entry, Table};

/// Written to the first bytes of a key, in an order that looks like none.
fn set_key(key: &mut [u8], number: u64) {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hex = format!("{mixed:016x}");
    let length = key.len().min(16);
    key[..length].copy_from_slice(&hex.as_bytes()[..length]);
}

/// Memory of this process that is resident.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").expect("statm is there");
    let pages = pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("statm has numbers") * 4096
}

/// Nanoseconds of calls.
struct Times(Vec<u32>);

impl Times {
    fn new() -> Self {
        Self(Vec::new())
    }

    fn add(&mut self, begun: Instant) {
        let ns = begun.elapsed().as_nanos();
        self.0.push(u32::try_from(ns).unwrap_or(u32::MAX));
    }

    fn print(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |part: f64| f64::from(self.0[(self.0.len() as f64 * part) as usize]) / 1000.0;
        println!(
            "{what}: p50 {:.2} us, p99 {:.2}, p99.9 {:.1}, p99.95 {:.1}, p99.99 {:.1}, p99.999 {:.1}",
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9995),
            at(0.9999),
            at(0.99999),
        );
    }
}

fn main() {
    let mut arguments = env::args().skip(1).map(|argument| argument.parse::<u64>());
    let mut argument = |default| {
        arguments
            .next()
            .map_or(default, |number| number.expect("a number"))
    };
    let (items, key_bytes) = (argument(4_000_000), argument(16) as usize);
    let mut key = vec![b'.'; key_bytes];
    let mut table = Table::new(KeyHasher::random().expect("random bytes"));
    let mut times = Times(vec![1; items as usize]);
    times.0.clear();
    let before = resident_bytes();
    for number in 0..items {
        set_key(&mut key, number);
        let begun = Instant::now();
        table.put(table.hash_of(&key), &key, &Entry::default());
        times.add(begun);
    }
    let resident = resident_bytes() - before;
    times.print("put");
    let per_item = |bytes: u64| bytes as f64 / items as f64;
    println!(
        "bytes per item: {:.2} in slots, {:.2} counted in all, {:.2} resident",
        per_item(table.used_bytes()),
        per_item(table.resident_bytes()),
        per_item(resident)
    );
    let mut times = Times::new();
    let mut found = 0_u64;
    for number in 0..items {
        set_key(&mut key, number.wrapping_mul(0x5851_f42d) % items);
        let begun = Instant::now();
        found += table
            .find(table.hash_of(&key), &key)
            .map_or(0, |slot| table.entry(slot).value_bytes.into());
        times.add(begun);
    }
    times.print("find");
    assert_eq!(found, 0);
    let mut times = Times::new();
    let mut next = Some(0);
    while let Some(from) = next {
        let begun = Instant::now();
        next = table.stretch(from).next;
        times.add(begun);
    }
    times.print("stretch");
    let mut times = Times::new();
    while let Some(slot) = table.choose_coldest() {
        let begun = Instant::now();
        let key = table.key(slot).to_vec();
        table.remove(table.hash_of(&key), &key);
        times.add(begun);
    }
    times.print("remove");
    println!("left: {} bytes counted", table.resident_bytes());
}
