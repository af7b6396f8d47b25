//! Procedures on real hosts: beside the data, between hosts, and while slabs move or go.

#[path = "support/cache.rs"]
mod cache;
mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Instant;

#[cfg(feature = "wasm")]
use cache::order;
use cache::{Cache, put, remote};
use cenote_fabric::{Status as Fault, Time};
use cenote_proc::remote::{Ended, Remote};
#[cfg(feature = "wasm")]
use cenote_proc::service::Order;
use cenote_proc::service::{Heard, Named, SlabPlace, SlabWord, Told, Word, WordRefusal};
use cenote_proc::{
    Access, CacheId, ECHO, Grants, LOOKUP, ProcedureId, Status, Trap, WALK, client as plain,
};
use cenote_proc_sdk::Away;
use cenote_proc_sdk::procedures::{Reached, Search, Walk};
use support::{Client, DEADLINE, Fabric, Host, Lab, SLAB_BYTES};

#[cfg(feature = "wasm")]
const WALK_WASM: &[u8] = include_bytes!("../../proc/guests/walk.wasm");

fn host(lab: &Lab, name: &str, threads: usize) -> Host {
    let mut config = lab.config(name, 8);
    config.cache_threads = threads;
    Host::start(config)
}

fn on_each(case: impl Fn(&Lab)) {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        case(&Lab::new(fabric));
    }
}

/// Polls until a request has ended.
fn await_end(remote: &mut Remote, ended: &mut Vec<Ended>) {
    let deadline = Instant::now() + DEADLINE;
    while ended.is_empty() {
        assert!(Instant::now() < deadline, "it does not end");
        remote.poll(Time::now(), ended);
        remote.wait(std::time::Duration::from_millis(5));
    }
}

/// A list of `nodes` nodes that jumps from slab to slab; node i has the value 3 i.
fn write_list(cache: &mut Cache, nodes: u64) -> Walk {
    let slabs = cache.slabs.len() as u64;
    let place = |node: u64| node % slabs * SLAB_BYTES + 64 + node / slabs * 24;
    for node in 0..nodes {
        let next = if node + 1 < nodes { place(node + 1) } else { 0 };
        let mut bytes = next.to_le_bytes().to_vec();
        bytes.extend((node * 3).to_le_bytes());
        cache.write(place(node), &bytes);
    }
    Walk {
        node: place(0),
        hops: u32::try_from(nodes).unwrap(),
        next_at: 0,
        value_at: 8,
        away: Away::Fetch,
    }
}

/// Where plain code that reads one-sided gets to.
fn expected(cache: &mut Cache, walk: Walk) -> Reached {
    let read = |address: u64, target: &mut [u8]| {
        target.copy_from_slice(&cache.read(address, target.len()));
        Ok::<(), ()>(())
    };
    plain::walk(read, walk).unwrap()
}

fn run(remote: &mut Remote, cache: CacheId, id: ProcedureId, argument: &[u8]) -> (Status, Vec<u8>) {
    remote.run(cache, id, argument).unwrap()
}

fn reached(remote: &mut Remote, cache: CacheId, id: ProcedureId, walk: Walk) -> Reached {
    let (status, answer) = run(remote, cache, id, &walk.to_bytes());
    assert_eq!(status, Status::Done);
    Reached::of(&answer).unwrap()
}

/// The walk once more, as a module.
#[cfg(feature = "wasm")]
fn put_walk(user: &Client, cache: CacheId) -> Option<ProcedureId> {
    let grants = Grants::Caches(vec![(cache, Access::Read)]);
    assert_eq!(put(user, 1000, grants, WALK_WASM), Told::Loaded);
    Some(ProcedureId(1000))
}

/// This build of a host has the procedures of its program alone, and says so.
#[cfg(not(feature = "wasm"))]
fn put_walk(user: &Client, cache: CacheId) -> Option<ProcedureId> {
    let grants = Grants::Caches(vec![(cache, Access::Read)]);
    let told = put(user, 1000, grants, b"a module");
    assert!(
        matches!(&told, Told::Refused(why) if why.contains("WebAssembly")),
        "{told:?}"
    );
    None
}

