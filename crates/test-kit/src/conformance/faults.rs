//! Peers that die, stop, speak garbage or lack the key; clients that come twice.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use super::client::{hello, pattern};
use super::{
    Backend, Client, DEADLINE, Host, HostEvent, Row, always, with_processes, with_sockets,
};
use cenote_fabric::{Address, ClientId, Error, Rights, Status, Time};

pub(super) const CASES: &[Row] = &[
    (
        "a_killed_host_ends_every_outstanding_verb",
        killed,
        with_processes,
    ),
    (
        "a_stopped_host_times_out_or_its_memory_stays_usable",
        stopped,
        with_processes,
    ),
    (
        "a_second_session_of_a_client_ends_the_first",
        second_session,
        always,
    ),
    (
        "a_peer_without_the_key_is_refused_both_ways",
        wrong_key,
        always,
    ),
    (
        "garbage_harms_no_host_and_is_answered_by_silence",
        garbage_to_host,
        with_sockets,
    ),
    (
        "a_host_that_speaks_garbage_is_an_error",
        garbage_to_client,
        with_sockets,
    ),
];

fn killed(backend: &dyn Backend) {
    let mut survivor = backend.start_host();
    let mut other = Client::connect(backend, &*survivor, 2);
    let kept = other.window(&mut *survivor, 4096, Rights::ALL);
    for round in 0..5_u64 {
        let mut host = backend.start_host();
        let mut client = Client::connect(backend, &*host, 1);
        let window = client.window(&mut *host, 4 << 20, Rights::ALL);
        let source = pattern(65_536, round);
        let mut landings = vec![vec![0; 65_536]; 40];
        for (i, landing) in landings.iter_mut().enumerate() {
            client.post_write(&window, 0, &source, None, 2 * i as u64);
            client.post_read(&window, 0, landing, 2 * i as u64 + 1);
        }
        client.endpoint.flush(&mut client.queue);
        for _ in 0..round {
            client.endpoint.poll(backend.now(), &mut client.queue);
        }
        host.kill();
        let mut is_broken = false;
        for token in 0..80 {
            let end = client.completion();
            assert_eq!(end.token, token, "round {round}: an end out of turn");
            is_broken |= end.status != Status::Ok;
            assert!(
                is_broken == (end.status != Status::Ok),
                "round {round}: Ok after the break"
            );
        }
        // Also where memory is mapped: a killed host's memory counts as lost.
        client.assert_dead();
        assert_ne!(client.write(&window, 0, &source), Status::Ok);
        client.until("the session's end", |client| {
            client.session.receive().is_err().then_some(())
        });
        assert!(client.session.endpoint(Duration::from_secs(1)).is_err());
        assert_eq!(
            other.write(&kept, 0, &[1]),
            Status::Ok,
            "the other host is not affected"
        );
    }
}

fn stopped(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 8 << 20, Rights::ALL);
    assert_eq!(client.write(&window, 0, &[1; 100]), Status::Ok);
    host.stop();
    let source = pattern(8 << 20, 1);
    let mut landing = vec![0; 4096];
    let start = Time::now();
    // The WRITE is more than sockets hold: a part of it waits on this side.
    client.post_read(&window, 0, &mut landing[..100], 1);
    client.post_write(&window, 0, &source, None, 2);
    client.post_read(&window, 4096, &mut landing, 3);
    let ends = client.statuses(3);
    let took = Time::now().since(start);
    assert!(
        took < Client::SILENCE_MAX,
        "a stopped host was noticed after {took:?}"
    );
    if backend.traits().memory_outlives_a_stop {
        assert_eq!(ends, [Status::Ok; 3]);
        assert!(
            landing == source[4096..8192],
            "the stopped host's memory holds other bytes"
        );
        assert!(!client.endpoint.is_dead());
    } else {
        assert_eq!(ends, [Status::Timeout; 3]);
        client.assert_dead();
    }
    let connection =
        backend
            .connector()
            .connect(&host.address(), &hello(9), Duration::from_secs(1));
    assert!(connection.is_err(), "a stopped host proved its key");
    host.resume();
    if !backend.traits().memory_outlives_a_stop {
        client.endpoint = client
            .session
            .endpoint(DEADLINE)
            .expect("a new data connection");
    }
    assert_eq!(client.send(b"awake?"), Status::Ok);
    client.host_event(&mut *host, "a message after SIGCONT", |event| match event {
        HostEvent::Message(_, bytes) => (bytes == b"awake?").then_some(()),
        _ => None,
    });
    assert_eq!(client.write(&window, 0, &source), Status::Ok);
    assert!(
        client.read(&window, 0, 8 << 20) == Ok(source),
        "bytes after SIGCONT"
    );
}

