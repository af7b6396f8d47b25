//! Hosts as processes: the test binary starts itself again as a host and drives it over pipes.
//!
//! The pipe carries one line per command and per answer, numbers in decimal and bytes in
//! hex. A host ends when its pipe does, so none outlives the test.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::RawFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::Duration;

use super::batch::Batched;
use super::{Backend, DEADLINE, Host, HostEvent, Traits, calls};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Event, Generation, Hello, IO_URING_VARIABLE, Listen,
    Listener, PeerId, Region, RegionOptions, Rights, WindowDescriptor, WindowId, WireProtection,
    connector, connector_with, wait,
};

/// Set in a host process: the address to serve.
const ADDRESS_VARIABLE: &str = "CENOTE_CONFORMANCE_ADDRESS";

/// Set in a host process: the key in hex. It lives as long as the test.
const KEY_VARIABLE: &str = "CENOTE_CONFORMANCE_KEY";

/// Set in a host process: the least protection of page traffic.
const PROTECTION_VARIABLE: &str = "CENOTE_CONFORMANCE_PAGE_TRAFFIC";

/// Hosts on this machine, reached over `shm`, `tcp` or `rdma`.
pub struct Processes {
    traits: Traits,
    name: String,
    /// Where every host listens, each on a port of its own; none on `shm`.
    host_address: Option<Address>,
    page_traffic: WireProtection,
    /// Hosts may use `io_uring`.
    has_ring: bool,
    directory: std::path::PathBuf,
    key: ClusterKey,
    connector: Box<dyn Connector>,
    stranger: Box<dyn Connector>,
    started: AtomicU32,
}

impl Processes {
    /// Hosts that share their memory; sockets live in `directory`.
    ///
    /// # Panics
    /// If the system gives no random bytes.
    #[must_use]
    pub fn shm(directory: &std::path::Path) -> Self {
        Self::new("shm", None, WireProtection::default(), directory)
    }

    /// Hosts on loopback TCP, with page traffic protected so.
    ///
    /// # Panics
    /// As [`Processes::shm`].
    #[must_use]
    pub fn tcp(page_traffic: WireProtection, directory: &std::path::Path) -> Self {
        let any_port = Address::Tcp(std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into());
        let name = match page_traffic {
            WireProtection::Encrypted => "tcp",
            WireProtection::Authenticated => "tcp-authenticated",
            WireProtection::Plain => "tcp-plain",
        };
        Self::new(name, Some(any_port), page_traffic, directory)
    }

    /// As [`Processes::tcp`], with the client's system calls made by [`Batch`](cenote_fabric::Batch).
    ///
    /// # Panics
    /// As [`Processes::shm`].
    #[must_use]
    pub fn tcp_by_ring(page_traffic: WireProtection, directory: &std::path::Path) -> Self {
        let mut processes = Self::tcp(page_traffic, directory);
        processes.name += "-ring";
        let inner = connector_with(processes.key.clone(), page_traffic);
        processes.connector = Box::new(Batched(inner));
        processes
    }

    /// As [`Processes::tcp`], without `io_uring` at either end.
    ///
    /// # Panics
    /// As [`Processes::shm`].
    #[must_use]
    pub fn tcp_by_calls(page_traffic: WireProtection, directory: &std::path::Path) -> Self {
        let mut processes = Self::tcp(page_traffic, directory);
        processes.name += "-calls";
        processes.has_ring = false;
        processes
    }

    /// Hosts behind the RDMA device that has the IP address `ip`.
    ///
    /// # Panics
    /// As [`Processes::shm`].
    #[must_use]
    pub fn rdma(ip: std::net::IpAddr, directory: &std::path::Path) -> Self {
        let any_port = Address::Rdma(std::net::SocketAddr::from((ip, 0)).into());
        let page_traffic = WireProtection::default();
        Self::new("rdma", Some(any_port), page_traffic, directory)
    }

    fn new(
        name: &str,
        host_address: Option<Address>,
        page_traffic: WireProtection,
        directory: &std::path::Path,
    ) -> Self {
        let key = ClusterKey::generate().expect("random bytes");
        let stranger = connector(ClusterKey::generate().expect("random bytes"));
        let memory_outlives_a_stop = !name.starts_with("tcp");
        Self {
            traits: Traits {
                has_processes: true,
                memory_outlives_a_stop,
                has_sockets: true,
            },
            name: name.to_owned(),
            host_address,
            directory: directory.to_path_buf(),
            connector: Box::new(connector_with(key.clone(), page_traffic)),
            page_traffic,
            has_ring: true,
            key,
            stranger: Box::new(stranger),
            started: AtomicU32::new(0),
        }
    }
}

