//! A client of memcached's text protocol that says what it was told, and no more.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any repair takes: what is silent for so long hangs.
const SILENCE_MAX: Duration = Duration::from_secs(40);

/// An item's unique number, 0 where it was not asked for, and its value.
pub type Item = (u64, Vec<u8>);

pub struct Client(BufReader<TcpStream>);

impl Client {
    pub fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_nodelay(true)?;
        Ok(Self(BufReader::new(stream)))
    }

    pub fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.0.get_mut().write_all(request)
    }

    /// The next line, without its end.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        match line.strip_suffix("\r\n") {
            Some(line) => Ok(line.to_owned()),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    pub fn ask(&mut self, request: &[u8]) -> io::Result<String> {
        self.send(request)?;
        self.line()
    }

    /// The answer to a `get` or `gets` of one key, the value last; `Err` inside is what else was said.
    pub fn value(&mut self) -> io::Result<Result<Option<Item>, String>> {
        let head = self.line()?;
        if head == "END" {
            return Ok(Ok(None));
        }
        let words: Vec<&str> = head.split(' ').collect();
        if words[0] != "VALUE" {
            return Ok(Err(head));
        }
        let mut value = vec![0; words[3].parse::<usize>().expect("a length") + 2];
        self.0.read_exact(&mut value)?;
        assert_eq!(value.split_off(value.len() - 2), b"\r\n");
        assert_eq!(self.line()?, "END");
        let unique = words
            .get(4)
            .map_or(0, |word| word.parse().expect("a number"));
        Ok(Ok(Some((unique, value))))
    }

    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.send(format!("get {key}\r\n").as_bytes())?;
        let found = self
            .value()?
            .unwrap_or_else(|said| panic!("get {key}: {said}"));
        Ok(found.map(|(_, value)| value))
    }
}

/// A request with a value.
pub fn with_value(head: &str, value: &[u8], tail: &str) -> Vec<u8> {
    let mut request = format!("{head} 0 0 {}{tail}\r\n", value.len()).into_bytes();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    request
}

/// What `stats shards` says: the owner of each partition of the cluster.
pub fn shards(at: SocketAddr) -> Vec<Option<SocketAddr>> {
    let mut client = Client::connect(at).unwrap();
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
