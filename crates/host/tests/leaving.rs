//! A host that is drained, and one that another process takes over from, over real connections.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::{Address, Error as FabricError, Status};
use cenote_host::{Daemon, End, Error, Inheritance};
use cenote_pool::control::{Drain, HeldSlab, Refusal, Reply, Request, Window};
use cenote_pool::ledger::Handover;
use support::{Client, Fabric, Host, Lab, SLAB_BYTES, noise};

/// The next request for slabs, past whatever else the host says.
fn next_evict(client: &mut Client) -> Vec<Window> {
    match client.reply() {
        Reply::Evict { windows } => windows,
        other => panic!("{other:?}"),
    }
}

fn drain(client: &mut Client, how: Drain) -> cenote_pool::control::HostStatus {
    match client.ask(&Request::Drain(how)) {
        Reply::Status(status) => *status,
        other => panic!("{other:?}"),
    }
}

#[test]
fn clients_are_asked_for_their_slabs_until_they_give_them_back() {
    let lab = Lab::new(Fabric::Tcp);
    let host = lab.host("h", 4);
    let (mut owner, mut operator) = (lab.client(&host, 1), lab.client(&host, 2));
    let windows = [owner.map(7, 0), owner.map(7, 1)];
    let status = drain(&mut operator, Drain::On);
    assert!(status.draining);
    assert_eq!(status.slabs.mapped, 2);
    assert_eq!(next_evict(&mut owner), windows);
    assert_eq!(next_evict(&mut owner), windows, "asked again");

    let declined = operator.status_when(|status| {
        owner.send(&Request::Decline { window: windows[0] });
        status.clients[0].declined == 1
    });
    assert_eq!(
        (declined.clients[0].id, declined.clients[0].version),
        (1, cenote_pool::control::VERSION)
    );
    assert_eq!(operator.try_map(9, 0), Err(Refusal::ShuttingDown));

    for window in windows {
        owner.send(&Request::Unmap { window });
    }
    let drained = operator.status_when(|status| {
        let slabs = status.slabs;
        slabs.free == slabs.total()
    });
    assert_eq!((drained.lent_bytes, drained.draining), (0, true));
    assert!(!drain(&mut operator, Drain::Off).draining);
    operator.map(9, 0);
}

