use cenote_fabric::{Generation, Rights, WindowId};

use super::*;

fn window(number: u32) -> WindowDescriptor {
    WindowDescriptor {
        id: WindowId(number),
        generation: Generation(u64::from(number) << 32),
        len_bytes: 1 << 20,
        rights: Rights::READ,
    }
}

fn requests() -> Vec<Request<'static>> {
    let condition = Condition::Sequence(7);
    vec![
        Request::Space {
            condition,
            value_bytes: 5,
            checksum: 6,
            key: b"key",
        },
        Request::Put {
            condition: Condition::Absent,
            is_durable: true,
            key: b"key",
            value: b"value",
        },
        Request::Locate { key: b"k" },
        Request::Settle {
            shard: 3,
            sequence: 9,
        },
        Request::Delete {
            condition: Condition::Always,
            key: b"key",
        },
        Request::Sync { shard: 1 },
        Request::List {
            shard: 1,
            slot: 8,
            prefix: b"",
        },
        Request::Clean { shard: 0 },
        Request::Figures { shard: 63 },
        Request::Get { key: b"key" },
    ]
}

fn answers() -> Vec<Answer> {
    vec![
        Answer::Space {
            sequence: 1,
            shard: 2,
            offset: 3,
        },
        Answer::Done { sequence: 4 },
        Answer::Place {
            sequence: 5,
            word: 6,
        },
        Answer::Absent,
        Answer::Synced { lost: 2 },
        Answer::Keys {
            next_slot: Some(4),
            keys: vec![b"a".to_vec(), b"bc".to_vec()],
        },
        Answer::Refused(Refusal::Condition(Some(4))),
        Answer::Refused(Refusal::Condition(None)),
        Answer::Refused(Refusal::Scheme),
        Answer::Figures(Figures {
            backlog: 1,
            log_bytes: (2, 3),
            put_bytes: 4,
            written_bytes: 5,
            is_cleaning: true,
        }),
        Answer::Value {
            sequence: 7,
            value: b"value".to_vec(),
        },
    ]
}

#[test]
fn what_is_said_is_what_is_heard() {
    let mut bytes = Vec::new();
    for request in requests() {
        request.encode(&mut bytes);
        assert_eq!(Request::decode(&bytes), Ok(request));
    }
    for answer in answers() {
        answer.encode(&mut bytes);
        assert_eq!(Answer::decode(&bytes), Ok(answer));
    }
    let greeting = Greeting {
        scheme: "efactory".to_owned(),
        seed: 5,
        landing: window(1),
        shards: vec![ShardView {
            entry_count: 16,
            index: window(2),
            log: window(3),
        }],
    };
    assert_eq!(Greeting::decode(&greeting.encode()), Ok(greeting));
    let notice = Notice {
        kind: ACK,
        shard: 1,
        sequence: 5,
        is_durable: true,
    };
    assert_eq!(Notice::decode(&notice.encode()), Ok(notice));
}

/// Kind, its shard and sequence, and the last byte.
#[test]
fn a_notice_has_one_of_two_last_bytes_if_it_is_an_acknowledgement_and_one_else() {
    for (kind, taken) in [(WRITTEN, &[0][..]), (ACK, &[0, 1]), (GREET, &[])] {
        for last in 0..=u8::MAX {
            let bytes = [kind, 1, 0, 5, 0, 0, 0, 0, 0, 0, 0, last];
            let is_taken = Notice::decode(&bytes).is_ok();
            assert_eq!(is_taken, taken.contains(&last), "{kind} {last}");
        }
    }
}

#[test]
fn a_condition_without_a_version_has_none() {
    for (kind, sequence, is_taken) in [
        (0, 0, true),
        (0, 1, false),
        (1, 0, true),
        (1, 1 << 40, false),
        (2, 0, true),
        (2, 1 << 40, true),
        (3, 0, false),
    ] {
        let mut bytes = vec![6, kind];
        bytes.extend(u64::to_le_bytes(sequence));
        bytes.extend(b"key");
        let request = Request::decode(&bytes);
        assert_eq!(request.is_ok(), is_taken, "{kind} {sequence}");
    }
}

/// Whatever comes is a message or refused: changed, cut, or any bytes.
#[test]
fn no_bytes_make_a_parser_panic() {
    let mut state = 1_u64;
    let mut random = |below: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) as usize % below
    };
    let mut seeds: Vec<Vec<u8>> = Vec::new();
    for request in requests() {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        seeds.push(bytes);
    }
    for answer in answers() {
        let mut bytes = Vec::new();
        answer.encode(&mut bytes);
        seeds.push(bytes);
    }
    for _ in 0..200_000 {
        let mut bytes = seeds[random(seeds.len())].clone();
        for _ in 0..random(4) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        bytes.truncate(random(bytes.len() + 1));
        if let Ok(request) = Request::decode(&bytes) {
            let mut again = Vec::new();
            request.encode(&mut again);
            assert_eq!(Request::decode(&again), Ok(request));
        }
        drop(Answer::decode(&bytes));
        drop(Greeting::decode(&bytes));
        assert!(Notice::decode(&bytes).is_err() || bytes.len() == 12);
    }
}
