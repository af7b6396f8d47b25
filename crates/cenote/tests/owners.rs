//! A volume outlives its server: real servers are killed under a real client, hosts besides.
//!
//! The client is an nbdkit that connects again, and behind it the verifying load of
//! [`support::lab`]: requests that were under way when the server was killed are said again.

mod support;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};

use support::lab::{Lab, has_tools, wait_until};
use support::sectors::Sectors;
use support::words;

/// Writes and verifies all of it in 4 KiB blocks.
const LOAD: &str = "--rw=randwrite --bs=4k --iodepth=16 --size=64M --verify=crc32c --do_verify=1";

#[test]
fn a_server_killed_and_started_again_under_load() {
    if !has_tools() {
        return;
    }
    for (transport, scheme) in [("shm", "rs:8+2"), ("tcp", "rs:4+2"), ("tcp", "mirror:3")] {
        let mut lab = Lab::new(transport, scheme);
        let client = lab.patient_client();
        let load = lab.fio_to(&client.uri(), &words(LOAD));
        for _ in 0..3 {
            lab.wait_written(4_000);
            lab.kill_and_serve_again();
        }
        load.expect_clean();
        assert_eq!(lab.health(), "healthy", "{transport} {scheme}");
        // What any two hosts less leave is the same.
        let before = lab.content();
        let members = lab.members();
        lab.kill(&members[0]);
        lab.kill(&members[1]);
        assert!(before == lab.content(), "{transport} {scheme}");
    }
}

#[test]
fn a_server_killed_with_hosts_lost_before_and_meanwhile() {
    if !has_tools() {
        return;
    }
    let mut lab = Lab::new("tcp", "rs:8+2");
    let client = lab.patient_client();
    let load = lab.fio_to(&client.uri(), &words(LOAD));
    lab.wait_written(4_000);
    let members = lab.members();
    // Degraded writes first: this host's slabs are not current when the next owner comes.
    lab.kill(&members[0]);
    lab.wait_connected(&members[0], false);
    lab.wait_written(6_000);
    lab.kill_server();
    lab.kill(&members[1]);
    lab.serve_after_kill();
    // Pages that were being written, with a data split lost besides: the client writes them again.
    load.expect_clean();
    lab.wait_healthy();
    assert_eq!(lab.status()["torn_pages"], 0);
}

/// Who is killed next.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Server,
    Host,
}

/// Every order of the server and of as many hosts as a stripe survives, or of one less.
const ORDERS: [&[Victim]; 5] = [
    &[Victim::Server, Victim::Host, Victim::Host],
    &[Victim::Host, Victim::Server, Victim::Host],
    &[Victim::Host, Victim::Host, Victim::Server],
    &[Victim::Server, Victim::Host],
    &[Victim::Host, Victim::Server],
];

/// A volume on hosts enough for some rounds.
struct Case {
    transport: &'static str,
    volume: &'static [&'static str],
}

const CASES: [Case; 6] = [
    Case {
        transport: "tcp",
        volume: &["--scheme", "rs:4+2"],
    },
    Case {
        transport: "shm",
        volume: &["--scheme", "rs:4+2", "--checksum"],
    },
    Case {
        transport: "shm",
        volume: &["--scheme", "rs:8+2"],
    },
    Case {
        transport: "tcp",
        volume: &["--scheme", "rs:8+2", "--checksum"],
    },
    Case {
        transport: "tcp",
        volume: &["--scheme", "mirror:3"],
    },
    Case {
        transport: "tcp",
        volume: &["--scheme", "rs:4+2", "--mode", "ec-only"],
    },
];

/// 1 MiB, no more than an extent of any scheme here: every page is of the stripe whose hosts are killed.
const PAGES: usize = 256;

/// Kills servers and hosts while parts of pages are written: `rounds` of them, as many as there are hosts for on
/// each cluster. Every sector is what was acknowledged last or what was being written, and none is an error.
fn kill_in_every_order(seed: u64, rounds: usize) {
    println!("seed {seed}");
    let (mut unknown, mut there, mut round) = (0, 0, 0);
    while round < rounds {
        let case = &CASES[round / 2 % CASES.len()];
        let mut lab = Lab::with_volume(14, case.transport, case.volume);
        let mut sectors = Sectors::fill(&lab.socket(), PAGES, seed ^ round as u64);
        for _ in 0..2 {
            let order = ORDERS[round % ORDERS.len()];
            let state = format!("seed {seed}, round {round}, {:?}, {order:?}", case.volume);
            let (under_way, new) = kill_in_order(&mut lab, &mut sectors, order, &state);
            unknown += under_way;
            there += new;
            round += 1;
        }
    }
    println!("{unknown} writes were under way in {rounds} rounds, {there} of them are there");
    assert!(there > 0, "none of {unknown} writes under way is there");
}

