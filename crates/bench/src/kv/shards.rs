//! The map of a cluster's partitions, for clients that ask owners at once.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::load::{Route, Target};

/// Which server has each partition; none where nobody has to know.
pub(super) struct Shards(Vec<usize>);

impl Shards {
    /// Asks the first server for the map, if clients go by it.
    ///
    /// # Errors
    /// No answer, or one that leaves a partition out.
    pub(super) fn of(target: &Target) -> Result<Self> {
        if target.route != Route::ByMap {
            return Ok(Self(Vec::new()));
        }
        let address = target.addresses.first().context("no server")?;
        let asked = ask(*address).with_context(|| format!("ask {address} for its shards"))?;
        let places = asked.into_iter().enumerate().map(|(shard, owner)| {
            let place = target.addresses.iter().position(|one| Some(*one) == owner);
            place.with_context(|| format!("shard {shard} is at none of the servers: {owner:?}"))
        });
        let places = places.collect::<Result<Vec<usize>>>()?;
        ensure!(!places.is_empty(), "{address} knows of no shards");
        Ok(Self(places))
    }

    /// The server of a key.
    pub(super) fn server_of(&self, key: &[u8]) -> usize {
        let low = cenote_codec::xxh3(key) & 0xffff_ffff;
        let shard = (low * self.0.len() as u64) >> 32;
        self.0[usize::try_from(shard).expect("is below their number")]
    }
}

fn ask(address: SocketAddr) -> Result<Vec<Option<SocketAddr>>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"stats shards\r\n")?;
    let mut shards = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let mut words = line.split_whitespace();
        match (words.next(), words.next(), words.next()) {
            (Some("END"), ..) => return Ok(shards),
            (Some("STAT"), Some("hash"), Some(hash)) => {
                ensure!(hash == "xxh3_64", "an unknown hash: {hash}");
            }
            (Some("STAT"), Some("shards"), Some(count)) => {
                let count: usize = count.parse()?;
                ensure!(count <= SHARDS_MAX, "{count} shards");
                shards.resize(count, None);
            }
            (Some("STAT"), Some(name), Some(owner)) if name.starts_with("shard:") => {
                let index: usize = name["shard:".len()..].parse()?;
                let shard = shards.get_mut(index).context("more shards than it said")?;
                *shard = Some(owner.parse()?);
            }
            _ => bail!("an unknown line: {line:?}"),
        }
    }
    bail!("the answer ends half-way")
}

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(10);
/// More than any cluster has.
const SHARDS_MAX: usize = 1 << 20;
