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
pub(crate) mod wire;

pub use status::{ClientStatus, Counters, HostStatus, STATUS_CLIENTS_MAX, SlabCounts};
use wire::{Reader, Writer};

/// Newest version of the messages; the fabric's handshake agrees on one, which is the first byte
/// of every message.
pub const VERSION: u8 = 2;
/// Oldest version that is understood: the one before. Another one is refused, not guessed at.
pub const VERSION_OLDEST: u8 = 1;
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
/// Most windows in one [`Reply::Evict`].
pub const EVICT_WINDOWS_MAX: usize = 256;
/// Most slabs in one [`Reply::Held`].
pub const HELD_SLABS_MAX: usize = 256;

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
    /// An operator's: give all slabs back without loss, or lend again. Answered by
    /// [`Reply::Status`]. Since version 2.
    Drain(Drain),
    /// The asking client cannot do without the slab: there is nowhere to put its bytes. Says so
    /// of one in a [`Reply::Evict`]; not answered. Since version 2.
    Decline {
        /// The slab's window.
        window: Window,
    },
    /// Which slabs does the asking client hold here? Answered by [`Reply::Held`]. Since version 2.
    Held {
        /// Slabs to skip, those of earlier answers.
        skip: u32,
    },
    /// An operator's: put another program in this process's place, slabs and all. Answered by
    /// [`Reply::Status`], after which the connection ends. Since version 2.
    Upgrade,
    /// Become the one owner of a volume. What an earlier owner held of it passes to the asking
    /// client, under new generations: no verb of that owner takes effect any more. Answered by
    /// [`Reply::Owned`] or [`Reply::Refused`]. Since version 2.
    Own {
        /// Chosen by the client, returned in the answer.
        request: u64,
        /// The volume.
        volume: u128,
        /// Counts the owners of the volume, from 1.
        epoch: u64,
    },
    /// Name a slab that the client holds by place and birth, to learn its window. Answered by
    /// [`Reply::Mapped`], its bytes as they were, or [`Reply::Refused`]. Since version 2.
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
    /// has not retaken. Not answered. Since version 2.
    Leave {
        /// The volume.
        volume: u128,
    },
}

/// Whether a host gives its slabs back. The numbers are those on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Drain {
    /// It lends as before.
    Off = 0,
    /// It lends nothing, and asks its clients for what they hold.
    On = 1,
    /// And ends when nobody holds anything.
    Stop = 2,
}

/// A slab that a client holds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct HeldSlab {
    /// The volume that it is for.
    pub volume: u128,
    /// The extent of the volume.
    pub extent: u32,
    /// The member of the extent's stripe.
    pub member: u8,
    /// Its window, as granted.
    pub window: Window,
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
    /// The host wants these slabs of the client back, and says so again while it does: the client
    /// copies each elsewhere and unmaps it, at most one of a stripe at a time, or declines. No
    /// answer to a request. Since version 2.
    Evict {
        /// 1 to [`EVICT_WINDOWS_MAX`].
        windows: Vec<Window>,
    },
    /// Slabs of the asking client, at most [`HELD_SLABS_MAX`]; fewer: there are no more.
    /// Since version 2.
    Held {
        /// As asked.
        skip: u32,
        /// In the order in which they were granted.
        slabs: Vec<HeldSlab>,
    },
    /// The client owns the volume here. Since version 2.
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
    /// The host is about to stop, or gives its memory back.
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

/// The version that a received message is written in; 0 for none at all.
#[must_use]
pub fn version_of(message: &[u8]) -> u8 {
    message.first().copied().unwrap_or(0)
}

impl Request {
    /// The version that first had it: a peer of an earlier one is not to be sent it.
    #[must_use]
    pub fn since(&self) -> u8 {
        match self {
            Self::Drain(_)
            | Self::Decline { .. }
            | Self::Held { .. }
            | Self::Upgrade
            | Self::Own { .. }
            | Self::Retake { .. }
            | Self::Leave { .. } => 2,
            _ => 1,
        }
    }

