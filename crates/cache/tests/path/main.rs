//! Paths of a cache's client to hosts in other processes, and on the simulated network.

use std::collections::VecDeque;
use std::process::ExitCode;

use bytes::{Bytes, BytesMut};
use cenote_cache::path::{Completion, Failure, Full, Loss, OneSided, Operation, Path, Refusal};
use cenote_fabric::sim::Serving;
use cenote_fabric::{Generation, RemoteWindow, Rights, WireProtection};
use cenote_test_kit::conformance::processes::{Processes, serve_if_host};
use cenote_test_kit::conformance::sim::Simulated;
use cenote_test_kit::conformance::{Backend, Case, Client, DEADLINE, Host, main_with};

fn main() -> ExitCode {
    if serve_if_host() {
        return ExitCode::SUCCESS;
    }
    let directory = tempfile::tempdir().expect("a directory for sockets");
    let backends: [&dyn Backend; 4] = [
        &Simulated::new("sim", Serving::Card),
        &Simulated::new("sim-agent", Serving::Agent),
        &Processes::shm(directory.path()),
        &Processes::tcp(WireProtection::Encrypted, directory.path()),
    ];
    let cases: Vec<Case> = CASES
        .iter()
        .map(|&(name, run)| Case {
            name,
            run,
            applies: |_| true,
        })
        .collect();
    main_with(&backends, &cases)
}

type Test = (&'static str, fn(&dyn Backend));

const CASES: &[Test] = &[
    ("a_read_returns_what_was_written", reads_what_was_written),
    ("pieces_of_one_buffer_land_in_place", pieces_land_in_place),
    ("a_full_path_gives_the_buffer_back", full),
    ("refusals_are_typed_and_change_nothing", refusals),
    ("an_old_generation_is_stale", stale),
    ("a_dead_machine_ends_everything_under_way", dead_machine),
];

/// A path to a host of its own, and what drives it.
struct Bench<'b> {
    backend: &'b dyn Backend,
    host: Box<dyn Host>,
    client: Client<'b>,
    path: OneSided,
    ended: VecDeque<Completion>,
}

impl<'b> Bench<'b> {
    fn new(backend: &'b dyn Backend, depth: usize) -> Self {
        let host = backend.start_host();
        let client = Client::connect(backend, &*host, 1);
        let endpoint = client.session.endpoint(DEADLINE).expect("an endpoint");
        Self {
            backend,
            host,
            client,
            path: OneSided::new(endpoint, depth),
            ended: VecDeque::new(),
        }
    }

    fn window(&mut self, len_bytes: u64, rights: Rights) -> RemoteWindow {
        let descriptor = self.host.register(len_bytes, rights);
        self.client.try_attach(descriptor).expect("attach it")
    }

    /// The next completion; time passes until it is there.
    fn end(&mut self) -> Completion {
        self.path.flush();
        let start = self.backend.now();
        loop {
            self.path.poll(self.backend.now(), &mut self.ended);
            if let Some(ended) = self.ended.pop_front() {
                return ended;
            }
            let waited = self.backend.now().since(start);
            assert!(
                waited < DEADLINE,
                "nothing ended in {waited:?}: {:?}",
                self.path
            );
            let fds: Vec<_> = self.path.fd().into_iter().collect();
            self.backend.pause(&fds);
        }
    }

    fn read(&mut self, window: &RemoteWindow, offset: u64, len_bytes: usize) -> Completion {
        let landing = Operation::Read(BytesMut::zeroed(len_bytes));
        self.path
            .submit(window, offset, landing, 7)
            .expect("there is room");
        self.end()
    }

    fn write(&mut self, window: &RemoteWindow, offset: u64, bytes: &'static [u8]) -> Completion {
        let source = Operation::Write(Bytes::from_static(bytes));
        self.path
            .submit(window, offset, source, 8)
            .expect("there is room");
        self.end()
    }
}

fn landing(operation: Operation) -> BytesMut {
    match operation {
        Operation::Read(buffer) => buffer,
        Operation::Write(bytes) => panic!("a write of {} bytes", bytes.len()),
    }
}

fn reads_what_was_written(backend: &dyn Backend) {
    let mut bench = Bench::new(backend, 4);
    let window = bench.window(1 << 16, Rights::ALL);
    let written = bench.write(&window, 12_345, b"as it was written");
    assert_eq!((written.token, written.result), (8, Ok(())));
    let read = bench.read(&window, 12_345, 17);
    assert_eq!((read.token, read.result), (7, Ok(())));
    assert_eq!(&landing(read.operation)[..], b"as it was written");
    let id = window.descriptor.id;
    assert_eq!(
        bench.host.read(id, 12_344, 19)[1..18],
        *b"as it was written"
    );
}

