//! Questions to managers that end while they are asked.

use std::time::Duration;

use cenote_cache::service::message::{ToClient, ToManager};
use cenote_cache::service::question::{Answer, Question};
use cenote_cache::service::{CallError, ask, ask_while};
use cenote_fabric::{Address, ClusterKey, Event, Listen, Listener};

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
