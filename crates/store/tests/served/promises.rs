//! What each acknowledgement promises, with real servers.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_store::client::{ClientError, Command, Outcome};
use cenote_store::{Condition, Refusal};

use crate::by_hand::{ByHand, settle};
use crate::lab::{LIMIT, Lab, Options, TRANSPORTS, Transport};

#[test]
fn what_was_put_is_got_by_others_whatever_its_size() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options::new(transport));
        let (mut one, mut other) = (lab.client(&server), lab.client(&server));
        for (index, len) in [0, 1, 15, 16, 100, 4096, 70_000, 1 << 20]
            .into_iter()
            .enumerate()
        {
            let key = vec![b'k'; 1 + index * 35];
            let value: Vec<u8> = (0..len).map(|at| (at * 7 + index) as u8).collect();
            let first = one.put(&key, &value);
            assert_eq!(
                one.get(&key),
                Some(value.clone()),
                "{transport:?}, {len} bytes"
            );
            assert_eq!(other.get(&key), Some(value.clone()));
            let second = other.put_durable(&key, &value);
            assert!(second > first);
            assert_eq!(one.get(&key), Some(value));
        }
        assert_eq!(one.get(b"nothing"), None);
        one.delete(b"k");
        assert_eq!(other.get(b"k"), None);
        assert_eq!(one.sync(), 0);
        let has_pure = other.0.counts().pure_gets > 0;
        assert_eq!(
            has_pure,
            transport == Transport::Shm,
            "over TCP they are calls"
        );
    }
}

#[test]
fn what_is_durable_is_there_after_the_server_was_killed_and_the_rest_is_whole_or_not() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options::new(transport);
        let server = lab.serve(&options);
        let mut user = lab.client(&server);
        for index in 0..50_u32 {
            let key = format!("durable {index}");
            user.put_durable(key.as_bytes(), &index.to_le_bytes().repeat(20));
        }
        for index in 0..50_u32 {
            let key = format!("synced {index}");
            user.put(key.as_bytes(), &index.to_le_bytes().repeat(30));
        }
        assert_eq!(user.sync(), 0);
        for index in 0..50_u32 {
            let key = format!("weak {index}");
            user.put(key.as_bytes(), &index.to_le_bytes().repeat(40));
        }
        // What a killed process leaves: its files as they are now.
        let copies: Vec<Vec<u8>> = (0..options.shards)
            .map(|shard| std::fs::read(lab.folder.path().join(format!("pool.{shard}"))).unwrap())
            .collect();
        drop(user);
        drop(server);
        for (shard, copy) in copies.iter().enumerate() {
            let path = lab.folder.path().join(format!("pool.{shard}"));
            std::fs::write(path, copy).unwrap();
        }
        let server = lab.serve(&options);
        let mut user = lab.client(&server);
        for index in 0..50_u32 {
            let durable = user.get(format!("durable {index}").as_bytes());
            assert_eq!(durable, Some(index.to_le_bytes().repeat(20)));
            let synced = user.get(format!("synced {index}").as_bytes());
            assert_eq!(synced, Some(index.to_le_bytes().repeat(30)));
            if let Some(weak) = user.get(format!("weak {index}").as_bytes()) {
                assert_eq!(weak, index.to_le_bytes().repeat(40));
            }
        }
    }
}

#[test]
fn what_was_put_outlives_its_client_and_an_orderly_end() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options::new(transport);
        let server = lab.serve(&options);
        for index in 0..20_u32 {
            let mut user = lab.client(&server);
            user.put(format!("key {index}").as_bytes(), &index.to_le_bytes());
        }
        let pools = server.stop().unwrap();
        for pool in pools {
            pool.close().unwrap();
        }
        let server = lab.serve(&options);
        let mut user = lab.client(&server);
        for index in 0..20_u32 {
            let value = user.get(format!("key {index}").as_bytes());
            assert_eq!(value, Some(index.to_le_bytes().to_vec()));
        }
    }
}

#[test]
fn changes_by_version_are_made_once() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options::new(transport));
        let (mut one, mut other) = (lab.client(&server), lab.client(&server));
        let put = |condition, value: &[u8]| Command::Put {
            key: b"key".to_vec(),
            value: value.to_vec(),
            condition,
            is_durable: false,
        };
        let first = one.call(put(Condition::Absent, b"first")).unwrap();
        let Outcome::Done { sequence } = first else {
            panic!("{first:?}");
        };
        let refused = other.call(put(Condition::Absent, b"second"));
        let newest = Refusal::Condition(Some(sequence));
        assert_eq!(refused, Err(ClientError::Refused(newest)));
        other
            .call(put(Condition::Sequence(sequence), b"second"))
            .unwrap();
        let late = one.call(put(Condition::Sequence(sequence), b"third"));
        assert!(matches!(
            late,
            Err(ClientError::Refused(Refusal::Condition(Some(_))))
        ));
        assert_eq!(one.get(b"key"), Some(b"second".to_vec()));
    }
}

#[test]
fn keys_are_listed_by_prefix() {
    let lab = Lab::new();
    let server = lab.serve(&Options::new(TRANSPORTS[1]));
    let mut user = lab.client(&server);
    for index in 0..300 {
        user.put(format!("key {index}").as_bytes(), b"value");
    }
    user.sync();
    user.delete(b"key 17");
    let mut keys = Vec::new();
    for shard in 0..user.0.shard_count() {
        let mut slot = Some(0);
        while let Some(from) = slot {
            let (some, next) = user
                .0
                .list(shard, from, b"key 1", Duration::from_secs(9))
                .unwrap();
            keys.extend(some);
            slot = next;
        }
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 110);
}

