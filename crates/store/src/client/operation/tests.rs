use super::*;
use crate::schemes::EFactory;

fn read(oldest: u64) -> (Operation, Word) {
    let key = b"key".to_vec();
    let get = Command::Get { key: key.clone() };
    let mut operation = Operation::new(get, Whose::Submitted(1), 0, 5, &EFactory, false, 0);
    let header = Header {
        kind: Kind::Value,
        key_bytes: 3,
        value_bytes: 4,
        checksum: checksum(&[&key, b"good"]),
        sequence: 9,
        previous_at: 0,
        hash: 5,
        incarnation: 1,
    };
    operation.keyed = header.encode(4096, 7, &key).to_vec();
    operation.keyed.extend(flag(9, 7).to_le_bytes());
    operation.keyed.extend(&key);
    operation.value = b"good....".to_vec();
    operation.oldest = oldest.to_le_bytes();
    (operation, Word::to(4096, header.object_bytes(), 7))
}

#[test]
fn an_object_counts_while_its_half_of_the_log_was_not_given_up() {
    for (oldest, is_there) in [
        (6, true),
        (7, true),
        (8, false),
        (9, false),
        (70_000, false),
    ] {
        let (mut operation, word) = read(oldest);
        let seen = see(&mut operation, word, true, true);
        assert_eq!(
            matches!(seen, Seen::Value { sequence: 9 }),
            is_there,
            "{oldest}"
        );
        assert_eq!(matches!(seen, Seen::Changed), !is_there, "{oldest}");
    }
}

#[test]
fn another_flag_key_or_value_is_seen() {
    let (mut operation, word) = read(7);
    operation.keyed[56] ^= 2;
    assert!(matches!(
        see(&mut operation, word, false, true),
        Seen::NotYet
    ));
    let (mut operation, word) = read(7);
    operation.value[0] = b'b';
    assert!(matches!(
        see(&mut operation, word, true, true),
        Seen::NotYet
    ));
    for at in (0..48).chain(64..67) {
        let (mut operation, word) = read(7);
        operation.keyed[at] ^= 1;
        assert!(
            matches!(see(&mut operation, word, false, true), Seen::Changed),
            "{at}"
        );
    }
}

/// Its memory is the verbs' until they have ended, whatever the server says before.
#[test]
fn a_word_that_comes_before_a_value_is_there_ends_nothing() {
    for is_durable in [true, false] {
        let written = Step::Written {
            sequence: 4,
            shard: 1,
            is_durable: None,
        };
        let said = Step::Written {
            sequence: 4,
            shard: 1,
            is_durable: Some(is_durable),
        };
        assert_eq!(written.acknowledged(is_durable), said);
    }
}
