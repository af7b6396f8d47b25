//! A server of our own, on ports that the system has chosen.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A peer that takes longer has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Of open(2).
const O_NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

pub struct Server {
    child: Option<Child>,
    folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            child.kill().expect("it is ours");
            child.wait().expect("it is ours");
        }
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote-memcached"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Runs it to its end: its status, and what it has said.
pub fn run(arguments: &[&str]) -> (Option<i32>, String) {
    run_in(Path::new("."), arguments)
}

/// The same in another working directory.
pub fn run_in(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = command(arguments);
    let output = command.current_dir(folder).output().expect("it is built");
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).expect("text"))
}

pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill")
        .args([format!("-{name}"), process.to_string()])
        .status();
    assert!(status.expect("there is a kill").success());
}

/// Waits for a condition.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not yet: {what}");
        std::thread::yield_now();
    }
}

impl Server {
    /// Starts one on a port of this machine alone, with these arguments beside, of which none has a
    /// blank.
    pub fn local(more: &str) -> Self {
        Self::local_with(more, &[])
    }

    /// The same, with variables of its environment.
    pub fn local_with(more: &str, variables: &[(&str, &str)]) -> Self {
        let line = format!("-p -1 -l 127.0.0.1 {more}");
        let arguments: Vec<_> = line.split_whitespace().collect();
        Self::try_start_with(&arguments, variables).expect("it listens")
    }

    /// Starts it, and waits until it has its sockets.
    pub fn start(arguments: &[&str]) -> Self {
        Self::try_start(arguments).expect("it listens")
    }

    /// The same; `None` if it ends, as it does where a port is somebody's.
    pub fn try_start(arguments: &[&str]) -> Option<Self> {
        Self::try_start_with(arguments, &[])
    }

