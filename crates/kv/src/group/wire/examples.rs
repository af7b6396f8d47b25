//! Messages of every kind, and their bytes for ever: in group 0x1234, in view 7.

use bytes::Bytes;

use crate::group::marks::Marks;
use crate::group::message::{Content, Item, Lacks, Message, Run};
use crate::group::operation::{Effect, Operation};
use crate::group::process::Process;
use crate::group::replica::Basis;
use crate::group::view::{GroupSlot, Handoff, Parity, Partition, Scheme, View};
use crate::memory::table::Entry;

/// (name, message, its bytes in hexadecimal), by kind. Of large bodies there are four bytes.
pub(super) fn examples() -> Vec<(&'static str, Message, &'static str)> {
    let run = Run {
        first: 64,
        units: 3,
    };
    let unit = Run {
        first: 65,
        units: 1,
    };
    let bytes = Bytes::from(vec![0xab; unit.bytes()]);
    let (partition, attempt) = (5, 0x0102_0304_0506_0708);
    vec![
        (
            "view",
            Message::View(view()),
            "34120700000001070000000005030101000000a1000000000000000201030002000000a20000000000000005000000040103000000a300000000000000040000000001000000010000000100000001000000030000000204000000a400000000000000010000000105000000a5000000000000000600000000010006000000a6000000000000000700000002000000",
        ),
        (
            "have",
            have(),
            "34120700000002050605040302010000010102030405060708014000000000000000",
        ),
        (
            "have all",
            Message::Have {
                partition,
                xid: 9,
                lacks: Lacks::NOTHING,
            },
            "34120700000002050900000000000000000000000000000000000000000000000000",
        ),
        (
            "update",
            update(put(), b"key"),
            "3412070000000305090000000000000008000000000000000105030014131211242322210400000031000000000007005044342414040000000000006b6579c1c2c3c4",
        ),
        (
            "alter",
            update(alter(), b"key"),
            "3412070000000305090000000000000008000000000000000202030000000000110000000000000012000000000000000000000000000000000000006b6579",
        ),
        (
            "remove",
            update(Effect::Remove, b"key"),
            "3412070000000305090000000000000008000000000000000300030000000000000000000000000000000000000000000000000000000000000000006b6579",
        ),
        (
            "flush",
            update(Effect::Flush { at: 17, cas: 18 }, b""),
            "341207000000030509000000000000000800000000000000040000000000000011000000000000001200000000000000000000000000000000000000",
        ),
        (
            "tick",
            update(Effect::Tick { now: 17, cas: 18 }, b""),
            "341207000000030509000000000000000800000000000000050000000000000011000000000000001200000000000000000000000000000000000000",
        ),
        (
            "stable",
            Message::Stable {
                partition,
                stable: 9,
            },
            "34120700000004050900000000000000",
        ),
        (
            "ack",
            Message::Ack { partition, xid: 9 },
            "34120700000005050900000000000000",
        ),
        (
            "settle",
            Message::Settle {
                partition,
                stable: 9,
            },
            "34120700000006050900000000000000",
        ),
        (
            "settled",
            Message::Settled { partition },
            "3412070000000705",
        ),
        ("ready", Message::Ready { partition }, "3412070000000805"),
        (
            "want",
            Message::Want { run },
            "34120700000009400000000000000003",
        ),
        (
            "fetch",
            Message::Fetch { attempt, run },
            "3412070000000a0807060504030201400000000000000003",
        ),
        (
            "units",
            Message::Units {
                attempt,
                run: unit,
                partition,
                content: Content::Known {
                    at: 9,
                    bytes: bytes.clone(),
                },
            },
            "3412070000000b05080706050403020141000000000000000101090000000000000001abababab",
        ),
        (
            "zero units",
            Message::Units {
                attempt,
                run,
                partition,
                content: Content::Known {
                    at: 9,
                    bytes: Bytes::new(),
                },
            },
            "3412070000000b05080706050403020140000000000000000301090000000000000000",
        ),
        (
            "lost units",
            Message::Units {
                attempt,
                run,
                partition,
                content: Content::Lost,
            },
            "3412070000000b05080706050403020140000000000000000300",
        ),
        (
            "residual",
            Message::Residual {
                attempt,
                run: unit,
                lost: 0x8000_0021,
                bytes: bytes.clone(),
            },
            "3412070000000c08070605040302014100000000000000012100008001abababab",
        ),
        (
            "mixed",
            Message::Mixed { attempt, run },
            "3412070000000d0807060504030201400000000000000003",
        ),
        (
            "solved",
            Message::Solved {
                run: unit,
                partition,
                bytes: bytes.clone(),
            },
            "3412070000000e0541000000000000000101abababab",
        ),
        (
            "items",
            items(),
            "3412070000000f0509000000000000001100000012000000130000000000000014000000000000000101020304050607080200000001050114131211242322215453525104000000310000000000070050443424140400006105050114131211242322215453525104000000310000000000070050443424140400006f74686572",
        ),
        (
            "copy",
            Message::Copy {
                partition,
                at: 9,
                run: unit,
                bytes,
            },
            "3412070000001005090000000000000041000000000000000101abababab",
        ),
        ("taken", Message::Taken { partition }, "3412070000001105"),
        (
            "pull",
            Message::Pull { partition, run },
            "3412070000001205400000000000000003",
        ),
        (
            "pulled",
            Message::Pulled {
                partition,
                run,
                bytes: Bytes::new(),
            },
            "341207000000130540000000000000000300",
        ),
        (
            "probe",
            Message::Probe { number: attempt },
            "341207000000140807060504030201",
        ),
        (
            "answer",
            Message::Answer { number: attempt },
            "341207000000150807060504030201",
        ),
    ]
}

