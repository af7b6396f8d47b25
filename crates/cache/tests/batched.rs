//! Batched paths to hosts that run here, over both transports.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_cache::closed_loop::{Kind, Plan, RunError, Waiting, run};
use cenote_cache::path::{Batched, Completion, Failure, Full, Operation, Path, Refusal};
use cenote_fabric::{
    Address, ClientId, ClusterKey, Connector, Generation, Hello, Incoming, RemoteWindow, Rights,
    Session, Time, Waker, WindowDescriptor, WindowId, connector, wait,
};
use cenote_host::{Config, Daemon, LockMemory};
use cenote_pool::control::{Reply, Request};

const DEADLINE: Duration = Duration::from_secs(30);
const SLAB_BYTES: u64 = 1 << 20;

struct Host {
    address: Address,
    waker: Waker,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Host {
    fn start(address: Address, key: &ClusterKey) -> Self {
        let mut daemon = Daemon::start(Config {
            name: "host".into(),
            domain: "host".into(),
            addresses: vec![address],
            memory_bytes: 4 * SLAB_BYTES,
            slab_bytes: SLAB_BYTES,
            key: key.clone(),
            huge_pages: false,
            lock_memory: LockMemory::Never,
            clients_max: 4,
            headroom: None,
            page_traffic: cenote_fabric::WireProtection::default(),
            cache_threads: 1,
        })
        .unwrap();
        let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || daemon.run(&stopped).map(|_| ()).unwrap());
        Self {
            address,
            waker,
            stop,
            thread: Some(thread),
        }
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Bench {
    host: Host,
    session: Box<dyn Session>,
    window: RemoteWindow,
}

impl Bench {
    fn new(address: Address) -> Self {
        let key = ClusterKey::generate().unwrap();
        let host = Host::start(address, &key);
        let hello = Hello {
            client: ClientId(7),
            name: "test".into(),
        };
        let mut session = connector(key)
            .connect(&host.address, &hello, DEADLINE)
            .unwrap();
        let window = map(&mut *session);
        Self {
            host,
            session,
            window,
        }
    }

    fn path(&self, b: usize, q: usize) -> Batched {
        Batched::new(self.session.caller_opener()(DEADLINE).unwrap(), b, q)
    }
}

fn map(session: &mut dyn Session) -> RemoteWindow {
    let mut bytes = Vec::new();
    let request = Request::Map {
        request: 1,
        volume: 1,
        extent: 0,
        member: 0,
    };
    request.encode(&mut bytes);
    session.send(&bytes).unwrap();
    loop {
        match session.receive().unwrap() {
            Some(Incoming::Message(bytes)) => match Reply::decode(&bytes).unwrap() {
                Reply::Mapped { window, .. } => session
                    .attach(WindowDescriptor {
                        id: WindowId(window.id),
                        generation: Generation(window.generation),
                        len_bytes: window.len_bytes,
                        rights: Rights(window.rights),
                    })
                    .unwrap(),
                other => panic!("{other:?}"),
            },
            Some(Incoming::Attached(_, window)) => return window.unwrap(),
            Some(other) => panic!("{other:?}"),
            None => drop(wait(session.fd().as_slice(), Some(DEADLINE)).unwrap()),
        }
    }
}

/// The next `count` completions.
fn ends(path: &mut Batched, count: usize) -> Vec<Completion> {
    let deadline = Instant::now() + DEADLINE;
    let mut ended = VecDeque::new();
    path.flush();
    while ended.len() < count {
        path.poll(Time::now(), &mut ended);
        if ended.len() < count {
            assert!(
                Instant::now() < deadline,
                "{} of {count}: {path:?}",
                ended.len()
            );
            let fds: Vec<_> = path.fd().into_iter().collect();
            wait(&fds, Some(Duration::from_millis(200))).unwrap();
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

fn on_each(case: impl Fn(Bench)) {
    let directory = tempfile::tempdir().unwrap();
    case(Bench::new(Address::Shm(directory.path().join("host"))));
    case(Bench::new("tcp:127.0.0.1:0".parse().unwrap()));
}

#[test]
fn requests_of_a_batch_take_effect_in_order_and_land_in_their_buffers() {
    on_each(|bench| {
        let mut path = bench.path(16, 2);
        for round in 0..50_u64 {
            let record = Bytes::copy_from_slice(&round.to_le_bytes());
            path.submit(&bench.window, round * 8, Operation::Write(record), 1)
                .unwrap();
            let landing = BytesMut::zeroed(8);
            let address = landing.as_ptr();
            path.submit(&bench.window, round * 8, Operation::Read(landing), 2)
                .unwrap();
            let mut ended = ends(&mut path, 2);
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
    on_each(|bench| {
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
        let mut tokens: Vec<_> = ends(&mut path, 16).iter().map(|end| end.token).collect();
        tokens.sort_unstable();
        assert_eq!(tokens, (0..16).collect::<Vec<_>>());
        assert_eq!(path.outstanding(), 0);
    });
}

#[test]
fn each_request_of_a_batch_has_its_own_end() {
    on_each(|bench| {
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
        let mut ended = ends(&mut path, 4);
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
        bench.host.stop();
        for token in 0..3 {
            let landing = Operation::Read(BytesMut::zeroed(8));
            path.submit(&bench.window, 0, landing, token).unwrap();
        }
        for end in ends(&mut path, 3) {
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
    on_each(|bench| {
        let windows = [bench.window.clone()];
        for (b, q) in [(1, 1), (32, 4)] {
            let mut paths: Vec<Box<dyn Path>> = (0..3)
                .map(|_| Box::new(bench.path(b, q)) as Box<dyn Path>)
                .collect();
            for kind in [Kind::Write, Kind::Read] {
                let plan = Plan {
                    kind,
                    record_bytes: 24,
                    under_way: b * q,
                    warm_up: Duration::from_millis(5),
                    span: Duration::from_millis(50),
                    waiting: Waiting::default(),
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
        let seen = read_of(ends(&mut path, 1).pop().unwrap());
        assert!(
            seen.chunks(24)
                .all(|record| record == [0x5A; 24] || record == [0; 24])
        );
    });
}
