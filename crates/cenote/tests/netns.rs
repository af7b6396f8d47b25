//! Faults of the network under load: each host and the client is in a network namespace of its
//! own, with an address of its own, and links are cut, muted and moved.
//!
//! Up to r hosts out: no wrong byte and no error. The load is that of [`support::lab`].

mod support;

use support::lab::wait_until;
use support::machines::{
    CLIENT, CLIENT_ADDRESS, EXTENTS_WRITTEN, HOSTS, Machines, PAGE_BYTES, address_of, host_name,
    number, page, start_host, write_cluster,
};
use support::nbd::{Client, Refused};
use support::{signal, words};

#[test]
fn links_of_as_many_hosts_as_may_be_lost_go_down_and_come_up() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let load = machines.fio();
    machines.wait_written(8_000);
    let victims = &machines.members()[2..4];
    for victim in victims {
        machines.net.unplug(victim);
    }
    for victim in victims {
        machines.wait_connected(victim, false);
    }
    machines.wait_written(20_000);
    for victim in victims {
        machines.net.plug(victim);
    }
    for victim in victims {
        machines.wait_connected(victim, true);
    }
    machines.expect_unnoticed(load);
}

#[test]
fn a_link_flaps() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let mut load = machines.fio();
    machines.wait_written(4_000);
    let victim = machines.members()[0].clone();
    for flap in 0..10 {
        machines.net.unplug(&victim);
        // Every other time long enough for it to be given up; else as short as it can be.
        if flap % 2 == 0 {
            machines.wait_connected(&victim, false);
        }
        machines.net.plug(&victim);
        if flap % 4 < 2 {
            machines.wait_connected(&victim, true);
        }
        // On a slow machine the load may be over before the last flap.
        let enough = machines.written() + 1_000;
        wait_until(
            "pages are written, or all are",
            || machines.written() >= enough || load.is_over(),
            || machines.status().to_string(),
        );
    }
    machines.wait_connected(&victim, true);
    machines.expect_unnoticed(load);
}

#[test]
fn bytes_are_lost_one_way() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let load = machines.fio();
    machines.wait_written(8_000);
    // Requests arrive and are carried out, answers do not come back.
    let deaf = machines.members()[1].clone();
    machines.net.mute(&deaf, CLIENT_ADDRESS);
    machines.wait_connected(&deaf, false);
    machines.wait_written(16_000);
    machines.net.unmute(&deaf, CLIENT_ADDRESS);
    machines.wait_connected(&deaf, true);
    // The other way: nothing arrives, though the host could answer.
    machines.wait_healthy();
    let unheard = machines.members()[5].clone();
    let address = address_of(number(&unheard));
    machines.net.mute(CLIENT, &address);
    machines.wait_connected(&unheard, false);
    machines.wait_written(machines.written() + 4_000);
    machines.net.unmute(CLIENT, &address);
    machines.wait_connected(&unheard, true);
    machines.expect_unnoticed(load);
}

/// Where a lost slab may go, one of the hosts that it is to be rebuilt from is out of reach.
#[test]
fn hosts_that_do_not_reach_each_other_rebuild_from_others() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let load = machines.fio();
    machines.wait_written(8_000);
    let members = machines.members();
    let spare = (0..HOSTS)
        .map(host_name)
        .filter(|host| !members.contains(host));
    for target in spare {
        machines.net.mute(&target, &address_of(number(&members[0])));
    }
    machines.net.unplug(&members[9]);
    machines.wait_connected(&members[9], false);
    machines.wait_healthy();
    machines.expect_unnoticed(load);
}

#[test]
fn a_host_is_paused_and_goes_on() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let load = machines.fio();
    machines.wait_written(8_000);
    let victim = machines.members()[7].clone();
    let process = machines.hosts[&victim].0.id();
    signal(process, "STOP");
    machines.wait_connected(&victim, false);
    machines.wait_healthy();
    machines.wait_written(20_000);
    signal(process, "CONT");
    machines.wait_connected(&victim, true);
    machines.expect_unnoticed(load);
}