/// One buffer over two windows, as a request that passes the end of a region.
fn pieces_land_in_place(backend: &dyn Backend) {
    let mut bench = Bench::new(backend, 4);
    let windows = [
        bench.window(4096, Rights::ALL),
        bench.window(4096, Rights::ALL),
    ];
    bench.host.write(windows[0].descriptor.id, 4000, &[1; 96]);
    bench.host.write(windows[1].descriptor.id, 0, &[2; 200]);
    let mut whole = BytesMut::zeroed(296);
    let address = whole.as_ptr();
    let rest = whole.split_off(96);
    let pieces = [(whole, 4000), (rest, 0)];
    for ((piece, offset), (window, token)) in pieces.into_iter().zip(windows.iter().zip(0..)) {
        let piece = Operation::Read(piece);
        bench
            .path
            .submit(window, offset, piece, token)
            .expect("there is room");
    }
    let mut ended = [bench.end(), bench.end()];
    ended.sort_by_key(|completion| completion.token);
    let [mut first, second] = ended.map(|completion| {
        assert_eq!(completion.result, Ok(()));
        landing(completion.operation)
    });
    first.unsplit(second);
    assert_eq!(first.as_ptr(), address, "nothing was copied");
    assert_eq!(first[..], [[1; 96].as_slice(), &[2; 200]].concat());
}

fn full(backend: &dyn Backend) {
    let mut bench = Bench::new(backend, 2);
    let window = bench.window(4096, Rights::ALL);
    let piece = |byte| Operation::Read(BytesMut::from(&[byte; 8][..]));
    for token in 0..2 {
        let taken = bench.path.submit(&window, 0, piece(0), token);
        taken.expect("there is room");
    }
    let Err(Full(returned)) = bench.path.submit(&window, 0, piece(9), 2) else {
        panic!("a third request was taken by a path for two");
    };
    assert_eq!(landing(returned)[..], [9; 8]);
    assert_eq!(bench.path.outstanding(), 2);
    for _ in 0..2 {
        assert_eq!(bench.end().result, Ok(()));
    }
    let taken = bench.path.submit(&window, 0, piece(0), 3);
    taken.expect("there is room again");
    assert_eq!(bench.end().token, 3);
    assert_eq!(bench.path.outstanding(), 0);
}

fn refusals(backend: &dyn Backend) {
    let mut bench = Bench::new(backend, 4);
    let readable = bench.window(4096, Rights::READ);
    let past = bench.read(&readable, 4090, 7).result;
    assert_eq!(past, Err(Failure::Refused(Refusal::OutOfBounds)));
    let overflow = bench.read(&readable, u64::MAX, 2).result;
    assert_eq!(overflow, Err(Failure::Refused(Refusal::OutOfBounds)));
    let written = bench.write(&readable, 0, b"no").result;
    assert_eq!(written, Err(Failure::Refused(Refusal::NoRights)));
    assert_eq!(bench.host.read(readable.descriptor.id, 0, 2), [0; 2]);
    assert_eq!(bench.read(&readable, 4090, 6).result, Ok(()));
}

fn stale(backend: &dyn Backend) {
    let mut bench = Bench::new(backend, 4);
    let window = bench.window(4096, Rights::ALL);
    let mut guessed = window.clone();
    guessed.descriptor.generation = Generation(window.descriptor.generation.0 ^ 1);
    let ended = bench.write(&guessed, 0, b"late").result;
    assert_eq!(ended, Err(Failure::Stale));
    assert_eq!(bench.host.read(window.descriptor.id, 0, 4), [0; 4]);
    bench.host.revoke(window.descriptor.id);
    for _ in 0..2 {
        assert_eq!(bench.read(&window, 0, 8).result, Err(Failure::Stale));
        let ended = bench.write(&window, 0, b"later").result;
        assert_eq!(ended, Err(Failure::Stale));
    }
    assert!(!bench.path.is_lost(), "the machine lives");
}

fn dead_machine(backend: &dyn Backend) {
    let mut bench = Bench::new(backend, 4);
    let window = bench.window(4096, Rights::ALL);
    assert_eq!(bench.read(&window, 0, 8).result, Ok(()));
    bench.host.kill();
    // Memory of a dead host can be read for a moment where it is mapped; then never again.
    let lost = loop {
        match bench.read(&window, 0, 8).result {
            Ok(()) => {
                let fds: Vec<_> = bench.path.fd().into_iter().collect();
                backend.pause(&fds);
            }
            Err(failure) => break failure,
        }
    };
    let is_lost = matches!(lost, Failure::Lost(Loss::Closed | Loss::Silent));
    assert!(is_lost, "{lost:?}");
    assert!(lost.may_have_happened() && lost.is_retryable());
    assert!(bench.path.is_lost());
    assert!(matches!(
        bench.write(&window, 0, b"x").result,
        Err(Failure::Lost(_))
    ));
}
