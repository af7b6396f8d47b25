//! Messages of a group as bytes. Tables: `docs/protocols/kv-group.md`.
//!
//! A message is one frame of a link, which delimits and orders them. Invariants: what is large is
//! copied neither when it is encoded ([`Encoded::body`]) nor when it is decoded (slices of the frame);
//! decoding never panics, accepts exactly what encoding makes, and allocates no more than a small
//! multiple of the frame. Bounds that depend on a group's shape are its members' to check.

#[cfg(test)]
mod examples;
mod fields;
#[cfg(test)]
mod generate;
#[cfg(test)]
mod tests;
mod view;

use bytes::{BufMut, Bytes, BytesMut};

use self::fields::{
    ITEM_BYTES_MIN, Reader, put_content, put_item, put_key_count, put_lacks, put_option,
    put_partition, put_run,
};
use super::message::{Content, Message};
use super::operation::{NoOperation, Operation};
use super::replica::Basis;

pub use self::view::{decode_view, encode_view};

/// Bytes of group number, view number and kind, which every frame begins with.
pub const HEADER_BYTES: usize = 7;
/// Most bytes of a frame that are not items' or values'.
const HEAD_BYTES: usize = 64;
/// Greatest number of an operation: cas numbers have room for no more.
pub const XID_MAX: u64 = (1 << 44) - 1;
/// Where addresses end, as keys' entries keep them.
pub const ADDRESS_END: u64 = 1 << 44;

/// One message, as it travels.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// Which group it is for.
    pub group: u16,
    /// Number of its sender's view.
    pub view: u32,
    /// What it says.
    pub message: Message,
}

/// A frame, in two parts that are sent one after the other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Encoded {
    /// All but the body.
    pub head: Bytes,
    /// An operation's or units' bytes, shared with whoever has them.
    pub body: Option<Bytes>,
}

/// Bytes that are no message.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMessage {
    /// They end too early.
    #[error("a message ends too early")]
    Short,
    /// Something follows.
    #[error("{0} bytes follow a message")]
    Trailing(usize),
    /// Its kind is not known.
    #[error("unknown kind of message {0}")]
    Kind(u8),
    /// A field is out of its range.
    #[error("a message's {0} is out of range")]
    Field(&'static str),
    /// It has no operation where one should be.
    #[error(transparent)]
    Operation(#[from] NoOperation),
}

const VIEW: u8 = 1;
const HAVE: u8 = 2;
const UPDATE: u8 = 3;
const STABLE: u8 = 4;
const ACK: u8 = 5;
const SETTLE: u8 = 6;
const SETTLED: u8 = 7;
const READY: u8 = 8;
const WANT: u8 = 9;
const FETCH: u8 = 10;
const UNITS: u8 = 11;
const RESIDUAL: u8 = 12;
const MIXED: u8 = 13;
const SOLVED: u8 = 14;
const ITEMS: u8 = 15;
const COPY: u8 = 16;
const TAKEN: u8 = 17;
const PULL: u8 = 18;
const PULLED: u8 = 19;
const PROBE: u8 = 20;
const ANSWER: u8 = 21;

impl Encoded {
    /// Bytes of the frame.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.as_ref().map_or(0, Bytes::len)
    }
}

/// Encodes a message that is sent in the view of this number.
///
/// # Panics
/// As [`encode_into`].
pub fn encode(group: u16, view: u32, message: &Message) -> Encoded {
    let mut head = BytesMut::with_capacity(HEAD_BYTES);
    let body = encode_into(group, view, message, &mut head);
    let head = head.freeze();
    Encoded { head, body }
}

