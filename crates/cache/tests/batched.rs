//! Batched paths to hosts that run here, over sockets and on the simulated network.

use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_cache::Writes;
use cenote_cache::closed_loop::{Plan, RunError, run};
use cenote_cache::path::{Batched, Completion, Failure, Full, Operation, Path, Refusal};
use cenote_fabric::calls::Spin;
use cenote_fabric::sim::{self, Memory, Net, NodeId, Notice};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Generation, Hello, Incoming, RemoteWindow, Session,
    Time, connector, wait,
};
use cenote_host::{Config, OnThread, Stepped};
use cenote_pool::control::{Reply, Request};
use cenote_test_kit::host_config;

const DEADLINE: Duration = Duration::from_secs(30);
const SLAB_BYTES: u64 = 1 << 20;

/// A host, and how time passes for it.
enum Machine {
    OnThread(OnThread),
    Simulated {
        net: Net,
        node: NodeId,
        /// `None` once it is stopped.
        process: Option<Box<Stepped>>,
    },
}

impl Machine {
    fn real(address: Address, key: &ClusterKey) -> Self {
        let started = OnThread::start(config(address, key));
        Self::OnThread(started.unwrap())
    }

    /// On a machine of `net`.
    fn simulated(net: &Net, address: Address, key: &ClusterKey) -> Self {
        let mut listener = net.host(address.clone(), "host");
        let (node, windows) = (listener.node(), listener.windows().unwrap());
        let answerer = listener.answerer().unwrap();
        let outward: Box<dyn Connector> = Box::new(net.client_on(node));
        let process = Stepped::start(
            config(address, key),
            Box::new(listener),
            (outward, ClientId(99)),
            sim::now,
            None,
        );
        let mut process = process.unwrap();
        process.serve_caches(Box::new(answerer), windows);
        Self::Simulated {
            net: net.clone(),
            node,
            process: Some(Box::new(process)),
        }
    }

    fn now(&self) -> Time {
        match self {
            Self::OnThread(_) => Time::now(),
            Self::Simulated { net, .. } => net.now(),
        }
    }

    /// Lets time pass, up to something for whoever has `fds`.
    fn pass(&mut self, fds: &[RawFd]) {
        match self {
            Self::OnThread(_) => drop(wait(fds, Some(Duration::from_millis(200))).unwrap()),
            Self::Simulated { net, process, .. } => {
                if !net.step() {
                    net.advance_to(net.now().after(Duration::from_millis(1)));
                }
                if let Some(process) = process {
                    process.turn().unwrap();
                    while process.work() {}
                }
            }
        }
    }

    fn stop(&mut self) {
        match self {
            Self::OnThread(host) => host.stop().unwrap(),
            Self::Simulated { net, node, process } => {
                net.crash(*node, Memory::Lost, Notice::AtOnce);
                *process = None;
            }
        }
    }
}

fn config(address: Address, key: &ClusterKey) -> Config {
    Config {
        clients_max: 4,
        cache_threads: 1,
        ..host_config("host", address, 4, SLAB_BYTES, key)
    }
}

struct Bench {
    machine: Machine,
    session: Box<dyn Session>,
    window: RemoteWindow,
}

impl Bench {
    fn real(address: Address) -> Self {
        let key = ClusterKey::generate().unwrap();
        let machine = Machine::real(address, &key);
        let Machine::OnThread(host) = &machine else {
            unreachable!("made as one")
        };
        let address = host.addresses()[0].clone();
        Self::new(machine, &connector(key), &address)
    }

    fn simulated() -> Self {
        let net = Net::new(7, sim::Config::default());
        let address = Address::Shm("/sim/host".into());
        let key = ClusterKey::generate().unwrap();
        let machine = Machine::simulated(&net, address.clone(), &key);
        Self::new(machine, &net.client("client"), &address)
    }

    fn new(mut machine: Machine, connector: &dyn Connector, address: &Address) -> Self {
        let hello = Hello {
            client: ClientId(7),
            name: "test".into(),
        };
        let mut session = connector.connect(address, &hello, DEADLINE).unwrap();
        let window = map(&mut machine, &mut *session);
        Self {
            machine,
            session,
            window,
        }
    }

    fn path(&self, b: usize, q: usize) -> Batched {
        Batched::new(self.session.caller_opener()(DEADLINE).unwrap(), b, q)
    }
}

fn map(machine: &mut Machine, session: &mut dyn Session) -> RemoteWindow {
    let mut bytes = Vec::new();
    let request = Request::Map {
        request: 1,
        volume: 1,
        extent: 0,
        member: 0,
    };
    request.encode(&mut bytes);
    session.send(&bytes).unwrap();
    let begun = machine.now();
    loop {
        match session.receive().unwrap() {
            Some(Incoming::Message(bytes)) => match Reply::decode(&bytes).unwrap() {
                Reply::Mapped { window, .. } => session.attach(window.into()).unwrap(),
                other => panic!("{other:?}"),
            },
            Some(Incoming::Attached(_, window)) => return window.unwrap(),
            Some(other) => panic!("{other:?}"),
            None => machine.pass(session.fd().as_slice()),
        }
        assert!(machine.now().since(begun) < DEADLINE, "no window");
    }
}

/// The next `count` completions.
fn ends(machine: &mut Machine, path: &mut Batched, count: usize) -> Vec<Completion> {
    let begun = machine.now();
    let mut ended = VecDeque::new();
    path.flush();
    while ended.len() < count {
        path.poll(machine.now(), &mut ended);
        if ended.len() < count {
            assert!(
                machine.now().since(begun) < DEADLINE,
                "{} of {count}: {path:?}",
                ended.len()
            );
            let fds: Vec<_> = path.fd().into_iter().collect();
            machine.pass(&fds);
        }
    }
    ended.into()
}

