//! The messages between a client and a host, and their bytes.
//!
//! A client asks, a host answers; several requests may be outstanding, and those that
//! carry a request number may be answered out of order. The fabric delimits, encrypts and
//! orders messages; here is only what they say. Byte tables: `docs/protocols/control.md`.
//!
//! Invariants: every encoded message has at most [`MESSAGE_BYTES_MAX`] bytes; decoding
//! never panics, allocates no more than a bounded multiple of that, and accepts exactly
//! what encoding makes.

mod status;
#[cfg(test)]
mod tests;
mod wire;

pub use status::{ClientStatus, Counters, HostStatus, STATUS_CLIENTS_MAX, SlabCounts};
use wire::{Reader, Writer};

/// First byte of every message. Another version is refused, not guessed at.
pub const VERSION: u8 = 1;
/// Longest message in bytes; the fabric's own bound on a message.
pub const MESSAGE_BYTES_MAX: usize = 16 * 1024;
/// Longest name of a host, domain or client in bytes.
pub const NAME_BYTES_MAX: usize = 64;
/// Longest address in bytes. A unix socket's path has at most 107.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// Most bytes that one fill writes (decision 10: repair moves in small steps).
pub const FILL_BYTES_MAX: u64 = 1 << 20;
/// Most data splits of a code.
pub const K_MAX: u8 = 32;
/// Most parity splits of a code.
pub const R_MAX: u8 = 8;

/// A window named by its host.
///
/// The fabric's descriptor, mirrored so that the pool depends on no fabric.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Window {
    /// Index in the host's table.
    pub id: u32,
    /// The life that this name is valid for.
    pub generation: u64,
    /// Length in bytes.
    pub len_bytes: u64,
    /// Bit set of what verbs may do.
    pub rights: u8,
}

/// Where a fill reads one split.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Source {
    /// Index of the split in its code, below k + r.
    pub split: u8,
    /// The host that holds it, as the fabric writes addresses.
    pub address: String,
    /// The split's window there.
    pub window: Window,
}

/// What a client asks of a host.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Request {
    /// What is left? Answered by [`Reply::Free`].
    Query,
    /// Lend a slab for one member of an extent's stripe. Answered by [`Reply::Mapped`],
    /// sent when the slab is populated and zero, or [`Reply::Refused`].
    Map {
        /// Chosen by the client, returned in the answer.
        request: u64,
        /// The volume that it is for.
        volume: u128,
        /// The extent of the volume.
        extent: u32,
        /// The member of the extent's stripe.
        member: u8,
    },
    /// Take the slab back. Answered by [`Reply::Unmapped`], also when the window is
    /// unknown, of another generation or another client's; nothing changes then.
    Unmap {
        /// The slab's window.
        window: Window,
    },
    /// A sign of life: renews the lease. Answered by [`Reply::Pong`].
    Ping {
        /// Returned in the answer.
        sequence: u64,
    },
    /// Compute a split from `k` others. The host reads the range `[offset, offset +
    /// len_bytes)` of every source and writes that range of split `split` into the
    /// target, which the asking client holds. Answered by [`Reply::Filled`].
    Fill {
        /// Chosen by the client, returned in the answer.
        request: u64,
        /// One of the asking client's own slabs on this host.
        target: Window,
        /// The split to compute, below k + r.
        split: u8,
        /// Data splits of the code, 1 to [`K_MAX`]. With 1 every split equals the data.
        k: u8,
        /// Parity splits of the code, 0 to [`R_MAX`].
        r: u8,
        /// First byte of the range.
        offset: u64,
        /// 1 to [`FILL_BYTES_MAX`].
        len_bytes: u64,
        /// Exactly `k`, of distinct splits other than `split`.
        sources: Vec<Source>,
    },
    /// How are you? Answered by [`Reply::Status`].
    Status,
    /// Become the one owner of a volume. What an earlier owner held of it passes to the asking
    /// client, under new generations: no verb of that owner takes effect any more. Answered by
    /// [`Reply::Owned`] or [`Reply::Refused`].
    Own {
        /// Chosen by the client, returned in the answer.
        request: u64,
        /// The volume.
        volume: u128,
        /// Counts the owners of the volume, from 1.
        epoch: u64,
    },
    /// Name a slab that the client holds by place and birth, to learn its window. Answered by
    /// [`Reply::Mapped`], its bytes as they were, or [`Reply::Refused`].
    Retake {
        /// Chosen by the client, returned in the answer.
        request: u64,
        /// The volume that it is for.
        volume: u128,
        /// The extent of the volume.
        extent: u32,
        /// The member of the extent's stripe.
        member: u8,
        /// Its first generation.
        birth: u64,
    },
    /// Take back every slab of the volume that came to the client by [`Request::Own`] and that it
    /// has not retaken. Not answered.
    Leave {
        /// The volume.
        volume: u128,
    },
}

