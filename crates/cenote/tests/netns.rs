//! Faults of the network under load: each host and the client is in a network namespace of its
//! own, with an address of its own, and links are cut, muted and moved.
//!
//! Up to r hosts out: no wrong byte and no error. The load is that of [`support::lab`].

mod support;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::process::Stdio;
use std::time::{Duration, Instant};

use support::lab::{Lab, VOLUME, has_tools};
use support::nbd::{Client, Refused};
use support::net::{Killed, Net};
use support::{Folder, run, signal};

const HOSTS: usize = 12;
const CLIENT: &str = "client";
const CLIENT_ADDRESS: &str = "10.77.0.2";
const PAGE_BYTES: usize = 4096;

/// Twelve machines with a host each, and one that serves an rs:8+2 volume on them.
struct Machines {
    // Ended in this order: a server without hosts would have nobody to give memory back to.
    lab: Lab,
    hosts: HashMap<String, Killed>,
    net: Net,
}

impl Deref for Machines {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Machines {
    /// `None`, with the reason printed, where there cannot be any.
    fn new() -> Option<Self> {
        if !has_tools() {
            return None;
        }
        let mut addresses = vec![(CLIENT.to_owned(), CLIENT_ADDRESS.to_owned())];
        addresses.extend((0..HOSTS).map(|index| (host_name(index), address_of(index))));
        let net = Net::new().and_then(|mut net| {
            for (name, address) in &addresses {
                net.add(name, address)?;
            }
            Ok(net)
        });
        let net = match net {
            Ok(net) => net,
            Err(reason) => {
                println!("skipped: network namespaces (root and iproute2 are needed): {reason}");
                return None;
            }
        };
        let folder = Folder::new();
        let key = folder.path().join("cluster.key");
        run(&["key", "new", "--out", key.to_str().expect("UTF-8")]).expect(0);
        let hosts: HashMap<String, String> = addresses.into_iter().skip(1).collect();
        write_cluster(&folder, &hosts);
        let hosts = hosts
            .iter()
            .map(|(name, address)| (name.clone(), start_host(&net, &folder, name, address)))
            .collect();
        let lab = Lab::served(folder, "rs:8+2", net.cenote(CLIENT));
        let machines = Self { lab, hosts, net };
        for index in 0..HOSTS {
            machines.wait_connected(&host_name(index), true);
        }
        Some(machines)
    }

    fn wait_all_connected(&self) {
        for index in 0..HOSTS {
            self.wait_connected(&host_name(index), true);
        }
    }

    /// The load's end, and the volume's: nobody noticed anything, and nothing is missing.
    fn expect_unnoticed(&self, load: support::lab::Load) {
        load.expect_clean();
        self.wait_healthy();
        self.fio_with(&["--rw=read", "--bs=64k", "--size=192M"])
            .expect_clean();
        assert_eq!(self.requests_failed(), 0);
    }
}

fn host_name(index: usize) -> String {
    format!("h{index:02}")
}

fn address_of(index: usize) -> String {
    format!("10.77.0.{}", 10 + index)
}

fn write_cluster(folder: &Folder, hosts: &HashMap<String, String>) {
    let mut text = "key = \"cluster.key\"\n".to_owned();
    for (name, address) in hosts {
        write!(
            text,
            "\n[[host]]\nname = \"{name}\"\naddress = \"tcp:{address}:7000\"\n"
        )
        .expect("writing to a string");
    }
    std::fs::write(folder.path().join("cluster.toml"), text).expect("a file in the folder");
}

/// Starts a host on its machine and waits until it says that it serves.
fn start_host(net: &Net, folder: &Folder, name: &str, address: &str) -> Killed {
    let mut child = net
        .cenote(name)
        .args(["host", "--name", name, "--memory", "96M", "--lock", "never"])
        .args(["--listen", &format!("tcp:{address}:7000"), "--key"])
        .arg(folder.path().join("cluster.key"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the host starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let host = Killed(child);
    let mut line = String::new();
    BufReader::new(stdout)
        .read_line(&mut line)
        .expect("a line of the host");
    assert!(line.starts_with(&format!("ready {name} at ")), "{line}");
    host
}

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
    let load = machines.fio();
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
        machines.wait_written(machines.written() + 1_000);
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
    let index: usize = unheard[1..].parse().expect("hNN");
    machines.net.mute(CLIENT, &address_of(index));
    machines.wait_connected(&unheard, false);
    machines.wait_written(machines.written() + 4_000);
    machines.net.unmute(CLIENT, &address_of(index));
    machines.wait_connected(&unheard, true);
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
        .fio_with(&["--rw=randwrite", "--bs=64k", "--size=64M", "--verify=crc32c"])
        .expect_clean();
    assert_eq!(machines.requests_failed(), 0);
}
