//! Slabs that are lent, used, given back and lent again, over real connections.

mod support;

use cenote_fabric::{Error as FabricError, Status};
use cenote_host::{Daemon, Error};
use cenote_pool::control::{Refusal, Reply, Request, Window};
use support::{Client, Fabric, Lab, SLAB_BYTES, noise};

fn over_both(test: impl Fn(&Lab)) {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        test(&Lab::new(fabric));
    }
}

#[test]
fn a_slab_is_mapped_zero_holds_what_is_written_and_is_given_back() {
    over_both(|lab| {
        let host = lab.host("h", 4);
        let mut client = lab.client(&host, 1);
        let window = client.map(7, 0);
        assert_eq!(window.len_bytes, SLAB_BYTES);
        let remote = client.attach(window).unwrap();
        assert!(client.read_all(&remote).iter().all(|&byte| byte == 0));
        let bytes = noise(1, 100_000);
        assert_eq!(client.write(&remote, 5000, &bytes), Status::Ok);
        let mut back = vec![0; bytes.len()];
        assert_eq!(client.read(&remote, 5000, &mut back), Status::Ok);
        assert_eq!(back, bytes);
        let status = client.status();
        assert_eq!((status.slabs.mapped, status.lent_bytes), (1, SLAB_BYTES));
        assert_eq!((status.clients[0].id, status.clients[0].slabs), (1, 1));
        client.unmap(window);
        client.unmap(window);
        let status = client.status();
        assert_eq!((status.slabs.mapped, status.slabs.total()), (0, 4));
        assert_eq!((status.counters.maps, status.counters.unmaps), (1, 1));
    });
}

#[test]
fn the_next_holder_of_a_slab_sees_zeros_and_the_former_reaches_nothing() {
    over_both(|lab| {
        let host = lab.host("h", 1);
        let (mut first, mut second) = (lab.client(&host, 1), lab.client(&host, 2));
        let old = first.map(1, 0);
        let kept = first.attach(old).unwrap();
        assert_eq!(
            first.write(&kept, 0, &vec![0xee; SLAB_BYTES as usize]),
            Status::Ok
        );
        assert_eq!(second.try_map(2, 0), Err(Refusal::NoMemory));
        first.unmap(old);
        let new = second.map(2, 0);
        assert_ne!(old.generation, new.generation);
        let remote = second.attach(new).unwrap();
        assert!(second.read_all(&remote).iter().all(|&byte| byte == 0));
        let refused = first.write(&kept, 0, &[0xee; 4096]);
        assert!(
            matches!(refused, Status::Revoked | Status::StaleGeneration),
            "{refused:?}"
        );
        assert!(second.read_all(&remote).iter().all(|&byte| byte == 0));
        assert!(matches!(first.attach(old), Err(FabricError::StaleWindow)));
        first.unmap(Window {
            generation: old.generation,
            ..new
        });
        first.unmap(new);
        assert_eq!(
            second.write(&remote, 0, &[1]),
            Status::Ok,
            "only the holder gives back"
        );
    });
}

#[test]
fn more_than_is_left_is_refused_and_comes_back_with_the_slab() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 3);
    let mut client = lab.client(&host, 1);
    let windows: Vec<_> = (0..3).map(|extent| client.map(1, extent)).collect();
    let free = |client: &mut Client| match client.ask(&Request::Query) {
        Reply::Free {
            slab_bytes,
            slabs_total,
            slabs_free,
            domain,
        } => {
            assert_eq!(
                (slab_bytes, slabs_total, domain.as_str()),
                (SLAB_BYTES, 3, "domain of h")
            );
            slabs_free
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(free(&mut client), 0);
    assert_eq!(client.try_map(1, 3), Err(Refusal::NoMemory));
    client.unmap(windows[1]);
    assert_eq!(free(&mut client), 1);
    client.map(1, 3);
    assert_eq!(client.status().counters.refused, 1);
}

#[test]
fn a_volume_belongs_to_one_live_client() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 4);
    let (mut owner, mut rival) = (lab.client(&host, 1), lab.client(&host, 2));
    let window = owner.map(7, 0);
    assert_eq!(rival.try_map(7, 1), Err(Refusal::Owned));
    rival.map(8, 0);
    owner.unmap(window);
    rival.map(7, 1);
    assert_eq!(owner.try_map(7, 0), Err(Refusal::Owned));
}

