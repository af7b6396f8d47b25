//! Batches of reads and writes, carried out by a host's server threads.

mod support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use cenote_fabric::calls::Caller;
use cenote_fabric::{Status, Time, wait};
use cenote_pool::batch::{Answers, BATCH, BatchWriter, OPERATION_BYTES_MAX, Outcome};
use cenote_pool::control::{Reply, Request, Window};
use support::{Client, DEADLINE, Fabric, Host, Lab};

fn host(lab: &Lab) -> Host {
    let mut config = lab.config("host", 4);
    config.cache_threads = 2;
    Host::start(config)
}

fn caller(client: &Client) -> Box<dyn Caller> {
    client.session.caller_opener()(DEADLINE).unwrap()
}

fn name(window: &Window) -> (u32, u64) {
    (window.id, window.generation)
}

/// Makes one call and waits for its end.
fn call(caller: &mut dyn Caller, request: &[u8]) -> Result<Vec<u8>, Status> {
    let deadline = Instant::now() + DEADLINE;
    caller.call(request, 1).unwrap();
    let mut ended = None;
    while ended.is_none() {
        assert!(Instant::now() < deadline, "a call does not end");
        caller.poll(Time::now(), &mut |_, answer| {
            ended = Some(answer.map(<[u8]>::to_vec));
        });
        if ended.is_none() {
            let fds: Vec<_> = caller.fd().into_iter().collect();
            wait(&fds, Some(DEADLINE)).unwrap();
        }
    }
    ended.unwrap()
}

/// The outcomes of a batch whose operations read so many bytes each, and what they read.
fn outcomes(
    caller: &mut dyn Caller,
    batch: &BatchWriter,
    reads: &[usize],
) -> Vec<(Outcome, Vec<u8>)> {
    let answer = call(caller, batch.bytes()).unwrap();
    let mut answers = Answers::new(&answer).unwrap();
    let all = reads
        .iter()
        .map(|&len| {
            answers
                .next_answer(len)
                .map(|(outcome, read)| (outcome, read.to_vec()))
        })
        .collect::<Result<_, _>>()
        .unwrap();
    answers.end().unwrap();
    all
}

fn on_each(case: impl Fn(&Lab, &Host)) {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let lab = Lab::new(fabric);
        let host = host(&lab);
        case(&lab, &host);
    }
}

#[test]
fn a_batch_is_carried_out_in_order_and_seen_by_one_sided_reads() {
    on_each(|lab, host| {
        let mut client = lab.client(host, 1);
        let windows = [client.try_map(1, 0).unwrap(), client.try_map(1, 1).unwrap()];
        let mut caller = caller(&client);
        let mut batch = BatchWriter::default();
        batch.write(name(&windows[0]), 100, b"first");
        batch.write(name(&windows[1]), 200, b"other");
        batch.write(name(&windows[0]), 102, b"XY");
        batch.read(name(&windows[0]), 100, 5);
        batch.read(name(&windows[1]), 200, 5);
        let all = outcomes(&mut *caller, &batch, &[0, 0, 0, 5, 5]);
        let done = |bytes: &[u8]| (Outcome::Done, bytes.to_vec());
        let expected = [
            done(b""),
            done(b""),
            done(b""),
            done(b"fiXYt"),
            done(b"other"),
        ];
        assert_eq!(all, expected);
        let window = client.attach(windows[0]).unwrap();
        let mut seen = [0; 5];
        assert_eq!(client.read(&window, 100, &mut seen), Status::Ok);
        assert_eq!(&seen, b"fiXYt");
    });
}

