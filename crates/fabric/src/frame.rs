//! What is said on an authenticated connection: one kind byte and a body per frame.
//!
//! Pure: bytes in, values out. Encryption and lengths around it are `channel`'s.
//! Byte tables: `docs/protocols/fabric.md`.

use cenote_wire::{Layout, Malformed, Reader, Rest, Taken, Writer, messages};

use crate::{Error, Generation, MESSAGE_BYTES_MAX, Result, Rights, WindowDescriptor, WindowId};

/// Longest frame before encryption.
pub(crate) const FRAME_BYTES_MAX: usize = 1 + MESSAGE_BYTES_MAX;

messages! {
    /// One thing that is said.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) enum Frame<'a> | "unknown frame" {
        /// Host to client, first: whether the connection is served.
        0 => Welcome(Welcome),
        /// Either way: bytes for the layer above.
        1 => Message(&'a [u8] as Rest<MESSAGE_BYTES_MAX>),
        /// Client to host: asks for a window.
        2 => Attach {
            id: WindowId,
            generation: Generation,
        },
        /// Host to client: the answer. On `shm` a granted window's descriptor rides along.
        3 => Attached {
            granted: bool,
            descriptor: WindowDescriptor as RightsFirst,
        },
        /// Client to host: a WRITE with immediate is in place.
        4 => Immediate {
            id: WindowId,
            generation: Generation,
            offset: u64,
            len_bytes: u32,
            value: u32,
        },
        /// On `rdma` data connections, client to host and back: the queue pair of the one who says it.
        5 => Join(PairName),
        /// On `rdma` data connections, host to client: so many more messages have a place.
        6 => Credits(u32),
        /// On `rdma`, host to client: the answer to an attach that is granted, and how the host's
        /// device names the window.
        7 => Keyed {
            descriptor: WindowDescriptor as RightsFirst,
            address: u64,
            key: u32,
        },
    }

    /// What a queue pair's peer must know to connect to it.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) struct PairName {
        pub(crate) number: u32,
        /// Sequence number of the first packet that it sends.
        pub(crate) first_packet: u32,
        /// 0 on Ethernet.
        pub(crate) lid: u16,
        /// As `ibv_mtu` counts: 1 is 256 bytes, 5 is 4096.
        pub(crate) mtu: u8 as Mtu,
        /// READs and atomics that it answers at a time.
        pub(crate) reads: u8,
        pub(crate) gid: [u8; 16],
    }

    /// How a host receives a client that proved the key.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub(crate) enum Welcome | "unknown welcome" {
        /// The connection is served.
        0 => Served,
        /// A data connection of a client that has no control connection.
        1 => NoSession,
        /// The host serves as many connections as it can.
        2 => Full,
        /// A data connection whose protection is weaker than the host wants.
        3 => Unprotected,
        /// A connection for calls to a host that has no server threads.
        4 => Unanswered,
    }

    for WindowId { 0 }
    for Generation { 0 }
}

impl<'a> Frame<'a> {
    /// Appends the frame's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        Writer::lenient(out).put(self);
    }

    /// Reads one frame, which is all of `bytes`.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let frame = Reader::new(bytes).whole();
        frame.map_err(|Malformed(wrong)| Error::Protocol(wrong))
    }
}

/// A window's rights before the rest of it.
struct RightsFirst;

impl<'a> Layout<'a, WindowDescriptor> for RightsFirst {
    fn put(value: &WindowDescriptor, out: &mut Writer<'_>) {
        out.put(&value.rights.0);
        out.put(&(value.id, value.generation, value.len_bytes));
    }

    fn take(input: &mut Reader<'a>) -> Taken<WindowDescriptor> {
        let rights = Rights(input.take()?);
        if !Rights::ALL.contains(rights) {
            return Err(Malformed("unknown rights"));
        }
        let (id, generation, len_bytes) = input.take()?;
        Ok(WindowDescriptor {
            id,
            generation,
            len_bytes,
            rights,
        })
    }
}

/// 1 to 5.
struct Mtu;

impl<'a> Layout<'a, u8> for Mtu {
    fn put(value: &u8, out: &mut Writer<'_>) {
        out.put(value);
    }

    fn take(input: &mut Reader<'a>) -> Taken<u8> {
        match input.take()? {
            mtu @ 1..=5 => Ok(mtu),
            _ => Err(Malformed("unknown MTU")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples() -> Vec<Frame<'static>> {
        let (id, generation) = (WindowId(0x0403_0201), Generation(0x1122_3344_5566_7788));
        let descriptor = WindowDescriptor {
            id,
            generation,
            len_bytes: 4096,
            rights: Rights::ALL,
        };
        vec![
            Frame::Welcome(Welcome::Served),
            Frame::Welcome(Welcome::NoSession),
            Frame::Welcome(Welcome::Full),
            Frame::Welcome(Welcome::Unprotected),
            Frame::Welcome(Welcome::Unanswered),
            Frame::Message(b""),
            Frame::Message(b"grant 7"),
            Frame::Attach { id, generation },
            Frame::Attached {
                descriptor,
                granted: true,
            },
            Frame::Attached {
                descriptor,
                granted: false,
            },
            Frame::Immediate {
                id,
                generation,
                offset: 1 << 40,
                len_bytes: 4096,
                value: 5,
            },
            Frame::Join(PairName {
                number: 17,
                first_packet: 0x00ab_cdef,
                lid: 3,
                mtu: 5,
                reads: 16,
                gid: [9; 16],
            }),
            Frame::Credits(8),
            Frame::Keyed {
                descriptor,
                address: 0x7fff_0000_1000,
                key: 0x1234,
            },
        ]
    }

    #[test]
    fn an_attach_is_thirteen_bytes() {
        let mut bytes = Vec::new();
        samples()[7].encode(&mut bytes);
        assert_eq!(
            bytes,
            [
                2, 1, 2, 3, 4, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11
            ]
        );
    }

    #[test]
    fn the_longest_message_is_a_frame_and_one_byte_more_is_not() {
        let body = vec![7; MESSAGE_BYTES_MAX + 1];
        let mut bytes = Vec::new();
        Frame::Message(&body).encode(&mut bytes);
        assert!(matches!(Frame::decode(&bytes), Err(Error::Protocol(_))));
        bytes.pop();
        assert_eq!(bytes.len(), FRAME_BYTES_MAX);
        assert_eq!(Frame::decode(&bytes).unwrap(), Frame::Message(&body[1..]));
    }

    proptest! {
        #[test]
        fn mutated_frames_are_refused_or_mean_what_they_say(
            sample in 0..13_usize,
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<prop::sample::Index>(),
            extra in proptest::collection::vec(any::<u8>(), 0..3),
            how in 0..3_u8,
        ) {
            let mut bytes = Vec::new();
            samples()[sample].encode(&mut bytes);
            prop_assert_eq!(Frame::decode(&bytes).unwrap(), samples()[sample]);
            for (place, value) in edits {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            match how {
                0 => bytes.truncate(cut.index(bytes.len() + 1)),
                1 => bytes.extend(extra),
                _ => {}
            }
            if let Ok(frame) = Frame::decode(&bytes) {
                let mut again = Vec::new();
                frame.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
