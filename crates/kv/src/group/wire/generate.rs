//! Messages at random: every kind, every field in its bounds.

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::{ADDRESS_END, XID_MAX};
use crate::group::marks::Marks;
use crate::group::message::{Content, Item, Lacks, Message, RUN_UNITS_MAX, Run, UNIT_BYTES};
use crate::group::operation::{Effect, Operation};
use crate::group::process::Process;
use crate::group::replica::Basis;
use crate::group::view::{
    GroupSlot, Handoff, PARITIES_MAX, PARTITIONS_MAX, Parity, Partition, Scheme, View,
};
use crate::memory::allocator::ALIGN_BYTES;
use crate::memory::table::Entry;

fn partition() -> impl Strategy<Value = usize> {
    0..PARTITIONS_MAX
}

fn xid() -> impl Strategy<Value = u64> {
    prop_oneof![0..100u64, 0..=XID_MAX, Just(XID_MAX)]
}

fn process() -> impl Strategy<Value = Process> {
    any::<(u32, u64)>().prop_map(|(node, incarnation)| Process { node, incarnation })
}

pub(super) fn view() -> impl Strategy<Value = View> {
    let scheme = prop_oneof![Just(Scheme::Coded), Just(Scheme::Replicated)];
    let partitions = vec(
        (0..5u8, 0..PARITIES_MAX, process(), any::<u32>()),
        1..=PARTITIONS_MAX,
    );
    let parities = vec((0..3u8, process(), any::<u32>()), 0..=PARITIES_MAX);
    let handoff = option::of((any::<(bool, usize)>(), process(), any::<u32>()));
    (any::<u64>(), scheme, partitions, parities, handoff).prop_map(
        |(numbers, scheme, partitions, parities, handoff)| {
            let (k, m) = (partitions.len(), parities.len());
            let handoff = handoff.map(|((is_data, place), process, since)| Handoff {
                place: match is_data || m == 0 {
                    true => GroupSlot::Data(place % k),
                    false => GroupSlot::Parity(place % m),
                },
                process,
                since,
            });
            let partition = |(kind, slot, process, since): (u8, usize, Process, u32)| {
                let slot = slot % m.max(1);
                match kind {
                    1 => Partition::Home(process),
                    2 if m > 0 => Partition::Recovering(slot),
                    3 if m > 0 => Partition::Arriving {
                        slot,
                        process,
                        since,
                    },
                    4 if m > 0 => Partition::Migrating {
                        slot,
                        process,
                        since,
                    },
                    _ => Partition::Lost,
                }
            };
            let parity = |(kind, process, since)| match kind {
                0 => Parity::Vacant,
                1 => Parity::Joining { process, since },
                _ => Parity::Full { process, since },
            };
            View {
                number: numbers as u32,
                scheme,
                begun: (0..k).map(|at| (numbers >> at) as u32).collect(),
                partitions: partitions.into_iter().map(partition).collect(),
                parities: parities.into_iter().map(parity).collect(),
                handoff,
                let_go: (numbers >> 32 & ((1 << k) - 1)) as u32,
            }
        },
    )
}

fn run() -> impl Strategy<Value = Run> {
    let runs = ADDRESS_END / UNIT_BYTES / u64::from(RUN_UNITS_MAX);
    let aligned = prop_oneof![0..4u64, 0..runs];
    // Short ones more often: their bytes take time to make.
    let units = prop_oneof![4 => 1..=2u32, 1 => 1..=RUN_UNITS_MAX];
    (aligned, units, any::<u32>()).prop_map(|(aligned, units, place)| Run {
        first: aligned * 64 + u64::from(place % (RUN_UNITS_MAX - units + 1)),
        units,
    })
}

/// A run and its bytes, or none for zeroes.
fn content() -> impl Strategy<Value = (Run, Bytes)> {
    (run(), option::weighted(0.7, any::<u8>())).prop_map(|(run, seed)| {
        let byte = |at: usize| (at as u8).wrapping_mul(31).wrapping_add(seed.unwrap_or(0));
        let bytes = seed.map(|_| (0..run.bytes()).map(byte).collect());
        (run, bytes.unwrap_or_default())
    })
}

fn entry() -> impl Strategy<Value = Entry> {
    let place = (0..ADDRESS_END / ALIGN_BYTES, any::<u32>());
    let facts = any::<(u32, u32, u64, u32, bool)>();
    (place, facts, 0..8u8).prop_map(|((address, value_bytes), facts, marks)| {
        let (client_flags, expiry, cas, last_use, was_hit) = facts;
        let address = address * ALIGN_BYTES;
        let room = u32::try_from(ADDRESS_END - address).unwrap_or(u32::MAX);
        Entry {
            client_flags,
            expiry,
            cas,
            address,
            value_bytes: value_bytes.min(room),
            marks,
            last_use,
            was_hit,
        }
    })
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![vec(any::<u8>(), 1..20), vec(any::<u8>(), 1..=250)]
}