#[test]
fn a_procedure_answers_what_one_sided_reads_find_native_or_put_there() {
    on_each(|lab| {
        let host = host(lab, "a", 2);
        let mut cache = Cache::new(lab, &[&host], &[0, 0], false);
        cache.tell();
        let walk = write_list(&mut cache, 200);
        let user = lab.client(&host, 2);
        let mut ids = vec![WALK];
        ids.extend(put_walk(&user, cache.id));
        let mut remote = remote(&user);
        for hops in [0, 1, 17, 200, 500] {
            let walk = Walk { hops, ..walk };
            let expected = expected(&mut cache, walk);
            for &id in &ids {
                assert_eq!(reached(&mut remote, cache.id, id, walk), expected);
            }
        }
        let nothing = Search {
            node: 4096,
            key: 1,
            away: Away::Stop,
            below: 3,
        };
        let found = run(&mut remote, cache.id, LOOKUP, &nothing.to_bytes());
        assert_eq!(found, (Status::Done, Vec::new()), "an empty tree");
    });
}

#[test]
fn many_requests_of_many_clients_are_each_answered_once() {
    on_each(|lab| {
        let host = host(lab, "a", 2);
        let mut cache = Cache::new(lab, &[&host], &[0], false);
        cache.tell();
        let users = [lab.client(&host, 2), lab.client(&host, 3)];
        let mut remotes: Vec<_> = users.iter().map(remote).collect();
        let (mut seen, mut sent) = ([0_u32; 2], [0_u64; 2]);
        let mut ended: Vec<Ended> = Vec::new();
        while seen.iter().any(|seen| *seen < 5000) {
            for (user, remote) in remotes.iter_mut().enumerate() {
                while sent[user] < 5000
                    && remote
                        .submit(cache.id, ECHO, &sent[user].to_le_bytes(), sent[user])
                        .is_ok()
                {
                    sent[user] += 1;
                }
                remote.flush();
                remote.poll(Time::now(), &mut ended);
                for end in ended.drain(..) {
                    let answer = end.token.to_le_bytes().to_vec();
                    assert_eq!(end.result, Ok((Status::Done, answer)));
                    seen[user] += 1;
                }
            }
        }
        assert_eq!((seen, remotes[0].outstanding()), ([5000; 2], 0));
    });
}

#[test]
fn what_ends_while_one_is_waited_for_is_told_by_the_next_poll() {
    on_each(|lab| {
        let host = host(lab, "a", 1);
        let mut cache = Cache::new(lab, &[&host], &[0], false);
        cache.tell();
        let user = lab.client(&host, 2);
        let mut calls = remote(&user);
        (calls.submit(cache.id, ECHO, b"other", 1)).unwrap();
        let waited_for = run(&mut calls, cache.id, ECHO, b"x");
        assert_eq!(waited_for, (Status::Done, b"x".to_vec()));
        let mut ended = Vec::new();
        await_end(&mut calls, &mut ended);
        let result = Ok((Status::Done, b"other".to_vec()));
        assert_eq!(ended, [Ended { token: 1, result }]);
    });
}

#[test]
fn procedures_run_for_the_clients_and_on_the_caches_that_are_named() {
    on_each(|lab| {
        let host = host(lab, "a", 1);
        let mut cache = Cache::new(lab, &[&host], &[0], true);
        let (user, stranger) = (lab.client(&host, 2), lab.client(&host, 9));
        let (mut user_calls, mut stranger_calls) = (remote(&user), remote(&stranger));
        let early = run(&mut user_calls, cache.id, ECHO, b"x");
        assert_eq!(early.0, Status::OutOfBounds, "nobody said that it is there");
        cache.tell();
        assert_eq!(
            run(&mut user_calls, cache.id, ECHO, b"x"),
            (Status::Done, b"x".to_vec())
        );
        let refused = run(&mut stranger_calls, cache.id, ECHO, b"x");
        assert_eq!(
            refused.0,
            Status::Trapped(Trap::Denied),
            "not one of its users"
        );
        #[cfg(feature = "wasm")]
        {
            let elsewhere = Grants::Caches(vec![(CacheId(5), Access::ReadWrite)]);
            assert_eq!(put(&user, 1001, elsewhere, WALK_WASM), Told::Loaded);
            let denied = run(&mut user_calls, cache.id, ProcedureId(1001), b"");
            assert_eq!(
                denied.0,
                Status::Trapped(Trap::Denied),
                "granted on another cache"
            );
        }
        let unknown = run(&mut user_calls, cache.id, ProcedureId(4000), b"");
        assert_eq!(unknown.0, Status::Trapped(Trap::Unknown));
    });
}