/// What a host answers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reply {
    /// What the host can lend.
    Free {
        /// Size of its slabs.
        slab_bytes: u64,
        /// Slabs it lends in all.
        slabs_total: u32,
        /// Slabs it could still lend without taking one from a client.
        slabs_free: u32,
        /// Its failure domain.
        domain: String,
    },
    /// The slab is lent: populated and zero.
    Mapped {
        /// As asked.
        request: u64,
        /// Its window.
        window: Window,
    },
    /// No slab.
    Refused {
        /// As asked.
        request: u64,
        /// Why.
        reason: Refusal,
    },
    /// The window is not lent to the asking client, or no longer.
    Unmapped {
        /// As asked.
        window: Window,
    },
    /// The lease is renewed.
    Pong {
        /// As asked.
        sequence: u64,
        /// Slabs it could still lend without taking one from a client.
        slabs_free: u32,
    },
    /// The end of a fill.
    Filled {
        /// As asked.
        request: u64,
        /// How it ended.
        result: FillResult,
    },
    /// The host's view of itself.
    Status(Box<HostStatus>),
    /// The client owns the volume here.
    Owned {
        /// As asked.
        request: u64,
        /// Slabs of the volume that it holds here now.
        slabs: u32,
    },
}

/// Why a host lends no slab. The numbers are those on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Refusal {
    /// All its slabs are lent, or the system has no memory left.
    NoMemory = 0,
    /// This client holds as many slabs as one client may.
    ClientBound = 1,
    /// The volume is owned by another client whose lease is alive.
    Owned = 2,
    /// The host is about to stop.
    ShuttingDown = 3,
    /// The volume has had an owner of a higher epoch.
    Superseded = 4,
    /// The client holds no such slab.
    NotHeld = 5,
}

/// How a fill ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FillResult {
    /// The range is in place.
    Done,
    /// A source could not be reached or read; the range's content is unspecified.
    SourceFailed {
        /// The source's split.
        split: u8,
    },
    /// The target is not, or no longer, lent to the asking client.
    TargetStale,
    /// The request contradicts itself or the target; nothing was changed.
    Bad,
}

/// Bytes that are no message of this protocol.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("control message: {0}")]
pub struct Malformed(pub &'static str);

impl Request {
    /// Appends the message's bytes to `out`.
    ///
    /// # Panics
    /// If an address is longer than [`ADDRESS_BYTES_MAX`] or there are more than
    /// [`K_MAX`] sources.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        out.u8(VERSION);
        match self {
            Self::Query => out.u8(1),
            Self::Map {
                request,
                volume,
                extent,
                member,
            } => {
                out.u8(2);
                out.u64(*request);
                out.u128(*volume);
                out.u32(*extent);
                out.u8(*member);
            }
            Self::Unmap { window } => {
                out.u8(3);
                out.window(*window);
            }
            Self::Ping { sequence } => {
                out.u8(4);
                out.u64(*sequence);
            }
            Self::Fill {
                request,
                target,
                split,
                k,
                r,
                offset,
                len_bytes,
                sources,
            } => {
                out.u8(5);
                out.u64(*request);
                out.window(*target);
                out.u8(*split);
                out.u8(*k);
                out.u8(*r);
                out.u64(*offset);
                out.u64(*len_bytes);
                assert!(
                    sources.len() <= usize::from(K_MAX),
                    "{} sources",
                    sources.len()
                );
                out.u8(u8::try_from(sources.len()).expect("K_MAX fits one byte"));
                for source in sources {
                    out.u8(source.split);
                    out.text(&source.address, ADDRESS_BYTES_MAX);
                    out.window(source.window);
                }
            }
            Self::Status => out.u8(6),
            Self::Own {
                request,
                volume,
                epoch,
            } => {
                out.u8(11);
                out.u64(*request);
                out.u128(*volume);
                out.u64(*epoch);
            }
            Self::Retake {
                request,
                volume,
                extent,
                member,
                birth,
            } => {
                out.u8(12);
                out.u64(*request);
                out.u128(*volume);
                out.u32(*extent);
                out.u8(*member);
                out.u64(*birth);
            }
            Self::Leave { volume } => {
                out.u8(13);
                out.u128(*volume);
            }
        }
    }

    /// Reads one whole message.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong; the sender breaks the protocol. Whether a fill's
    /// numbers fit together is not checked here.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut input) = open(bytes)?;
        let request = match kind {
            1 => Self::Query,
            2 => Self::Map {
                request: input.u64()?,
                volume: input.u128()?,
                extent: input.u32()?,
                member: input.u8()?,
            },
            3 => Self::Unmap {
                window: input.window()?,
            },
            4 => Self::Ping {
                sequence: input.u64()?,
            },
            5 => Self::Fill {
                request: input.u64()?,
                target: input.window()?,
                split: input.u8()?,
                k: input.u8()?,
                r: input.u8()?,
                offset: input.u64()?,
                len_bytes: input.u64()?,
                sources: read_sources(&mut input)?,
            },
            6 => Self::Status,
            11 => Self::Own {
                request: input.u64()?,
                volume: input.u128()?,
                epoch: input.u64()?,
            },
            12 => Self::Retake {
                request: input.u64()?,
                volume: input.u128()?,
                extent: input.u32()?,
                member: input.u8()?,
                birth: input.u64()?,
            },
            13 => Self::Leave {
                volume: input.u128()?,
            },
            _ => return Err(Malformed("unknown request")),
        };
        input.end()?;
        Ok(request)
    }
}

