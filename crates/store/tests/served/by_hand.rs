//! A client by hand: it says what a test has it say, in bytes.

use std::time::{Duration, Instant};

use cenote_fabric::calls::Caller;
use cenote_fabric::{ClientId, Connector as _, Hello, Incoming, Session, Time, connector, wait};
use cenote_store::{Medium, Server};

use crate::lab::{LIMIT, Lab};

pub struct ByHand {
    pub caller: Box<dyn Caller>,
    /// None once it has left; calls may be under way.
    pub session: Option<Box<dyn Session>>,
    /// What the server said of itself.
    pub greeting: Vec<u8>,
}

impl ByHand {
    /// One that was greeted: the server has a landing for it. Calls before that may be refused.
    pub fn connect<M: Medium>(lab: &Lab, server: &Server<M>, number: u128) -> Self {
        let hello = Hello {
            client: ClientId(number),
            name: "by hand".to_owned(),
        };
        let connector = connector(lab.key.clone());
        let address = &server.addresses()[0];
        let mut session = connector.connect(address, &hello, LIMIT).unwrap();
        session.send(&[1]).unwrap();
        let Incoming::Message(greeting) = received(&mut *session) else {
            panic!("no greeting");
        };
        Self {
            caller: session.caller_opener()(LIMIT).unwrap(),
            session: Some(session),
            greeting: greeting.to_vec(),
        }
    }

    /// The answer to one request.
    pub fn ask(&mut self, request: &[u8]) -> Vec<u8> {
        self.caller.call(request, 1).unwrap();
        let mut said = None;
        while said.is_none() {
            let take = &mut |_, answer: Result<&[u8], _>| said = Some(answer.unwrap().to_vec());
            self.caller.poll(Time::now(), take);
        }
        said.unwrap()
    }

    /// Space for a value: the version and the place that it is given.
    pub fn space(&mut self, key: &[u8], value_bytes: u32) -> (u64, u64) {
        self.space_of(key, value_bytes, 7)
    }

    /// The same, of a value with this checksum.
    pub fn space_of(&mut self, key: &[u8], value_bytes: u32, checksum: u32) -> (u64, u64) {
        let mut request = space(key, value_bytes);
        request[14..18].copy_from_slice(&checksum.to_le_bytes());
        let said = self.ask(&request);
        assert_eq!(said[0], 1, "no space was given: {said:?}");
        let word = |at: usize| u64::from_le_bytes(said[at..at + 8].try_into().unwrap());
        (word(1), word(11))
    }
}

/// A request for space: kind, condition, bytes, checksum, key.
pub fn space(key: &[u8], value_bytes: u32) -> Vec<u8> {
    let mut request = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    request.extend(value_bytes.to_le_bytes());
    request.extend(7_u32.to_le_bytes());
    request.extend(key);
    request
}

/// A request to make a version of the first shard durable: kind, shard, version.
pub fn settle(version: u64) -> Vec<u8> {
    let mut request = vec![5, 0, 0];
    request.extend(version.to_le_bytes());
    request
}

pub fn received(session: &mut dyn Session) -> Incoming {
    let until = Instant::now() + LIMIT;
    loop {
        if let Some(incoming) = session.receive().unwrap() {
            return incoming;
        }
        assert!(Instant::now() < until, "nothing comes");
        let fds: Vec<_> = session.fd().into_iter().collect();
        wait(&fds, Some(Duration::from_millis(10))).unwrap();
    }
}