#[test]
fn a_client_of_the_version_before_is_served_and_not_asked() {
    let lab = Lab::new(Fabric::Tcp);
    let host = lab.host("h", 4);
    let (mut earlier, mut operator) = (lab.client(&host, 1), lab.client(&host, 2));
    // Query, then Map of extent 4, member 5 of volume 3: as version 1 wrote them.
    earlier.session.send(&[1, 1]).unwrap();
    let free = earlier.raw_reply();
    assert_eq!(free[..2], [1, 1]);
    let mut map = vec![1, 2, 7, 0, 0, 0, 0, 0, 0, 0];
    map.extend([
        3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 5,
    ]);
    earlier.session.send(&map).unwrap();
    let mapped = earlier.raw_reply();
    assert_eq!(mapped[..10], [1, 2, 7, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(mapped.len(), 10 + 21);

    let status = drain(&mut operator, Drain::On);
    assert_eq!((status.clients[0].slabs, status.clients[0].version), (1, 1));
    // Long enough for the host to have asked: its status counts seconds.
    let since = status.uptime_s;
    let later = operator.status_when(|status| status.uptime_s >= since + 3);
    assert_eq!(later.clients[0].declined, 1, "it cannot be asked");
    earlier
        .session
        .send(&[1, 4, 9, 0, 0, 0, 0, 0, 0, 0])
        .unwrap();
    let pong = earlier.raw_reply();
    assert_eq!(pong[..10], [1, 5, 9, 0, 0, 0, 0, 0, 0, 0], "nothing before");
    assert_eq!(pong[10..], [0; 4], "nothing is free");
}

#[test]
fn a_message_of_a_version_that_nobody_speaks_ends_the_connection() {
    let lab = Lab::new(Fabric::Tcp);
    let host = lab.host("h", 2);
    for first in [0, cenote_pool::control::VERSION + 1, 255] {
        let mut client = lab.client(&host, 1);
        client.session.send(&[first, 1]).unwrap();
        assert!(client.incoming().is_err(), "version {first}");
    }
    let mut operator = lab.client(&host, 2);
    assert_eq!(operator.status().counters.malformed, 3);
}

#[test]
fn a_host_that_is_to_stop_ends_when_it_is_drained_and_has_said_so() {
    let lab = Lab::new(Fabric::Shm);
    let mut daemon = Daemon::start(lab.config("h", 4)).unwrap();
    let address = daemon.addresses()[0].clone();
    let thread = std::thread::spawn(move || daemon.run(&AtomicBool::new(false)).unwrap());
    let connect = |id| Client::connect(&lab.key, &address, id).unwrap();
    let (mut owner, mut operator, mut other) = (connect(1), connect(2), connect(3));
    let window = owner.map(7, 0);
    drain(&mut operator, Drain::Stop);
    assert_eq!(next_evict(&mut owner), [window]);
    owner.send(&Request::Unmap { window });
    // Who only looks at it does not take the answer of who ordered it.
    other.status_when(|status| status.slabs.free == 4);
    other.status();
    let drained = operator.status_when(|status| status.slabs.free == 4);
    assert!(drained.draining);
    assert_eq!(thread.join().unwrap(), End::Drained);
}

#[test]
fn a_host_that_is_to_stop_once_drained_does_so_also_when_its_process_was_replaced_by_then() {
    let lab = Lab::new(Fabric::Shm);
    let left = Handover {
        slab_bytes: SLAB_BYTES,
        draining: true,
        stops: true,
        ..Handover::default()
    };
    let inheritance = Inheritance {
        state: left.encode(),
        memory: Vec::new(),
    };
    let mut daemon = Daemon::start_with(lab.config("h", 4), inheritance).unwrap();
    let address = daemon.addresses()[0].clone();
    let thread = std::thread::spawn(move || daemon.run(&AtomicBool::new(false)).unwrap());
    let mut operator = Client::connect(&lab.key, &address, 1).unwrap();
    assert!(operator.status().draining);
    assert_eq!(thread.join().unwrap(), End::Drained);
}

/// Two daemons in one process: the first is left where it stands, as by exec, which ends a
/// process without a chance to clean up.
fn handed_over(lab: &Lab, mut next: cenote_host::Config, uses: impl FnOnce(&mut Client)) -> Host {
    let mut daemon = Daemon::start(lab.config("before", 4)).unwrap();
    let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
    let upgrade = daemon.upgrade_flag();
    let thread = std::thread::spawn(move || {
        let end = daemon.run(&AtomicBool::new(false)).unwrap();
        (end, daemon)
    });
    let mut client = Client::connect(&lab.key, &address, 1).unwrap();
    uses(&mut client);
    upgrade.store(true, Ordering::Relaxed);
    waker.wake();
    let (end, daemon) = thread.join().unwrap();
    assert_eq!(end, End::Upgrade);
    let (state, memory) = daemon.handover();
    assert!(Inheritance::is_understood(&state));
    let copy = |fd: &std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned().unwrap();
    let memory = memory.iter().map(copy).collect();
    std::mem::forget(daemon);
    // The first still has its port here, where the next one would go on.
    for address in &mut next.addresses {
        if let Address::Tcp(_) = address {
            *address = "tcp:127.0.0.2:0".parse().unwrap();
        }
    }
    Host::run(Daemon::start_with(next, Inheritance { state, memory }).unwrap())
}

#[test]
fn the_next_process_serves_the_slabs_of_the_one_before() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let bytes = noise(3, 50_000);
        let (mut windows, mut kept) = (Vec::new(), None);
        let host = handed_over(&lab, lab.config("after", 4), |client| {
            windows = vec![client.map(7, 0), client.map(7, 1), client.map(7, 2)];
            let remote = client.attach(windows[2]).unwrap();
            assert_eq!(client.write(&remote, 4096, &bytes), Status::Ok);
            client.unmap(windows[1]);
            kept = Some(remote);
        });
        let mut client = lab.client(&host, 1);
        let held = match client.ask(&Request::Held { skip: 0 }) {
            Reply::Held { skip: 0, slabs } => slabs,
            other => panic!("{other:?}"),
        };
        let slab = |extent, window| HeldSlab {
            volume: 7,
            extent,
            member: 0,
            window,
        };
        assert_eq!(held, [slab(0, windows[0]), slab(2, windows[2])]);
        let status = client.status();
        assert_eq!((status.slabs.mapped, status.counters.maps), (2, 3));

        let remote = client.attach(windows[2]).unwrap();
        let mut back = vec![0; bytes.len()];
        assert_eq!(client.read(&remote, 4096, &mut back), Status::Ok);
        assert_eq!(back, bytes);
        if let Some(Ok(mapped)) = kept.as_ref().and_then(|kept| kept.in_place(0, 8)) {
            // A mapping from before the change is of the same memory.
            assert_eq!(client.write(&remote, 0, b"as ever!"), Status::Ok);
            // SAFETY: 8 bytes of a mapping that lives as long as `kept`; nobody writes now.
            let seen = unsafe { std::slice::from_raw_parts(mapped.pointer(), 8) };
            assert_eq!(seen, b"as ever!");
        }

        let stale = Window {
            generation: windows[2].generation - 1,
            ..windows[2]
        };
        assert!(matches!(
            client.attach(stale),
            Err(FabricError::StaleWindow)
        ));
        let gone = client.attach(windows[1]);
        assert!(matches!(gone, Err(FabricError::StaleWindow)), "given back");
        client.unmap(stale);
        assert_eq!(
            client.status().slabs.mapped,
            2,
            "a stale name changes nothing"
        );

        // New slabs are zero, and under names that were never given.
        let new = client.map(7, 1);
        assert!(windows.iter().all(|old| old.generation < new.generation));
        let remote = client.attach(new).unwrap();
        assert!(client.read_all(&remote).iter().all(|&byte| byte == 0));
        client.unmap(windows[0]);
        client.status_when(|status| status.slabs.mapped == 2);
    }
}

