//! Clients of memcached's text protocol, and where a cluster keeps a key.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

pub use cenote_bench::memcached_text::{Client, with_value};

/// Longer than any repair takes: what is silent for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(40);

/// A client at a node.
pub fn connect(address: SocketAddr) -> io::Result<Client> {
    Client::connect(address, SILENCE_MAX)
}

/// What `stats shards` says: the owner of each partition of the cluster.
pub fn shards(at: SocketAddr) -> Vec<Option<SocketAddr>> {
    let mut client = connect(at).unwrap();
    client.send(b"stats shards\r\n").unwrap();
    assert_eq!(client.line().unwrap(), "STAT hash xxh3_64");
    let count = client.line().unwrap();
    let count = count.strip_prefix("STAT shards ").unwrap().parse().unwrap();
    let mut owners = vec![None; count];
    loop {
        let line = client.line().unwrap();
        if line == "END" {
            return owners;
        }
        let (name, owner) = line.split_once(' ').unwrap().1.split_once(' ').unwrap();
        let shard: usize = name.strip_prefix("shard:").unwrap().parse().unwrap();
        owners[shard] = Some(owner.parse().unwrap());
    }
}

/// Which of so many shards has a key.
pub fn shard_of(key: &str, shards: usize) -> usize {
    let place = cenote_kv::memory::key_hash::place_hash(key.as_bytes());
    usize::try_from((u64::from(place) * shards as u64) >> 32).unwrap()
}