#[test]
fn what_is_refused_changes_nothing_and_the_rest_is_done() {
    on_each(|lab, host| {
        let mut client = lab.client(host, 1);
        let window = client.try_map(1, 0).unwrap();
        let mut caller = caller(&client);
        let mut batch = BatchWriter::default();
        let (id, generation) = name(&window);
        batch.write((id, generation ^ 1), 0, b"old");
        batch.write((id, generation), support::SLAB_BYTES - 1, b"far");
        batch.read((id, generation), u64::MAX, 8);
        batch.read((id + 1000, generation), 0, 8);
        batch.read((id, generation), 0, 3);
        let all = outcomes(&mut *caller, &batch, &[0, 0, 8, 8, 3]);
        let outcomes: Vec<_> = all.iter().map(|(outcome, _)| *outcome).collect();
        let expected = [
            Outcome::Stale,
            Outcome::OutOfBounds,
            Outcome::OutOfBounds,
            Outcome::Stale,
            Outcome::Done,
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(all[4].1, [0; 3]);
    });
}

/// As for verbs: the generation is drawn at random, and only who holds the key gets this far.
#[test]
fn who_can_name_a_window_reaches_it_and_nobody_else() {
    on_each(|lab, host| {
        let mut owner = lab.client(host, 1);
        let window = owner.try_map(1, 0).unwrap();
        let other = lab.client(host, 2);
        let (id, generation) = name(&window);
        let mut batch = BatchWriter::default();
        batch.write((id, generation ^ 1), 0, b"guess");
        batch.write((id, generation), 8, b"named");
        batch.read((id, generation), 0, 13);
        let all = outcomes(&mut *caller(&other), &batch, &[0, 0, 13]);
        let outcomes: Vec<_> = all.iter().map(|(outcome, _)| *outcome).collect();
        assert_eq!(outcomes, [Outcome::Stale, Outcome::Done, Outcome::Done]);
        assert_eq!(all[2].1, b"\0\0\0\0\0\0\0\0named");
    });
}

#[test]
fn a_slab_that_was_given_back_is_stale() {
    on_each(|lab, host| {
        let mut client = lab.client(host, 1);
        let window = client.try_map(1, 0).unwrap();
        let mut caller = caller(&client);
        let mut batch = BatchWriter::default();
        batch.write(name(&window), 0, b"late");
        assert_eq!(outcomes(&mut *caller, &batch, &[0])[0].0, Outcome::Done);
        client.ask(&Request::Unmap { window });
        let late = outcomes(&mut *caller, &batch, &[0])[0].0;
        assert!(
            matches!(late, Outcome::Stale | Outcome::Revoked),
            "{late:?}"
        );
        // Whoever gets the memory next finds nothing of it.
        let next = client.try_map(1, 1).unwrap();
        let next = client.attach(next).unwrap();
        let mut seen = [1; 4];
        assert_eq!(client.read(&next, 0, &mut seen), Status::Ok);
        assert_eq!(seen, [0; 4]);
    });
}

/// A server thread that was stopped carries out late what its client gave up. The client writes
/// there again once the window has another name, and not before.
#[test]
fn a_batch_that_comes_late_changes_nothing_once_its_window_is_renewed() {
    on_each(|lab, host| {
        let mut client = lab.client(host, 1);
        let window = client.try_map(1, 0).unwrap();
        let mut caller = caller(&client);
        let mut given_up = BatchWriter::default();
        given_up.write(name(&window), 0, b"given up");
        let Reply::Mapped {
            window: renewed, ..
        } = client.ask(&Request::Renew { request: 9, window })
        else {
            panic!("the window is not renewed");
        };
        assert_ne!(name(&renewed), name(&window));
        let mut newer = BatchWriter::default();
        newer.write(name(&renewed), 0, b"newer");
        newer.read(name(&renewed), 0, 8);
        let before = outcomes(&mut *caller, &newer, &[0, 8]);
        let late = outcomes(&mut *caller, &given_up, &[0]);
        assert_eq!(late[0].0, Outcome::Stale);
        let after = outcomes(&mut *caller, &newer, &[0, 8]);
        assert_eq!(before[1], (Outcome::Done, b"newer\0\0\0".to_vec()));
        assert_eq!(after, before);
    });
}

/// What a client does that means no good, again and again, while another one works.
trait Nuisance {
    fn step(&mut self);
}

/// Makes calls with long answers and takes none of them.
struct ReadsNothing(Box<dyn Caller>, Vec<u8>);

impl Nuisance for ReadsNothing {
    fn step(&mut self) {
        while self.0.call(&self.1, 1).is_ok() {}
        self.0.flush();
    }
}

/// Has as many calls under way as it may, all the time.
struct Floods(Box<dyn Caller>, Vec<u8>);

impl Nuisance for Floods {
    fn step(&mut self) {
        while self.0.call(&self.1, 1).is_ok() {}
        self.0.flush();
        self.0.poll(Time::now(), &mut |_, _| {});
    }
}

/// Opens connections and leaves them unused, until it gets no more; then again.
struct Opens<'c>(&'c Client, Vec<Box<dyn Caller>>);

impl Nuisance for Opens<'_> {
    fn step(&mut self) {
        match self.0.session.caller_opener()(DEADLINE) {
            Ok(caller) => self.1.push(caller),
            Err(_) => self.1.clear(),
        }
    }
}

/// Does no more than it has done.
struct Waits;

impl Nuisance for Waits {
    fn step(&mut self) {}
}

/// The answers that one client gets while another is a nuisance.
fn work_beside(lab: &Lab, host: &Host, id: u128, nuisance: &mut dyn Nuisance) {
    let mut client = lab.client(host, id);
    let window = client.map(id, 0);
    let mut caller = caller(&client);
    for round in 0..100_u64 {
        nuisance.step();
        let mut batch = BatchWriter::default();
        batch.write(name(&window), 0, &round.to_le_bytes());
        batch.read(name(&window), 0, 8);
        let all = outcomes(&mut *caller, &batch, &[0, 8]);
        assert_eq!(all[1], (Outcome::Done, round.to_le_bytes().to_vec()));
    }
}