fn operation() -> impl Strategy<Value = Operation> {
    let change = vec(any::<u8>(), 0..300);
    (0..5u8, entry(), key(), change).prop_map(|(kind, entry, key, change)| {
        let (expiry, cas) = (entry.expiry, entry.cas);
        let marks = Marks::from_bits(entry.marks).expect("known marks");
        let room = usize::try_from(ADDRESS_END - entry.address).expect("a place");
        let change = &change[..change.len().min(room)];
        let (effect, key) = match kind {
            0 => {
                let entry = Entry {
                    value_bytes: u32::try_from(change.len()).expect("a short one"),
                    last_use: 0,
                    was_hit: false,
                    ..entry
                };
                (Effect::Put(entry), &key[..])
            }
            1 => (Effect::Alter { expiry, marks, cas }, &key[..]),
            2 => (Effect::Remove, &key[..]),
            3 => (Effect::Flush { at: expiry, cas }, &[][..]),
            _ => (Effect::Tick { now: expiry, cas }, &[][..]),
        };
        Operation::new(effect, key, |out| {
            if kind == 0 {
                out.extend_from_slice(change);
            }
        })
    })
}

fn lacks() -> impl Strategy<Value = Lacks> {
    let units = option::of(0..ADDRESS_END / UNIT_BYTES);
    (option::of(any::<u64>()), units).prop_map(|(keys_from, units_from)| Lacks {
        keys_from,
        units_from,
    })
}

fn items() -> impl Strategy<Value = Message> {
    let item = (key(), entry()).prop_map(|(key, entry)| Item {
        key: key.into(),
        entry,
    });
    let basis = any::<(u32, u32, u64)>().prop_map(|(now, flush_at, flushed_below)| Basis {
        now,
        flush_at,
        flushed_below,
    });
    let end = option::of(any::<u64>());
    let cursor = any::<u64>();
    (partition(), xid(), basis, cursor, vec(item, 0..6), end).prop_map(
        |(partition, at, basis, from, items, end)| Message::Items {
            partition,
            at,
            basis,
            from,
            items,
            end,
        },
    )
}

/// Any message.
pub(super) fn message() -> impl Strategy<Value = Message> {
    prop_oneof![operations(), recovery(), moves()]
}

/// What is said in normal operation and about views.
fn operations() -> impl Strategy<Value = Message> {
    prop_oneof![
        view().prop_map(Message::View),
        (partition(), xid(), lacks()).prop_map(|(partition, xid, lacks)| Message::Have {
            partition,
            xid,
            lacks
        }),
        (partition(), xid(), xid(), operation()).prop_map(|(partition, xid, stable, operation)| {
            Message::Update {
                partition,
                xid,
                stable,
                operation,
            }
        }),
        (partition(), xid()).prop_map(|(partition, stable)| Message::Stable { partition, stable }),
        (partition(), xid()).prop_map(|(partition, xid)| Message::Ack { partition, xid }),
        (partition(), xid()).prop_map(|(partition, stable)| Message::Settle { partition, stable }),
        partition().prop_map(|partition| Message::Settled { partition }),
        any::<u64>().prop_map(|number| Message::Probe { number }),
        any::<u64>().prop_map(|number| Message::Answer { number }),
    ]
}

fn recovery() -> impl Strategy<Value = Message> {
    prop_oneof![
        partition().prop_map(|partition| Message::Ready { partition }),
        run().prop_map(|run| Message::Want { run }),
        (any::<u64>(), run()).prop_map(|(attempt, run)| Message::Fetch { attempt, run }),
        (any::<u64>(), run()).prop_map(|(attempt, run)| Message::Mixed { attempt, run }),
        (any::<u64>(), partition(), option::of(xid()), content()).prop_map(
            |(attempt, partition, at, (run, bytes))| Message::Units {
                attempt,
                run,
                partition,
                content: at.map_or(Content::Lost, |at| Content::Known { at, bytes }),
            }
        ),
        (any::<u64>(), any::<u32>(), content()).prop_map(|(attempt, lost, (run, bytes))| {
            Message::Residual {
                attempt,
                run,
                lost,
                bytes,
            }
        }),
        (partition(), content()).prop_map(|(partition, (run, bytes))| Message::Solved {
            run,
            partition,
            bytes
        }),
    ]
}

fn moves() -> impl Strategy<Value = Message> {
    prop_oneof![
        items(),
        (partition(), xid(), content()).prop_map(|(partition, at, (run, bytes))| Message::Copy {
            partition,
            at,
            run,
            bytes
        }),
        partition().prop_map(|partition| Message::Taken { partition }),
        (partition(), run()).prop_map(|(partition, run)| Message::Pull { partition, run }),
        (partition(), content()).prop_map(|(partition, (run, bytes))| Message::Pulled {
            partition,
            run,
            bytes
        }),
    ]
}