#[test]
fn a_store_takes_many_times_its_log_while_others_read() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            pool_bytes: 1 << 20,
            ..Options::new(transport)
        };
        let server = lab.serve(&options);
        let mut user = lab.client(&server);
        let mut reader = lab.client(&server);
        let value = |round: u32| round.to_le_bytes().repeat(100 + round as usize % 50);
        let mut written = 0;
        for round in 0..6_000_u32 {
            let key = format!("key {}", round % 50);
            user.put(key.as_bytes(), &value(round));
            written += value(round).len();
            let read = format!("key {}", round * 7 % 50);
            let Some(read) = reader.get(read.as_bytes()) else {
                assert!(round < 50, "round {round}: a key is gone");
                continue;
            };
            let number = u32::from_le_bytes(read[..4].try_into().unwrap());
            assert_eq!(read, value(number), "round {round}");
            assert!(number <= round && round - number < 100);
        }
        assert!(written > 2 << 20);
    }
}

#[test]
fn mapped_files_do_as_ordinary_ones() {
    let lab = Lab::new();
    let options = Options::new(TRANSPORTS[0]);
    let server = lab.serve_pm(&options);
    let mut user = lab.client(&server);
    for index in 0..500_u32 {
        let key = format!("key {}", index % 100);
        user.put(key.as_bytes(), &index.to_le_bytes().repeat(9));
        assert_eq!(
            user.get(key.as_bytes()),
            Some(index.to_le_bytes().repeat(9))
        );
    }
    user.put_durable(b"durable", b"value");
    drop(user);
    drop(server);
    let server = lab.serve_pm(&options);
    let mut user = lab.client(&server);
    assert_eq!(user.get(b"durable"), Some(b"value".to_vec()));
    for index in 400..500_u32 {
        let key = format!("key {}", index % 100);
        assert_eq!(
            user.get(key.as_bytes()),
            Some(index.to_le_bytes().repeat(9))
        );
    }
}

/// A value may come, and be asked for, while a group is under way that looked for it before.
#[test]
fn durable_puts_beside_each_other_are_all_taken() {
    const UNDER_WAY: u64 = 16;
    const PUTS: u64 = 600;
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let options = Options {
            pool_bytes: 64 << 20,
            ..Options::new(transport)
        };
        let server = lab.serve(&options);
        let mut client = lab.client(&server).0;
        let put = |number: u64| Command::Put {
            key: format!("key {}", number % 40).into_bytes(),
            value: vec![number as u8; 100_000],
            condition: Condition::Always,
            is_durable: true,
        };
        for number in 0..UNDER_WAY {
            client.submit(put(number), number, Time::now());
        }
        let mut ended = 0;
        while ended < PUTS {
            while let Some((token, end)) = client.poll(Time::now()) {
                assert!(matches!(end, Ok(Outcome::Done { .. })), "{token}: {end:?}");
                ended += 1;
                client.submit(put(token + UNDER_WAY), token + UNDER_WAY, Time::now());
            }
            client.wait(LIMIT).unwrap();
        }
    }
}

#[test]
fn a_call_that_is_not_waited_for_any_more_is_not_taken_for_the_next_one() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options::new(transport));
        let mut user = lab.client(&server);
        user.put_durable(b"known", b"this");
        let client = &mut user.0;
        let mut left = 0;
        for _ in 0..100 {
            let put = Command::Put {
                key: b"late".to_vec(),
                value: vec![1; 2000],
                condition: Condition::Always,
                is_durable: true,
            };
            match client.call(put, Duration::ZERO) {
                Err(ClientError::Lost(_)) => left += 1,
                other => assert!(matches!(other, Ok(Outcome::Done { .. })), "{other:?}"),
            }
            let get = Command::Get {
                key: b"known".to_vec(),
            };
            let got = client.call(get, LIMIT);
            let is_right = matches!(&got, Ok(Outcome::Value { value, .. }) if value == b"this");
            assert!(is_right, "{got:?}");
            if let Err(error) = client.clean(Duration::ZERO) {
                assert!(matches!(error, ClientError::Lost(_)), "{error}");
            }
            let keys = client.keys(b"kn", LIMIT).unwrap();
            assert_eq!(keys, [b"known".to_vec()]);
        }
        assert!(left > 0, "each call was waited for");
        assert_eq!(user.get(b"late"), Some(vec![1; 2000]));
    }
}

/// The key takes no more versions; once it does, what was given up is not put over what came since.
#[test]
fn a_call_that_timed_out_while_the_store_was_busy_is_not_made_later() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let server = lab.serve(&Options {
            shards: 1,
            ..Options::new(transport)
        });
        let mut hand = ByHand::connect(&lab, &server, 1000);
        let mut user = lab.client(&server);
        let taken: Vec<u64> = (0..1024).map(|_| hand.space(b"key", 8).0).collect();
        let put = |value: &[u8], is_durable| Command::Put {
            key: b"key".to_vec(),
            value: value.to_vec(),
            condition: Condition::Always,
            is_durable,
        };
        for _ in 0..20 {
            let left = user.0.call(put(b"old", false), Duration::ZERO);
            assert!(matches!(left, Err(ClientError::Lost(_))), "{left:?}");
            // It is refused before this is answered.
            assert_eq!(user.get(b"another"), None);
        }
        for sequence in taken {
            let refused = [7, 6];
            assert_eq!(hand.ask(&settle(sequence))[..2], refused, "no value came");
        }
        user.put_durable(b"key", b"new");
        // What was sent behind it is taken by now.
        user.sync();
        assert_eq!(user.get(b"key"), Some(b"new".to_vec()));
        assert_eq!(user.0.under_way(), 0);
    }
}