#[test]
fn who_holds_slabs_is_told_of_the_next_process_and_waited_for() {
    let lab = Lab::new(Fabric::Tcp);
    let mut daemon = Daemon::start(lab.config("h", 4)).unwrap();
    let address = daemon.addresses()[0].clone();
    let thread = std::thread::spawn(move || daemon.run(&AtomicBool::new(false)).unwrap());
    let connect = |id| Client::connect(&lab.key, &address, id).unwrap();
    let (mut owner, mut idle, mut operator) = (connect(1), connect(2), connect(3));
    owner.map(7, 0);
    // One of the version before holds a slab as well, and could not be told.
    let mut earlier = connect(4);
    let mut map = vec![4, 2, 7, 0, 0, 0, 0, 0, 0, 0];
    map.extend([8; 16]);
    map.extend([0, 0, 0, 0, 0]);
    earlier.session.send(&map).unwrap();
    assert_eq!(earlier.raw_reply()[..2], [4, 2]);
    idle.status();

    assert!(matches!(operator.ask(&Request::Upgrade), Reply::Status(_)));
    let told = Reply::HandsOver {
        back_within_ms: 5_000,
    };
    assert_eq!(owner.reply(), told);
    owner.send(&Request::Awaits);
    assert_eq!(thread.join().unwrap(), End::Upgrade);
    for mut other in [idle, earlier, operator] {
        // The end, and nothing before it.
        assert!(other.incoming().is_err());
    }
}

