//! A view as bytes: as members tell it, and as it is kept where views are agreed on.

use bytes::{BufMut, Bytes, BytesMut};

use super::{NoMessage, fields::Reader};
use crate::group::process::Process;
use crate::group::view::{
    GroupSlot, Handoff, PARITIES_MAX, PARTITIONS_MAX, Parity, Partition, Scheme, View,
};

/// Appends a view.
///
/// # Panics
/// If it has more partitions, parities or slots than a view can have.
pub fn encode_view(view: &View, out: &mut BytesMut) {
    assert!((1..=PARTITIONS_MAX).contains(&view.partitions.len()));
    assert!(view.parities.len() <= PARITIES_MAX);
    assert_eq!(view.begun.len(), view.partitions.len());
    out.put_u32_le(view.number);
    out.put_u8(match view.scheme {
        Scheme::Coded => 0,
        Scheme::Replicated => 1,
    });
    out.put_u8(small(view.partitions.len()));
    out.put_u8(small(view.parities.len()));
    for partition in &view.partitions {
        match partition {
            Partition::Lost => out.put_u8(0),
            Partition::Home(process) => {
                out.put_u8(1);
                put_process(out, *process);
            }
            Partition::Recovering(slot) => {
                out.put_u8(2);
                out.put_u8(small(*slot));
            }
            Partition::Arriving {
                slot,
                process,
                since,
            } => put_move(out, 3, *slot, *process, *since),
            Partition::Migrating {
                slot,
                process,
                since,
            } => put_move(out, 4, *slot, *process, *since),
        }
    }
    for begun in &view.begun {
        out.put_u32_le(*begun);
    }
    for parity in &view.parities {
        let (kind, process, since) = match parity {
            Parity::Vacant => {
                out.put_u8(0);
                continue;
            }
            Parity::Joining { process, since } => (1, process, since),
            Parity::Full { process, since } => (2, process, since),
        };
        out.put_u8(kind);
        put_process(out, *process);
        out.put_u32_le(*since);
    }
    match view.handoff {
        None => out.put_u8(0),
        Some(Handoff {
            place,
            process,
            since,
        }) => match place {
            GroupSlot::Data(index) => put_move(out, 1, index, process, since),
            GroupSlot::Parity(slot) => put_move(out, 2, slot, process, since),
        },
    }
    out.put_u32_le(view.let_go);
}

/// Reads the bytes of one view.
///
/// # Errors
/// [`NoMessage`].
pub fn decode_view(bytes: Bytes) -> Result<View, NoMessage> {
    let mut from = Reader::new(bytes);
    let view = view(&mut from)?;
    from.end()?;
    Ok(view)
}

pub(super) fn view(from: &mut Reader) -> Result<View, NoMessage> {
    let number = from.u32()?;
    let scheme = match from.u8()? {
        0 => Scheme::Coded,
        1 => Scheme::Replicated,
        _ => return Err(NoMessage::Field("scheme")),
    };
    let (k, m) = (usize::from(from.u8()?), usize::from(from.u8()?));
    if !(1..=PARTITIONS_MAX).contains(&k) || m > PARITIES_MAX {
        return Err(NoMessage::Field("size of a group"));
    }
    let partitions = (0..k)
        .map(|_| partition(from, m))
        .collect::<Result<_, _>>()?;
    let begun = (0..k).map(|_| from.u32()).collect::<Result<_, _>>()?;
    let parities = (0..m).map(|_| parity(from)).collect::<Result<_, _>>()?;
    let handoff = handoff(from, k, m)?;
    let let_go = from.u32()?;
    if u64::from(let_go) >> k != 0 {
        return Err(NoMessage::Field("partitions let go"));
    }
    Ok(View {
        number,
        scheme,
        partitions,
        begun,
        parities,
        handoff,
        let_go,
    })
}

fn handoff(from: &mut Reader, k: usize, m: usize) -> Result<Option<Handoff>, NoMessage> {
    let place = match from.u8()? {
        0 => return Ok(None),
        1 => GroupSlot::Data(slot(from, k)?),
        2 => GroupSlot::Parity(slot(from, m)?),
        _ => return Err(NoMessage::Field("handoff's place")),
    };
    Ok(Some(Handoff {
        place,
        process: process(from)?,
        since: from.u32()?,
    }))
}

fn partition(from: &mut Reader, m: usize) -> Result<Partition, NoMessage> {
    Ok(match from.u8()? {
        0 => Partition::Lost,
        1 => Partition::Home(process(from)?),
        2 => Partition::Recovering(slot(from, m)?),
        3 => Partition::Arriving {
            slot: slot(from, m)?,
            process: process(from)?,
            since: from.u32()?,
        },
        4 => Partition::Migrating {
            slot: slot(from, m)?,
            process: process(from)?,
            since: from.u32()?,
        },
        _ => return Err(NoMessage::Field("partition's state")),
    })
}

fn parity(from: &mut Reader) -> Result<Parity, NoMessage> {
    Ok(match from.u8()? {
        0 => Parity::Vacant,
        1 => Parity::Joining {
            process: process(from)?,
            since: from.u32()?,
        },
        2 => Parity::Full {
            process: process(from)?,
            since: from.u32()?,
        },
        _ => return Err(NoMessage::Field("parity's state")),
    })
}

fn slot(from: &mut Reader, m: usize) -> Result<usize, NoMessage> {
    let slot = usize::from(from.u8()?);
    if slot >= m {
        return Err(NoMessage::Field("slot"));
    }
    Ok(slot)
}

fn put_move(out: &mut BytesMut, kind: u8, slot: usize, process: Process, since: u32) {
    out.put_u8(kind);
    out.put_u8(small(slot));
    put_process(out, process);
    out.put_u32_le(since);
}

fn small(number: usize) -> u8 {
    u8::try_from(number).expect("a group is small")
}

fn put_process(out: &mut BytesMut, process: Process) {
    out.put_u32_le(process.node);
    out.put_u64_le(process.incarnation);
}

fn process(from: &mut Reader) -> Result<Process, NoMessage> {
    Ok(Process {
        node: from.u32()?,
        incarnation: from.u64()?,
    })
}
