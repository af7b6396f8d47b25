use proptest::prelude::*;

use super::examples::examples;
use super::generate::{message, view};
use super::*;
use crate::group::message::{Item, Run};
use crate::group::operation::Effect;
use crate::group::owner::cas_of;
use crate::group::view::{Parity, Partition};
use crate::memory::table::Entry;

fn frame_of(group: u16, view: u32, message: &Message) -> Bytes {
    let encoded = encode(group, view, message);
    let bytes = encoded.bytes();
    let mut frame = BytesMut::from(&encoded.head[..]);
    frame.extend_from_slice(&encoded.body.unwrap_or_default());
    assert_eq!(frame.len(), bytes);
    frame.freeze()
}

/// More than a view takes in memory: there are few partitions and parities.
const VIEW_BYTES_MAX: usize = 1024;

/// What decoding took memory for, besides the frame itself.
fn allocated_bytes(message: &Message) -> usize {
    match message {
        Message::Items { items, .. } => items.capacity() * size_of::<Item>(),
        Message::View(view) => {
            view.partitions.capacity() * size_of::<Partition>()
                + view.parities.capacity() * size_of::<Parity>()
        }
        _ => 0,
    }
}

/// What decoding says of any bytes: an error, or a message that has these bytes.
fn check_total(bytes: &[u8]) {
    if let Ok(frame) = decode(Bytes::copy_from_slice(bytes)) {
        assert!(allocated_bytes(&frame.message) <= 4 * bytes.len() + VIEW_BYTES_MAX);
        let again = frame_of(frame.group, frame.view, &frame.message);
        assert_eq!(again, bytes, "{:?}", frame.message);
    }
}