#[test]
fn a_client_that_connects_again_finds_its_slabs_as_they_were() {
    over_both(|lab| {
        let host = lab.host("h", 4);
        let window = {
            let mut client = lab.client(&host, 1);
            let window = client.map(7, 0);
            let remote = client.attach(window).unwrap();
            assert_eq!(client.write(&remote, 0, b"kept"), Status::Ok);
            window
        };
        let mut client = lab.client(&host, 1);
        let remote = client.attach(window).unwrap();
        assert_eq!(&client.read_all(&remote)[..4], b"kept");
        assert_eq!(client.status().slabs.mapped, 1);
        let again = client.map(7, 0);
        assert_ne!(again, window);
        assert_eq!(
            client.status().clients[0].slabs,
            1,
            "a place mapped again ends the former grant"
        );
    });
}

#[test]
fn a_restarted_host_knows_nothing_of_old_windows() {
    let lab = Lab::new(Fabric::Shm);
    let mut host = lab.host("h", 4);
    let mut client = lab.client(&host, 1);
    let old = client.map(7, 0);
    let before = client.status();
    host.stop();
    assert!(
        client.incoming().is_err(),
        "a host that stops closes its connections"
    );
    let host = lab.host("h", 4);
    let mut client = lab.client(&host, 1);
    let after = client.status();
    assert_ne!(before.incarnation, after.incarnation);
    assert!(matches!(client.attach(old), Err(FabricError::StaleWindow)));
    let new = client.map(7, 0);
    client.unmap(old);
    assert_ne!(old.generation, new.generation);
    assert!(
        client.attach(new).is_ok(),
        "giving back an old window changes nothing"
    );
}

#[test]
fn two_hosts_on_one_address_are_refused_and_the_first_lives_on() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 2);
    let error = Daemon::start(lab.config("h", 2))
        .err()
        .expect("the address is in use");
    assert!(
        matches!(error, Error::Fabric(FabricError::AddressInUse { .. })),
        "{error}"
    );
    lab.client(&host, 1).map(1, 0);
}

#[test]
fn more_memory_than_the_machine_has_is_refused_at_the_start() {
    let lab = Lab::new(Fabric::Shm);
    let error = Daemon::start(lab.config("h", 1 << 20))
        .err()
        .expect("a tebibyte is too much");
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
}

#[test]
fn clients_with_another_key_are_told_so_and_counted() {
    let lab = Lab::new(Fabric::Tcp);
    let host = lab.host("h", 2);
    let mut operator = lab.client(&host, 1);
    for _ in 0..3 {
        let key = cenote_fabric::ClusterKey::generate().unwrap();
        let refused = Client::connect(&key, &host.address, 2).err();
        let said = refused.expect("another key").to_string();
        assert!(said.contains("another key"), "{said}");
    }
    let strangers = operator.status().strangers;
    assert_eq!(
        (strangers.wrong_key, strangers.waiting),
        (3, 0),
        "{strangers:?}"
    );
    // Two of the operator's: its session and its data connection.
    assert_eq!(
        (strangers.accepted, strangers.proven),
        (5, 2),
        "{strangers:?}"
    );
}

#[test]
fn a_client_that_breaks_the_protocol_is_cut_off_and_others_are_not() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 2);
    let (mut rude, mut other) = (lab.client(&host, 1), lab.client(&host, 2));
    rude.session.send(&[1, 99]).unwrap();
    assert!(rude.incoming().is_err());
    assert_eq!(other.status().counters.malformed, 1);
    lab.client(&host, 1).map(1, 0);
}

