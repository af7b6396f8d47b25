//! What is said on an authenticated connection: one kind byte and a body per frame.
//!
//! Pure: bytes in, values out. Encryption and lengths around it are `channel`'s.
//! Byte tables: `docs/protocols/fabric.md`.

use crate::{Error, Generation, MESSAGE_BYTES_MAX, Result, Rights, WindowDescriptor, WindowId};

/// Longest frame before encryption.
pub(crate) const FRAME_BYTES_MAX: usize = 1 + MESSAGE_BYTES_MAX;

/// One thing that is said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Frame<'a> {
    /// Host to client, first: whether the connection is served.
    Welcome(Welcome),
    /// Either way: bytes for the layer above.
    Message(&'a [u8]),
    /// Client to host: asks for a window.
    Attach {
        id: WindowId,
        generation: Generation,
    },
    /// Host to client: the answer. On `shm` a granted window's descriptor rides along.
    Attached {
        descriptor: WindowDescriptor,
        granted: bool,
    },
    /// Client to host: a WRITE with immediate is in place.
    Immediate {
        id: WindowId,
        generation: Generation,
        offset: u64,
        len_bytes: u32,
        value: u32,
    },
    /// On `rdma` data connections, client to host and back: the queue pair of the one who says it.
    Join(PairName),
    /// On `rdma` data connections, host to client: so many more messages have a place.
    Credits(u32),
    /// On `rdma`, host to client: the answer to an attach that is granted, and how the host's
    /// device names the window.
    Keyed {
        descriptor: WindowDescriptor,
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
    pub(crate) mtu: u8,
    /// READs and atomics that it answers at a time.
    pub(crate) reads: u8,
    pub(crate) gid: [u8; 16],
}

/// How a host receives a client that proved the key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Welcome {
    /// The connection is served.
    Served,
    /// A data connection of a client that has no control connection.
    NoSession,
    /// The host serves as many connections as it can.
    Full,
    /// A data connection whose protection is weaker than the host wants.
    Unprotected,
    /// A connection for calls to a host that has no server threads.
    Unanswered,
}

impl<'a> Frame<'a> {
    /// Appends the frame's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Welcome(welcome) => out.extend([0, welcome as u8]),
            Self::Message(body) => {
                out.push(1);
                out.extend(body);
            }
            Self::Attach { id, generation } => {
                out.push(2);
                out.extend(id.0.to_le_bytes());
                out.extend(generation.0.to_le_bytes());
            }
            Self::Attached {
                descriptor,
                granted,
            } => {
                out.extend([3, u8::from(granted), descriptor.rights.0]);
                out.extend(descriptor.id.0.to_le_bytes());
                out.extend(descriptor.generation.0.to_le_bytes());
                out.extend(descriptor.len_bytes.to_le_bytes());
            }
            Self::Immediate {
                id,
                generation,
                offset,
                len_bytes,
                value,
            } => {
                out.push(4);
                out.extend(id.0.to_le_bytes());
                out.extend(generation.0.to_le_bytes());
                out.extend(offset.to_le_bytes());
                out.extend(len_bytes.to_le_bytes());
                out.extend(value.to_le_bytes());
            }
            Self::Join(pair) => {
                out.push(5);
                out.extend(pair.number.to_le_bytes());
                out.extend(pair.first_packet.to_le_bytes());
                out.extend(pair.lid.to_le_bytes());
                out.extend([pair.mtu, pair.reads]);
                out.extend(pair.gid);
            }
            Self::Credits(count) => {
                out.push(6);
                out.extend(count.to_le_bytes());
            }
            Self::Keyed {
                descriptor,
                address,
                key,
            } => {
                out.extend([7, descriptor.rights.0]);
                out.extend(descriptor.id.0.to_le_bytes());
                out.extend(descriptor.generation.0.to_le_bytes());
                out.extend(descriptor.len_bytes.to_le_bytes());
                out.extend(address.to_le_bytes());
                out.extend(key.to_le_bytes());
            }
        }
    }

    /// Reads one frame, which is all of `bytes`.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<Self> {
        let (&kind, body) = bytes.split_first().ok_or(Error::Protocol("empty frame"))?;
        let mut rest = Rest(body);
        let frame = match kind {
            0 => Self::Welcome(match rest.take::<1>()?[0] {
                0 => Welcome::Served,
                1 => Welcome::NoSession,
                2 => Welcome::Full,
                3 => Welcome::Unprotected,
                4 => Welcome::Unanswered,
                _ => return Err(Error::Protocol("unknown welcome")),
            }),
            1 if body.len() > MESSAGE_BYTES_MAX => return Err(Error::Protocol("message too long")),
            1 => return Ok(Self::Message(body)),
            2 => Self::Attach {
                id: rest.id()?,
                generation: rest.generation()?,
            },
            3 => {
                let [granted, rights] = rest.take()?;
                if granted > 1 || !Rights::ALL.contains(Rights(rights)) {
                    return Err(Error::Protocol("bad flags in an attach answer"));
                }
                let (id, generation) = (rest.id()?, rest.generation()?);
                let len_bytes = rest.u64()?;
                let descriptor = WindowDescriptor {
                    id,
                    generation,
                    len_bytes,
                    rights: Rights(rights),
                };
                Self::Attached {
                    descriptor,
                    granted: granted == 1,
                }
            }
            4 => Self::Immediate {
                id: rest.id()?,
                generation: rest.generation()?,
                offset: rest.u64()?,
                len_bytes: rest.u32()?,
                value: rest.u32()?,
            },
            5 => Self::Join(PairName {
                number: rest.u32()?,
                first_packet: rest.u32()?,
                lid: u16::from_le_bytes(rest.take()?),
                mtu: match rest.take::<1>()?[0] {
                    mtu @ 1..=5 => mtu,
                    _ => return Err(Error::Protocol("unknown MTU")),
                },
                reads: rest.take::<1>()?[0],
                gid: rest.take()?,
            }),
            6 => Self::Credits(rest.u32()?),
            7 => {
                let [rights] = rest.take()?;
                if !Rights::ALL.contains(Rights(rights)) {
                    return Err(Error::Protocol("bad flags in an attach answer"));
                }
                Self::Keyed {
                    descriptor: WindowDescriptor {
                        id: rest.id()?,
                        generation: rest.generation()?,
                        len_bytes: rest.u64()?,
                        rights: Rights(rights),
                    },
                    address: rest.u64()?,
                    key: rest.u32()?,
                }
            }
            _ => return Err(Error::Protocol("unknown frame")),
        };
        if rest.0.is_empty() {
            Ok(frame)
        } else {
            Err(Error::Protocol("frame too long"))
        }
    }
}

/// The part of a body that is not read yet.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, tail) = self
            .0
            .split_first_chunk()
            .ok_or(Error::Protocol("frame too short"))?;
        self.0 = tail;
        Ok(*head)
    }

    fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn id(&mut self) -> Result<WindowId> {
        self.u32().map(WindowId)
    }

    fn generation(&mut self) -> Result<Generation> {
        self.u64().map(Generation)
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