#[cfg(feature = "wasm")]
/// Its store of 8 bytes at an address that is its argument.
fn writer() -> Vec<u8> {
    let store = "(call $store (i64.load (i32.const 65560)) (i32.const 65560) (i32.const 8))";
    // Done; or, where the bytes are not here, it asks for them; or it fails.
    let asks = "(i64.store (i32.const 65536) (i64.load (i32.const 65560))) \
                (i32.store (i32.const 65544) (i32.const 8))";
    guest(&format!(
        "(local $r i32) (local.set $r {store}) {asks} \
         (select (i32.const 5) (local.get $r) (i32.eq (local.get $r) (i32.const 2)))"
    ))
}

#[cfg(feature = "wasm")]
/// A module whose step is `body`, with a frame at 64 KiB: its state begins at 65560.
fn guest(body: &str) -> Vec<u8> {
    let text = format!(
        r#"(module
            (import "cenote" "load" (func $load (param i64 i32 i32) (result i32)))
            (import "cenote" "store" (func $store (param i64 i32 i32) (result i32)))
            (memory (export "memory") 2)
            (func (export "frame") (result i32) (i32.const 65536))
            (func $step (export "step") (result i32) {body}))"#
    );
    wat::parse_str(text).unwrap()
}

#[cfg(feature = "wasm")]
#[test]
fn a_procedure_writes_where_it_may_and_until_its_owner_says_no_longer() {
    on_each(|lab| {
        let host = host(lab, "a", 2);
        let mut cache = Cache::new(lab, &[&host], &[0], true);
        cache.tell();
        let user = lab.client(&host, 2);
        let mut remote = remote(&user);
        for (id, access) in [(1000, Access::ReadWrite), (1001, Access::Read)] {
            let grants = Grants::Caches(vec![(cache.id, access)]);
            assert_eq!(put(&user, id, grants, &writer()), Told::Loaded);
        }
        let at = |address: u64| address.to_le_bytes();
        let wrote = run(&mut remote, cache.id, ProcedureId(1000), &at(512));
        assert_eq!(wrote.0, Status::Done);
        assert_eq!(cache.read(512, 8), at(512));
        let denied = run(&mut remote, cache.id, ProcedureId(1001), &at(1024));
        assert_eq!(denied.0, Status::Trapped(Trap::Failed(8)));
        assert_eq!(cache.read(1024, 8), [0; 8]);
        // On the move: a store waits, and is done when the slab is here again.
        cache.slabs[0].generation += 1;
        cache.map_all(true);
        let mut writing = cache::remote(&user);
        writing
            .submit(cache.id, ProcedureId(1000), &at(2048), 7)
            .unwrap();
        writing.flush();
        let mut ended = Vec::new();
        for _ in 0..20 {
            writing.poll(Time::now(), &mut ended);
            writing.wait(std::time::Duration::from_millis(5));
        }
        assert_eq!((ended.len(), cache.read(2048, 8)), (0, vec![0; 8]));
        cache.slabs[0].generation += 1;
        cache.map_all(false);
        await_end(&mut writing, &mut ended);
        assert_eq!(cache.read(2048, 8), at(2048));
    });
}