#[test]
fn a_client_gets_a_slab_once_fewer_have_some_than_may_and_is_heard_before() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 32);
    let mut clients: Vec<_> = (0..16).map(|id| lab.client(&host, id)).collect();
    let lent: Vec<_> = (0..)
        .zip(&mut clients)
        .map(|(id, client)| client.map(id, 0))
        .collect();
    let mut late = lab.client(&host, 99);
    assert_eq!(late.try_map(99, 0), Err(Refusal::ClientBound));
    assert_eq!(late.status().slabs_lendable(), 16, "there is room");
    clients[3].unmap(lent[3]);
    late.map(99, 0);
}

#[test]
fn pings_are_answered_in_order_between_slow_requests() {
    let lab = Lab::new(Fabric::Tcp);
    let host = lab.host("h", 64);
    let mut client = lab.client(&host, 1);
    for extent in 0..40 {
        client.send(&Request::Map {
            request: extent.into(),
            volume: 1,
            extent,
            member: 0,
        });
        client.send(&Request::Ping {
            sequence: extent.into(),
        });
    }
    let (mut mapped, mut pongs) = (Vec::new(), Vec::new());
    for _ in 0..80 {
        match client.reply() {
            Reply::Mapped { request, .. } => mapped.push(request),
            Reply::Pong { sequence, .. } => pongs.push(sequence),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(pongs, (0..40).collect::<Vec<u64>>());
    assert_eq!(mapped, (0..40).collect::<Vec<u64>>());
}

/// Makes the memory of the slab that begins with `bytes` shorter, as whoever has it mapped can.
fn cut_short(bytes: &[u8]) {
    use std::os::unix::fs::FileExt;

    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let path = entry.unwrap().path();
        let target = std::fs::read_link(&path).unwrap_or_default();
        // Opened anew: to open what is no file may wait for somebody.
        if !target.to_string_lossy().starts_with("/memfd:") {
            continue;
        }
        let Ok(file) = std::fs::File::options().read(true).write(true).open(&path) else {
            continue;
        };
        let mut found = vec![0; bytes.len()];
        if file.read_exact_at(&mut found, 0).is_ok() && found == bytes {
            file.set_len(4096).unwrap();
        }
    }
}

#[test]
fn a_slab_that_was_cut_short_is_not_in_its_clients_list_and_another_is_lent() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 2);
    let mut client = lab.client(&host, 1);
    let windows = [client.map(7, 0), client.map(7, 1)];
    let mapped = windows.map(|window| client.attach(window).unwrap());
    let marks = [noise(71, 64), noise(72, 64)];
    for (mapped, mark) in mapped.iter().zip(&marks) {
        assert_eq!(client.write(mapped, 0, mark), Status::Ok);
    }
    cut_short(&marks[0]);
    let mut back = vec![0; 64];
    assert_eq!(client.read(&mapped[0], 8192, &mut back), Status::Revoked);

    client.send(&Request::Held { skip: 0 });
    let mut replies = [client.reply(), client.reply()];
    // That it is gone may be said before or after the list.
    replies.sort_by_key(|reply| matches!(reply, Reply::Held { .. }));
    let gone = Reply::Unmapped { window: windows[0] };
    assert_eq!(replies[0], gone);
    let Reply::Held { slabs, .. } = &replies[1] else {
        panic!("{replies:?}");
    };
    let held: Vec<Window> = slabs.iter().map(|slab| slab.window).collect();
    assert_eq!(held, [windows[1]]);
    assert_eq!(client.read(&mapped[1], 0, &mut back), Status::Ok);
    assert_eq!(back, marks[1], "the others are as they were");
    let new = client.map(7, 2);
    let new = client.attach(new).unwrap();
    assert_eq!(client.write(&new, 8192, &marks[0]), Status::Ok);
}

#[test]
fn whatever_was_granted_is_lent_was_given_back_or_was_taken() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 4);
    let mut client = lab.client(&host, 1);
    client.map(7, 0);
    client.map(7, 0);
    let other = client.map(7, 1);
    client.unmap(other);
    let status = client.status();
    let counters = status.counters;
    assert_eq!(
        (counters.maps, counters.unmaps, status.slabs.mapped),
        (3, 2, 1)
    );
    assert_eq!(counters.orphans_taken, 0);
}
