//! Modules of procedures over a restart of their host.
#![cfg(feature = "wasm")]

#[path = "support/cache.rs"]
mod cache;
mod support;

use std::fs;

use cache::{CACHE, Cache, finish, order, put, remote};
use cenote_proc::service::{Label, Order, Told};
use cenote_proc::{Access, Grants, ProcedureId, Status};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::Walk;
use cenote_test_kit::wait_until;
use support::{DEADLINE, Fabric, Host, Lab};

const WALK_WASM: &[u8] = include_bytes!("../../proc/guests/walk.wasm");

fn modules(user: &support::Client) -> Vec<u32> {
    let mut caller = user.session.caller_opener()(DEADLINE).unwrap();
    match order(&mut *caller, &Order::List { skip: 0 }) {
        Told::List { rows, .. } => {
            let put = rows.iter().filter(|row| !row.native);
            put.map(|row| row.id.0).collect()
        }
        told => panic!("{told:?}"),
    }
}

fn kept(fabric: Fabric) {
    let lab = Lab::new(fabric);
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut config = lab.config("a", 8);
        config.cache_threads = 2;
        config.modules = Some(folder.path().to_owned());
        Host::start(config)
    };
    let mut host = start();
    let user = lab.client(&host, 2);
    let grants = || Grants::Caches(vec![(CACHE, Access::Read)]);
    assert_eq!(put(&user, 1000, grants(), WALK_WASM), Told::Kept);
    assert_eq!(put(&user, 1001, grants(), WALK_WASM), Told::Kept);
    let mut caller = user.session.caller_opener()(DEADLINE).unwrap();
    let remove = Order::Remove(ProcedureId(1001));
    // One whose file stays would be there again after a restart.
    let mut files = fs::read_dir(folder.path())
        .unwrap()
        .map(|file| file.unwrap().path());
    let file = files.find(|file| file.display().to_string().contains("1001"));
    let file = file.expect("the module's file");
    fs::rename(&file, file.with_extension("away")).unwrap();
    fs::create_dir(&file).unwrap();
    let told = order(&mut *caller, &remove);
    assert!(matches!(told, Told::Refused(_)), "{told:?}");
    assert!(modules(&user).contains(&1001));
    fs::remove_dir(&file).unwrap();
    fs::rename(file.with_extension("away"), &file).unwrap();
    assert_eq!(order(&mut *caller, &remove), Told::Removed(true));
    let told = put(&user, 1002, grants(), b"no module");
    assert!(matches!(told, Told::Refused(_)), "{told:?}");
    // Two put a module under one number at the same moment: one of them is told that it is kept.
    let label = |module: &[u8]| Label {
        id: ProcedureId(1004),
        name: "both".to_owned(),
        version: 1,
        grants: grants(),
        len_bytes: u32::try_from(module.len()).unwrap(),
    };
    let other = lab.client(&host, 3);
    let mut late = other.session.caller_opener()(DEADLINE).unwrap();
    let begin = |module| Order::Begin(label(module));
    assert_eq!(order(&mut *caller, &begin(WALK_WASM)), Told::Going);
    assert_eq!(order(&mut *late, &begin(b"other")), Told::Going);
    assert_eq!(finish(&user, &mut *caller, WALK_WASM), Told::Kept);
    let told = finish(&other, &mut *late, b"other");
    assert!(matches!(told, Told::Refused(_)), "{told:?}");
    drop((caller, late, user, other));
    host.stop();
    drop(host);

    // What was damaged is no procedure, and keeps nobody from the others.
    std::fs::write(folder.path().join("1003.module"), b"CENPROC1 and so on").unwrap();
    let host = start();
    let user = lab.client(&host, 2);
    assert_eq!(modules(&user), [1000, 1004]);
    let mut cache = Cache::new(&lab, &[&host], &[0, 0], false);
    cache.tell();
    let mut bytes = 0_u64.to_le_bytes().to_vec();
    bytes.extend(7_u64.to_le_bytes());
    cache.write(64, &bytes);
    let walk = Walk {
        node: 64,
        hops: 1,
        next_at: 0,
        value_at: 8,
        away: Away::Fetch,
    };
    let mut remote = remote(&user);
    let mut run = || remote.run(cache.id, ProcedureId(1000), &walk.to_bytes());
    // It may not be compiled yet.
    let end = std::cell::Cell::new(Status::Busy);
    let is_over = || {
        end.set(run().unwrap().0);
        end.get() != Status::Busy
    };
    wait_until(is_over, || "it is being compiled".to_owned());
    assert_eq!(end.get(), Status::Done);
}

#[test]
fn modules_are_there_again_after_a_restart_and_those_that_were_removed_are_not_over_shm() {
    kept(Fabric::Shm);
}

#[test]
fn modules_are_there_again_after_a_restart_and_those_that_were_removed_are_not_over_tcp() {
    kept(Fabric::Tcp);
}
