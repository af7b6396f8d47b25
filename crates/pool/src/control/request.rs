//! What a client asks of a host, and its bytes.

use super::wire::{Reader, Writer};
use super::{ADDRESS_BYTES_MAX, EVICT_WINDOWS_MAX, K_MAX, Malformed, R_MAX, VERSION, Window, open};
#[cfg(doc)]
use super::{FILL_BYTES_MAX, Reply};

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

/// How much a client uses one of its slabs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SlabActivity {
    /// The slab's window.
    pub window: Window,
    /// Moving average of its page reads and writes per second, times 1000; the greatest number
    /// stands for itself and all above.
    pub milli: u32,
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
    /// Compute a split from `k` others, or from more that are compared with each other first. The host reads the range `[offset, offset +
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
        /// Of distinct splits other than `split`: exactly `k`; or, from version 4 on, more. Among
        /// `k + 2d` up to `d` wrong ones are left aside, byte by byte.
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
    /// [`Reply::Mapped`], its bytes as they were and its window under a new generation: verbs of an earlier
    /// session take no effect; or by [`Reply::Refused`]. Since version 2.
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
    /// How active the slabs of a [`Reply::CheckActivity`] are. Not answered. Since version 3.
    Activity {
        /// As the host asked.
        request: u64,
        /// At most [`EVICT_WINDOWS_MAX`]; a window that the client does not use is left out.
        slabs: Vec<SlabActivity>,
    },
    /// Where the client runs, and how much of its machine's memory it keeps on hosts: said at the
    /// start, and in answer to a [`Reply::Reclaim`]. Not answered. Since version 4.
    Here {
        /// Its machine; 0: it does not say.
        machine: u128,
        /// What it could reclaim. Of a client that reclaims nothing: 0.
        away_bytes: u64,
    },
    /// The client knows that another process is about to take the host's place, and keeps what it
    /// holds here for its return. Answers [`Reply::HandsOver`]. Since
    /// version 5.
    Awaits,
    /// Give a slab's window a new generation and leave its bytes as they are: after the answer no
    /// verb under the old name takes effect, but a copy that is under way over `shm`. Answered by
    /// [`Reply::Mapped`], or [`Reply::Refused`] where the client does not hold the window. Since
    /// version 7.
    Renew {
        /// Chosen by the client, returned in the answer.
        request: u64,
        /// One of the asking client's own slabs on this host.
        window: Window,
    },
    /// An operator's: the machine is taken back within so many milliseconds, from 1; 0: it stays after all.
    /// Answered by [`Reply::Status`]. Since version 7.
    Notice {
        /// Time that is left.
        within_ms: u32,
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
            Self::Activity { .. } => 3,
            Self::Here { .. } => 4,
            Self::Awaits => 5,
            Self::Renew { .. } | Self::Notice { .. } => 7,
            Self::Fill { k, sources, .. } if sources.len() > usize::from(*k) => 4,
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
    /// [`ADDRESS_BYTES_MAX`] or a list passes its bound.
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
                    sources.len() <= usize::from(K_MAX + R_MAX),
                    "{} sources",
                    sources.len()
                );
                out.u8(u8::try_from(sources.len()).expect("K_MAX + R_MAX fits one byte"));
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
            Self::Activity { request, slabs } => {
                out.u8(14);
                out.u64(*request);
                assert!(slabs.len() <= EVICT_WINDOWS_MAX, "{} slabs", slabs.len());
                out.u16(u16::try_from(slabs.len()).expect("the bound fits 16 bits"));
                for slab in slabs {
                    out.window(slab.window);
                    out.u32(slab.milli);
                }
            }
            Self::Here {
                machine,
                away_bytes,
            } => {
                out.u8(15);
                out.u128(*machine);
                out.u64(*away_bytes);
            }
            Self::Awaits => out.u8(16),
            Self::Renew { request, window } => {
                out.u8(17);
                out.u64(*request);
                out.window(*window);
            }
            Self::Notice { within_ms } => {
                out.u8(18);
                out.u32(*within_ms);
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
            14 => Self::Activity {
                request: input.u64()?,
                slabs: read_activities(&mut input)?,
            },
            15 => Self::Here {
                machine: input.u128()?,
                away_bytes: input.u64()?,
            },
            16 => Self::Awaits,
            17 => Self::Renew {
                request: input.u64()?,
                window: input.window()?,
            },
            18 => Self::Notice {
                within_ms: input.u32()?,
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
    if count > K_MAX + R_MAX {
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

fn read_activities(input: &mut Reader<'_>) -> Result<Vec<SlabActivity>, Malformed> {
    let count = usize::from(input.u16()?);
    if count > EVICT_WINDOWS_MAX {
        return Err(Malformed("too many slabs"));
    }
    let slab = |_| {
        Ok(SlabActivity {
            window: input.window()?,
            milli: input.u32()?,
        })
    };
    (0..count).map(slab).collect()
}