/// As [`encode`], with the head behind what `head` has already: for many messages in a row.
///
/// # Panics
/// If the message breaks the bounds of its type: none that a member says does.
pub fn encode_into(group: u16, view: u32, message: &Message, head: &mut BytesMut) -> Option<Bytes> {
    head.put_u16_le(group);
    head.put_u32_le(view);
    head.put_u8(kind_of(message));
    if let Some(partition) = message.partition() {
        put_partition(head, partition);
    }
    match message {
        Message::View(view) => encode_view(view, head),
        Message::Have { xid, lacks, .. } => {
            head.put_u64_le(*xid);
            put_lacks(head, lacks);
        }
        Message::Update {
            xid,
            stable,
            operation,
            ..
        } => {
            head.put_u64_le(*xid);
            head.put_u64_le(*stable);
            return Some(operation.bytes().clone());
        }
        Message::Stable { stable: xid, .. }
        | Message::Ack { xid, .. }
        | Message::Settle { stable: xid, .. } => head.put_u64_le(*xid),
        Message::Settled { .. } | Message::Ready { .. } | Message::Taken { .. } => {}
        Message::Want { run } | Message::Pull { run, .. } => put_run(head, run),
        Message::Fetch { attempt, run } | Message::Mixed { attempt, run } => {
            head.put_u64_le(*attempt);
            put_run(head, run);
        }
        Message::Units {
            attempt,
            run,
            content,
            ..
        } => {
            head.put_u64_le(*attempt);
            put_run(head, run);
            match content {
                Content::Lost => head.put_u8(0),
                Content::Known { at, bytes } => {
                    head.put_u8(1);
                    head.put_u64_le(*at);
                    return put_content(head, run, bytes);
                }
            }
        }
        Message::Residual {
            attempt,
            run,
            lost,
            bytes,
        } => {
            head.put_u64_le(*attempt);
            put_run(head, run);
            head.put_u32_le(*lost);
            return put_content(head, run, bytes);
        }
        Message::Solved { run, bytes, .. } | Message::Pulled { run, bytes, .. } => {
            put_run(head, run);
            return put_content(head, run, bytes);
        }
        Message::Copy { at, run, bytes, .. } => {
            head.put_u64_le(*at);
            put_run(head, run);
            return put_content(head, run, bytes);
        }
        Message::Items {
            at,
            basis,
            from,
            items,
            end,
            ..
        } => {
            head.put_u64_le(*at);
            head.put_u32_le(basis.now);
            head.put_u32_le(basis.flush_at);
            head.put_u64_le(basis.flushed_below);
            head.put_u64_le(*from);
            put_option(head, *end);
            put_key_count(head, items.len());
            items.iter().for_each(|item| put_item(head, item));
        }
        Message::Probe { number } | Message::Answer { number } => head.put_u64_le(*number),
    }
    None
}

/// Decodes one frame. What is large in the message is a part of it, and keeps all of it in memory.
///
/// # Errors
/// [`NoMessage`]: whoever sent it is of no use.
pub fn decode(frame: Bytes) -> Result<Frame, NoMessage> {
    let mut from = Reader::new(frame);
    let group = from.u16()?;
    let view = from.u32()?;
    let kind = from.u8()?;
    let message = message(kind, &mut from)?;
    from.end()?;
    Ok(Frame {
        group,
        view,
        message,
    })
}

fn kind_of(message: &Message) -> u8 {
    match message {
        Message::View(_) => VIEW,
        Message::Have { .. } => HAVE,
        Message::Update { .. } => UPDATE,
        Message::Stable { .. } => STABLE,
        Message::Ack { .. } => ACK,
        Message::Settle { .. } => SETTLE,
        Message::Settled { .. } => SETTLED,
        Message::Ready { .. } => READY,
        Message::Want { .. } => WANT,
        Message::Fetch { .. } => FETCH,
        Message::Units { .. } => UNITS,
        Message::Residual { .. } => RESIDUAL,
        Message::Mixed { .. } => MIXED,
        Message::Solved { .. } => SOLVED,
        Message::Items { .. } => ITEMS,
        Message::Copy { .. } => COPY,
        Message::Taken { .. } => TAKEN,
        Message::Pull { .. } => PULL,
        Message::Pulled { .. } => PULLED,
        Message::Probe { .. } => PROBE,
        Message::Answer { .. } => ANSWER,
    }
}