fn second_session(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut first = Client::connect(backend, &*host, 1);
    let mut bystander = Client::connect(backend, &*host, 2);
    let mut seen = Vec::new();
    first.until("two sessions", |_| {
        seen.extend(host.events());
        (seen.len() >= 2).then_some(())
    });
    let mut second = backend
        .connector()
        .connect(&host.address(), &hello(1), DEADLINE)
        .expect("connect again");
    first.until("the first session's end", |first| {
        matches!(first.session.receive(), Err(Error::Closed)).then_some(())
    });
    second.send(b"from the second").expect("room");
    first.until("the second session's message", |_| {
        assert!(
            matches!(second.receive(), Ok(None)),
            "the second session ended"
        );
        seen.extend(host.events());
        seen.iter()
            .any(|event| matches!(event, HostEvent::Message(..)))
            .then_some(())
    });
    let expected = [
        HostEvent::Connected(hello(1)),
        HostEvent::Connected(hello(2)),
        HostEvent::Disconnected(ClientId(1)),
        HostEvent::Connected(hello(1)),
        HostEvent::Message(ClientId(1), b"from the second".to_vec()),
    ];
    assert_eq!(seen, expected);
    assert_eq!(bystander.send(b"still here"), Status::Ok);
}

fn wrong_key(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    for round in 0..20 {
        let result = backend
            .stranger()
            .connect(&host.address(), &hello(66), DEADLINE);
        assert!(result.is_err(), "round {round}: a stranger was let in");
    }
    assert_eq!(client.send(b"mine"), Status::Ok);
    let mut seen = Vec::new();
    client.until("the message", |_| {
        seen.extend(host.events());
        seen.iter()
            .any(|event| matches!(event, HostEvent::Message(..)))
            .then_some(())
    });
    let expected = [
        HostEvent::Connected(hello(1)),
        HostEvent::Message(ClientId(1), b"mine".to_vec()),
    ];
    assert_eq!(seen, expected, "the host heard of strangers");
}

/// A byte stream to an address, past all of the fabric's code.
enum Raw {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Raw {
    fn connect(address: &Address) -> Self {
        match address {
            Address::Tcp(address) | Address::Rdma(address) => {
                Self::Tcp(TcpStream::connect(address).expect("connect"))
            }
            Address::Shm(path) => Self::Unix(UnixStream::connect(path).expect("connect")),
        }
    }

    /// Sends, closes the sending side, and returns whatever the peer says until it closes.
    fn exchange(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Tcp(stream) => {
                stream
                    .set_read_timeout(Some(DEADLINE))
                    .expect("set a timeout");
                let other = stream.try_clone().expect("clone a socket");
                talk(stream, bytes, || drop(other.shutdown(Shutdown::Write)))
            }
            Self::Unix(stream) => {
                stream
                    .set_read_timeout(Some(DEADLINE))
                    .expect("set a timeout");
                let other = stream.try_clone().expect("clone a socket");
                talk(stream, bytes, || drop(other.shutdown(Shutdown::Write)))
            }
        }
    }
}

