//! Clients that do not do as they should: others are none the worse.

use std::time::Duration;

use cenote_fabric::{ClientId, ClusterKey, Connector as _, Hello, connector};
use cenote_store::client::{Client, ClientError, Command, Outcome};
use cenote_store::{Condition, Refusal};

use crate::lab::{LIMIT, Lab, Options, TRANSPORTS};

#[test]
fn who_has_another_key_gets_nothing() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options::new(transport));
        let other = connector(ClusterKey::generate().unwrap());
        let address = &server.addresses()[0];
        assert!(Client::connect(&other, address, ClientId(9), LIMIT).is_err());
    }
}

#[test]
fn a_client_that_announces_values_and_writes_none_hinders_nobody() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            patience: Duration::from_millis(200),
            landing_bytes: 1 << 20,
            ..Options::new(transport)
        };
        let server = lab.serve(&options);
        let connector = connector(lab.key.clone());
        let hello = Hello {
            client: ClientId(1000),
            name: "silent".to_owned(),
        };
        let address = &server.addresses()[0];
        let session = connector.connect(address, &hello, LIMIT).unwrap();
        let mut caller = session.caller_opener()(LIMIT).unwrap();
        let mut user = lab.client(&server);
        user.put_durable(b"key 1", b"before");
        // Space for values of 64 KiB, by hand: kind, condition, bytes, checksum, key.
        for index in 0..40_u8 {
            let mut request = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            request.extend(65_536_u32.to_le_bytes());
            request.extend(7_u32.to_le_bytes());
            request.extend([b"key ", &[b'0' + index % 10][..]].concat());
            caller.call(&request, u64::from(index)).unwrap();
        }
        let mut refused = 0;
        while caller.outstanding() > 0 {
            caller.poll(cenote_fabric::Time::now(), &mut |_, answer| {
                refused += u32::from(answer.unwrap()[0] == 7);
            });
        }
        assert!(
            refused >= 24,
            "its landing has room for 16, {refused} were refused"
        );
        // What it announced is passed over, and given up.
        assert_eq!(user.get(b"key 1"), Some(b"before".to_vec()));
        for round in 0..200_u32 {
            user.put_durable(b"key 2", &round.to_le_bytes());
            assert_eq!(user.get(b"key 2"), Some(round.to_le_bytes().to_vec()));
        }
        let until = std::time::Instant::now() + LIMIT;
        while server.figures().iter().any(|one| one.backlog > 0) {
            assert!(std::time::Instant::now() < until, "versions wait for ever");
            std::thread::yield_now();
        }
        assert_eq!(user.get(b"key 1"), Some(b"before".to_vec()));
    }
}

#[test]
fn nonsense_ends_its_own_connection_alone() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options::new(transport));
        let connector = connector(lab.key.clone());
        let mut user = lab.client(&server);
        user.put(b"key", b"value");
        for round in 0..20_u8 {
            let hello = Hello {
                client: ClientId(2000 + u128::from(round)),
                name: "nonsense".to_owned(),
            };
            let address = &server.addresses()[0];
            let mut session = connector.connect(address, &hello, LIMIT).unwrap();
            let mut caller = session.caller_opener()(LIMIT).unwrap();
            caller.call(&[round; 30], 1).unwrap();
            caller.call(&[255; 10], 2).unwrap();
            let mut ends = 0;
            while ends < 2 {
                caller.poll(cenote_fabric::Time::now(), &mut |_, _| ends += 1);
            }
            drop(session.send(&[9, 9, 9]));
        }
        assert_eq!(user.get(b"key"), Some(b"value".to_vec()));
    }
}