fn read_sources(input: &mut Reader<'_>) -> Result<Vec<Source>, Malformed> {
    let count = input.u8()?;
    if count > K_MAX {
        return Err(Malformed("too many sources"));
    }
    (0..count)
        .map(|_| {
            Ok(Source {
                split: input.u8()?,
                address: input.text(ADDRESS_BYTES_MAX)?,
                window: input.window()?,
            })
        })
        .collect()
}

impl Reply {
    /// Appends the message's bytes to `out`.
    ///
    /// # Panics
    /// If a name is longer than [`NAME_BYTES_MAX`] or a status lists more than
    /// [`STATUS_CLIENTS_MAX`] clients.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut out = Writer(out);
        out.u8(VERSION);
        match self {
            Self::Free {
                slab_bytes,
                slabs_total,
                slabs_free,
                domain,
            } => {
                out.u8(1);
                out.u64(*slab_bytes);
                out.u32(*slabs_total);
                out.u32(*slabs_free);
                out.text(domain, NAME_BYTES_MAX);
            }
            Self::Mapped { request, window } => {
                out.u8(2);
                out.u64(*request);
                out.window(*window);
            }
            Self::Refused { request, reason } => {
                out.u8(3);
                out.u64(*request);
                out.u8(*reason as u8);
            }
            Self::Unmapped { window } => {
                out.u8(4);
                out.window(*window);
            }
            Self::Pong {
                sequence,
                slabs_free,
            } => {
                out.u8(5);
                out.u64(*sequence);
                out.u32(*slabs_free);
            }
            Self::Filled { request, result } => {
                out.u8(6);
                out.u64(*request);
                let (kind, split) = match result {
                    FillResult::Done => (0, 0),
                    FillResult::SourceFailed { split } => (1, *split),
                    FillResult::TargetStale => (2, 0),
                    FillResult::Bad => (3, 0),
                };
                out.u8(kind);
                out.u8(split);
            }
            Self::Status(status) => {
                out.u8(7);
                status.write(&mut out);
            }
            Self::Owned { request, slabs } => {
                out.u8(10);
                out.u64(*request);
                out.u32(*slabs);
            }
        }
    }

    /// Reads one whole message.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong; the sender breaks the protocol.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut input) = open(bytes)?;
        let reply = match kind {
            1 => Self::Free {
                slab_bytes: input.u64()?,
                slabs_total: input.u32()?,
                slabs_free: input.u32()?,
                domain: input.text(NAME_BYTES_MAX)?,
            },
            2 => Self::Mapped {
                request: input.u64()?,
                window: input.window()?,
            },
            3 => Self::Refused {
                request: input.u64()?,
                reason: match input.u8()? {
                    0 => Refusal::NoMemory,
                    1 => Refusal::ClientBound,
                    2 => Refusal::Owned,
                    3 => Refusal::ShuttingDown,
                    4 => Refusal::Superseded,
                    5 => Refusal::NotHeld,
                    _ => return Err(Malformed("unknown refusal")),
                },
            },
            4 => Self::Unmapped {
                window: input.window()?,
            },
            5 => Self::Pong {
                sequence: input.u64()?,
                slabs_free: input.u32()?,
            },
            6 => Self::Filled {
                request: input.u64()?,
                result: match (input.u8()?, input.u8()?) {
                    (0, 0) => FillResult::Done,
                    (1, split) => FillResult::SourceFailed { split },
                    (2, 0) => FillResult::TargetStale,
                    (3, 0) => FillResult::Bad,
                    _ => return Err(Malformed("unknown end of a fill")),
                },
            },
            7 => Self::Status(Box::new(HostStatus::read(&mut input)?)),
            10 => Self::Owned {
                request: input.u64()?,
                slabs: input.u32()?,
            },
            _ => return Err(Malformed("unknown reply")),
        };
        input.end()?;
        Ok(reply)
    }
}

/// Checks length and version; the kind and the fields that follow it.
fn open(bytes: &[u8]) -> Result<(u8, Reader<'_>), Malformed> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed("message is too long"));
    }
    let mut input = Reader::new(bytes);
    if input.u8()? != VERSION {
        return Err(Malformed("another version"));
    }
    Ok((input.u8()?, input))
}
