//! A cluster over tcp whose hosts, and whose client, are each on a machine of its own in the
//! sense of [`super::net`].

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::ops::Deref;
use std::process::{Command, Stdio};

use super::Folder;
use super::lab::{Lab, Load, VOLUME, has_tools};
use super::nbd::Client;
use super::net::{Killed, Net};

pub const HOSTS: usize = 12;
pub const CLIENT: &str = "client";
pub const CLIENT_ADDRESS: &str = "10.77.0.2";
pub const PAGE_BYTES: usize = 4096;
/// Extents that [`Machines::write_some`] writes to, from the first one.
pub const EXTENTS_WRITTEN: u64 = 8;

/// Twelve machines with a host each, and one that serves an rs:8+2 volume on them.
pub struct Machines {
    // Ended in this order: a server without hosts would have nobody to give memory back to.
    pub lab: Lab,
    pub hosts: HashMap<String, Killed>,
    pub net: Net,
}

impl Deref for Machines {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Machines {
    /// `None`, with the reason printed, where there cannot be any.
    pub fn new() -> Option<Self> {
        if !has_tools() {
            return None;
        }
        let mut addresses = vec![(CLIENT.to_owned(), CLIENT_ADDRESS.to_owned())];
        addresses.extend((0..HOSTS).map(|index| (host_name(index), address_of(index))));
        let machines = addresses
            .iter()
            .map(|(name, address)| (&**name, &**address));
        let net = Net::of(machines)?;
        let folder = Folder::with_key();
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

    pub fn wait_all_connected(&self) {
        for index in 0..HOSTS {
            self.wait_connected(&host_name(index), true);
        }
    }

    /// The load's end, and the volume's: nobody noticed anything, and nothing is missing.
    pub fn expect_unnoticed(&self, load: Load) {
        load.expect_clean();
        self.wait_healthy();
        self.fio_with(&["--rw=read", "--bs=64k", "--size=192M"])
            .expect_clean();
        assert_eq!(self.requests_failed(), 0);
    }

    pub fn connect(&self) -> Client {
        Client::connect(&self.socket(), VOLUME)
    }

    pub fn extent_bytes(&self) -> u64 {
        self.status()["extent_bytes"].as_u64().expect("a size")
    }

    /// Writes some pages of each of the first extents; where they are.
    pub fn write_some(&self, client: &mut Client) -> Vec<u64> {
        let extent_bytes = self.extent_bytes();
        let offsets = (0..EXTENTS_WRITTEN)
            .flat_map(|extent| [0, 3, 77].map(|at| extent * extent_bytes + at * PAGE_BYTES as u64));
        let written: Vec<u64> = offsets.collect();
        for &offset in &written {
            assert_eq!(client.write(offset, &page(offset)), Ok(()));
        }
        self.wait_healthy();
        written
    }
}

pub fn host_name(index: usize) -> String {
    format!("h{index:02}")
}

pub fn number(host: &str) -> usize {
    host[1..].parse().expect("as in h07")
}

pub fn address_of(index: usize) -> String {
    format!("10.77.0.{}", 10 + index)
}

pub fn write_cluster(folder: &Folder, hosts: &HashMap<String, String>) {
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
pub fn start_host(net: &Net, folder: &Folder, name: &str, address: &str) -> Killed {
    let listen = format!("{address}:7000");
    serve(
        net.cenote(name),
        folder,
        name,
        &["--memory", "96M"],
        &listen,
    )
    .0
}

/// Has a program be a host that lends so much and listens there over tcp; where it says that it does.
pub fn serve(
    mut program: Command,
    folder: &Folder,
    name: &str,
    lends: &[&str],
    listen: &str,
) -> (Killed, String) {
    let mut child = program
        .args(["host", "--name", name, "--lock", "never"])
        .args(lends)
        .args(["--listen", &format!("tcp:{listen}"), "--key"])
        .arg(folder.path().join("cluster.key"))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the host starts");
    let stdout = child.stdout.take().expect("stdout is piped");
    let host = Killed(child);
    let mut line = String::new();
    let read = BufReader::new(stdout).read_line(&mut line);
    read.expect("a line of the host");
    let address = line
        .trim_end()
        .strip_prefix(&format!("ready {name} at tcp:"));
    (host, address.expect("an address").to_owned())
}

/// A page that no other offset has.
pub fn page(offset: u64) -> Vec<u8> {
    let word = |index: u64| (offset + index).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..PAGE_BYTES as u64 / 8)
        .flat_map(|index| word(index).to_le_bytes())
        .collect()
}