#[test]
fn words_are_believed_of_whom_the_slabs_are_lent_to() {
    on_each(|lab| {
        let host = host(lab, "a", 2);
        let mut cache = Cache::new(lab, &[&host], &[0], false);
        let mut other = Cache::new(lab, &[&host], &[], false);
        other.sites[0].client = lab.client(&host, 5);
        other.sites[0].caller = other.sites[0].client.session.caller_opener()(DEADLINE).unwrap();
        // The same owner connected twice: the later session is the one.
        cache.sites[0].client = lab.client(&host, cache::OWNER);
        cache.sites[0].caller = cache.sites[0].client.session.caller_opener()(DEADLINE).unwrap();
        let mut foreign = cache.opened(0);
        foreign.users = vec![5];
        let refused = other.say(0, &Word::Open(foreign.clone()));
        assert_eq!(refused, Heard::Refused(WordRefusal::NotYours));
        cache.tell();
        let refused = other.say(0, &Word::Open(foreign));
        assert_eq!(refused, Heard::Refused(WordRefusal::NotYours));
        let map = cache.map_word(0, 0, false);
        assert_eq!(other.say(0, &map), Heard::Refused(WordRefusal::NotYours));
        let close = Word::Close { cache: cache.id };
        assert_eq!(other.say(0, &close), Heard::Refused(WordRefusal::NotYours));
        // Windows of another volume, or of another life, are none of the cache's.
        let theirs = other.sites[0].client.map(99, 0);
        let slab = &cache.slabs[0].window;
        let named = [
            (theirs.id, theirs.generation),
            (slab.id, slab.generation ^ 1),
            (u32::MAX, 1),
        ];
        for (window, generation) in named {
            let place = SlabPlace::Here(Named { window, generation });
            let slabs = vec![SlabWord {
                slab: 0,
                generation: 9,
                place,
            }];
            let word = Word::Map {
                cache: cache.id,
                writes_until: 0,
                slabs,
            };
            let heard = cache.say(0, &word);
            assert!(
                matches!(heard, Heard::Taken { missing: 1, .. }),
                "{heard:?}"
            );
        }
        let mut shape = cache.opened(0);
        shape.slab_bytes *= 2;
        let refused = cache.say(0, &Word::Open(shape));
        assert_eq!(refused, Heard::Refused(WordRefusal::Shape));
        assert!(matches!(cache.say(0, &close), Heard::Taken { .. }));
        assert_eq!(cache.say(0, &close), Heard::Refused(WordRefusal::Unknown));
    });
}

/// R2: what another client puts into memory that was a cache's is never seen, by the old word or
/// after.
#[test]
fn a_slab_that_is_given_back_is_not_read_and_who_needs_it_waits_for_the_next() {
    on_each(|lab| {
        let host = host(lab, "a", 2);
        let mut cache = Cache::new(lab, &[&host], &[0], false);
        cache.tell();
        let walk = write_list(&mut cache, 3);
        let right = expected(&mut cache, walk);
        let user = lab.client(&host, 2);
        let mut remote = remote(&user);
        assert_eq!(reached(&mut remote, cache.id, WALK, walk), right);
        let old = cache.slabs[0].window;
        cache.sites[0].client.unmap(old);
        let mut stranger = lab.client(&host, 8);
        for extent in 0..7 {
            let window = stranger.map(8, extent);
            let window = stranger.attach(window).unwrap();
            let secret = vec![0x5e; 4096];
            assert_eq!(stranger.write(&window, 0, &secret), Fault::Ok);
        }
        remote.submit(cache.id, WALK, &walk.to_bytes(), 1).unwrap();
        remote.flush();
        let mut ended = Vec::new();
        for _ in 0..20 {
            remote.poll(Time::now(), &mut ended);
            remote.wait(std::time::Duration::from_millis(5));
        }
        assert!(ended.is_empty(), "INACTIVE: {ended:?}");
        let mut new = cache.lend(0, 0);
        new.generation = 2;
        cache.slabs[0] = new;
        write_list(&mut cache, 3);
        cache.map_all(false);
        await_end(&mut remote, &mut ended);
        let (status, answer) = ended.remove(0).result.unwrap();
        assert_eq!((status, Reached::of(&answer)), (Status::Done, Some(right)));
    });
}