fn view() -> View {
    let process = |node: u32| Process {
        node,
        incarnation: 0xa0 + u64::from(node),
    };
    View {
        number: 7,
        scheme: Scheme::Coded,
        partitions: vec![
            Partition::Home(process(1)),
            Partition::Recovering(1),
            Partition::Arriving {
                slot: 0,
                process: process(2),
                since: 5,
            },
            Partition::Migrating {
                slot: 1,
                process: process(3),
                since: 4,
            },
            Partition::Lost,
        ],
        begun: vec![1, 1, 1, 1, 3],
        parities: vec![
            Parity::Full {
                process: process(4),
                since: 1,
            },
            Parity::Joining {
                process: process(5),
                since: 6,
            },
            Parity::Vacant,
        ],
        handoff: Some(Handoff {
            place: GroupSlot::Data(0),
            process: process(6),
            since: 7,
        }),
        let_go: 2,
    }
}

fn have() -> Message {
    Message::Have {
        partition: 5,
        xid: 0x0102_0304_0506,
        lacks: Lacks {
            keys_from: Some(0x0807_0605_0403_0201),
            units_from: Some(64),
        },
    }
}

fn entry() -> Entry {
    Entry {
        client_flags: 0x1112_1314,
        expiry: 0x2122_2324,
        cas: 0x0007_0000_0000_0031,
        address: 0x0414_2434_4450,
        value_bytes: 4,
        marks: 5,
        last_use: 0x5152_5354,
        was_hit: true,
    }
}

fn put() -> Effect {
    Effect::Put(Entry {
        last_use: 0,
        was_hit: false,
        ..entry()
    })
}

fn alter() -> Effect {
    Effect::Alter {
        expiry: 17,
        marks: Marks::STALE,
        cas: 18,
    }
}

fn update(effect: Effect, key: &[u8]) -> Message {
    let change: &[u8] = match effect {
        Effect::Put(_) => &[0xc1, 0xc2, 0xc3, 0xc4],
        _ => &[],
    };
    Message::Update {
        partition: 5,
        xid: 9,
        stable: 8,
        operation: Operation::new(effect, key, |out| out.extend_from_slice(change)),
    }
}

fn items() -> Message {
    let item = |key: &'static [u8]| Item {
        key: Bytes::from_static(key),
        entry: entry(),
    };
    Message::Items {
        partition: 5,
        at: 9,
        basis: Basis {
            now: 17,
            flush_at: 18,
            flushed_below: 19,
        },
        from: 20,
        items: vec![item(b"a"), item(b"other")],
        end: Some(0x0807_0605_0403_0201),
    }
}
