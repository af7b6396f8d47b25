//! What a host answers, or asks of a client by itself, and its bytes.

#[cfg(doc)]
use super::Request;
use super::wire::{Reader, Writer};
use super::{
    EVICT_WINDOWS_MAX, HELD_SLABS_MAX, HostStatus, Malformed, NAME_BYTES_MAX, VERSION, Window, open,
};

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
    /// How active are these slabs of the client? The host means to ask some of them back, those
    /// that are used least. No answer to a request; answered by [`Request::Activity`]. Since
    /// version 3.
    CheckActivity {
        /// Chosen by the host, returned in the answer.
        request: u64,
        /// 1 to [`EVICT_WINDOWS_MAX`].
        windows: Vec<Window>,
    },
    /// The machine that the client shares with the host has memory to spare, which is the client's
    /// first: it may reclaim pages. Repeated while it holds. No answer to a request; answered by
    /// [`Request::Here`]. Since version 4.
    Reclaim {
        /// As much more may be in use on the machine.
        bytes: u64,
    },
    /// Another process is about to take the host's place, with all that is lent: connections end,
    /// and slabs are here again soon, as they were. No answer to a request; answered by
    /// [`Request::Awaits`]. Since version 5.
    HandsOver {
        /// Who waits longer than this from the connection's end on waits in vain.
        back_within_ms: u32,
    },
    /// The host's machine is taken back within so many milliseconds, and what is on it then is lost; 0:
    /// it stays after all. Repeated each second. No answer to a request. Since version 7.
    Notice {
        /// Time that is left, from when it was sent.
        within_ms: u32,
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
    /// More than `k` sources were given, and they disagree beyond what tells which are wrong; the
    /// range's content is unspecified.
    Disagree,
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

impl Reply {
    /// The version that first had it: a peer of an earlier one is not to be sent it.
    #[must_use]
    pub fn since(&self) -> u8 {
        match self {
            Self::Notice { .. } => 7,
            Self::HandsOver { .. } => 5,
            Self::Reclaim { .. } => 4,
            Self::CheckActivity { .. } => 3,
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
                    FillResult::Disagree => (4, 0),
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
                write_windows(&mut out, windows);
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
            Self::CheckActivity { request, windows } => {
                out.u8(11);
                out.u64(*request);
                write_windows(&mut out, windows);
            }
            Self::Reclaim { bytes } => {
                out.u8(12);
                out.u64(*bytes);
            }
            Self::HandsOver { back_within_ms } => {
                out.u8(13);
                out.u32(*back_within_ms);
            }
            Self::Notice { within_ms } => {
                out.u8(14);
                out.u32(*within_ms);
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
                    (4, 0) => FillResult::Disagree,
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
            11 => Self::CheckActivity {
                request: input.u64()?,
                windows: read_windows(&mut input)?,
            },
            12 => Self::Reclaim {
                bytes: input.u64()?,
            },
            13 => Self::HandsOver {
                back_within_ms: input.u32()?,
            },
            14 => Self::Notice {
                within_ms: input.u32()?,
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

fn write_windows(out: &mut Writer<'_>, windows: &[Window]) {
    let fits = (1..=EVICT_WINDOWS_MAX).contains(&windows.len());
    assert!(fits, "{} windows", windows.len());
    out.u16(u16::try_from(windows.len()).expect("the bound fits 16 bits"));
    for window in windows {
        out.window(*window);
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