impl Backend for Processes {
    fn name(&self) -> &str {
        &self.name
    }

    fn traits(&self) -> Traits {
        self.traits
    }

    fn start_host(&self) -> Box<dyn Host> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let address = self
            .host_address
            .clone()
            .unwrap_or_else(|| Address::Shm(self.directory.join(format!("{number}.sock"))));
        Box::new(Process::start(
            &address.to_string(),
            &self.key,
            self.page_traffic,
            self.has_ring,
        ))
    }

    fn connector(&self) -> &dyn Connector {
        &*self.connector
    }

    fn stranger(&self) -> &dyn Connector {
        &*self.stranger
    }

    fn pause(&self, fds: &[RawFd]) {
        if let Err(error) = wait(fds, Some(Duration::from_millis(1))) {
            panic!("wait for {fds:?}: {error}");
        }
    }
}

/// A host process, from outside.
struct Process {
    child: Child,
    orders: ChildStdin,
    answers: Receiver<String>,
    address: Address,
    is_revoking: bool,
}

impl Process {
    fn start(
        address: &str,
        key: &ClusterKey,
        page_traffic: WireProtection,
        has_ring: bool,
    ) -> Self {
        let program = std::env::current_exe().expect("the path of this program");
        let mut command = Command::new(program);
        let mut child = command
            .env(IO_URING_VARIABLE, if has_ring { "hosts" } else { "off" })
            .env(ADDRESS_VARIABLE, address)
            .env(KEY_VARIABLE, key.to_hex())
            .env(PROTECTION_VARIABLE, page_traffic.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start a host process");
        let orders = child.stdin.take().expect("stdin is piped");
        let output = BufReader::new(child.stdout.take().expect("stdout is piped"));
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let unknown = Address::Shm("unknown".into());
        let mut host = Self {
            child,
            orders,
            answers,
            address: unknown,
            is_revoking: false,
        };
        host.address = host.answer("start").parse().expect("an address");
        host
    }

    fn order(&mut self, order: &str) -> String {
        self.begin(order);
        self.answer(order)
    }

    fn begin(&mut self, order: &str) {
        assert!(
            !self.is_revoking,
            "{order:?} while a revoke is not answered"
        );
        writeln!(self.orders, "{order}").expect("the host process takes orders");
    }

    fn answer(&mut self, order: &str) -> String {
        let start: String = order.chars().take(60).collect();
        match self.answers.recv_timeout(DEADLINE) {
            Ok(answer) => answer,
            Err(error) => {
                panic!(
                    "host {} on {start:?}: {error}; {:?}",
                    self.address,
                    self.child.try_wait()
                )
            }
        }
    }

    fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: no pointers; the child is ours and not reaped, so the id is its own.
        let result = unsafe { libc::kill(pid, signal) };
        assert_eq!(result, 0, "signal {signal} to {pid}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Killed already, or by now: both are an end, and reaping cannot fail for our own child.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl Host for Process {
    fn address(&self) -> Address {
        self.address.clone()
    }

    fn register(&mut self, len_bytes: u64, rights: Rights) -> WindowDescriptor {
        self.register_many(1, len_bytes, rights).remove(0)
    }

    fn register_many(
        &mut self,
        count: usize,
        len_bytes: u64,
        rights: Rights,
    ) -> Vec<WindowDescriptor> {
        let order = format!("register {len_bytes} {}", rights.0);
        let described = |answer: String| {
            let mut numbers = answer
                .split(' ')
                .map(|n| n.parse::<u64>().expect("a number"));
            let mut next = || numbers.next().expect("two numbers");
            WindowDescriptor {
                id: WindowId(u32::try_from(next()).expect("a window id")),
                generation: Generation(next()),
                len_bytes,
                rights,
            }
        };
        (0..count).for_each(|_| self.begin(&order));
        (0..count).map(|_| described(self.answer(&order))).collect()
    }

    fn revoke_many(&mut self, windows: &[WindowId]) {
        for window in windows {
            self.begin(&format!("revoke {}", window.0));
        }
        for _ in windows {
            assert_eq!(self.answer("revoke"), "ok");
        }
    }

    fn begin_revoke(&mut self, window: WindowId) {
        self.begin(&format!("revoke {}", window.0));
        self.is_revoking = true;
    }

    fn is_revoked(&mut self) -> bool {
        if self.is_revoking {
            match self.answers.try_recv() {
                Ok(answer) => assert_eq!(answer, "ok"),
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => panic!("the host died while it revoked"),
            }
            self.is_revoking = false;
        }
        true
    }

    fn renew(&mut self, window: WindowId) -> WindowDescriptor {
        let answer = self.order(&format!("renew {}", window.0));
        let numbers: Vec<u64> = answer
            .split(' ')
            .map(|n| n.parse().expect("a number"))
            .collect();
        WindowDescriptor {
            id: window,
            generation: Generation(numbers[0]),
            len_bytes: numbers[1],
            rights: Rights(u8::try_from(numbers[2]).expect("rights")),
        }
    }

    fn write(&mut self, window: WindowId, offset: u64, bytes: &[u8]) {
        let answer = self.order(&format!("write {} {offset} {}", window.0, to_hex(bytes)));
        assert_eq!(answer, "ok");
    }

    fn read(&mut self, window: WindowId, offset: u64, len_bytes: usize) -> Vec<u8> {
        from_hex(&self.order(&format!("read {} {offset} {len_bytes}", window.0)))
    }

    fn events(&mut self) -> Vec<HostEvent> {
        let count: usize = self.order("events").parse().expect("a count");
        (0..count)
            .map(|_| parse_event(&self.answer("events")))
            .collect()
    }

    fn set_deaf(&mut self, is_deaf: bool) {
        assert_eq!(self.order(if is_deaf { "deafen" } else { "hear" }), "ok");
    }

    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.child.wait().expect("reap the host process");
    }

    fn stop(&mut self) {
        self.signal(libc::SIGSTOP);
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        let mut status = 0;
        // SAFETY: `status` is valid for the call; with WUNTRACED a stop is reported, not reaped.
        let changed = unsafe { libc::waitpid(pid, &raw mut status, libc::WUNTRACED) };
        assert_eq!(changed, pid);
        assert!(
            libc::WIFSTOPPED(status),
            "the host process ended: {status:#x}"
        );
    }

    fn resume(&mut self) {
        self.signal(libc::SIGCONT);
    }
}

/// Runs a host until its pipe closes, when this process was started as one.
///
/// Call it first in `main`; it returns, with false, in the test itself.
///
/// # Panics
/// When an order cannot be carried out: the test then reads of it.
pub fn serve_if_host() -> bool {
    let (Ok(address), Ok(key)) = (std::env::var(ADDRESS_VARIABLE), std::env::var(KEY_VARIABLE))
    else {
        return false;
    };
    let address: Address = address.parse().expect("an address");
    let key = ClusterKey::from_hex(&key).expect("a key");
    let page_traffic = std::env::var(PROTECTION_VARIABLE).unwrap_or_default();
    let page_traffic: WireProtection = page_traffic.parse().expect("a protection");
    let mut listener =
        Listener::bind_with(&[address], &key, page_traffic, Vec::new()).expect("listen");
    for _ in 0..calls::SERVER_THREADS {
        let mut answerer = listener.answerer().expect("a server thread's end");
        std::thread::spawn(move || {
            loop {
                calls::serve(&mut answerer, None).expect("answer calls");
            }
        });
    }
    println!("{}", listener.addresses()[0]);
    let (sender, orders) = channel();
    let waker = listener.waker();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
            waker.wake();
        }
        std::process::exit(0);
    });
    Served {
        listener,
        regions: HashMap::new(),
        clients: HashMap::new(),
        seen: Vec::new(),
    }
    .run(&orders);
    true
}

