//! A client of memcached's text protocol that says what it was told, and no more.
//!
//! For one request after the other, or a few at once. The load of `bench kv` has many under way on
//! each connection, speaks Redis's protocol as well, and parses replies where they lie: `kv::wire`.

use std::io::{self, BufRead as _, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// An item's unique number, if it was asked for, and its value.
pub type Item = (Option<u64>, Vec<u8>);

/// What is longer is a confused server, for which no memory is taken.
const VALUE_BYTES_MAX: usize = 16 << 20;

/// A connection.
pub struct Client<S = TcpStream> {
    stream: BufReader<S>,
    line: String,
}

impl Client {
    /// Connects to a server, whose silence is an error after `limit`.
    ///
    /// # Errors
    /// There is none.
    pub fn connect(address: SocketAddr, limit: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.set_nodelay(true)?;
        Ok(Self::new(stream))
    }
}

/// All of them end with what the connection says, and with `UnexpectedEof` where it ends too early.
impl<S: Read + Write> Client<S> {
    /// Over a connection that is there.
    pub fn new(stream: S) -> Self {
        Self {
            stream: BufReader::with_capacity(64 << 10, stream),
            line: String::new(),
        }
    }

    /// Sends requests as they are.
    ///
    /// # Errors
    /// See above.
    pub fn send(&mut self, requests: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(requests)
    }

    /// The next line, without its end.
    ///
    /// # Errors
    /// See above.
    pub fn next_line(&mut self) -> io::Result<&str> {
        self.line.clear();
        self.stream.read_line(&mut self.line)?;
        let line = self.line.strip_suffix("\r\n");
        line.ok_or_else(|| ErrorKind::UnexpectedEof.into())
    }

    /// As [`Client::next_line`], to keep.
    ///
    /// # Errors
    /// See above.
    pub fn line(&mut self) -> io::Result<String> {
        self.next_line().map(str::to_owned)
    }

    /// Sends a request; the first line of the answer.
    ///
    /// # Errors
    /// See above.
    pub fn ask(&mut self, request: &[u8]) -> io::Result<String> {
        self.send(request)?;
        self.line()
    }

    /// The answer to a `get` or `gets` of one key, whose value is put into `value`; its unique
    /// number if it was asked for. `Err` inside is what else was said.
    ///
    /// # Errors
    /// See above; `InvalidData` of what is no answer.
    pub fn value_into(
        &mut self,
        value: &mut Vec<u8>,
    ) -> io::Result<Result<Option<Option<u64>>, String>> {
        let head = self.next_line()?;
        if head == "END" {
            return Ok(Ok(None));
        }
        let Some(words) = head.strip_prefix("VALUE ") else {
            return Ok(Err(head.to_owned()));
        };
        // The key, the flags, the length and the unique number.
        let mut words = words.split(' ').skip(2);
        let len = words.next().and_then(|word| word.parse::<usize>().ok());
        let unique = words.next().map(str::parse).transpose();
        let (Some(len @ ..=VALUE_BYTES_MAX), Ok(unique)) = (len, unique) else {
            return Err(io::Error::new(ErrorKind::InvalidData, head));
        };
        value.resize(len + END.len(), 0);
        self.stream.read_exact(value)?;
        if !value.ends_with(END) {
            return Err(io::Error::new(ErrorKind::InvalidData, "a longer value"));
        }
        value.truncate(len);
        Ok(Ok(Some(unique)))
    }

    /// [`Client::value_into`] with the value last.
    ///
    /// # Errors
    /// As [`Client::value_into`].
    pub fn value(&mut self) -> io::Result<Result<Option<Item>, String>> {
        let mut value = Vec::new();
        let found = self.value_into(&mut value)?;
        Ok(found.map(|found| found.map(|unique| (unique, value))))
    }

    /// The value of a key, if it is there.
    ///
    /// # Errors
    /// See above.
    ///
    /// # Panics
    /// The server says that it does not tell.
    pub fn get(&mut self, key: &str) -> io::Result<Option<Vec<u8>>> {
        self.send(format!("get {key}\r\n").as_bytes())?;
        let found = self
            .value()?
            .unwrap_or_else(|said| panic!("get {key}: {said}"));
        Ok(found.map(|(_, value)| value))
    }
}

/// What follows a value.
const END: &[u8] = b"\r\nEND\r\n";

/// A request with a value.
#[must_use]
pub fn with_value(head: &str, value: &[u8], tail: &str) -> Vec<u8> {
    let mut request = format!("{head} 0 0 {}{tail}\r\n", value.len()).into_bytes();
    request.extend_from_slice(value);
    request.extend_from_slice(b"\r\n");
    request
}
