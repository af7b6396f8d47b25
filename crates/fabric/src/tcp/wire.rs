//! Bytes of the verbs on a `tcp` data connection, after its handshake.
//!
//! A request is a [`REQUEST_BYTES`] header, then the payload of WRITE and SEND. A response
//! is the payload of READ, then a [`RESPONSE_BYTES`] trailer. Responses come in the order of
//! the requests, and their lengths follow from the requests alone (a READ that fails
//! carries zeros), so a client knows the layout of everything it is still owed and receives
//! straight into the landings. The status comes after the bytes it vouches for: a window
//! that is revoked halfway through a long READ can still be reported.
//!
//! All integers are little-endian. Byte tables: `docs/protocols/fabric.md`.

use crate::{MESSAGE_BYTES_MAX, Status};

/// Length of a request header.
pub(crate) const REQUEST_BYTES: usize = 48;

/// Length of a response trailer.
pub(crate) const RESPONSE_BYTES: usize = 16;

/// First byte of every response. Not a verb and not text: a stray byte stream fails at once.
const RESPONSE_MAGIC: u8 = 0xCE;

/// WRITE: the host gets an event with `immediate` after the bytes are in place.
const FLAG_IMMEDIATE: u8 = 1;

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub(crate) enum Verb {
    Read = 1,
    Write = 2,
    Send = 3,
    CompareSwap = 4,
    FetchAdd = 5,
}

/// A request header. Fields that a verb does not use are zero on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Request {
    pub(crate) verb: Verb,
    /// READ and WRITE: bytes of the window; SEND: bytes of the message; atomics: 8.
    pub(crate) len_bytes: u32,
    pub(crate) window: u32,
    /// WRITE only.
    pub(crate) immediate: Option<u32>,
    pub(crate) generation: u64,
    pub(crate) offset: u64,
    /// Compare-and-swap: the expected value. Fetch-and-add: the addend.
    pub(crate) operand: u64,
    /// Compare-and-swap: the new value.
    pub(crate) swap: u64,
}

/// A response trailer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Response {
    pub(crate) status: Status,
    /// Length of the payload before the trailer: the READ's length, else 0.
    pub(crate) len_bytes: u32,
    /// Atomics: the value before. Else 0.
    pub(crate) value: u64,
}

/// The bytes are not a request or response that this protocol allows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Malformed(pub(crate) &'static str);

impl Request {
    /// One on no window.
    pub(crate) fn new(verb: Verb, len_bytes: u32) -> Self {
        Self {
            verb,
            len_bytes,
            window: 0,
            immediate: None,
            generation: 0,
            offset: 0,
            operand: 0,
            swap: 0,
        }
    }

    /// Bytes that follow the header.
    pub(crate) fn payload_bytes(&self) -> u32 {
        match self.verb {
            Verb::Write | Verb::Send => self.len_bytes,
            Verb::Read | Verb::CompareSwap | Verb::FetchAdd => 0,
        }
    }

    /// Bytes that precede the trailer of the response, whatever its status.
    pub(crate) fn answer_bytes(&self) -> u32 {
        match self.verb {
            Verb::Read => self.len_bytes,
            Verb::Write | Verb::Send | Verb::CompareSwap | Verb::FetchAdd => 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0] = self.verb as u8;
        bytes[1] = if self.immediate.is_some() {
            FLAG_IMMEDIATE
        } else {
            0
        };
        bytes[4..8].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.window.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.immediate.unwrap_or(0).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.offset.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.operand.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.swap.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// An unknown verb or flag, set reserved bits, or a message or atomic of a length that
    /// is not allowed. Windows and bounds are not its business.
    pub(crate) fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, Malformed> {
        let verb = match bytes[0] {
            1 => Verb::Read,
            2 => Verb::Write,
            3 => Verb::Send,
            4 => Verb::CompareSwap,
            5 => Verb::FetchAdd,
            _ => return Err(Malformed("unknown verb")),
        };
        let immediate = match (verb, bytes[1]) {
            (_, 0) => None,
            (Verb::Write, FLAG_IMMEDIATE) => Some(u32_at(bytes, 12)),
            _ => return Err(Malformed("unknown flag")),
        };
        if bytes[2..4] != [0, 0] {
            return Err(Malformed("reserved bits are set"));
        }
        let len_bytes = u32_at(bytes, 4);
        match verb {
            Verb::Send if len_bytes as usize > MESSAGE_BYTES_MAX => {
                return Err(Malformed("message too long"));
            }
            Verb::CompareSwap | Verb::FetchAdd if len_bytes != 8 => {
                return Err(Malformed("atomics are of 8 bytes"));
            }
            _ => {}
        }
        Ok(Self {
            verb,
            len_bytes,
            window: u32_at(bytes, 8),
            immediate,
            generation: u64_at(bytes, 16),
            offset: u64_at(bytes, 24),
            operand: u64_at(bytes, 32),
            swap: u64_at(bytes, 40),
        })
    }
}

impl Response {
    pub(crate) fn encode(&self) -> [u8; RESPONSE_BYTES] {
        let mut bytes = [0; RESPONSE_BYTES];
        bytes[0] = RESPONSE_MAGIC;
        bytes[1] = self.status as u8;
        bytes[4..8].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.value.to_le_bytes());
        bytes
    }