fn message(kind: u8, from: &mut Reader) -> Result<Message, NoMessage> {
    // Fields of a struct are read in the order in which they are written here.
    Ok(match kind {
        VIEW => Message::View(view::view(from)?),
        HAVE => Message::Have {
            partition: from.partition()?,
            xid: from.xid()?,
            lacks: from.lacks()?,
        },
        UPDATE => Message::Update {
            partition: from.partition()?,
            xid: from.xid()?,
            stable: from.xid()?,
            operation: operation(from)?,
        },
        STABLE => Message::Stable {
            partition: from.partition()?,
            stable: from.xid()?,
        },
        ACK => Message::Ack {
            partition: from.partition()?,
            xid: from.xid()?,
        },
        SETTLE => Message::Settle {
            partition: from.partition()?,
            stable: from.xid()?,
        },
        SETTLED => Message::Settled {
            partition: from.partition()?,
        },
        READY => Message::Ready {
            partition: from.partition()?,
        },
        WANT => Message::Want { run: from.run()? },
        FETCH => Message::Fetch {
            attempt: from.u64()?,
            run: from.run()?,
        },
        UNITS => units(from)?,
        RESIDUAL => residual(from)?,
        MIXED => Message::Mixed {
            attempt: from.u64()?,
            run: from.run()?,
        },
        SOLVED => {
            let (partition, run) = (from.partition()?, from.run()?);
            let bytes = from.content(&run)?;
            Message::Solved {
                run,
                partition,
                bytes,
            }
        }
        ITEMS => items(from)?,
        COPY => {
            let (partition, at, run) = (from.partition()?, from.xid()?, from.run()?);
            let bytes = from.content(&run)?;
            Message::Copy {
                partition,
                at,
                run,
                bytes,
            }
        }
        TAKEN => Message::Taken {
            partition: from.partition()?,
        },
        PULL => Message::Pull {
            partition: from.partition()?,
            run: from.run()?,
        },
        PULLED => {
            let (partition, run) = (from.partition()?, from.run()?);
            let bytes = from.content(&run)?;
            Message::Pulled {
                partition,
                run,
                bytes,
            }
        }
        PROBE => Message::Probe {
            number: from.u64()?,
        },
        ANSWER => Message::Answer {
            number: from.u64()?,
        },
        _ => return Err(NoMessage::Kind(kind)),
    })
}

fn operation(from: &mut Reader) -> Result<Operation, NoMessage> {
    let operation = Operation::decode(from.rest())?;
    if let super::operation::Effect::Put(entry) = operation.effect() {
        fields::check_place(&entry)?;
    }
    Ok(operation)
}

fn units(from: &mut Reader) -> Result<Message, NoMessage> {
    let partition = from.partition()?;
    let (attempt, run) = (from.u64()?, from.run()?);
    let content = if from.truth("content")? {
        Content::Known {
            at: from.xid()?,
            bytes: from.content(&run)?,
        }
    } else {
        Content::Lost
    };
    Ok(Message::Units {
        attempt,
        run,
        partition,
        content,
    })
}

fn residual(from: &mut Reader) -> Result<Message, NoMessage> {
    let (attempt, run) = (from.u64()?, from.run()?);
    Ok(Message::Residual {
        attempt,
        run,
        lost: from.u32()?,
        bytes: from.content(&run)?,
    })
}

fn items(from: &mut Reader) -> Result<Message, NoMessage> {
    let partition = from.partition()?;
    let at = from.xid()?;
    let basis = Basis {
        now: from.u32()?,
        flush_at: from.u32()?,
        flushed_below: from.u64()?,
    };
    let cursor = from.u64()?;
    let end = from.option("end of the keys")?;
    let count = from.count(ITEM_BYTES_MIN)?;
    let mut items = Vec::with_capacity(count);
    for _ in 0..count {
        items.push(from.item()?);
    }
    Ok(Message::Items {
        partition,
        at,
        basis,
        from: cursor,
        items,
        end,
    })
}