    /// Appends the message's bytes in the newest version to `out`.
    ///
    /// # Panics
    /// As [`Request::encode_as`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_as(VERSION, out);
    }

    /// Appends the message's bytes in the version agreed with its receiver to `out`.
    ///
    /// # Panics
    /// If the version is older than [`Request::since`], an address is longer than
    /// [`ADDRESS_BYTES_MAX`] or there are more than [`K_MAX`] sources.
    pub fn encode_as(&self, version: u8, out: &mut Vec<u8>) {
        assert!(version >= self.since(), "{self:?} in version {version}");
        let mut out = Writer(out);
        out.u8(version);
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
            Self::Drain(drain) => {
                out.u8(7);
                out.u8(*drain as u8);
            }
            Self::Decline { window } => {
                out.u8(8);
                out.window(*window);
            }
            Self::Held { skip } => {
                out.u8(9);
                out.u32(*skip);
            }
            Self::Upgrade => out.u8(10),
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
        let (version, kind, mut input) = open(bytes)?;
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
            7 => Self::Drain(match input.u8()? {
                0 => Drain::Off,
                1 => Drain::On,
                2 => Drain::Stop,
                _ => return Err(Malformed("unknown way to drain")),
            }),
            8 => Self::Decline {
                window: input.window()?,
            },
            9 => Self::Held { skip: input.u32()? },
            10 => Self::Upgrade,
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
        if request.since() > version {
            return Err(Malformed("unknown request of its version"));
        }
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
    /// The version that first had it: a peer of an earlier one is not to be sent it.
    #[must_use]
    pub fn since(&self) -> u8 {
        match self {
            Self::Evict { .. } | Self::Held { .. } | Self::Owned { .. } => 2,
            _ => 1,
        }
    }

    /// Appends the message's bytes in the newest version to `out`.
    ///
    /// # Panics
    /// As [`Reply::encode_as`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_as(VERSION, out);
    }

    /// Appends the message's bytes in the version agreed with its receiver to `out`.
    ///
    /// # Panics
    /// If the version is older than [`Reply::since`], a name is longer than [`NAME_BYTES_MAX`],
    /// or a list passes its bound.
    pub fn encode_as(&self, version: u8, out: &mut Vec<u8>) {
        assert!(version >= self.since(), "{self:?} in version {version}");
        let mut out = Writer(out);
        out.u8(version);
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
                status.write(version, &mut out);
            }
            Self::Evict { windows } => {
                out.u8(8);
                let fits = (1..=EVICT_WINDOWS_MAX).contains(&windows.len());
                assert!(fits, "{} windows", windows.len());
                out.u16(u16::try_from(windows.len()).expect("the bound fits 16 bits"));
                for window in windows {
                    out.window(*window);
                }
            }
            Self::Held { skip, slabs } => {
                out.u8(9);
                out.u32(*skip);
                assert!(slabs.len() <= HELD_SLABS_MAX, "{} slabs", slabs.len());
                out.u16(u16::try_from(slabs.len()).expect("the bound fits 16 bits"));
                for slab in slabs {
                    out.u128(slab.volume);
                    out.u32(slab.extent);
                    out.u8(slab.member);
                    out.window(slab.window);
                }
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
        let (version, kind, mut input) = open(bytes)?;
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
            7 => Self::Status(Box::new(HostStatus::read(version, &mut input)?)),
            8 => Self::Evict {
                windows: read_windows(&mut input)?,
            },
            9 => Self::Held {
                skip: input.u32()?,
                slabs: read_held(&mut input)?,
            },
            10 => Self::Owned {
                request: input.u64()?,
                slabs: input.u32()?,
            },
            _ => return Err(Malformed("unknown reply")),
        };
        if reply.since() > version {
            return Err(Malformed("unknown reply of its version"));
        }
        input.end()?;
        Ok(reply)
    }
}

fn read_windows(input: &mut Reader<'_>) -> Result<Vec<Window>, Malformed> {
    let count = usize::from(input.u16()?);
    if !(1..=EVICT_WINDOWS_MAX).contains(&count) {
        return Err(Malformed("no windows, or too many"));
    }
    (0..count).map(|_| input.window()).collect()
}

fn read_held(input: &mut Reader<'_>) -> Result<Vec<HeldSlab>, Malformed> {
    let count = usize::from(input.u16()?);
    if count > HELD_SLABS_MAX {
        return Err(Malformed("too many slabs"));
    }
    let slab = |_| {
        Ok(HeldSlab {
            volume: input.u128()?,
            extent: input.u32()?,
            member: input.u8()?,
            window: input.window()?,
        })
    };
    (0..count).map(slab).collect()
}

/// Checks length and version; the version, the kind and the fields that follow it.
fn open(bytes: &[u8]) -> Result<(u8, u8, Reader<'_>), Malformed> {
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(Malformed("message is too long"));
    }
    let mut input = Reader::new(bytes);
    let version = input.u8()?;
    if !(VERSION_OLDEST..=VERSION).contains(&version) {
        return Err(Malformed("another version than 1 and 2"));
    }
    Ok((version, input.u8()?, input))
}
