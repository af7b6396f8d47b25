//! Calls: answered once, under the caller's name; bounded; ended with what they depend on.

use std::time::Duration;

use super::client::hello;
use super::{Backend, DEADLINE, Host, Traits};
use cenote_fabric::calls::{
    Answered, Answering, CALL_BYTES_MAX, CALLS_UNDER_WAY_MAX, Call, CallId, Caller, CallsFull,
};
use cenote_fabric::{Error, Result, Session, Status, Token};

type Test = (&'static str, fn(&dyn Backend), fn(&Traits) -> bool);

pub(super) const CASES: &[Test] = &[
    ("calls_are_answered_under_the_callers_name", answered, all),
    (
        "as_many_calls_as_may_be_are_under_way_and_one_more_waits",
        many,
        all,
    ),
    (
        "the_longest_messages_go_both_ways_and_around_the_ring",
        longest,
        all,
    ),
    (
        "who_takes_no_answers_and_floods_hinders_nobody_else",
        flood,
        all,
    ),
    ("a_call_that_is_none_ends_its_connection_alone", wrong, all),
    (
        "the_end_of_a_session_is_the_end_of_its_calls",
        session_ends,
        all,
    ),
    ("a_clients_callers_are_bounded", bounded, all),
    ("calls_to_a_killed_host_end", killed, |traits| {
        traits.has_processes
    }),
    ("calls_to_a_stopped_host_time_out", stopped, |traits| {
        traits.has_processes
    }),
];

fn all(_: &Traits) -> bool {
    true
}

/// Hosts under test have so many server threads, which echo.
pub(super) const SERVER_THREADS: usize = 2;

/// What the echo does with requests that begin so.
const LATER: u8 = 0xF0;
const NEVER: u8 = 0xF1;
/// Makes an answer of the longest length.
const LONG: u8 = 0xF2;

/// Calls whose answers come at the end of a turn, the last first.
type Later = Vec<(CallId, Vec<u8>)>;

/// The client's number, then the request.
fn echo(call: &Call<'_>, answer: &mut Vec<u8>, later: &mut Later) -> Answered {
    match call.request.first() {
        Some(&LATER) => {
            later.push((call.id, call.request.to_vec()));
            return Answered::Later;
        }
        Some(&NEVER) => return Answered::Never("asked for"),
        Some(&LONG) => answer.resize(CALL_BYTES_MAX, LONG),
        _ => {
            answer.push(call.client.0 as u8);
            answer.extend_from_slice(call.request);
        }
    }
    Answered::Now
}

/// A turn of a server thread that echoes.
///
/// # Errors
/// Those of [`Answering::turn`].
pub(super) fn serve(answerer: &mut dyn Answering, patience: Option<Duration>) -> Result<bool> {
    let mut later = Later::new();
    let mut handler = |call: Call<'_>, answer: &mut Vec<u8>| echo(&call, answer, &mut later);
    let any = answerer.turn(patience, &mut handler)?;
    for (call, answer) in later.into_iter().rev() {
        answerer.answer(call, &answer);
    }
    Ok(any)
}

fn connect(backend: &dyn Backend, host: &dyn Host, client: u128) -> Box<dyn Session> {
    let connected = backend
        .connector()
        .connect(&host.address(), &hello(client), DEADLINE);
    connected.expect("connect")
}

fn caller(session: &dyn Session) -> Box<dyn Caller> {
    session.caller_opener()(DEADLINE).expect("a connection for calls")
}

type Ended = (Token, std::result::Result<Vec<u8>, Status>);

/// Waits for `count` ends, blocking in between.
fn ends(backend: &dyn Backend, caller: &mut dyn Caller, count: usize) -> Vec<Ended> {
    let start = backend.now();
    let mut ended: Vec<Ended> = Vec::new();
    caller.flush();
    loop {
        caller.poll(backend.now(), &mut |token, answer| {
            ended.push((token, answer.map(<[u8]>::to_vec)));
        });
        if ended.len() >= count {
            return ended;
        }
        let waited = backend.now().since(start);
        assert!(
            waited < DEADLINE,
            "{} of {count} calls ended in {waited:?}, {} under way",
            ended.len(),
            caller.outstanding()
        );
        let fds: Vec<_> = caller.fd().into_iter().collect();
        backend.pause(&fds);
    }
}

fn answered(backend: &dyn Backend) {
    let host = backend.start_host();
    let session = connect(backend, &*host, 7);
    let mut caller = caller(&*session);
    for round in 0..20_u8 {
        caller.call(&[round; 9], u64::from(round)).expect("room");
        let ended = ends(backend, &mut *caller, 1);
        let mut expected = vec![7];
        expected.extend([round; 9]);
        assert_eq!(ended, [(u64::from(round), Ok(expected))]);
    }
    assert_eq!(caller.outstanding(), 0);
}

fn many(backend: &dyn Backend) {
    let host = backend.start_host();
    let session = connect(backend, &*host, 1);
    let mut caller = caller(&*session);
    // Answered late and in the other order, so that all are under way together.
    for token in 0..CALLS_UNDER_WAY_MAX as u64 {
        let number = (token % 100) as u8;
        caller.call(&[LATER, number], token).expect("room");
    }
    assert_eq!(caller.call(&[1], 0), Err(CallsFull));
    let mut ended = ends(backend, &mut *caller, CALLS_UNDER_WAY_MAX);
    ended.sort_by_key(|(token, _)| *token);
    for (token, (ended, answer)) in (0..).zip(ended) {
        let number = (token % 100) as u8;
        assert_eq!((ended, answer), (token, Ok(vec![LATER, number])));
    }
    caller.call(&[1], 3).expect("room");
    assert_eq!(ends(backend, &mut *caller, 1), [(3, Ok(vec![1, 1]))]);
}

fn longest(backend: &dyn Backend) {
    let host = backend.start_host();
    let session = connect(backend, &*host, 3);
    let mut caller = caller(&*session);
    for round in 0..40_u8 {
        let request = vec![round; CALL_BYTES_MAX - 1];
        caller.call(&request, 5).expect("room");
        caller.call(&[LONG], 6).expect("room");
        let mut ended = ends(backend, &mut *caller, 2);
        ended.sort_by_key(|(token, _)| *token);
        let mut echoed = vec![3];
        echoed.extend(&request);
        assert_eq!(ended[0], (5, Ok(echoed)));
        assert_eq!(ended[1], (6, Ok(vec![LONG; CALL_BYTES_MAX])));
    }
}

fn flood(backend: &dyn Backend) {
    let host = backend.start_host();
    let flooding = connect(backend, &*host, 8);
    let mut flood = caller(&*flooding);
    let session = connect(backend, &*host, 9);
    let mut honest = caller(&*session);
    // 255 answers of 64 KiB are far more than any buffer on the way holds.
    let mut made = 0;
    while made < CALLS_UNDER_WAY_MAX - 1 && flood.call(&[LONG], made as u64).is_ok() {
        made += 1;
    }
    flood.flush();
    for round in 0..50_u8 {
        honest.call(&[round], 1).expect("room");
        let ended = ends(backend, &mut *honest, 1);
        assert_eq!(ended, [(1, Ok(vec![9, round]))]);
    }
    // It has lost nothing but time.
    let ended = ends(backend, &mut *flood, made);
    assert!(ended.iter().all(|(_, answer)| answer.is_ok()));
}

fn wrong(backend: &dyn Backend) {
    let host = backend.start_host();
    let session = connect(backend, &*host, 2);
    let mut wrong = caller(&*session);
    let mut right = caller(&*session);
    wrong.call(&[NEVER], 1).expect("room");
    wrong.call(&[1], 2).expect("room");
    let mut ended = ends(backend, &mut *wrong, 2);
    ended.sort_by_key(|(token, _)| *token);
    let lost = Err(Status::Disconnected);
    assert_eq!(ended, [(1, lost.clone()), (2, lost)]);
    assert!(wrong.is_dead());
    wrong.call(&[1], 3).expect("a dead one takes it, too");
    let ended = ends(backend, &mut *wrong, 1);
    assert_eq!(ended, [(3, Err(Status::Disconnected))]);
    right.call(&[4], 4).expect("room");
    assert_eq!(ends(backend, &mut *right, 1), [(4, Ok(vec![2, 4]))]);
}

fn session_ends(backend: &dyn Backend) {
    let host = backend.start_host();
    let session = connect(backend, &*host, 5);
    let opener = session.caller_opener();
    let mut caller = opener(DEADLINE).expect("a connection for calls");
    caller.call(&[1], 1).expect("room");
    assert_eq!(ends(backend, &mut *caller, 1), [(1, Ok(vec![5, 1]))]);
    // The next session of the same client ends the first on the host's side.
    let next = connect(backend, &*host, 5);
    caller.call(&[2], 2).expect("room");
    let ended = ends(backend, &mut *caller, 1);
    // It may have been answered just before.
    if ended[0].1.is_ok() {
        let start = backend.now();
        while !caller.is_dead() {
            let waited = backend.now().since(start);
            assert!(waited < DEADLINE, "the connection stands");
            let fds: Vec<_> = caller.fd().into_iter().collect();
            backend.pause(&fds);
            caller.poll(backend.now(), &mut |_, _| {});
        }
    }
    drop(session);
    assert!(matches!(opener(DEADLINE), Err(Error::Closed)));
    drop(next);
}

fn bounded(backend: &dyn Backend) {
    let host = backend.start_host();
    let session = connect(backend, &*host, 5);
    let opener = session.caller_opener();
    let mut callers = Vec::new();
    let bound = loop {
        match opener(DEADLINE) {
            Ok(caller) => callers.push(caller),
            Err(error) => break error,
        }
        assert!(callers.len() <= 64, "no bound on a client's connections");
    };
    assert!(matches!(bound, Error::Bound(_)), "{bound}");
    for caller in &mut callers {
        caller.call(&[1], 1).expect("room");
    }
    for caller in &mut callers {
        assert_eq!(ends(backend, &mut **caller, 1), [(1, Ok(vec![5, 1]))]);
    }
}

fn killed(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let session = connect(backend, &*host, 4);
    let mut caller = caller(&*session);
    caller.call(&[1], 1).expect("room");
    assert_eq!(ends(backend, &mut *caller, 1), [(1, Ok(vec![4, 1]))]);
    host.kill();
    caller.call(&[2], 2).expect("room");
    let ended = ends(backend, &mut *caller, 1);
    assert!(matches!(ended[..], [(2, Err(_))]), "{ended:?}");
    assert!(caller.is_dead());
}

/// A server thread that is stopped while it owes an answer counts as failed.
fn stopped(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let session = connect(backend, &*host, 4);
    let mut caller = caller(&*session);
    host.stop();
    caller.call(&[2], 2).expect("room");
    let ended = ends(backend, &mut *caller, 1);
    assert_eq!(ended, [(2, Err(Status::Timeout))]);
    assert!(caller.is_dead());
    host.resume();
}
