//! What a host answers, or asks of a client by itself, and its bytes.

use cenote_wire::{Field, List, Reader, Taken, Text, Writer, messages};

#[cfg(doc)]
use super::Request;
use super::{
    EVICT_WINDOWS_MAX, HELD_SLABS_MAX, HostStatus, Malformed, NAME_BYTES_MAX, VERSION, Window, open,
};

messages! {
    /// What a host answers.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Reply | "unknown reply" {
        /// What the host can lend.
        1 => Free {
            /// Size of its slabs.
            slab_bytes: u64,
            /// Slabs it lends in all.
            slabs_total: u32,
            /// Slabs it could still lend without taking one from a client.
            slabs_free: u32,
            /// Its failure domain.
            domain: String as Text<u8, NAME_BYTES_MAX>,
        },
        /// The slab is lent: populated and zero.
        2 => Mapped {
            /// As asked.
            request: u64,
            /// Its window.
            window: Window,
        },
        /// No slab.
        3 => Refused {
            /// As asked.
            request: u64,
            /// Why.
            reason: Refusal,
        },
        /// The window is not lent to the asking client, or no longer.
        4 => Unmapped {
            /// As asked.
            window: Window,
        },
        /// The lease is renewed.
        5 => Pong {
            /// As asked.
            sequence: u64,
            /// Slabs it could still lend without taking one from a client.
            slabs_free: u32,
        },
        /// The end of a fill.
        6 => Filled {
            /// As asked.
            request: u64,
            /// How it ended.
            result: FillResult,
        },
        /// The host's view of itself.
        7 => Status(Box<HostStatus>),
        /// The host wants these slabs of the client back, and says so again while it does: the client
        /// copies each elsewhere and unmaps it, at most one of a stripe at a time, or declines. No
        /// answer to a request. Since version 2.
        8 => Evict {
            /// 1 to [`EVICT_WINDOWS_MAX`].
            windows: Vec<Window> as List<u16, 1, EVICT_WINDOWS_MAX> | "no windows, or too many",
        },
        /// Slabs of the asking client, at most [`HELD_SLABS_MAX`]; fewer: there are no more.
        /// Since version 2.
        9 => Held {
            /// As asked.
            skip: u32,
            /// In the order in which they were granted.
            slabs: Vec<HeldSlab> as List<u16, 0, HELD_SLABS_MAX> | "too many slabs",
        },
        /// The client owns the volume here. Since version 2.
        10 => Owned {
            /// As asked.
            request: u64,
            /// Slabs of the volume that it holds here now.
            slabs: u32,
        },
        /// How active are these slabs of the client? The host means to ask some of them back, those
        /// that are used least. No answer to a request; answered by [`Request::Activity`]. Since
        /// version 3.
        11 => CheckActivity {
            /// Chosen by the host, returned in the answer.
            request: u64,
            /// 1 to [`EVICT_WINDOWS_MAX`].
            windows: Vec<Window> as List<u16, 1, EVICT_WINDOWS_MAX> | "no windows, or too many",
        },
        /// The machine that the client shares with the host has memory to spare, which is the client's
        /// first: it may reclaim pages. Repeated while it holds. No answer to a request; answered by
        /// [`Request::Here`]. Since version 4.
        12 => Reclaim {
            /// As much more may be in use on the machine.
            bytes: u64,
        },
        /// Another process is about to take the host's place, with all that is lent: connections end,
        /// and slabs are here again soon, as they were. No answer to a request; answered by
        /// [`Request::Awaits`]. Since version 5.
        13 => HandsOver {
            /// Who waits longer than this from the connection's end on waits in vain.
            back_within_ms: u32,
        },
        /// The host's machine is taken back within so many milliseconds, and what is on it then is lost; 0:
        /// it stays after all. Repeated each second. No answer to a request. Since version 7.
        14 => Notice {
            /// Time that is left, from when it was sent.
            within_ms: u32,
        },
    }

    /// Why a host lends no slab. The numbers are those on the wire.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Refusal | "unknown refusal" {
        /// All its slabs are lent, or the system has no memory left.
        0 => NoMemory,
        /// This client holds as many slabs as one client may.
        1 => ClientBound,
        /// The volume is owned by another client whose lease is alive.
        2 => Owned,
        /// The host is about to stop, or gives its memory back.
        3 => ShuttingDown,
        /// The volume has had an owner of a higher epoch.
        4 => Superseded,
        /// The client holds no such slab.
        5 => NotHeld,
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
        let mut out = Writer::of_version(version, out);
        out.put(&version);
        out.put(self);
    }

    /// Reads one whole message.
    ///
    /// # Errors
    /// [`Malformed`] says what is wrong; the sender breaks the protocol.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut input = open(bytes)?;
        let reply: Self = input.take()?;
        if reply.since() > input.version() {
            return Err(Malformed("unknown reply of its version"));
        }
        input.end()?;
        Ok(reply)
    }
}

/// A number, and the split that failed; 0 where none did.
impl<'a> Field<'a> for FillResult {
    fn put(&self, out: &mut Writer<'_>) {
        out.bytes(&match self {
            Self::Done => [0, 0],
            Self::SourceFailed { split } => [1, *split],
            Self::TargetStale => [2, 0],
            Self::Bad => [3, 0],
            Self::Disagree => [4, 0],
        });
    }

    fn take(input: &mut Reader<'a>) -> Taken<Self> {
        match input.array()? {
            [0, 0] => Ok(Self::Done),
            [1, split] => Ok(Self::SourceFailed { split }),
            [2, 0] => Ok(Self::TargetStale),
            [3, 0] => Ok(Self::Bad),
            [4, 0] => Ok(Self::Disagree),
            _ => Err(cenote_wire::Malformed("unknown end of a fill")),
        }
    }
}
