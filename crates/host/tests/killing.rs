//! Processes that end without a word: a client, and a host that others read from.
//!
//! The processes are this test program again, told by the environment what to play.

#[path = "support/part.rs"]
mod part;
mod support;

use cenote_fabric::{ClusterKey, Status};
use cenote_pool::control::{FillResult, Reply, Request, Source, Window};
use part::{play, say};
use support::{Client, Fabric, Host, Lab, SLAB_BYTES, noise};

const ROLE: &str = "CENOTE_TEST_ROLE";

const PART: &str = "a_part_in_another_test";

#[test]
fn a_part_in_another_test() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<_> = role.split(' ').collect();
    let key = ClusterKey::from_hex(words[2]).unwrap();
    match words[0] {
        "client" => {
            let mut client = Client::connect(&key, &words[1].parse().unwrap(), 77).unwrap();
            let window = client.map(7, 0);
            let remote = client.attach(window).unwrap();
            assert_eq!(client.write(&remote, 4096, b"last words"), Status::Ok);
            say(&format!("{} {}", window.id, window.generation));
        }
        "host" => {
            let lab = Lab::new(Fabric::Shm);
            let address = words[1].parse().unwrap();
            let config = cenote_host::Config {
                key,
                addresses: vec![address],
                ..lab.config("h", 1)
            };
            let host = Host::start(config);
            say(&host.address.to_string());
        }
        other => panic!("role {other}"),
    }
}

#[test]
fn a_killed_clients_slabs_stay_for_the_one_that_comes_back() {
    let lab = Lab::new(Fabric::Shm);
    let host = lab.host("h", 2);
    let (mut child, said) = play(PART, ROLE, &format!("client {}", host.address), &lab);
    child.kill().unwrap();
    child.wait().unwrap();
    let (id, generation) = said.split_once(' ').unwrap();
    let window = Window {
        id: id.parse().unwrap(),
        generation: generation.parse().unwrap(),
        len_bytes: SLAB_BYTES,
        rights: 7,
    };
    let mut other = lab.client(&host, 1);
    let status = other.status();
    assert_eq!(status.slabs.mapped, 1);
    assert!(
        status
            .clients
            .iter()
            .any(|c| c.id == 77 && c.slabs == 1 && !c.orphaned)
    );
    let mut returned = lab.client(&host, 77);
    let remote = returned.attach(window).unwrap();
    assert_eq!(&returned.read_all(&remote)[4096..4106], b"last words");
}

fn a_killed_source_counts_as_lost(fabric: Fabric) {
    let lab = Lab::new(fabric);
    let (mut child, address) = play(PART, ROLE, &format!("host {}", lab.address("source")), &lab);
    let mut owner = Client::connect(&lab.key, &address.parse().unwrap(), 1).unwrap();
    let data = noise(9, usize::try_from(SLAB_BYTES).unwrap());
    let source = owner.map(7, 0);
    let remote = owner.attach(source).unwrap();
    assert_eq!(owner.write(&remote, 0, &data), Status::Ok);
    let target = lab.host("target", 1);
    let mut client = lab.client(&target, 1);
    let window = client.map(7, 1);
    let mut fill = |request| {
        let sources = vec![Source {
            split: 0,
            address: address.clone(),
            window: source,
        }];
        client.ask(&Request::Fill {
            request,
            target: window,
            split: 1,
            k: 1,
            r: 1,
            offset: 0,
            len_bytes: SLAB_BYTES,
            sources,
        })
    };
    assert_eq!(
        fill(1),
        Reply::Filled {
            request: 1,
            result: FillResult::Done
        }
    );
    child.kill().unwrap();
    child.wait().unwrap();
    let lost = FillResult::SourceFailed { split: 0 };
    assert_eq!(
        fill(2),
        Reply::Filled {
            request: 2,
            result: lost
        }
    );
}

#[test]
fn a_killed_source_counts_as_lost_though_its_mapping_still_reads() {
    a_killed_source_counts_as_lost(Fabric::Shm);
}

#[test]
fn a_killed_source_counts_as_lost_over_tcp() {
    a_killed_source_counts_as_lost(Fabric::Tcp);
}
