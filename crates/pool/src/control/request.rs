//! What a client asks of a host, and its bytes.

use cenote_wire::{List, Text, Writer, messages};

use super::{ADDRESS_BYTES_MAX, EVICT_WINDOWS_MAX, K_MAX, Malformed, R_MAX, VERSION, Window, open};
#[cfg(doc)]
use super::{FILL_BYTES_MAX, Reply};

/// Most sources of a fill.
const SOURCES_MAX: usize = K_MAX as usize + R_MAX as usize;

messages! {
    /// Where a fill reads one split.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub struct Source {
        /// Index of the split in its code, below k + r.
        pub split: u8,
        /// The host that holds it, as the fabric writes addresses.
        pub address: String as Text<u8, ADDRESS_BYTES_MAX>,
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
    pub enum Request | "unknown request" {
        /// What is left? Answered by [`Reply::Free`].
        1 => Query,
        /// Lend a slab for one member of an extent's stripe. Answered by [`Reply::Mapped`],
        /// sent when the slab is populated and zero, or [`Reply::Refused`].
        2 => Map {
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
        3 => Unmap {
            /// The slab's window.
            window: Window,
        },
        /// A sign of life: renews the lease. Answered by [`Reply::Pong`].
        4 => Ping {
            /// Returned in the answer.
            sequence: u64,
        },
        /// Compute a split from `k` others, or from more that are compared with each other first. The host reads the range `[offset, offset +
        /// len_bytes)` of every source and writes that range of split `split` into the
        /// target, which the asking client holds. Answered by [`Reply::Filled`].
        5 => Fill {
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
            sources: Vec<Source> as List<u8, 0, SOURCES_MAX> | "too many sources",
        },
        /// How are you? Answered by [`Reply::Status`].
        6 => Status,
        /// An operator's: give all slabs back without loss, or lend again. Answered by
        /// [`Reply::Status`]. Since version 2.
        7 => Drain(Drain),
        /// The asking client cannot do without the slab: there is nowhere to put its bytes. Says so
        /// of one in a [`Reply::Evict`]; not answered. Since version 2.
        8 => Decline {
            /// The slab's window.
            window: Window,
        },
        /// Which slabs does the asking client hold here? Answered by [`Reply::Held`]. Since version 2.
        9 => Held {
            /// Slabs to skip, those of earlier answers.
            skip: u32,
        },
        /// An operator's: put another program in this process's place, slabs and all. Answered by
        /// [`Reply::Status`], after which the connection ends. Since version 2.
        10 => Upgrade,
        /// Become the one owner of a volume. What an earlier owner held of it passes to the asking
        /// client, under new generations: no verb of that owner takes effect any more. Answered by
        /// [`Reply::Owned`] or [`Reply::Refused`]. Since version 2.
        11 => Own {
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
        12 => Retake {
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
        13 => Leave {
            /// The volume.
            volume: u128,
        },
        /// How active the slabs of a [`Reply::CheckActivity`] are. Not answered. Since version 3.
        14 => Activity {
            /// As the host asked.
            request: u64,
            /// At most [`EVICT_WINDOWS_MAX`]; a window that the client does not use is left out.
            slabs: Vec<SlabActivity> as List<u16, 0, EVICT_WINDOWS_MAX> | "too many slabs",
        },
        /// Where the client runs, and how much of its machine's memory it keeps on hosts: said at the
        /// start, and in answer to a [`Reply::Reclaim`]. Not answered. Since version 4.
        15 => Here {
            /// Its machine; 0: it does not say.
            machine: u128,
            /// What it could reclaim. Of a client that reclaims nothing: 0.
            away_bytes: u64,
        },
        /// The client knows that another process is about to take the host's place, and keeps what it
        /// holds here for its return. Answers [`Reply::HandsOver`]. Since
        /// version 5.
        16 => Awaits,
        /// Give a slab's window a new generation and leave its bytes as they are: after the answer no
        /// verb under the old name takes effect, but a copy that is under way over `shm`. Answered by
        /// [`Reply::Mapped`], or [`Reply::Refused`] where the client does not hold the window. Since
        /// version 7.
        17 => Renew {
            /// Chosen by the client, returned in the answer.
            request: u64,
            /// One of the asking client's own slabs on this host.
            window: Window,
        },
        /// An operator's: the machine is taken back within so many milliseconds, from 1; 0: it stays after all.
        /// Answered by [`Reply::Status`]. Since version 7.
        18 => Notice {
            /// Time that is left.
            within_ms: u32,
        },
    }

    /// Whether a host gives its slabs back. The numbers are those on the wire.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Drain | "unknown way to drain" {
        /// It lends as before.
        0 => Off,
        /// It lends nothing, and asks its clients for what they hold.
        1 => On,
        /// And ends when nobody holds anything.
        2 => Stop,
    }
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
        let mut out = Writer::of_version(version, out);
        out.put(&version);
        out.put(self);
    }

    /// Reads one whole message.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong; the sender breaks the protocol. Whether a fill's
    /// numbers fit together is not checked here.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = open(bytes)?;
        let request: Self = input.take()?;
        if request.since() > input.version() {
            return Err(Malformed("unknown request of its version"));
        }
        input.end()?;
        Ok(request)
    }
}