#[test]
fn who_floods_opens_or_reads_no_answers_hinders_nobody() {
    on_each(|lab, host| {
        let mut other = lab.client(host, 2);
        let window = other.map(2, 0);
        let mut long = BatchWriter::default();
        long.read(name(&window), 0, OPERATION_BYTES_MAX);
        let mut short = BatchWriter::default();
        short.read(name(&window), 0, 8);
        let mut unread = ReadsNothing(caller(&other), long.bytes().to_vec());
        work_beside(lab, host, 11, &mut unread);
        let mut flood = Floods(caller(&other), short.bytes().to_vec());
        work_beside(lab, host, 12, &mut flood);
        work_beside(lab, host, 13, &mut Opens(&other, Vec::new()));
    });
}

/// Passes bytes on between a host and so many connections of clients, and of what clients say only
/// as much as there is room for.
struct Relay {
    address: String,
    /// Bytes that may still go from clients to the host.
    room: Arc<AtomicUsize>,
}

impl Relay {
    fn start(host: SocketAddr, connections: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("tcp:{}", listener.local_addr().unwrap());
        let room = Arc::new(AtomicUsize::new(usize::MAX / 2));
        let left = Arc::clone(&room);
        std::thread::spawn(move || {
            for _ in 0..connections {
                let client = listener.accept().unwrap().0;
                let host = TcpStream::connect(host).unwrap();
                let back = (host.try_clone().unwrap(), client.try_clone().unwrap());
                let left = Arc::clone(&left);
                std::thread::spawn(move || pass(client, host, &left));
                std::thread::spawn(move || pass(back.0, back.1, &AtomicUsize::new(usize::MAX / 2)));
            }
        });
        Self { address, room }
    }
}

/// Until one of the two is gone. What there is no room for is dropped.
fn pass(mut from: TcpStream, mut to: TcpStream, room: &AtomicUsize) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        let take = |room: usize| Some(room - room.min(len));
        let before = room.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take);
        let may = before.unwrap_or(0).min(len);
        if to.write_all(&bytes[..may]).is_err() {
            return;
        }
    }
}

#[test]
fn who_sends_half_a_batch_hinders_nobody() {
    let lab = Lab::new(Fabric::Tcp);
    let host = host(&lab);
    let address = host.address.to_string();
    let address = address.strip_prefix("tcp:").unwrap().parse().unwrap();
    // A session, a data connection, and one for calls to each of the host's two threads.
    let relay = Relay::start(address, 4);
    let other = lab.client_of(&relay.address, 2);
    let mut halves = [caller(&other), caller(&other)];
    let mut batch = BatchWriter::default();
    batch.write((1, 1), 0, &[7; 3000]);
    for half in &mut halves {
        relay.room.store(2000, Ordering::SeqCst);
        half.call(batch.bytes(), 1).unwrap();
        half.flush();
        let deadline = Instant::now() + DEADLINE;
        while relay.room.load(Ordering::SeqCst) > 0 {
            assert!(Instant::now() < deadline, "the call does not get so far");
            std::thread::yield_now();
        }
    }
    work_beside(&lab, &host, 1, &mut Waits);
}

#[test]
fn a_call_that_is_no_batch_ends_its_connection_alone() {
    on_each(|lab, host| {
        let mut client = lab.client(host, 1);
        let window = client.try_map(1, 0).unwrap();
        for malformed in [&[][..], &[BATCH + 1], &[BATCH, 2, 0, 0, 0], &[BATCH, 9]] {
            let ended = call(&mut *caller(&client), malformed);
            assert_eq!(ended, Err(Status::Disconnected), "{malformed:?}");
        }
        let mut batch = BatchWriter::default();
        batch.write(name(&window), 0, b"well");
        let all = outcomes(&mut *caller(&client), &batch, &[0]);
        assert_eq!(all[0].0, Outcome::Done);
    });
}

#[test]
fn a_host_that_stops_ends_the_calls() {
    on_each(|lab, _| {
        let mut host = host(&Lab::new(Fabric::Shm));
        host.stop();
        let mut config = lab.config("second", 2);
        config.cache_threads = 1;
        let mut host = Host::start(config);
        let client = lab.client(&host, 1);
        let mut caller = caller(&client);
        host.stop();
        let batch = [BATCH];
        assert_eq!(call(&mut *caller, &batch), Err(Status::Disconnected));
    });
}