#[test]
fn bytes_come_and_requests_go_between_hosts() {
    on_each(|lab| {
        let hosts = [host(lab, "a", 2), host(lab, "b", 1), host(lab, "c", 1)];
        let all: Vec<_> = hosts.iter().collect();
        let mut cache = Cache::new(lab, &all, &[0, 1, 2], false);
        cache.tell();
        let walk = write_list(&mut cache, 60);
        let right = expected(&mut cache, walk);
        for host in &hosts {
            let user = lab.client(host, 2);
            let mut remote = remote(&user);
            for away in [Away::Fetch, Away::Move] {
                let walk = Walk { away, ..walk };
                assert_eq!(
                    reached(&mut remote, cache.id, WALK, walk),
                    right,
                    "{away:?}"
                );
            }
            let walk = Walk {
                away: Away::Stop,
                ..walk
            };
            let (status, _) = run(&mut remote, cache.id, WALK, &walk.to_bytes());
            assert_eq!(status, Status::Stopped);
        }
    });
}

/// Each request is answered once and rightly while slabs go from host to host under it.
#[test]
fn requests_survive_the_moves_of_slabs() {
    on_each(|lab| {
        let hosts = [host(lab, "a", 2), host(lab, "b", 2), host(lab, "c", 1)];
        let all: Vec<_> = hosts.iter().collect();
        let mut cache = Cache::new(lab, &all, &[0, 1, 2], false);
        cache.tell();
        let walk = write_list(&mut cache, 40);
        let right = expected(&mut cache, walk);
        let stop = Arc::new(AtomicBool::new(false));
        let (walked, walks) = mpsc::channel();
        let users: Vec<_> = hosts.iter().map(|host| lab.client(host, 2)).collect();
        let clients: Vec<_> = users
            .into_iter()
            .map(|user| {
                let (stop, walked, id) = (Arc::clone(&stop), walked.clone(), cache.id);
                std::thread::spawn(move || keep_walking(&user, id, walk, right, &stop, walked))
            })
            .collect();
        for _ in &clients {
            walks.recv_timeout(DEADLINE).expect("each walks");
        }
        for (slab, to) in [(0, 2), (1, 0), (2, 1), (0, 1), (1, 2), (0, 0)] {
            cache.relocate(slab, to, || {});
        }
        stop.store(true, Ordering::Relaxed);
        for client in clients {
            client.join().unwrap();
        }
    });
}

/// Walks by both ways over and over, and says when the first walk has ended well.
fn keep_walking(
    user: &Client,
    cache: CacheId,
    walk: Walk,
    right: Reached,
    stop: &AtomicBool,
    walked: mpsc::Sender<()>,
) {
    let mut remote = remote(user);
    let (mut ended, mut done, mut next) = (Vec::new(), 0, 0);
    let deadline = Instant::now() + DEADLINE * 2;
    while !stop.load(Ordering::Relaxed) || remote.outstanding() > 0 {
        assert!(Instant::now() < deadline, "{done} of {next} ended");
        while remote.outstanding() < 8 && !stop.load(Ordering::Relaxed) {
            let away = if next % 2 == 0 {
                Away::Fetch
            } else {
                Away::Move
            };
            let walk = Walk { away, ..walk };
            remote.submit(cache, WALK, &walk.to_bytes(), next).unwrap();
            next += 1;
        }
        remote.flush();
        remote.poll(Time::now(), &mut ended);
        for end in ended.drain(..) {
            let (status, answer) = end.result.unwrap();
            assert_eq!((status, Reached::of(&answer)), (Status::Done, Some(right)));
            if done == 0 {
                walked.send(()).unwrap();
            }
            done += 1;
        }
        remote.wait(std::time::Duration::from_millis(1));
    }
    assert_eq!(done, usize::try_from(next).unwrap(), "each once");
}