/// The inside of a host process.
struct Served {
    listener: Listener,
    regions: HashMap<u32, Arc<Region>>,
    clients: HashMap<PeerId, ClientId>,
    /// Lines for the next `events`.
    seen: Vec<String>,
}

impl Served {
    fn run(mut self, orders: &Receiver<String>) {
        let mut events = Vec::new();
        let mut is_deaf = false;
        loop {
            if is_deaf {
                let Ok(order) = orders.recv() else { return };
                is_deaf = self.obey(&order, is_deaf);
                continue;
            }
            self.listener
                .poll(None, &mut events)
                .expect("poll the listener");
            for event in events.drain(..) {
                self.note(event);
            }
            while !is_deaf && let Ok(order) = orders.try_recv() {
                is_deaf = self.obey(&order, is_deaf);
            }
        }
    }

    fn note(&mut self, event: Event) {
        let line = match event {
            Event::Connected { peer, hello } => {
                self.clients.insert(peer, hello.client);
                format!(
                    "connected {} {}",
                    hello.client.0,
                    to_hex(hello.name.as_bytes())
                )
            }
            Event::Message { peer, bytes } => {
                format!("message {} {}", self.clients[&peer].0, to_hex(&bytes))
            }
            Event::Immediate {
                peer,
                window,
                offset,
                len_bytes,
                value,
            } => {
                let client = self.clients[&peer].0;
                format!(
                    "immediate {client} {} {offset} {len_bytes} {value}",
                    window.0
                )
            }
            Event::Disconnected { peer } => {
                let client = self.clients.remove(&peer).expect("connected before");
                format!("disconnected {}", client.0)
            }
            other => panic!("no case knows of {other:?}"),
        };
        self.seen.push(line);
    }