/// The peer may close at any point: then writing, or half-closing, fails, and that is no matter.
fn talk(mut stream: impl Read + Write, bytes: &[u8], half_close: impl FnOnce()) -> Vec<u8> {
    drop(stream.write_all(bytes));
    half_close();
    let mut heard = Vec::new();
    if let Err(error) = stream.read_to_end(&mut heard) {
        assert_ne!(
            error.kind(),
            std::io::ErrorKind::WouldBlock,
            "kept open and silent"
        );
    }
    heard
}

/// Byte streams that are no handshake: text, runs of one byte, noise, of many lengths.
fn garbage() -> Vec<Vec<u8>> {
    let mut streams = vec![
        Vec::new(),
        b"GET / HTTP/1.1\r\nHost: cenote\r\n\r\n".to_vec(),
        b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(),
    ];
    for (i, len_bytes) in [1, 2, 3, 16, 47, 48, 49, 96, 1000, 65_535, 300_000]
        .into_iter()
        .enumerate()
    {
        streams.push(vec![0; len_bytes]);
        streams.push(vec![0xFF; len_bytes]);
        streams.push(pattern(len_bytes, i as u64));
        // A plausible length prefix, little-endian and big-endian, before noise.
        streams.push([&[48, 0][..], &pattern(len_bytes, 77)].concat());
        streams.push([&[0, 48][..], &pattern(len_bytes, 78)].concat());
    }
    streams
}

fn garbage_to_host(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 4096, Rights::ALL);
    // Says nothing and stays: must not hold up anybody.
    let silent: Vec<Raw> = (0..16).map(|_| Raw::connect(&host.address())).collect();
    for (i, bytes) in garbage().into_iter().enumerate() {
        let heard = Raw::connect(&host.address()).exchange(&bytes);
        assert!(
            heard.is_empty(),
            "garbage {i} of {} bytes was answered",
            bytes.len()
        );
        assert_eq!(
            client.write(&window, 0, &[1; 4096]),
            Status::Ok,
            "after garbage {i}"
        );
    }
    drop(silent);
    let newcomer = Client::connect(backend, &*host, 2);
    drop(newcomer);
    let strangers = host.events().into_iter().find(|event| {
        !matches!(
            event,
            HostEvent::Connected(hello) if matches!(hello.client, ClientId(1 | 2))
        ) && !matches!(event, HostEvent::Disconnected(ClientId(1 | 2)))
    });
    assert_eq!(strangers, None, "garbage became an event");
}

/// Where a fake host listens.
enum Ear {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Ear {
    /// Listens beside `host`, on an address of the same family.
    fn beside(host: &dyn Host) -> (Self, Address) {
        match host.address() {
            Address::Tcp(_) => {
                let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
                let address = Address::Tcp(listener.local_addr().expect("an address").into());
                (Self::Tcp(listener), address)
            }
            Address::Rdma(host) => {
                let listener = TcpListener::bind(host.with_port(0)).expect("listen");
                let address = Address::Rdma(listener.local_addr().expect("an address").into());
                (Self::Tcp(listener), address)
            }
            Address::Shm(path) => {
                let path = path.with_extension("fake");
                let listener = UnixListener::bind(&path).expect("listen");
                (Self::Unix(listener), Address::Shm(path))
            }
        }
    }

    /// Answers one connection with `bytes` and closes it.
    fn answer(&self, bytes: &[u8]) {
        let talk = |mut stream: Box<dyn Write>| {
            // The client may have left: nobody then hears the garbage.
            drop(stream.write_all(bytes));
        };
        match self {
            Self::Tcp(listener) => talk(Box::new(listener.accept().expect("accept").0)),
            Self::Unix(listener) => talk(Box::new(listener.accept().expect("accept").0)),
        }
    }
}

fn garbage_to_client(backend: &dyn Backend) {
    let host = backend.start_host();
    let (ear, address) = Ear::beside(&*host);
    for (i, bytes) in garbage().into_iter().enumerate() {
        std::thread::scope(|scope| {
            scope.spawn(|| ear.answer(&bytes));
            let result = backend.connector().connect(&address, &hello(1), DEADLINE);
            assert!(result.is_err(), "garbage {i} proved the key");
        });
    }
}
