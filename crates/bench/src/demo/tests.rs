//! The parts that need no cluster, small: memcached in its cgroup over a swap file, and values that are
//! wrong.

use std::os::unix::net::UnixStream;
use std::sync::MutexGuard;

use super::*;
use crate::apps::memcached_load::CONNECTION_COUNT;
use crate::memcached_text::{Client, with_value};
use crate::swap_rig::turn;

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
    let mut load = load(&options);
    let mut said = Vec::new();
    let (phase, disk) = on_file(&options, &mut load, &interrupt, &mut |line| {
        said.push(line.to_owned());
    })
    .unwrap();
    // Each connection has as many.
    let stored = load.items().count() / CONNECTION_COUNT * CONNECTION_COUNT;
    assert_eq!(phase.values_checked, stored as u64);
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
fn a_value_that_is_wrong_ends_the_run_by_its_number() {
    let Some((dir, interrupt, _turn)) = prepare("wrong") else {
        return;
    };
    let mut options = small(&dir.0);
    options.values_mib = 16;
    let mut load = load(&options);
    let group = MemoryCgroup::create("cenote-demo-test-wrong", 256 << 20).unwrap();
    let socket = dir.0.join("memcached.sock");
    let memcached = Memcached::start(&socket, 256, &group).unwrap();
    load.fill(&socket, &interrupt).unwrap();
    load.check(&interrupt).unwrap();
    let mut key = Vec::new();
    load.items().push_key(3, &mut key);
    let key = String::from_utf8(key).unwrap();
    let mut other = Client::new(UnixStream::connect(&socket).unwrap());

    let len = load.items().value_len(3);
    let request = with_value(&format!("set {key}"), &vec![b'x'; len], "");
    assert_eq!(other.ask(&request).unwrap(), "STORED");
    let error = load.check(&interrupt).unwrap_err();
    assert_eq!(error.to_string(), "item 3 has other bytes");

    load.fill(&socket, &interrupt).unwrap();
    let request = format!("delete {key}\r\n");
    assert_eq!(other.ask(request.as_bytes()).unwrap(), "DELETED");
    let error = load.check(&interrupt).unwrap_err();
    assert!(error.to_string().starts_with("item 3 is lost"), "{error}");
    drop(memcached);
}