    /// Carries out one order; returns whether the host is deaf from here on.
    fn obey(&mut self, order: &str, is_deaf: bool) -> bool {
        let words: Vec<&str> = order.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().expect("a number");
        let id = |at: usize| u32::try_from(number(at)).expect("a window id");
        match words[0] {
            "register" => {
                let options = RegionOptions {
                    huge: false,
                    reserved: false,
                    lock: false,
                };
                let region = Region::create("conformance", number(1), options).expect("memory");
                let region = Arc::new(region);
                let rights = Rights(u8::try_from(number(2)).expect("rights"));
                let window = self
                    .listener
                    .register(Arc::clone(&region), rights)
                    .expect("a window");
                self.regions.insert(window.id.0, region);
                println!("{} {}", window.id.0, window.generation.0);
            }
            "revoke" => {
                self.listener.revoke(WindowId(id(1))).expect("revoke");
                self.regions.remove(&id(1));
                println!("ok");
            }
            "renew" => {
                let window = self.listener.renew(WindowId(id(1))).expect("renew");
                println!(
                    "{} {} {}",
                    window.generation.0, window.len_bytes, window.rights.0
                );
            }
            "write" => {
                self.regions[&id(1)]
                    .write(number(2), &from_hex(words[3]))
                    .expect("live memory");
                println!("ok");
            }
            "read" => {
                let mut bytes = vec![0; usize::try_from(number(3)).expect("a length")];
                self.regions[&id(1)]
                    .read(number(2), &mut bytes)
                    .expect("live memory");
                println!("{}", to_hex(&bytes));
            }
            "events" => {
                println!("{}", self.seen.len());
                for line in self.seen.drain(..) {
                    println!("{line}");
                }
            }
            "deafen" | "hear" => {
                println!("ok");
                return words[0] == "deafen";
            }
            other => panic!("unknown order {other:?}"),
        }
        is_deaf
    }
}

fn parse_event(line: &str) -> HostEvent {
    let words: Vec<&str> = line.split(' ').collect();
    let client = ClientId(words[1].parse().expect("a client"));
    let number = |at: usize| words[at].parse::<u64>().expect("a number");
    let short = |at: usize| u32::try_from(number(at)).expect("32 bits");
    match words[0] {
        "connected" => {
            let name = String::from_utf8(from_hex(words[2])).expect("a name");
            HostEvent::Connected(Hello { client, name })
        }
        "message" => HostEvent::Message(client, from_hex(words[2])),
        "immediate" => {
            HostEvent::Immediate(client, WindowId(short(2)), number(3), short(4), short(5))
        }
        "disconnected" => HostEvent::Disconnected(client),
        other => panic!("unknown event {other:?}"),
    }
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| DIGITS[usize::from(value)] as char;
    bytes
        .iter()
        .flat_map(|byte| [digit(byte >> 4), digit(byte & 15)])
        .collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).expect("a hex digit") as u8;
    text.as_bytes()
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}