#[cfg(feature = "wasm")]
#[test]
fn guests_that_do_harm_are_ended_and_others_are_served() {
    let lab = Lab::new(Fabric::Shm);
    let host = host(&lab, "a", 1);
    let mut cache = Cache::new(&lab, &[&host], &[0], true);
    cache.tell();
    let (bad, good) = (lab.client(&host, 2), lab.client(&host, 3));
    let harm = [
        ("(loop $l (br $l)) (i32.const 0)", Some(Trap::TooLong)),
        ("(call $step)", Some(Trap::Crashed)),
        ("unreachable", Some(Trap::Crashed)),
        ("(i32.load (i32.const -4))", Some(Trap::Crashed)),
        ("(i32.const 77)", Some(Trap::BadVerdict)),
        // It asks for more memory than it gets, and goes on without.
        ("(drop (memory.grow (i32.const 60000))) (i32.const 0)", None),
    ];
    let mut remotes = (remote(&bad), remote(&good));
    for (id, (body, trap)) in (1000..).zip(harm) {
        let all = Grants::All(Access::ReadWrite);
        assert_eq!(put(&bad, id, all, &guest(body)), Told::Loaded, "{body}");
        for token in 0..20 {
            remotes
                .0
                .submit(cache.id, ProcedureId(id), b"", token)
                .unwrap();
        }
        remotes.0.flush();
        // While they run the thread answers everybody else.
        for _ in 0..5 {
            let fine = run(&mut remotes.1, cache.id, ECHO, b"fine");
            assert_eq!(fine, (Status::Done, b"fine".to_vec()), "{body}");
        }
        let mut ended = Vec::new();
        cache::poll_until(&mut remotes.0, &mut ended, |ended| ended.len() >= 20);
        for end in ended {
            let status = end.result.unwrap().0;
            assert_eq!(status, trap.map_or(Status::Done, Status::Trapped), "{body}");
        }
    }
}

#[cfg(feature = "wasm")]
#[test]
fn modules_are_checked_when_they_are_put_there() {
    let lab = Lab::new(Fabric::Tcp);
    let host = host(&lab, "a", 1);
    let user = lab.client(&host, 2);
    let all = || Grants::All(Access::Read);
    let refused = |told: Told, why: &str| match told {
        Told::Refused(text) => assert!(text.contains(why), "{text}"),
        other => panic!("{other:?} for {why}"),
    };
    refused(put(&user, 1000, all(), b"not a module"), "not valid");
    let clock = br#"(module (import "wasi" "clock" (func)))"#;
    let clock = wat::parse_str(std::str::from_utf8(clock).unwrap()).unwrap();
    refused(put(&user, 1000, all(), &clock), "not offered");
    refused(put(&user, 1000, all(), &vec![0; 2 << 20]), "1 to 1048576");
    refused(put(&user, WALK.0, all(), WALK_WASM), "taken");
    assert_eq!(put(&user, 1000, all(), WALK_WASM), Told::Loaded);
    refused(put(&user, 1000, all(), WALK_WASM), "taken");
    let mut caller = user.session.caller_opener()(DEADLINE).unwrap();
    refused(order(&mut *caller, &Order::Ask), "nothing");
    let piece = Order::Piece {
        offset: 0,
        bytes: vec![1],
    };
    refused(order(&mut *caller, &piece), "no module");
    let listed = |caller: &mut dyn cenote_fabric::calls::Caller| match order(
        caller,
        &Order::List { skip: 0 },
    ) {
        Told::List { rows, .. } => rows.into_iter().map(|row| row.name).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let names = ["echo", "walk", "lookup", "filter", "guest-1000"];
    assert_eq!(listed(&mut *caller), names);
    let remove = Order::Remove(ProcedureId(1000));
    assert_eq!(order(&mut *caller, &remove), Told::Removed(true));
    assert_eq!(order(&mut *caller, &remove), Told::Removed(false));
    assert_eq!(listed(&mut *caller), names[..4]);
}

#[test]
fn calls_that_are_none_end_their_connection_alone() {
    on_each(|lab| {
        let host = host(lab, "a", 1);
        let mut cache = Cache::new(lab, &[&host], &[0], true);
        cache.tell();
        let (hostile, user) = (lab.client(&host, 2), lab.client(&host, 3));
        let mut served = remote(&user);
        for seed in 0..120 {
            let mut bytes = support::noise(seed, 1 + usize::try_from(seed).unwrap() * 3);
            bytes[0] = u8::try_from(seed % 8).unwrap();
            let mut caller = hostile.session.caller_opener()(DEADLINE).unwrap();
            // Answered or cut off; never a host that is gone.
            drop(cenote_proc::remote::exchange(
                &mut *caller,
                &bytes,
                DEADLINE,
            ));
            drop(caller);
            let fine = run(&mut served, cache.id, ECHO, b"fine");
            assert_eq!(fine, (Status::Done, b"fine".to_vec()));
        }
    });
}