fn kill_in_order(
    lab: &mut Lab,
    sectors: &mut Sectors,
    order: &[Victim],
    state: &str,
) -> (usize, usize) {
    lab.wait_healthy();
    let mut members = lab.members();
    let (socket, acknowledged) = (lab.socket(), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let writers = sectors.write(scope, &socket, &acknowledged);
        let mut is_served = true;
        for victim in order {
            // At any moment of a write, and as soon as the last one was killed or some time after it.
            let more = sectors.draw() % 300 * (sectors.draw() % 2);
            let enough = acknowledged.load(Ordering::Relaxed) + more;
            wait_until(
                "more is written",
                || !is_served || acknowledged.load(Ordering::Relaxed) >= enough,
                || state.to_owned(),
            );
            match victim {
                Victim::Server => {
                    lab.kill_server();
                    is_served = false;
                }
                Victim::Host => {
                    let at = sectors.draw() as usize % members.len();
                    lab.kill(&members.swap_remove(at));
                }
            }
        }
        lab.serve_after_kill();
        sectors.check(&socket, writers, state)
    })
}

#[test]
fn a_server_and_hosts_killed_in_any_order_lose_nothing() {
    kill_in_every_order(7, 4);
}

mod long {
    use super::*;

    /// Another seed in every run.
    #[test]
    fn a_server_and_hosts_killed_in_any_order_lose_nothing_in_a_hundred_rounds() {
        let seed = RandomState::new().hash_one(0) & u64::from(u32::MAX);
        kill_in_every_order(seed, 100);
    }
}

/// Rewrites the cluster file without some of its hosts; what it said before.
fn leave_out(lab: &Lab, left_out: &[String]) -> String {
    let file = lab.folder.path().join("cluster.toml");
    let before = std::fs::read_to_string(&file).expect("a cluster file");
    let mut parts = before.split("[[host]]");
    let head = parts.next().expect("what is said of all hosts");
    let is_listed = |part: &&str| {
        let says = |name: &String| part.contains(&format!("name = \"{name}\""));
        !left_out.iter().any(says)
    };
    let listed = parts.filter(is_listed);
    let after: String = listed.map(|part| format!("[[host]]{part}")).collect();
    std::fs::write(&file, format!("{head}{after}")).expect("a cluster file");
    before
}

/// Decision 66.
#[test]
fn a_volume_whose_hosts_the_cluster_file_lacks_is_not_served_and_loses_nothing() {
    if !has_tools() {
        return;
    }
    let mut lab = Lab::with_hosts(6, "tcp", "rs:4+2");
    lab.fio_with(&["--rw=randwrite", "--bs=4k", "--size=16M"])
        .expect_clean();
    let content = lab.content();
    let file = lab.folder.path().join("cluster.toml");
    lab.kill_server();

    let missing = ["h01", "h03", "h04"].map(str::to_owned);
    let before = leave_out(&lab, &missing);
    let socket = lab.folder.path().join("elsewhere");
    let socket = socket.to_str().expect("UTF-8").to_owned();
    for _ in 0..2 {
        let nbd = ["nbd", "--volume", "v0", "--socket", &socket];
        let refused = lab.folder.run(&nbd).expect(1);
        for said in ["h01, h03, h04", "are not listed", "cenote volume reset v0"] {
            assert!(refused.stderr.contains(said), "{refused:#?}");
        }
    }
    std::fs::write(&file, &before).expect("a cluster file");
    lab.serve_after_kill();
    assert!(lab.content() == content, "nothing was given back");
    assert_eq!(lab.health(), "healthy");

    // What the volume bears is rebuilt as far as there are hosts, or waits for them.
    lab.kill_server();
    leave_out(&lab, &missing[..2]);
    lab.serve_after_kill();
    assert!(lab.content() == content);
    assert_eq!(lab.health(), "degraded");

    // Who gives the content up needs none of them.
    lab.kill_server();
    leave_out(&lab, &missing);
    lab.folder.run(&["volume", "reset", "v0"]).expect(0);
    std::fs::write(&file, &before).expect("a cluster file");
    lab.serve_after_kill();
    assert!(lab.content().iter().all(|&byte| byte == 0));
}
