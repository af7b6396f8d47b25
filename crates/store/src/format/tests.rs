use super::*;

#[test]
fn a_head_is_read_as_written_and_nothing_else_is() {
    let head = Head {
        seed: 5,
        entry_count: 16,
        len: 16384,
        shard: (2, 3),
    };
    let mut pool = vec![0; 4096];
    pool[..48].copy_from_slice(&head.encode());
    assert_eq!(Head::decode(&pool, 16384), Ok(head));
    assert_eq!(Head::decode(&[], 0), Err(HeadError::Foreign));
    let found = 16383;
    let told = 16384;
    assert_eq!(
        Head::decode(&pool, 16383),
        Err(HeadError::Length { told, found })
    );
    for at in 0..44 {
        let mut damaged = pool.clone();
        damaged[at] ^= 1;
        assert!(Head::decode(&damaged, 16384).is_err(), "byte {at}");
    }
}

#[test]
fn any_changed_byte_of_a_header_or_key_is_seen() {
    let key = b"some key";
    let header = Header {
        kind: Kind::Value,
        key_bytes: 8,
        value_bytes: 20,
        checksum: 7,
        sequence: 9,
        previous_at: 0,
        hash: 3,
        incarnation: 1,
    };
    let mut object = vec![0; 128];
    object[..56].copy_from_slice(&header.encode(32, 1, key));
    object[64..72].copy_from_slice(key);
    assert_eq!(Header::decode(&object, 32, 1), Some(header));
    assert_eq!(header.object_bytes() % GRAIN_BYTES, 0);
    for at in (0..48).chain(64..72) {
        // Byte 5 is filled up, and in the checksum too.
        let mut damaged = object.clone();
        damaged[at] ^= 0x10;
        assert_eq!(Header::decode(&damaged, 32, 1), None, "byte {at}");
    }
    // Nor are those of another epoch, or the same bytes elsewhere, or fewer.
    assert_eq!(Header::decode(&object, 32, 2), None);
    assert_eq!(Header::decode(&object, 48, 1), None);
    for len in 0..72 {
        assert_eq!(Header::decode(&object[..len], 32, 1), None);
    }
}

#[test]
fn a_word_tells_place_length_and_epoch() {
    for (at, bytes, epoch) in [
        (4096, 80, 1),
        (POOL_BYTES_MAX - 16, (1 << 20) + 320, 65_535),
        (8192, 96, 70_000),
    ] {
        let word = Word::to(at, bytes, epoch);
        assert_eq!(word.object_at(), Some(at));
        assert_eq!(word.object_bytes(), bytes);
        for now in [epoch, epoch + 1, epoch + 65_535] {
            assert_eq!(word.epoch(now), epoch, "{now}");
        }
    }
    assert_eq!(Word::default().object_at(), None);
}

#[test]
fn the_newer_record_that_is_whole_counts() {
    let mut head = vec![0; 4096];
    assert_eq!(
        Space::decode(&head),
        Err(HeadError::Damaged("neither of its two records is whole"))
    );
    let mut space = Space {
        serial: 0,
        epoch: 1,
        active: 0,
        is_cleaning: false,
        incarnation: 0,
        ceiling: 1,
        is_keyed: false,
        reach: Reach::default(),
        left: Left::default(),
    };
    let mut before = None;
    for round in 0..6 {
        let at = space.at() as usize;
        let kept = head.clone();
        head[at..at + SPACE_BYTES].copy_from_slice(&space.encode());
        assert_eq!(Space::decode(&head), Ok(space));
        for torn in 0..SPACE_BYTES {
            let mut torn_head = kept.clone();
            torn_head[at..at + torn].copy_from_slice(&space.encode()[..torn]);
            let is_left_torn = torn >= LEFT_AT;
            let left = match torn > LEFT_AT {
                true => Left::decode(&torn_head[at..]),
                false => Left::default(),
            };
            match before {
                // What is torn is not said, and the rest counts.
                _ if is_left_torn => {
                    let said = Ok(Space { left, ..space });
                    assert_eq!(Space::decode(&torn_head), said, "{torn} bytes");
                    assert!(left == Left::default() || left == space.left);
                }
                Some(before) => assert_eq!(Space::decode(&torn_head), Ok(before), "{torn} bytes"),
                None => {}
            }
        }
        before = Some(space);
        space = Space {
            epoch: space.epoch + round % 2,
            is_cleaning: round % 2 == 1,
            incarnation: space.incarnation + 1,
            ceiling: space.ceiling + 100,
            reach: Reach {
                to: 4096 + 16 * round,
                has_torn: round % 3 == 0,
                is_end: round % 2 == 0,
            },
            is_keyed: round % 2 == 0,
            left: Left {
                reach: Reach {
                    to: (1 << 20) - 16 * round,
                    has_torn: round % 3 == 1,
                    is_end: false,
                },
                incarnation: round as u32,
            },
            ..space.next()
        };
    }
}
