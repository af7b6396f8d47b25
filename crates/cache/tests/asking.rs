//! Questions to managers that end while they are asked.

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use cenote_cache::Configuration;
use cenote_cache::service::message::{ToClient, ToManager, VERSION, Welcome};
use cenote_cache::service::question::{Answer, Question, Status};
use cenote_cache::service::{Cache, CallError, Options, ask, ask_while};
use cenote_fabric::{Address, ClusterKey, Event, Listen, Listener, PeerId};

const DEADLINE: Duration = Duration::from_secs(60);

/// A manager that takes what it is asked and answers as `answer` says; nothing ends the connection.
fn answer_once(mut listener: Listener, answer: Option<&Answer>) -> ToManager {
    let mut events = Vec::new();
    loop {
        listener.poll(Some(DEADLINE), &mut events).unwrap();
        for event in std::mem::take(&mut events) {
            let Event::Message { peer, bytes } = event else {
                continue;
            };
            let asked = ToManager::decode(&bytes).unwrap();
            if let (Some(answer), ToManager::Ask { number, .. }) = (answer, &asked) {
                let part = serde_json::to_vec(answer).unwrap();
                let (number, is_last) = (*number, true);
                let told = ToClient::Answer {
                    number,
                    is_last,
                    part,
                };
                listener.send(peer, &told.encode()).unwrap();
                // Until who asked has it, and goes.
                while !events
                    .iter()
                    .any(|one| matches!(one, Event::Disconnected { .. }))
                {
                    listener.poll(Some(DEADLINE), &mut events).unwrap();
                }
            }
            return asked;
        }
    }
}

#[test]
fn a_manager_that_ends_while_it_is_asked_keeps_nobody_waiting() {
    // Longer than any test may take.
    const FOR_EVER: Duration = Duration::from_secs(36_000);
    let folder = tempfile::tempdir().unwrap();
    let key = ClusterKey::generate().unwrap();
    let address = Address::Shm(folder.path().join("manager"));
    let listen = || Listener::bind(std::slice::from_ref(&address), &key).unwrap();
    let asked = |question: &Question, first: Listener| {
        let dies = std::thread::spawn(move || answer_once(first, None));
        let found = ask_while(vec![address.clone()], &key, question, FOR_EVER, &mut || {
            !dies.is_finished()
        });
        assert!(matches!(dies.join().unwrap(), ToManager::Ask { .. }));
        found
    };
    // Nobody knows whether it was done.
    let deleted = asked(&Question::Delete, listen());
    assert!(matches!(deleted, Err(CallError::Ended)), "{deleted:?}");
    // Who wanted to know something may ask the next one, and there is none.
    let status = asked(&Question::Status, listen());
    assert!(matches!(status, Err(CallError::NoManager)), "{status:?}");
    // Nothing was asked of one that is not there.
    let nobody = ask_while(
        vec![address.clone()],
        &key,
        &Question::Delete,
        FOR_EVER,
        &mut || false,
    );
    assert!(matches!(nobody, Err(CallError::NoManager)), "{nobody:?}");
    // The next one is there at once.
    let first = listen();
    let (at, its_key) = (address.clone(), key.clone());
    let managers = std::thread::spawn(move || {
        answer_once(first, None);
        let next = Listener::bind(&[at], &its_key).unwrap();
        answer_once(next, Some(&Answer::Status(Box::default())))
    });
    let status = ask(vec![address], &key, &Question::Status, FOR_EVER);
    assert!(matches!(status, Ok(Answer::Status(_))), "{status:?}");
    managers.join().unwrap();
}

/// What a manager of a cache without a region says, and what it was asked.
fn serve(listener: &mut Listener, peer: PeerId, said: ToManager) -> Option<Question> {
    let told = match said {
        ToManager::Join { .. } => ToClient::Welcome(Welcome {
            version: VERSION,
            cache: 1,
            epoch: 1,
            slab_bytes: 1 << 20,
            slabs_per_region: 1,
            hosts: 0,
            configuration: Configuration {
                c: 1,
                s: 0,
                b: 1,
                q: 1,
            },
        }),
        ToManager::Alive { asked_at } => ToClient::Lease { asked_at },
        ToManager::Ask { number, question } => {
            let question = serde_json::from_slice(&question).unwrap();
            let answer = match question {
                Question::Status => Answer::Status(Box::default()),
                _ => Answer::Done,
            };
            let part = serde_json::to_vec(&answer).unwrap();
            let is_last = true;
            let told = ToClient::Answer {
                number,
                is_last,
                part,
            };
            listener.send(peer, &told.encode()).unwrap();
            return Some(question);
        }
        _ => return None,
    };
    listener.send(peer, &told.encode()).unwrap();
    None
}

/// Serves until it is told to end; what it was asked.
fn serve_until(mut listener: Listener, ended: &Receiver<()>) -> Vec<Question> {
    let (mut asked, mut events) = (Vec::new(), Vec::new());
    while ended.try_recv().is_err() {
        let a_moment = Some(Duration::from_millis(10));
        listener.poll(a_moment, &mut events).unwrap();
        for event in std::mem::take(&mut events) {
            if let Event::Message { peer, bytes } = event {
                let said = ToManager::decode(&bytes).unwrap();
                asked.extend(serve(&mut listener, peer, said));
            }
        }
    }
    asked
}

#[test]
fn what_nobody_waits_for_any_more_is_not_asked_of_the_next_manager() {
    let folder = tempfile::tempdir().unwrap();
    let key = ClusterKey::generate().unwrap();
    let address = Address::Shm(folder.path().join("manager"));
    let listen = || Listener::bind(std::slice::from_ref(&address), &key).unwrap();
    let manager = || {
        let (ends, ended) = channel();
        let listener = listen();
        (
            ends,
            std::thread::spawn(move || serve_until(listener, &ended)),
        )
    };
    let options = Options {
        timeout: Duration::from_secs(1),
        ..Options::default()
    };
    let (ends, first) = manager();
    // A busy machine may take longer than that.
    let mut cache = loop {
        match Cache::open(vec![address.clone()], &key, &options) {
            Ok(cache) => break cache,
            Err(error) => println!("{error}"),
        }
    };
    ends.send(()).unwrap();
    assert_eq!(first.join().unwrap(), []);
    let given_up = cache.reshape(1);
    assert!(
        matches!(given_up, Err(CallError::Silent(_))),
        "{given_up:?}"
    );
    let (ends, next) = manager();
    let status: Status = loop {
        match cache.status() {
            Ok(status) => break status,
            Err(error) => assert!(matches!(error, CallError::Silent(_)), "{error:?}"),
        }
    };
    assert_eq!(status, Status::default());
    ends.send(()).unwrap();
    let asked = next.join().unwrap();
    let is_status = |one: &Question| *one == Question::Status;
    assert!(asked.iter().all(is_status), "{asked:?}");
}
