//! The NBD protocol's numbers, and its fixed-size messages as bytes.
//!
//! Pure: no I/O, no allocation. `docs/protocols/nbd.md` has the byte tables.
//! Everything on the wire is big-endian.

/// Longest READ or WRITE, as announced to clients.
pub(crate) const PAYLOAD_BYTES_MAX: u32 = cenote_volume::REQUEST_BYTES_MAX as u32;

/// First words of the server: "NBDMAGIC" and "IHAVEOPT".
pub(crate) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Leads the greeting's second word and every option.
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// Leads every option reply.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags; the client's have the same bits.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// The 124 zeros after EXPORT_NAME are left out.
pub(crate) const FLAG_NO_ZEROES: u16 = 2;

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Option reply types.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUPPORTED: u32 = 0x8000_0001;
    pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
    pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
    pub(crate) const ERR_TOO_BIG: u32 = 0x8000_0009;
}

/// Information types inside INFO replies.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags of an export.
pub(crate) mod export_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Command types.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Command flags.
pub(crate) mod command_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
}

/// Block status flags of `base:allocation`.
pub(crate) const STATE_HOLE_ZERO: u32 = 0b11;

/// Chunk types of structured replies.
pub(crate) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = 0x8001;
}

/// Error values as the protocol numbers them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(crate) enum Errno {
    Io = 5,
    Invalid = 22,
    NoSpace = 28,
    NotSupported = 95,
    Shutdown = 108,
}

/// A request's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RequestHeader {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// Chosen by the client, returned in the reply.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u32,
}

/// Bytes of a request's header.
pub(crate) const REQUEST_HEADER_BYTES: usize = 28;

impl RequestHeader {
    /// Takes a header apart; `None` when it does not start with the magic, after
    /// which nothing on the connection can be trusted.
    pub(crate) fn parse(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Option<Self> {
        let mut input = Input::new(bytes);
        if input.u32()? != REQUEST_MAGIC {
            return None;
        }
        Some(Self {
            flags: input.u16()?,
            command: input.u16()?,
            cookie: input.u64()?,
            offset: input.u64()?,
            len_bytes: input.u32()?,
        })
    }

    /// The header as a client sends it.
    pub(crate) fn bytes(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len_bytes.to_be_bytes());
        bytes
    }
}

/// The leading bytes of a reply or chunk, built in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: u8,
}

/// The longest head: an OFFSET_HOLE chunk.
const HEAD_BYTES_MAX: usize = 32;

impl Head {
    /// A simple reply; `error` is `None` for success.
    pub(crate) fn simple(cookie: u64, error: Option<Errno>) -> Self {
        Self::empty()
            .put(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .put(&error.map_or(0, |errno| errno as u32).to_be_bytes())
            .put(&cookie.to_be_bytes())
    }

    /// A chunk's header for `payload_bytes` of payload.
    pub(crate) fn chunk(cookie: u64, kind: u16, payload_bytes: u32, last: bool) -> Self {
        Self::empty()
            .put(&STRUCTURED_REPLY_MAGIC.to_be_bytes())
            .put(&u16::from(last).to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&cookie.to_be_bytes())
            .put(&payload_bytes.to_be_bytes())
    }

    /// An OFFSET_DATA chunk without its data.
    pub(crate) fn data(cookie: u64, offset: u64, data_bytes: u32, last: bool) -> Self {
        Self::chunk(cookie, chunk::OFFSET_DATA, 8 + data_bytes, last).put(&offset.to_be_bytes())
    }

    /// An OFFSET_HOLE chunk.
    pub(crate) fn hole(cookie: u64, offset: u64, hole_bytes: u32, last: bool) -> Self {
        Self::chunk(cookie, chunk::OFFSET_HOLE, 12, last)
            .put(&offset.to_be_bytes())
            .put(&hole_bytes.to_be_bytes())
    }

    /// The last chunk of a reply, an ERROR, without its message.
    pub(crate) fn error(cookie: u64, errno: Errno, message_bytes: u16) -> Self {
        Self::chunk(cookie, chunk::ERROR, 6 + u32::from(message_bytes), true)
            .put(&(errno as u32).to_be_bytes())
            .put(&message_bytes.to_be_bytes())
    }

    /// What goes on the wire.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    fn empty() -> Self {
        Self {
            bytes: [0; HEAD_BYTES_MAX],
            len: 0,
        }
    }

    fn put<const N: usize>(mut self, field: &[u8; N]) -> Self {
        let start = usize::from(self.len);
        self.bytes[start..start + N].copy_from_slice(field);
        self.len += N as u8;
        self
    }
}

/// A cursor over received bytes; every take is checked.
pub(crate) struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(len)?;
        self.rest = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// A string with its length before it.
    pub(crate) fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.take(usize::try_from(len).ok()?)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_header_has_the_protocol_layout() {
        let bytes = [
            0x25, 0x60, 0x95, 0x13, 0, 3, 0, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0, 0, 0,
            0, 0x10, 0,
        ];
        let header = RequestHeader::parse(&bytes).unwrap();
        assert_eq!(header.flags, command_flag::FUA | command_flag::NO_HOLE);
        assert_eq!(header.command, command::WRITE_ZEROES);
        assert_eq!(header.cookie, 0x0102_0304_0506_0708);
        assert_eq!(header.offset, 1 << 32);
        assert_eq!(header.len_bytes, 4096);
        assert_eq!(header.bytes(), bytes);

        let mut wrong = bytes;
        wrong[3] = 0x14;
        assert_eq!(RequestHeader::parse(&wrong), None);
    }

    #[test]
    fn heads_have_the_protocol_layout() {
        assert_eq!(
            Head::simple(1, Some(Errno::NoSpace)).bytes(),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(
            Head::hole(2, 3, 4, true).bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 12, 0, 0, 0,
                0, 0, 0, 0, 3, 0, 0, 0, 4
            ]
        );
        let error = Head::error(2, Errno::Invalid, 5);
        assert_eq!(
            error.bytes()[4..],
            [
                0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 11, 0, 0, 0, 22, 0, 5
            ]
        );
    }

    #[test]
    fn input_never_passes_the_end() {
        let mut input = Input::new(&[0, 0, 0, 9, 1]);
        assert_eq!(input.string(), None);
        let mut input = Input::new(&[0, 0]);
        assert_eq!(input.u32(), None);
        assert_eq!(input.u16(), Some(0));
        assert!(input.is_empty());
    }
}
