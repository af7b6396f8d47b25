//! Batches of reads and writes, carried out by a host's server threads.

mod support;

use std::time::Instant;

use cenote_fabric::calls::Caller;
use cenote_fabric::{Status, Time, wait};
use cenote_pool::batch::{Answers, BATCH, BatchWriter, Outcome};
use cenote_pool::control::{Request, Window};
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

/// Not even with the window's name, which it cannot guess.
#[test]
fn a_client_reaches_its_own_windows_alone() {
    on_each(|lab, host| {
        let mut owner = lab.client(host, 1);
        let window = owner.try_map(1, 0).unwrap();
        let other = lab.client(host, 2);
        let mut batch = BatchWriter::default();
        batch.write(name(&window), 0, b"theirs");
        batch.read(name(&window), 0, 6);
        let all = outcomes(&mut *caller(&other), &batch, &[0, 6]);
        assert!(
            all.iter().all(|(outcome, _)| *outcome == Outcome::Stale),
            "{all:?}"
        );
        let all = outcomes(&mut *caller(&owner), &batch, &[0, 6]);
        assert_eq!(all[1], (Outcome::Done, b"theirs".to_vec()));
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