proptest! {
    #[test]
    fn every_message_comes_back(group: u16, number: u32, message in message()) {
        let frame = frame_of(group, number, &message);
        let decoded = decode(frame).unwrap();
        prop_assert_eq!(decoded, Frame { group, view: number, message });
    }

    #[test]
    fn heads_may_follow_each_other(one in message(), other in message()) {
        let mut heads = BytesMut::new();
        let bodies = [
            encode_into(1, 2, &one, &mut heads),
            encode_into(3, 4, &other, &mut heads),
        ];
        let (one, other) = (encode(1, 2, &one), encode(3, 4, &other));
        prop_assert_eq!(&heads[..], &[&one.head[..], &other.head[..]].concat()[..]);
        prop_assert_eq!(bodies, [one.body, other.body]);
    }

    #[test]
    fn a_view_comes_back_by_itself(view in view()) {
        let mut bytes = BytesMut::new();
        encode_view(&view, &mut bytes);
        let bytes = bytes.freeze();
        prop_assert_eq!(decode_view(bytes.clone()).unwrap(), view);
        for cut in 0..bytes.len() {
            prop_assert_eq!(decode_view(bytes.slice(..cut)), Err(NoMessage::Short));
        }
    }

    #[test]
    fn no_part_of_a_message_is_one(message in message(), more: u8) {
        let frame = frame_of(7, 9, &message);
        // Cuts in large bodies are all the same to it: some of them will do.
        let step = (frame.len() / 512).max(1);
        for cut in (0..frame.len().min(512)).chain((0..frame.len()).step_by(step)) {
            prop_assert!(decode(frame.slice(..cut)).is_err(), "{} bytes", cut);
        }
        let longer = [&frame[..], &[more]].concat();
        prop_assert!(decode(longer.into()).is_err());
    }

    #[test]
    fn any_bytes_are_refused_or_a_message(
        kind in 0..24u8,
        bytes in proptest::collection::vec(prop_oneof![0..4u8, any::<u8>()], 0..200),
    ) {
        check_total(&bytes);
        let framed = [&[1, 0, 2, 0, 0, 0, kind][..], &bytes].concat();
        check_total(&framed);
    }

    #[test]
    fn changed_bytes_are_refused_or_a_message(
        message in message(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let mut frame = frame_of(7, 9, &message).to_vec();
        for (place, byte) in changes {
            // Most of what means something is in front.
            let among = frame.len().min(80);
            let place = place.index(among);
            frame[place] = byte;
        }
        check_total(&frame);
    }
}

#[test]
fn numbers_of_operations_are_those_that_cas_numbers_hold() {
    assert_eq!(cas_of(0, XID_MAX), XID_MAX);
    assert_eq!(cas_of(0, XID_MAX + 1), 0);
}

#[test]
fn large_parts_are_shared() {
    let value = vec![7; 100_000];
    let entry = Entry {
        value_bytes: 100_000,
        ..Entry::default()
    };
    let operation = Operation::new(Effect::Put(entry), b"key", |out| {
        out.extend_from_slice(&value)
    });
    let source = operation.bytes().as_ptr();
    let update = Message::Update {
        partition: 0,
        xid: 1,
        stable: 0,
        operation,
    };
    assert_eq!(encode(0, 1, &update).body.unwrap().as_ptr(), source);
    let frame = frame_of(0, 1, &update);
    let bytes = frame.as_ptr_range();
    let Message::Update { operation, .. } = decode(frame).unwrap().message else {
        panic!("it was an update");
    };
    assert!(bytes.contains(&operation.bytes().as_ptr()));
    let run = Run {
        first: 0,
        units: 64,
    };
    let pulled = Message::Pulled {
        partition: 0,
        run,
        bytes: vec![1; run.bytes()].into(),
    };
    let frame = frame_of(0, 1, &pulled);
    let within = frame.as_ptr_range();
    let Message::Pulled { bytes, .. } = decode(frame).unwrap().message else {
        panic!("it was pulled");
    };
    assert!(within.contains(&bytes.as_ptr()));
}

/// A frame with one byte, or several, in another place.
fn with(frame: &Bytes, at: usize, bytes: &[u8]) -> Bytes {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame.into()
}

#[test]
fn what_is_out_of_range_is_refused() {
    let examples = examples();
    let of = |name: &str| {
        let (_, message, _) = examples.iter().find(|(own, ..)| *own == name).unwrap();
        frame_of(0x1234, 7, message)
    };
    let field = |name| Err(NoMessage::Field(name));
    let end = ADDRESS_END.to_le_bytes();
    let cases = [
        ("ack", 6, &[0][..], Err(NoMessage::Kind(0))),
        ("ack", 6, &[22], Err(NoMessage::Kind(22))),
        ("ack", 7, &[32], field("partition")),
        ("ack", 13, &[16], field("number of an operation")),
        ("view", 11, &[2], field("scheme")),
        ("view", 12, &[0], field("size of a group")),
        ("view", 12, &[33], field("size of a group")),
        ("view", 13, &[5], field("size of a group")),
        ("view", 14, &[5], field("partition's state")),
        ("view", 28, &[3], field("slot")),
        ("have", 16, &[2], field("keys that are lacking")),
        ("have", 25, &[0], field("units that are lacking")),
        ("have", 30, &[1], field("units that are lacking")),
        ("want", 15, &[0], field("run")),
        ("want", 15, &[65], field("run")),
        ("want", 7, &[62], field("run")),
        ("want", 11, &[1], field("run")),
        ("copy", 25, &[2], field("content")),
        ("units", 25, &[2], field("content")),
        ("items", 40, &[2], field("end of the keys")),
        ("items", 49, &[0xff; 4], Err(NoMessage::Short)),
        ("items", 53, &[0], field("key")),
        ("items", 53, &[251], field("key")),
        ("items", 54, &[8], field("marks")),
        ("items", 55, &[2], field("use")),
        ("items", 80, &[1], field("address")),
        ("items", 80, &end, field("address")),
        ("update", 24 + 24, &[8], field("address")),
        ("update", 24 + 24, &end, field("address")),
    ];
    for (name, at, bytes, expected) in cases {
        let refused = decode(with(&of(name), at, bytes)).map(|frame| frame.message);
        assert_eq!(refused, expected, "{name}: {bytes:x?} at {at}");
    }
    let refused = decode(with(&of("update"), 24, &[9]));
    assert!(matches!(refused, Err(NoMessage::Operation(_))));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The format: whatever changes here is another version of the protocol.
#[test]
fn bytes_of_every_kind_stay_as_they_are() {
    let mut kinds = Vec::new();
    for (name, message, golden) in examples() {
        let frame = frame_of(0x1234, 7, &message);
        // A unit's bytes are all the same in the examples: a few stand for them.
        let head = encode(0x1234, 7, &message).head.len();
        let shown = if frame.len() > 200 {
            head + 4
        } else {
            frame.len()
        };
        assert_eq!(hex(&frame[..shown]), golden, "{name}");
        assert_eq!(decode(frame.clone()).unwrap().message, message, "{name}");
        kinds.push(frame[6]);
    }
    kinds.dedup();
    let all: Vec<u8> = (VIEW..=ANSWER).collect();
    assert_eq!(kinds, all, "an example of every kind");
}