fn read_of(completion: Completion) -> BytesMut {
    match completion.operation {
        Operation::Read(buffer) => buffer,
        Operation::Write(_) => panic!("a write"),
    }
}

/// Over sockets, where client threads may be real ones.
fn on_sockets(case: impl Fn(Bench)) {
    let directory = tempfile::tempdir().unwrap();
    case(Bench::real(Address::Shm(directory.path().join("host"))));
    case(Bench::real("tcp:127.0.0.1:0".parse().unwrap()));
}

fn on_each(case: impl Fn(Bench)) {
    on_sockets(&case);
    case(Bench::simulated());
}

#[test]
fn requests_of_a_batch_take_effect_in_order_and_land_in_their_buffers() {
    on_each(|mut bench| {
        let mut path = bench.path(16, 2);
        for round in 0..50_u64 {
            let record = Bytes::copy_from_slice(&round.to_le_bytes());
            path.submit(&bench.window, round * 8, Operation::Write(record), 1)
                .unwrap();
            let landing = BytesMut::zeroed(8);
            let address = landing.as_ptr();
            path.submit(&bench.window, round * 8, Operation::Read(landing), 2)
                .unwrap();
            let mut ended = ends(&mut bench.machine, &mut path, 2);
            let read = ended.pop().unwrap();
            assert_eq!((read.token, read.result), (2, Ok(())));
            let read = read_of(read);
            assert_eq!(read[..], round.to_le_bytes());
            assert_eq!(read.as_ptr(), address, "the caller's own buffer");
        }
    });
}

#[test]
fn b_times_q_requests_are_under_way_and_a_batch_that_waits() {
    on_each(|mut bench| {
        let mut path = bench.path(4, 3);
        let mut taken = 0;
        let full = loop {
            let landing = BytesMut::zeroed(8);
            match path.submit(&bench.window, 8 * taken, Operation::Read(landing), taken) {
                Ok(()) => taken += 1,
                Err(full) => break full,
            }
        };
        // Nothing was polled: q batches of b, and one more that is packed.
        assert_eq!(taken, 4 * 3 + 4);
        let Full(Operation::Read(_)) = full else {
            panic!("another operation came back");
        };
        let mut tokens: Vec<_> = ends(&mut bench.machine, &mut path, 16)
            .iter()
            .map(|end| end.token)
            .collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..16).collect::<Vec<_>>());
        assert_eq!(path.outstanding(), 0);
    });
}

#[test]
fn each_request_of_a_batch_has_its_own_end() {
    on_each(|mut bench| {
        let mut path = bench.path(8, 1);
        let mut old = bench.window.clone();
        old.descriptor.generation = Generation(old.descriptor.generation.0 ^ 1);
        let write = || Operation::Write(Bytes::from_static(b"record"));
        path.submit(&old, 0, write(), 0).unwrap();
        path.submit(&bench.window, SLAB_BYTES - 1, write(), 1)
            .unwrap();
        let long = Operation::Read(BytesMut::zeroed(path.request_bytes_max() + 1));
        path.submit(&bench.window, 0, long, 2).unwrap();
        path.submit(&bench.window, 0, Operation::Read(BytesMut::zeroed(6)), 3)
            .unwrap();
        let mut ended = ends(&mut bench.machine, &mut path, 4);
        ended.sort_by_key(|end| end.token);
        let results: Vec<_> = ended.iter().map(|end| end.result).collect();
        let expected = [
            Err(Failure::Stale),
            Err(Failure::Refused(Refusal::OutOfBounds)),
            Err(Failure::Refused(Refusal::TooLong)),
            Ok(()),
        ];
        assert_eq!(results, expected);
        assert_eq!(read_of(ended.pop().unwrap())[..], [0; 6]);
    });
}

#[test]
fn a_lost_host_ends_what_is_under_way_and_what_comes_after() {
    on_each(|mut bench| {
        let mut path = bench.path(2, 2);
        bench.machine.stop();
        for token in 0..3 {
            let landing = Operation::Read(BytesMut::zeroed(8));
            path.submit(&bench.window, 0, landing, token).unwrap();
        }
        for end in ends(&mut bench.machine, &mut path, 3) {
            assert!(
                matches!(end.result, Err(Failure::Lost(_))),
                "{:?}",
                end.result
            );
        }
        assert!(path.is_lost());
    });
}

#[test]
fn closed_loops_keep_records_whole_under_load() {
    on_sockets(|mut bench| {
        let windows = [bench.window.clone()];
        for (b, q) in [(1, 1), (32, 4)] {
            let mut paths: Vec<Box<dyn Path>> = (0..3)
                .map(|_| Box::new(bench.path(b, q)) as Box<dyn Path>)
                .collect();
            for percent in [100, 50, 0] {
                let plan = Plan {
                    writes: Writes::new(percent).unwrap(),
                    record_bytes: 24,
                    under_way: b * q,
                    warm_up: Duration::from_millis(5),
                    span: Duration::from_millis(50),
                    spin: Spin::default(),
                    seed: 3,
                };
                // On a busy machine no thread may have had its turn in the time that counts.
                let deadline = Instant::now() + DEADLINE;
                while let Err(error) = run(&mut paths, &windows, &plan) {
                    assert_eq!(error, RunError::Nothing);
                    assert!(Instant::now() < deadline, "no request ever ends");
                }
            }
        }
        let mut path = bench.path(1, 1);
        let landing = Operation::Read(BytesMut::zeroed(24 * 1000));
        path.submit(&bench.window, 0, landing, 0).unwrap();
        let seen = read_of(ends(&mut bench.machine, &mut path, 1).pop().unwrap());
        assert!(
            seen.chunks(24)
                .all(|record| record == [0x5A; 24] || record == [0; 24])
        );
    });
}