    fn try_start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        Self::spawn(folder, arguments, variables).listening()
    }

    /// One whose standard error is a disk without room.
    pub fn start_on_a_full_disk(arguments: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        symlink("/dev/full", folder.path().join("log")).expect("a link");
        let server = Self::spawn(folder, arguments, &[]);
        server.listening().expect("it listens")
    }

    /// Waits until its ports are known; `None` if it ends.
    fn listening(self) -> Option<Self> {
        let mut server = self;
        let ports = server.folder.path().join("ports");
        let mut has_ended = false;
        until("its ports are known", || {
            let child = server.child.as_mut().expect("it was started");
            has_ended = child.try_wait().expect("it is ours").is_some();
            has_ended || ports.exists()
        });
        (!has_ended).then_some(server)
    }

    /// Starts it with its folder, and does not wait.
    fn spawn(folder: tempfile::TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let log = fs::File::create(folder.path().join("log")).expect("a file");
        let child = command(arguments)
            .args(["-u", "root"])
            .envs(variables.iter().copied())
            .env("MEMCACHED_PORT_FILENAME", folder.path().join("ports"))
            .stderr(log)
            .spawn()
            .expect("it is built");
        Self {
            child: Some(child),
            folder,
        }
    }

    /// Starts one that cannot tell its ports until what it is returned with is called.
    pub fn start_held(arguments: &[&str]) -> (Self, impl FnOnce() -> fs::File) {
        let folder = tempfile::tempdir().expect("a folder");
        // Where it writes them first; a pipe that is full makes it wait.
        let path = folder.path().join("ports.lck");
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("there is a mkfifo").success());
        let mut pipe = fs::File::options();
        let pipe = pipe.read(true).write(true).custom_flags(O_NONBLOCK);
        let mut pipe = pipe.open(&path).expect("is there");
        let mut bytes = 0;
        let full = loop {
            match pipe.write(&[b'x'; 4096]) {
                Ok(length) => bytes += length,
                Err(error) => break error,
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        let free = move || {
            pipe.read_exact(&mut vec![0; bytes])
                .expect("they are there");
            pipe
        };
        (Self::spawn(folder, arguments, &[]), free)
    }

    /// Whether it has said what is to be done at SIGTERM.
    pub fn minds_the_end(&self) -> bool {
        let path = format!("/proc/{}/status", self.number());
        let text = fs::read_to_string(path).expect("it runs");
        let caught = text.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.expect("a line").trim(), 16);
        let sigterm = 15;
        caught.expect("a number") >> (sigterm - 1) & 1 == 1
    }

    fn port(&self, kind: &str) -> u16 {
        let ports = fs::read_to_string(self.folder.path().join("ports")).expect("was there");
        let line = ports
            .lines()
            .find_map(|line| line.strip_prefix(kind))
            .expect("has one");
        line.rsplit(' ')
            .next()
            .expect("a word")
            .parse()
            .expect("a port")
    }

    pub fn tcp_port(&self) -> u16 {
        self.port("TCP INET")
    }

    pub fn udp_port(&self) -> u16 {
        self.port("UDP INET")
    }

    /// What it has said on standard error.
    pub fn said(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).expect("its log")
    }

    pub fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.tcp_port())).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    /// The same from another address of this machine, as another machine would.
    pub fn connect_from(&self, from: Ipv4Addr) -> TcpStream {
        let kind = rustix::net::SocketType::STREAM;
        let socket = rustix::net::socket(rustix::net::AddressFamily::INET, kind, None);
        let socket = socket.expect("a socket");
        rustix::net::bind(&socket, &SocketAddrV4::new(from, 0)).expect("all of 127 is ours");
        let server = SocketAddrV4::new(Ipv4Addr::LOCALHOST, self.tcp_port());
        rustix::net::connect(&socket, &server).expect("it listens");
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream
    }

    fn number(&self) -> u32 {
        self.child.as_ref().expect("still runs").id()
    }

    pub fn signal(&self, name: &str) {
        signal(self.number(), name);
    }

    /// Memory that it has.
    pub fn resident_bytes(&self) -> u64 {
        let path = format!("/proc/{}/statm", self.number());
        let text = fs::read_to_string(path).expect("it runs");
        let pages: u64 = text
            .split(' ')
            .nth(1)
            .expect("a word")
            .parse()
            .expect("a number");
        pages * 4096
    }

    /// Memory that it has, of what it shares its share.
    pub fn proportional_bytes(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.number());
        let text = fs::read_to_string(path).expect("it runs");
        let line = text.lines().find(|line| line.starts_with("Pss:"));
        let word = line.and_then(|line| line.split_whitespace().nth(1));
        let kib: u64 = word.and_then(|word| word.parse().ok()).expect("a number");
        kib * 1024
    }

    /// Waits for its end: its status, and its log.
    pub fn wait(mut self) -> (Option<i32>, String) {
        let status = self.ended();
        let log = fs::read_to_string(self.folder.path().join("log")).expect("was there");
        (status, log)
    }

    fn ended(&mut self) -> Option<i32> {
        let mut child = self.child.take().expect("still runs");
        child.wait().expect("it is ours").code()
    }

    /// Ends it by SIGTERM: its status.
    pub fn stop(mut self) -> Option<i32> {
        self.signal("TERM");
        self.ended()
    }
}

/// Reads up to and with `end`.
pub fn read_to(stream: &mut impl Read, end: &str) -> String {
    let mut said = Vec::new();
    let mut piece = [0; 65536];
    while !said.ends_with(end.as_bytes()) {
        let length = match stream.read(&mut piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            length => length.expect("an answer"),
        };
        assert!(
            length > 0,
            "closed after {:?}",
            String::from_utf8_lossy(&said)
        );
        said.extend_from_slice(&piece[..length]);
    }
    String::from_utf8(said).expect("text")
}

/// Says what ends with `mn`, and reads all answers.
pub fn ask(stream: &mut (impl Read + Write), said: &str) -> String {
    stream.write_all(said.as_bytes()).expect("it reads");
    read_to(stream, "MN\r\n")
}

/// All statistics that are numbers.
pub fn stats(stream: &mut (impl Read + Write)) -> HashMap<String, u64> {
    let text = ask(stream, "stats\r\nmn\r\n");
    let lines = text.lines().filter_map(|line| line.strip_prefix("STAT "));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect()
}
