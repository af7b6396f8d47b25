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
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flags; the client's have the same bits.
pub(crate) const FLAG_FIXED_NEWSTYLE: u16 = 1;
/// The 124 zeros after EXPORT_NAME are left out.
pub(crate) const FLAG_NO_ZEROES: u16 = 2;

/// Options of the handshake.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
}

/// Option reply types.
pub(crate) mod reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    pub(crate) const ERR_UNSUPPORTED: u32 = 0x8000_0001;
    pub(crate) const ERR_INVALID: u32 = 0x8000_0003;
    pub(crate) const ERR_TLS_REQUIRED: u32 = 0x8000_0005;
    pub(crate) const ERR_UNKNOWN: u32 = 0x8000_0006;
    pub(crate) const ERR_TOO_BIG: u32 = 0x8000_0009;
    pub(crate) const ERR_EXTENDED_HEADERS: u32 = 0x8000_000a;
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
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Command types.
pub(crate) mod command {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
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
    /// Of extended requests: the length is that of a payload.
    pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Block status flags of `base:allocation`.
pub(crate) const STATE_HOLE_ZERO: u32 = 0b11;

/// Chunk types of structured replies.
pub(crate) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXTENDED: u16 = 6;
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

/// How requests and replies are framed on a connection, as its handshake agreed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Framing {
    /// A reply is a header, and data for a READ.
    Simple,
    /// Replies to READ and BLOCK_STATUS are chunks.
    Structured,
    /// Lengths have 64 bits, and every reply is made of chunks.
    Extended,
}

impl Framing {
    /// Whether replies with data are chunks.
    pub(crate) fn has_chunks(self) -> bool {
        self != Self::Simple
    }

    /// Bytes of a request's header.
    pub(crate) fn request_bytes(self) -> usize {
        match self {
            Self::Simple | Self::Structured => REQUEST_HEADER_BYTES,
            Self::Extended => EXTENDED_REQUEST_HEADER_BYTES,
        }
    }
}

/// A request's header.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RequestHeader {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    /// Chosen by the client, returned in the reply.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u64,
}

/// Bytes of a request's header.
pub(crate) const REQUEST_HEADER_BYTES: usize = 28;
/// Bytes of an extended request's header.
pub(crate) const EXTENDED_REQUEST_HEADER_BYTES: usize = 32;

impl RequestHeader {
    /// Takes a header apart; `None` when it does not start with the magic, after
    /// which nothing on the connection can be trusted.
    pub(crate) fn parse(bytes: &[u8; REQUEST_HEADER_BYTES]) -> Option<Self> {
        Self::parse_as(bytes, Framing::Structured)
    }

    /// As [`RequestHeader::parse`], of the first [`Framing::request_bytes`] of `bytes`.
    pub(crate) fn parse_as(bytes: &[u8], framing: Framing) -> Option<Self> {
        let mut input = Input::new(bytes);
        let is_extended = framing == Framing::Extended;
        let magic = match is_extended {
            true => EXTENDED_REQUEST_MAGIC,
            false => REQUEST_MAGIC,
        };
        if input.u32()? != magic {
            return None;
        }
        Some(Self {
            flags: input.u16()?,
            command: input.u16()?,
            cookie: input.u64()?,
            offset: input.u64()?,
            len_bytes: match is_extended {
                true => input.u64()?,
                false => u64::from(input.u32()?),
            },
        })
    }

    /// Bytes that follow the header.
    pub(crate) fn payload_bytes(&self, framing: Framing) -> u64 {
        let has_payload = match framing {
            Framing::Extended => self.flags & command_flag::PAYLOAD_LEN != 0,
            Framing::Simple | Framing::Structured => self.command == command::WRITE,
        };
        if has_payload { self.len_bytes } else { 0 }
    }

    /// The header as a client without extended headers sends it, of a length below 4 GiB.
    pub(crate) fn bytes(&self) -> [u8; REQUEST_HEADER_BYTES] {
        let mut bytes = [0; REQUEST_HEADER_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        bytes[24..].copy_from_slice(&(self.len_bytes as u32).to_be_bytes());
        bytes
    }
}

/// The leading bytes of a reply or chunk, built in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    len: u8,
}

/// The longest head: an extended OFFSET_HOLE chunk.
const HEAD_BYTES_MAX: usize = 44;

impl Head {
    /// A simple reply; `error` is `None` for success.
    pub(crate) fn simple(cookie: u64, error: Option<Errno>) -> Self {
        Self::empty()
            .put(&SIMPLE_REPLY_MAGIC.to_be_bytes())
            .put(&error.map_or(0, |errno| errno as u32).to_be_bytes())
            .put(&cookie.to_be_bytes())
    }