    /// Reads a trailer.
    ///
    /// # Errors
    /// A wrong first byte, set reserved bits, or a status that a host does not send.
    pub(crate) fn decode(bytes: &[u8; RESPONSE_BYTES]) -> Result<Self, Malformed> {
        if bytes[0] != RESPONSE_MAGIC || bytes[2..4] != [0, 0] {
            return Err(Malformed("not a response"));
        }
        let status = match bytes[1] {
            0 => Status::Ok,
            1 => Status::StaleGeneration,
            2 => Status::OutOfBounds,
            3 => Status::NoRights,
            4 => Status::Revoked,
            8 => Status::ReceiverNotReady,
            _ => return Err(Malformed("unknown status")),
        };
        Ok(Self {
            status,
            len_bytes: u32_at(bytes, 4),
            value: u64_at(bytes, 8),
        })
    }
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(
        bytes[offset..offset + 4]
            .try_into()
            .expect("a slice of 4 bytes"),
    )
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(
        bytes[offset..offset + 8]
            .try_into()
            .expect("a slice of 8 bytes"),
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WRITE: Request = Request {
        verb: Verb::Write,
        len_bytes: 0x1234,
        window: 7,
        immediate: Some(0xA1B2_C3D4),
        generation: 0x1122_3344_5566_7788,
        offset: 0x9000,
        operand: 0,
        swap: 0,
    };

    #[test]
    fn a_write_with_immediate_has_the_documented_bytes() {
        let mut expected = [0; REQUEST_BYTES];
        expected[..4].copy_from_slice(&[2, 1, 0, 0]);
        expected[4..8].copy_from_slice(&[0x34, 0x12, 0, 0]);
        expected[8..12].copy_from_slice(&[7, 0, 0, 0]);
        expected[12..16].copy_from_slice(&[0xD4, 0xC3, 0xB2, 0xA1]);
        expected[16..24].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        expected[24..32].copy_from_slice(&[0, 0x90, 0, 0, 0, 0, 0, 0]);
        assert_eq!(WRITE.encode(), expected);
    }

    #[test]
    fn a_response_has_the_documented_bytes() {
        let response = Response {
            status: Status::Revoked,
            len_bytes: 512,
            value: 3,
        };
        assert_eq!(
            response.encode(),
            [0xCE, 4, 0, 0, 0, 2, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]
        );
    }

    #[test]
    fn refuses_what_the_protocol_does_not_allow() {
        let changed = |at: usize, value: u8| {
            let mut bytes = WRITE.encode();
            bytes[at] = value;
            Request::decode(&bytes)
        };
        assert_eq!(changed(0, 0), Err(Malformed("unknown verb")));
        assert_eq!(changed(0, 6), Err(Malformed("unknown verb")));
        assert_eq!(
            changed(0, 1),
            Err(Malformed("unknown flag")),
            "READ has no immediate"
        );
        assert_eq!(changed(1, 2), Err(Malformed("unknown flag")));
        assert_eq!(changed(3, 1), Err(Malformed("reserved bits are set")));
        let send = Request {
            verb: Verb::Send,
            immediate: None,
            len_bytes: 16 * 1024,
            ..WRITE
        };
        assert_eq!(Request::decode(&send.encode()), Ok(send));
        let long = Request {
            len_bytes: 16 * 1024 + 1,
            ..send
        };
        assert_eq!(
            Request::decode(&long.encode()),
            Err(Malformed("message too long"))
        );
        let atomic = Request {
            verb: Verb::FetchAdd,
            len_bytes: 4,
            ..send
        };
        assert_eq!(
            Request::decode(&atomic.encode()),
            Err(Malformed("atomics are of 8 bytes"))
        );
    }

    #[test]
    fn statuses_that_only_a_client_gives_are_refused() {
        let mut bytes = Response {
            status: Status::Ok,
            len_bytes: 0,
            value: 0,
        }
        .encode();
        for status in [Status::Disconnected, Status::Timeout, Status::Protocol] {
            bytes[1] = status as u8;
            assert_eq!(Response::decode(&bytes), Err(Malformed("unknown status")));
        }
    }

    proptest! {
        #[test]
        fn what_decodes_encodes_to_the_same_meaning(mut bytes: [u8; REQUEST_BYTES], tame: bool) {
            if tame {
                bytes[0] = bytes[0] % 5 + 1;
                bytes[1..4].fill(0);
                bytes[6..8].fill(0);
            }
            if let Ok(request) = Request::decode(&bytes) {
                prop_assert_eq!(Request::decode(&request.encode()), Ok(request));
                prop_assert!(request.payload_bytes() == 0 || request.answer_bytes() == 0);
            }
        }

        #[test]
        fn responses_survive_the_wire(mut bytes: [u8; RESPONSE_BYTES], tame: bool) {
            if tame {
                let status = bytes[1] % 5;
                bytes[..4].copy_from_slice(&[RESPONSE_MAGIC, status, 0, 0]);
            }
            if let Ok(response) = Response::decode(&bytes) {
                prop_assert_eq!(response.encode(), bytes);
            }
        }
    }
}
