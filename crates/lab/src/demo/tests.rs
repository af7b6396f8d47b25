//! The parts that need no cluster, small: memcached in its cgroup over a swap file, and the count
//! of wrong values.

use std::sync::MutexGuard;

use super::memcached::Client;
use super::*;
use crate::swapping::turn;

/// Not smaller: a cgroup of a few MiB whose pages are all in flight is killed, not waited for.
fn small(dir: &std::path::Path) -> Options {
    Options {
        dir: dir.to_owned(),
        swap_mib: 192,
        values_mib: 128,
        load_time: Duration::from_millis(300),
        ..Options::default()
    }
}

/// A folder of this test, and the interruption guard; `None`, with the reason, when the machine
/// lacks something.
fn prepare(what: &str) -> Option<(Folder, Interrupt, MutexGuard<'static, ()>)> {
    let turn = turn();
    let dir = Folder::make(fresh(Path::new(ON_DISK), what));
    let dir = dir.expect("a folder in /var/tmp");
    if let Err(error) = check(&small(&dir.0)) {
        println!("skipped: {error}");
        return None;
    }
    if let Err(error) = MemoryCgroup::create(&format!("cenote-demo-probe-{what}"), 1 << 24) {
        println!("skipped: memory cgroups: {error}");
        return None;
    }
    Some((
        dir,
        Interrupt::catch().expect("signals can be caught"),
        turn,
    ))
}

#[test]
fn every_value_survives_a_swap_file() {
    let Some((dir, interrupt, _turn)) = prepare("file") else {
        return;
    };
    let options = small(&dir.0);
    let values = Values::new(options.seed, options.values_mib << 20);
    let mut said = Vec::new();
    let (phase, disk) = on_file(&options, &values, &interrupt, &mut |line| {
        said.push(line.to_owned());
    })
    .unwrap();
    assert_eq!(phase.wrong, 0);
    assert_eq!(phase.values_checked, values.count() as u64);
    assert!(phase.reads_checked > 0, "the load read nothing");
    assert!(phase.before.is_some_and(|period| period.operations > 0));
    assert!(phase.during.is_none() && phase.after.is_none());
    assert!(disk.read_us_p50 > 0.0);
    assert!(
        !options.dir.join("swapfile").exists(),
        "the swap file is still there"
    );
    let full = said.iter().find(|line| line.starts_with("memcached took"));
    let full = full.expect("the fill is told");
    assert!(
        !full.contains(" 0 MiB are swapped out"),
        "nothing was swapped out: {full}"
    );
}

#[test]
fn wrong_values_are_counted() {
    let Some((dir, interrupt, _turn)) = prepare("wrong") else {
        return;
    };
    let mut options = small(&dir.0);
    options.values_mib = 16;
    let values = Values::new(options.seed, options.values_mib << 20);
    let group = MemoryCgroup::create("cenote-demo-test-wrong", 256 << 20).unwrap();
    let socket = dir.0.join("memcached.sock");
    let memcached = Memcached::start(&socket, 256, &group).unwrap();
    let load = Load::fill(&memcached, &values, &options, &interrupt, &mut |_| ()).unwrap();
    let other = Client::open(&memcached).unwrap();
    other.set(3, b"not what key 3 has").unwrap();
    other.set(8, b"nor key 8").unwrap();

    let phase = load
        .check_all(&values, 256 << 20, &interrupt, &mut |_| ())
        .unwrap();

    assert_eq!(phase.wrong, 2);
    assert_eq!(phase.values_checked, values.count() as u64);
    drop(memcached);
}