    /// The whole answer to a request that succeeded and has no data.
    pub(crate) fn done(framing: Framing, request: &RequestHeader) -> Self {
        match framing {
            Framing::Simple | Framing::Structured => Self::simple(request.cookie, None),
            Framing::Extended => Self::chunk(framing, request, chunk::NONE, 0, true),
        }
    }

    /// The header of a chunk with `payload_bytes` of payload.
    pub(crate) fn chunk(
        framing: Framing,
        request: &RequestHeader,
        kind: u16,
        payload_bytes: u32,
        last: bool,
    ) -> Self {
        let is_extended = framing == Framing::Extended;
        let magic = match is_extended {
            true => EXTENDED_REPLY_MAGIC,
            false => STRUCTURED_REPLY_MAGIC,
        };
        let head = Self::empty()
            .put(&magic.to_be_bytes())
            .put(&u16::from(last).to_be_bytes())
            .put(&kind.to_be_bytes())
            .put(&request.cookie.to_be_bytes());
        match is_extended {
            true => head
                .put(&request.offset.to_be_bytes())
                .put(&u64::from(payload_bytes).to_be_bytes()),
            false => head.put(&payload_bytes.to_be_bytes()),
        }
    }

    /// An OFFSET_DATA chunk without its data.
    pub(crate) fn data(
        framing: Framing,
        request: &RequestHeader,
        offset: u64,
        data_bytes: u32,
        last: bool,
    ) -> Self {
        Self::chunk(framing, request, chunk::OFFSET_DATA, 8 + data_bytes, last)
            .put(&offset.to_be_bytes())
    }

    /// An OFFSET_HOLE chunk.
    pub(crate) fn hole(
        framing: Framing,
        request: &RequestHeader,
        offset: u64,
        hole_bytes: u32,
        last: bool,
    ) -> Self {
        Self::chunk(framing, request, chunk::OFFSET_HOLE, 12, last)
            .put(&offset.to_be_bytes())
            .put(&hole_bytes.to_be_bytes())
    }

    /// The last chunk of a reply, an ERROR, without its message.
    pub(crate) fn error(
        framing: Framing,
        request: &RequestHeader,
        errno: Errno,
        message_bytes: u16,
    ) -> Self {
        let payload_bytes = 6 + u32::from(message_bytes);
        Self::chunk(framing, request, chunk::ERROR, payload_bytes, true)
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
    fn extended_request_header_has_the_protocol_layout() {
        let bytes = [
            0x21, 0xe4, 0x1c, 0x71, 0, 0x20, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 1, 0, 0, 0, 0,
            0, 0, 0, 9, 0, 0, 0x10, 0,
        ];
        let header = RequestHeader::parse_as(&bytes, Framing::Extended).unwrap();
        assert_eq!(header.flags, command_flag::PAYLOAD_LEN);
        assert_eq!(header.command, command::WRITE);
        assert_eq!(header.len_bytes, (9 << 32) + 4096);
        assert_eq!(header.payload_bytes(Framing::Extended), (9 << 32) + 4096);
        assert_eq!(RequestHeader::parse_as(&bytes, Framing::Structured), None);
        assert_eq!(
            RequestHeader::parse_as(&bytes[..31], Framing::Extended),
            None
        );
    }

    #[test]
    fn heads_have_the_protocol_layout() {
        let request = RequestHeader {
            flags: 0,
            command: command::READ,
            cookie: 2,
            offset: 7,
            len_bytes: 9,
        };
        let structured = Framing::Structured;
        assert_eq!(
            Head::simple(1, Some(Errno::NoSpace)).bytes(),
            [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 28, 0, 0, 0, 0, 0, 0, 0, 1]
        );
        assert_eq!(
            Head::hole(structured, &request, 3, 4, true).bytes(),
            [
                0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 12, 0, 0, 0,
                0, 0, 0, 0, 3, 0, 0, 0, 4
            ]
        );
        let error = Head::error(structured, &request, Errno::Invalid, 5);
        assert_eq!(
            error.bytes()[4..],
            [
                0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 11, 0, 0, 0, 22, 0, 5
            ]
        );
        assert_eq!(
            Head::hole(Framing::Extended, &request, 8, 4, false).bytes(),
            [
                0x6e, 0x8a, 0x27, 0x8c, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7,
                0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 4
            ]
        );
        assert_eq!(
            Head::done(Framing::Extended, &request).bytes(),
            [
                0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 7,
                0, 0, 0, 0, 0, 0, 0, 0
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