/// A volume knows the addresses that it was opened with. A host that moved is lost to it, and
/// rebuilt on others; the next one that is opened finds it.
#[test]
fn a_host_comes_back_under_another_address() {
    let Some(mut machines) = Machines::new() else {
        return;
    };
    let load = machines.fio();
    machines.wait_written(8_000);
    let moved = machines.members()[4].clone();
    let new_address = "10.77.0.200";
    machines.hosts.remove(&moved);
    machines.net.move_to(&moved, new_address);
    let addresses = (0..HOSTS).map(|index| {
        let name = host_name(index);
        let address = if name == moved {
            new_address.to_owned()
        } else {
            address_of(index)
        };
        (name, address)
    });
    write_cluster(&machines.folder, &addresses.collect());
    let host = start_host(&machines.net, &machines.folder, &moved, new_address);
    machines.hosts.insert(moved.clone(), host);
    machines.wait_connected(&moved, false);
    machines.expect_unnoticed(load);
    assert!(
        !machines.is_connected(&moved),
        "an open volume goes by the old address"
    );
    let program = machines.net.cenote(CLIENT);
    machines.lab.serve_again(program);
    machines.wait_all_connected();
    machines
        .fio_with(&words("--rw=randwrite --bs=64k --size=64M --verify=crc32c"))
        .expect_clean();
    assert_eq!(machines.requests_failed(), 0);
}

/// All hosts are out at once, for longer than requests wait for any. What was written is errors
/// then, and never other bytes, also when the link is back. What was not mapped works again by
/// itself.
#[test]
fn the_client_loses_its_own_link() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let mut client = machines.connect();
    let written = machines.write_some(&mut client);
    let unmapped = machines.extent_bytes() * EXTENTS_WRITTEN;
    machines.net.unplug(CLIENT);
    assert_eq!(client.read(written[0], PAGE_BYTES), Err(EIO));
    for &offset in &written {
        expect_right_or_error(&mut client, offset);
        assert_eq!(client.write(offset, &page(offset)), Err(EIO));
    }
    assert_eq!(client.write(unmapped, &page(unmapped)), Err(ENOSPC));
    assert_eq!(
        client.read(unmapped, PAGE_BYTES),
        Ok(vec![0; PAGE_BYTES]),
        "nobody wrote there"
    );

    machines.net.plug(CLIENT);
    machines.wait_all_connected();
    for &offset in &written {
        expect_right_or_error(&mut client, offset);
    }
    // Refused a moment ago; asked again, it is mapped.
    wait_until(
        "what was not mapped can be written",
        || client.write(unmapped, &page(unmapped)).is_ok(),
        || machines.status().to_string(),
    );
    assert_eq!(client.read(unmapped, PAGE_BYTES), Ok(page(unmapped)));
    let len_bytes = usize::try_from(unmapped).expect("small");
    assert_eq!(client.trim(0, len_bytes), Ok(()));
    machines.wait_healthy();
    for &offset in &written {
        assert_eq!(client.read(offset, PAGE_BYTES), Ok(vec![0; PAGE_BYTES]));
        assert_eq!(client.write(offset, &page(offset)), Ok(()));
    }
    for &offset in written.iter().chain([&unmapped]) {
        assert_eq!(client.read(offset, PAGE_BYTES), Ok(page(offset)));
    }
}

/// The hosts still have every byte: nothing but the client's link was ever broken.
#[test]
fn what_was_written_is_back_when_the_clients_link_is() {
    let Some(machines) = Machines::new() else {
        return;
    };
    let mut client = machines.connect();
    let written = machines.write_some(&mut client);
    machines.net.unplug(CLIENT);
    machines.wait_connected(&host_name(0), false);
    machines.net.plug(CLIENT);
    machines.wait_all_connected();
    for &offset in &written {
        let right = client
            .read(offset, PAGE_BYTES)
            .map(|bytes| bytes == page(offset));
        assert_eq!(right, Ok(true), "at {offset}");
    }
}

const EIO: Refused = Refused(5);
const ENOSPC: Refused = Refused(28);

/// Reads a page of [`Machines::write_some`].
fn expect_right_or_error(client: &mut Client, offset: u64) {
    let read = client.read(offset, PAGE_BYTES);
    assert!(
        read == Err(EIO) || read == Ok(page(offset)),
        "wrong bytes at {offset}: {read:?}"
    );
}
