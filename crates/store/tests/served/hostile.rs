//! Clients that do not do as they should: others are none the worse.

use std::fs::File;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{Address, ClientId, ClusterKey, Incoming, WireProtection, connector};
use cenote_store::client::{Client, ClientError, Command, Outcome};
use cenote_store::schemes::{Saw, all};
use cenote_store::{
    Condition, FileMedium, Medium as _, Pool, PoolConfig, Refusal, Server, ServerConfig,
};

use crate::by_hand::{ByHand, received, settle, space};
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
        let mut silent = ByHand::connect(&lab, &server, 1000);
        let caller = &mut silent.caller;
        let mut user = lab.client(&server);
        user.put_durable(b"key 1", b"before");
        for index in 0..40_u8 {
            let key = [b"key ", &[b'0' + index % 10][..]].concat();
            caller.call(&space(&key, 65_536), u64::from(index)).unwrap();
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
        let mut user = lab.client(&server);
        user.put(b"key", b"value");
        for round in 0..20_u8 {
            let mut client = ByHand::connect(&lab, &server, 2000 + u128::from(round));
            let caller = &mut client.caller;
            caller.call(&[round; 30], 1).unwrap();
            caller.call(&[255; 10], 2).unwrap();
            let mut ends = 0;
            while ends < 2 {
                caller.poll(cenote_fabric::Time::now(), &mut |_, _| ends += 1);
            }
            drop(client.session.unwrap().send(&[9, 9, 9]));
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
    let mut clients = [3000, 3001].map(|number| ByHand::connect(&lab, &server, number));
    let (version, _) = clients[0].space(b"key", 5);
    let settle = settle(version);
    assert_eq!(clients[1].ask(&settle)[..2], [7, 6], "the other is refused");
    assert_eq!(server.figures()[0].backlog, 1, "and it still waits");
    // Its own client's word counts: the value is not there, and it is given up.
    assert_eq!(clients[0].ask(&settle)[..2], [7, 6]);
    assert_eq!(server.figures()[0].backlog, 0);
}

/// Where a message says that a value was written, the sequence in it is the whole one.
#[test]
fn a_notice_is_about_the_version_that_it_names_or_ends_its_connection() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            shards: 1,
            scheme: Arc::new(Saw),
            ..Options::new(transport)
        };
        let server = lab.serve(&options);
        let mut client = ByHand::connect(&lab, &server, 3000);
        let (version, _) = client.space(b"key", 5);
        let session = &mut **client.session.as_mut().unwrap();
        let message = |kind: u8, version: u64, last: u8| {
            [&[kind, 0, 0][..], &version.to_le_bytes(), &[last]].concat()
        };
        let mut told = |version| {
            session.send(&message(2, version, 0)).unwrap();
            match received(session) {
                Incoming::Message(bytes) => bytes,
                other => panic!("{other:?}"),
            }
        };
        let another = version | 1 << 32;
        assert_eq!(told(another), message(3, another, 0));
        assert_eq!(
            server.figures()[0].backlog,
            1,
            "and the version still waits"
        );
        assert_eq!(told(version), message(3, version, 0));
        assert_eq!(server.figures()[0].backlog, 0);
        session.send(&message(2, version, 1)).unwrap();
        let until = std::time::Instant::now() + LIMIT;
        while session.receive().is_ok() {
            assert!(std::time::Instant::now() < until, "it was taken");
            std::thread::yield_now();
        }
    }
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
    let mut silent = ByHand::connect(&lab, &server, 3000);
    for _ in 0..10 {
        silent.space(b"key", 5);
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

/// It opens the descriptors that it was given once more, by their paths.
#[test]
fn who_may_only_read_a_store_can_neither_write_nor_cut_its_memory() {
    for scheme in all() {
        let name = scheme.name();
        // They write the log, and are trusted with it.
        let writes_log = !["efactory", "rpc"].contains(&name);
        let lab = Lab::new();
        let file = lab.file(0);
        file.set_len(1 << 20).unwrap();
        let places = PoolConfig {
            entry_count: 64,
            seed: 7,
        };
        let pool = Pool::create(FileMedium::open(file).unwrap(), places).unwrap();
        let index = Arc::clone(pool.index_memory());
        let log = Arc::clone(pool.medium().memory().unwrap());
        let config = ServerConfig {
            addresses: vec![Address::Shm(lab.folder.path().join("store.sock"))],
            key: lab.key.clone(),
            scheme: Arc::from(scheme),
            threads: 1,
            landing_bytes: 1 << 20,
            patience: LIMIT,
            page_traffic: WireProtection::default(),
        };
        let server = Server::start(vec![pool], config).unwrap();
        let mut user = lab.client(&server);
        user.put(b"key", b"value");
        for (what, memory, is_writable) in [("index", index, false), ("log", log, writes_log)] {
            let path = format!("/proc/self/fd/{}", memory.as_fd().as_raw_fd());
            let opened = File::options().read(true).write(true).open(path).unwrap();
            let mut end = [0; 8];
            let at = memory.len_bytes() - 8;
            memory.read(at, &mut end).unwrap();
            let written = opened.write_at(&end, at);
            assert_eq!(
                written.is_ok(),
                is_writable,
                "{what} of {name}: {written:?}"
            );
            for len in [0, at, 2 * at] {
                assert!(opened.set_len(len).is_err(), "{what} of {name}");
            }
        }
        assert_eq!(user.get(b"key"), Some(b"value".to_vec()));
        user.put(b"key", b"another");
    }
}