#[test]
fn who_asked_for_an_upgrade_that_did_not_come_about_is_told_by_the_end_and_others_stay() {
    let lab = Lab::new(Fabric::Tcp);
    let mut daemon = Daemon::start(lab.config("h", 4)).unwrap();
    let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
    let stop = Arc::new(AtomicBool::new(false));
    let told_to_stop = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        let first = daemon.run(&stop).unwrap();
        // As when the program that is installed does not take over.
        (first, daemon.run(&stop).unwrap())
    });
    let connect = |id| Client::connect(&lab.key, &address, id).unwrap();
    let (mut other, mut operator) = (connect(1), connect(2));
    assert!(matches!(operator.ask(&Request::Upgrade), Reply::Status(_)));
    assert!(
        operator.incoming().is_err(),
        "the end, and nothing before it"
    );
    other.status();
    told_to_stop.store(true, Ordering::Relaxed);
    waker.wake();
    assert_eq!(thread.join().unwrap(), (End::Upgrade, End::Stopped));
}

#[test]
fn a_volume_stays_its_owners_and_a_stranger_holds_nothing() {
    let lab = Lab::new(Fabric::Tcp);
    let host = handed_over(&lab, lab.config("after", 4), |client| {
        client.map(7, 0);
    });
    let mut stranger = lab.client(&host, 2);
    assert_eq!(stranger.try_map(7, 1), Err(Refusal::Owned));
    let held = stranger.ask(&Request::Held { skip: 0 });
    assert!(matches!(held, Reply::Held { slabs, .. } if slabs.is_empty()));
}

#[test]
fn slabs_that_are_lent_keep_their_size_whatever_is_configured() {
    let lab = Lab::new(Fabric::Tcp);
    let next = cenote_host::Config {
        slab_bytes: 2 * SLAB_BYTES,
        memory_bytes: 2 * SLAB_BYTES,
        ..lab.config("after", 0)
    };
    let host = handed_over(&lab, next, |client| {
        for extent in 0..3 {
            client.map(7, extent);
        }
    });
    let status = lab.client(&host, 1).status();
    assert_eq!(status.slab_bytes, SLAB_BYTES);
    assert_eq!((status.slabs.mapped, status.slabs.total()), (3, 3));
}

#[test]
fn whether_the_next_process_would_start_is_told_while_this_one_listens() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let same = lab.config("h", 4);
        let daemon = Daemon::start(same.clone()).unwrap();
        let (state, _) = daemon.handover();
        let check = |config: &cenote_host::Config| Daemon::check(config.clone(), &state);
        check(&same).unwrap();
        // With the port that the system chose, and one more address.
        let mut more = same.clone();
        more.addresses = daemon.addresses();
        more.addresses.push("tcp:127.0.0.1:0".parse().unwrap());
        check(&more).unwrap();

        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = format!("tcp:{}", other.local_addr().unwrap());
        more.addresses[1] = taken.parse().unwrap();
        let refused = check(&more);
        assert!(
            matches!(
                refused,
                Err(Error::Fabric(FabricError::AddressInUse { .. }))
            ),
            "{refused:?}"
        );
        let mut wrong = same.clone();
        wrong.cache_threads = 257;
        assert!(matches!(check(&wrong), Err(Error::Config { .. })));
        // More than any machine has: no reason for who takes over.
        let mut greedy = same.clone();
        greedy.memory_bytes = (1 << 20) * SLAB_BYTES;
        check(&greedy).unwrap();
        let unread = Daemon::check(same, b"nonsense");
        assert!(matches!(unread, Err(Error::Inheritance(_))));
    }
}

#[test]
fn memory_that_does_not_belong_to_the_state_is_refused() {
    let lab = Lab::new(Fabric::Tcp);
    let start = |inheritance| Daemon::start_with(lab.config("h", 4), inheritance).map(drop);
    let nonsense = Inheritance {
        state: b"nonsense".to_vec(),
        memory: Vec::new(),
    };
    assert!(!Inheritance::is_understood(&nonsense.state));
    assert!(matches!(start(nonsense), Err(Error::Inheritance(_))));
    let empty = Daemon::start(lab.config("other", 4)).unwrap();
    let (state, memory) = empty.handover();
    assert!(memory.is_empty());
    let surplus = Inheritance {
        state,
        memory: vec![tempfile::tempfile().unwrap().into()],
    };
    assert!(matches!(start(surplus), Err(Error::Inheritance(_))));
}