#[test]
fn a_value_that_is_too_large_is_refused_and_nothing_is_lost() {
    let lab = Lab::new();
    let options = Options {
        landing_bytes: 64 << 10,
        ..Options::new(TRANSPORTS[0])
    };
    let server = lab.serve(&options);
    let mut user = lab.client(&server);
    user.put(b"key", b"value");
    let put = |value: Vec<u8>| Command::Put {
        key: b"key".to_vec(),
        value,
        condition: Condition::Always,
        is_durable: false,
    };
    let refused = user.call(put(vec![0; 65 << 10]));
    assert_eq!(refused, Err(ClientError::Refused(Refusal::Value)));
    let refused = user.call(put(vec![0; (1 << 20) + 1]));
    assert!(matches!(refused, Err(ClientError::Size { .. })));
    assert_eq!(user.get(b"key"), Some(b"value".to_vec()));
}

/// Whoever says that a value is there has it given up if it is not: that is its own client's to say.
#[test]
fn a_client_does_not_end_what_another_is_writing() {
    let lab = Lab::new();
    let options = Options {
        shards: 1,
        ..Options::new(TRANSPORTS[1])
    };
    let server = lab.serve(&options);
    let connector = connector(lab.key.clone());
    let address = &server.addresses()[0];
    let mut callers = Vec::new();
    for number in 0..2 {
        let hello = Hello {
            client: ClientId(3000 + number),
            name: "by hand".to_owned(),
        };
        let session = connector.connect(address, &hello, LIMIT).unwrap();
        let caller = session.caller_opener()(LIMIT).unwrap();
        callers.push((session, caller));
    }
    let mut ask = |from: usize, request: &[u8]| -> Vec<u8> {
        let caller = &mut callers[from].1;
        caller.call(request, 1).unwrap();
        let mut said = None;
        while said.is_none() {
            let take = &mut |_, answer: Result<&[u8], _>| said = Some(answer.unwrap().to_vec());
            caller.poll(cenote_fabric::Time::now(), take);
        }
        said.unwrap()
    };
    // Space for a value that is on its way: kind, condition, bytes, checksum, key.
    let mut space = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    space.extend(5_u32.to_le_bytes());
    space.extend(7_u32.to_le_bytes());
    space.extend(b"key");
    let given = ask(0, &space);
    assert_eq!(given[0], 1, "space was given");
    let mut settle = vec![5, 0, 0];
    settle.extend(&given[1..9]);
    assert_eq!(ask(1, &settle)[..2], [7, 6], "the other is refused");
    assert_eq!(server.figures()[0].backlog, 1, "and it still waits");
    // Its own client's word counts: the value is not there, and it is given up.
    assert_eq!(ask(0, &settle)[..2], [7, 6]);
    assert_eq!(server.figures()[0].backlog, 0);
}

/// A change by version waits for the newest version, and not for ever: its client may never write it.
#[test]
fn a_change_behind_values_that_never_come_succeeds_once_they_are_given_up() {
    let lab = Lab::new();
    let options = Options {
        shards: 1,
        patience: Duration::from_millis(300),
        ..Options::new(TRANSPORTS[1])
    };
    let server = lab.serve(&options);
    let mut user = lab.client(&server);
    let first = user.put_durable(b"key", b"value");
    let connector = connector(lab.key.clone());
    let hello = Hello {
        client: ClientId(3000),
        name: "by hand".to_owned(),
    };
    let session = connector
        .connect(&server.addresses()[0], &hello, LIMIT)
        .unwrap();
    let mut caller = session.caller_opener()(LIMIT).unwrap();
    let mut space = vec![1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    space.extend(5_u32.to_le_bytes());
    space.extend(7_u32.to_le_bytes());
    space.extend(b"key");
    for _ in 0..10 {
        caller.call(&space, 1).unwrap();
        let mut said = None;
        while said.is_none() {
            let take = &mut |_, answer: Result<&[u8], _>| said = Some(answer.unwrap()[0]);
            caller.poll(cenote_fabric::Time::now(), take);
        }
        assert_eq!(said, Some(1), "space was given");
    }
    let changed = user.call(Command::Put {
        key: b"key".to_vec(),
        value: b"another".to_vec(),
        condition: Condition::Sequence(first),
        is_durable: true,
    });
    assert!(matches!(changed, Ok(Outcome::Done { .. })), "{changed:?}");
    assert_eq!(user.get(b"key"), Some(b"another".to_vec()));
}
