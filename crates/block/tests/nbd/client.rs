//! A bare NBD client that sends whatever bytes a test wants, and a server to talk to.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_block::disk::Disk;
use cenote_block::nbd::{Address, Config, Export, Server};
use cenote_block::ram::RamDisk;

/// A server of one export named `disk`, in a directory of its own.
pub struct Fixture {
    pub server: Server,
    pub socket: PathBuf,
    _directory: tempfile::TempDir,
}

impl Fixture {
    pub fn ram(size_bytes: u64) -> Self {
        Self::with(Arc::new(RamDisk::new(size_bytes)), |_| {})
    }

    pub fn with(disk: Arc<dyn Disk>, adjust: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let export = Export {
            name: "disk".to_owned(),
            disk,
        };
        let mut config = Config::new(vec![export], vec![Address::Unix(socket.clone())]);
        config.worker_count = 2;
        adjust(&mut config);
        Self {
            server: Server::start(config).unwrap(),
            socket,
            _directory: directory,
        }
    }

    pub fn uri(&self) -> String {
        Address::Unix(self.socket.clone()).uri("disk")
    }

    pub fn connect(&self) -> Client {
        let stream = UnixStream::connect(&self.socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Client { stream }
    }

    /// Where the server listens for TCP, if it was told to.
    pub fn tcp_address(&self) -> SocketAddr {
        let addresses = self.server.addresses().iter();
        let mut tcp = addresses.filter_map(|address| match address {
            Address::Tcp(address) => Some(*address),
            Address::Unix(_) => None,
        });
        tcp.next().expect("it listens for TCP")
    }

    /// A client over TCP that has said nothing yet.
    pub fn connect_tcp(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.tcp_address()).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Client { stream }
    }

    /// A client past its handshake, with simple replies.
    pub fn simple(&self) -> Client {
        let mut client = self.connect();
        client.greet();
        client.go();
        client
    }

    /// As [`Fixture::simple`], over TCP.
    pub fn simple_tcp(&self) -> Client<TcpStream> {
        let mut client = self.connect_tcp();
        client.greet();
        client.go();
        client
    }

    /// A client past its handshake, with structured replies and block status.
    pub fn structured(&self) -> Client {
        let mut client = self.connect();
        client.greet();
        client.option(8, b"");
        assert_eq!(client.option_reply().0, 1);
        client.option(10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
        assert_eq!(
            client.option_reply(),
            (4, b"\0\0\0\x01base:allocation".to_vec())
        );
        assert_eq!(client.option_reply().0, 1);
        client.go();
        client
    }

    /// A client past its handshake, with extended headers and block status.
    pub fn extended(&self) -> Client {
        let mut client = self.connect();
        client.greet();
        client.option(EXTENDED_HEADERS, b"");
        assert_eq!(client.option_reply().0, 1);
        client.option(10, b"\0\0\0\x04disk\0\0\0\x01\0\0\0\x0fbase:allocation");
        assert_eq!(client.option_reply().0, 4);
        assert_eq!(client.option_reply().0, 1);
        client.go();
        client
    }

    /// Waits until `holds` of the server's counters.
    pub fn wait_for(&self, what: &str, holds: impl Fn(&cenote_block::nbd::Stats) -> bool) {
        let deadline = Instant::now() + LIMIT;
        while !holds(&self.server.stats()) {
            let stats = self.server.stats();
            assert!(Instant::now() < deadline, "waited for {what}; {stats:?}");
            std::thread::yield_now();
        }
    }
}

/// Longer than anything here takes on a loaded machine.
pub const LIMIT: Duration = Duration::from_secs(30);

/// For servers that give up slow handshakes: others are done by then on a loaded machine.
pub const HANDSHAKE_LIMIT: Duration = Duration::from_secs(4);

pub struct Client<S = UnixStream> {
    pub stream: S,
}

/// An extended chunk: flags, type, cookie, the request's offset, payload.
pub type ExtendedChunk = (u16, u16, u64, u64, Vec<u8>);

/// A structured chunk: flags, type, cookie, payload.
pub type Chunk = (u16, u16, u64, Vec<u8>);

impl<S: Read + Write> Client<S> {
    pub fn greet(&mut self) {
        assert_eq!(self.take(18), b"NBDMAGICIHAVEOPT\0\x03");
        self.put(&3u32.to_be_bytes());
    }

    pub fn option(&mut self, number: u32, data: &[u8]) {
        self.put(b"IHAVEOPT");
        self.put(&number.to_be_bytes());
        self.put(&(data.len() as u32).to_be_bytes());
        self.put(data);
    }

    /// Type and body of the next option reply.
    pub fn option_reply(&mut self) -> (u32, Vec<u8>) {
        assert_eq!(self.u64(), 0x0003_e889_0455_65a9);
        self.u32();
        let (kind, len) = (self.u32(), self.u32());
        (kind, self.take(len as usize))
    }

    pub fn go(&mut self) {
        self.option(7, b"\0\0\0\x04disk\0\0");
        assert_eq!(self.option_reply().0, 3);
        assert_eq!(self.option_reply(), (1, Vec::new()));
    }

    /// Sends a request's header; the payload, if any, is the caller's affair.
    pub fn request(&mut self, (command, flags): (u16, u16), cookie: u64, offset: u64, len: u32) {
        self.put(&header((command, flags), cookie, offset, len));
    }

    /// Error and cookie of the next simple reply.
    pub fn simple_reply(&mut self) -> (u32, u64) {
        assert_eq!(self.u32(), 0x6744_6698);
        (self.u32(), self.u64())
    }

    pub fn chunk(&mut self) -> Chunk {
        assert_eq!(self.u32(), 0x668e_33ef);
        let (flags, kind) = (self.u16(), self.u16());
        let (cookie, len) = (self.u64(), self.u32());
        (flags, kind, cookie, self.take(len as usize))
    }

    /// As [`Client::request`], with a length of 64 bits.
    pub fn extended_request(
        &mut self,
        (command, flags): (u16, u16),
        cookie: u64,
        offset: u64,
        len: u64,
    ) {
        let mut bytes = 0x21e4_1c71u32.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(len.to_be_bytes());
        self.put(&bytes);
    }

    pub fn extended_chunk(&mut self) -> ExtendedChunk {
        assert_eq!(self.u32(), 0x6e8a_278c);
        let (flags, kind) = (self.u16(), self.u16());
        let (cookie, offset, len) = (self.u64(), self.u64(), self.u64());
        (flags, kind, cookie, offset, self.take(len as usize))
    }

    /// Whether the server closed the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read_to_end(&mut Vec::new()) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// As [`Client::is_closed`], of a client that took no greeting yet.
    pub fn is_closed_after_greeting(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => rest.is_empty() || rest == b"NBDMAGICIHAVEOPT\0\x03",
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    pub fn put(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().unwrap())
    }
}

pub fn header((command, flags): (u16, u16), cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = 0x2560_9513u32.to_be_bytes().to_vec();
    bytes.extend(flags.to_be_bytes());
    bytes.extend(command.to_be_bytes());
    bytes.extend(cookie.to_be_bytes());
    bytes.extend(offset.to_be_bytes());
    bytes.extend(len.to_be_bytes());
    bytes
}

/// Number of the option.
pub const EXTENDED_HEADERS: u32 = 11;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
/// A flag of it: memory is to be there.
pub const NO_HOLE: u16 = 1 << 1;
pub const BLOCK_STATUS: u16 = 7;
