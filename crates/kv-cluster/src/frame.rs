//! Frames: what is said on a link once it is open, and the bytes of the kinds that are known here.
//!
//! A frame is a length, a kind and a payload. The kinds from [`kind::GROUP`] on belong to the
//! group protocol, which gives their payloads a meaning. All numbers are little-endian.
//! Byte tables: `docs/protocols/kv-peers.md`.

use bytes::{Buf, Bytes, BytesMut};

/// Length and kind.
pub const HEADER_BYTES: usize = 5;
/// Longest payload.
pub const PAYLOAD_BYTES_MAX: usize = cenote_kv::group::message::MESSAGE_BYTES_MAX;

/// What a frame is.
pub mod kind {
    /// A probe: its number.
    pub const PING: u8 = 1;
    /// Its answer: the number.
    pub const PONG: u8 = 2;
    /// A client's request for one key, to the node that owns it.
    pub const FORWARD: u8 = 3;
    /// The reply to it.
    pub const REPLY: u8 = 4;
    /// An observer wants to know how the node is.
    pub const QUESTION: u8 = 5;
    /// How it is, as JSON; in [`pieces`](super::pieces).
    pub const REPORT: u8 = 6;
    /// Who says it has no place in any group any more: send no more requests. 1, and 2 once it has answered all.
    pub const LEAVE: u8 = 7;
    /// The answer: the number, behind all requests, when all that came before is read.
    pub const LEFT: u8 = 8;
    /// The first kind of the group protocol.
    pub const GROUP: u8 = 16;
}

/// One frame.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Frame {
    /// See [`kind`].
    pub kind: u8,
    /// A part of the buffer that was read into: it keeps that alive, so copy what is to stay.
    pub payload: Bytes,
}

/// Bytes that are no frame of this protocol; the link is of no more use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Longer than any frame is.
    #[error("a frame of {0} bytes, the most are {PAYLOAD_BYTES_MAX}")]
    TooLong(usize),
    /// The payload is not of its kind.
    #[error("a payload of {bytes} bytes is none of kind {kind}")]
    Payload {
        /// The frame's kind.
        kind: u8,
        /// Its length.
        bytes: usize,
    },
}

/// Takes the first frame off `input`, without copying it; `None`: it is not whole yet.
///
/// # Errors
/// `TooLong`.
pub fn split(input: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
    let Some((kind, length)) = read_header(input)? else {
        return Ok(None);
    };
    if input.len() < HEADER_BYTES + length {
        return Ok(None);
    }
    input.advance(HEADER_BYTES);
    let payload = input.split_to(length).freeze();
    Ok(Some(Frame { kind, payload }))
}

/// Kind and length of the payload of the frame that `input` begins with; `None`: there is too little of it.
///
/// # Errors
/// `TooLong`.
pub fn read_header(input: &[u8]) -> Result<Option<(u8, usize)>, FrameError> {
    let Some(&[a, b, c, d, kind]) = input.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    match u32::from_le_bytes([a, b, c, d]) as usize {
        length if length > PAYLOAD_BYTES_MAX => Err(FrameError::TooLong(length)),
        length => Ok(Some((kind, length))),
    }
}

/// The bytes before a payload of this length.
///
/// # Errors
/// `TooLong`: the peer would give the link up.
pub fn header(kind: u8, payload_bytes: usize) -> Result<[u8; HEADER_BYTES], FrameError> {
    let length = u32::try_from(payload_bytes).ok();
    let length = length.filter(|_| payload_bytes <= PAYLOAD_BYTES_MAX);
    let [a, b, c, d] = length
        .ok_or(FrameError::TooLong(payload_bytes))?
        .to_le_bytes();
    Ok([a, b, c, d, kind])
}

/// The payloads of something that may be longer than one: the last is the first that could be longer.
pub fn pieces(whole: &Bytes) -> impl Iterator<Item = Bytes> {
    (0..=whole.len() / PAYLOAD_BYTES_MAX).map(|piece| {
        let from = piece * PAYLOAD_BYTES_MAX;
        whole.slice(from..whole.len().min(from + PAYLOAD_BYTES_MAX))
    })
}

/// Payload of [`kind::PING`], [`kind::PONG`], [`kind::LEAVE`] and [`kind::LEFT`].
#[must_use]
pub fn ping(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Reads [`ping`].
///
/// # Errors
/// `Payload`.
pub fn read_ping(payload: &[u8]) -> Result<u64, FrameError> {
    let bytes = payload.try_into().map_err(|_| FrameError::Payload {
        kind: kind::PING,
        bytes: payload.len(),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_has_the_bytes_of_the_table() {
        assert_eq!(header(7, 0x0102), Ok([2, 1, 0, 0, 7]));
        assert_eq!(ping(5)[..], [5, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_by_its_header() {
        let longest = u32::try_from(PAYLOAD_BYTES_MAX).unwrap();
        let header = |length: u32| {
            let mut bytes = BytesMut::from(&length.to_le_bytes()[..]);
            bytes.put_u8(1);
            bytes
        };
        assert_eq!(split(&mut header(longest)), Ok(None));
        assert!(super::header(1, PAYLOAD_BYTES_MAX).is_ok());
        assert_eq!(
            super::header(1, PAYLOAD_BYTES_MAX + 1),
            Err(FrameError::TooLong(PAYLOAD_BYTES_MAX + 1))
        );
        assert_eq!(
            split(&mut header(longest + 1)),
            Err(FrameError::TooLong(PAYLOAD_BYTES_MAX + 1))
        );
    }

    proptest! {
        #[test]
        fn frames_come_out_whole_however_the_bytes_are_cut(
            frames in proptest::collection::vec(
                (any::<u8>(), proptest::collection::vec(any::<u8>(), 0..60)), 0..12),
            cuts in proptest::collection::vec(1_usize..40, 1..20),
        ) {
            let mut bytes = Vec::new();
            for (kind, payload) in &frames {
                bytes.extend(header(*kind, payload.len()).unwrap());
                bytes.extend(payload);
            }
            let mut input = BytesMut::new();
            let mut out = Vec::new();
            let mut cuts = cuts.iter().cycle();
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
                input.extend_from_slice(now);
                rest = later;
                while let Some(frame) = split(&mut input).unwrap() {
                    out.push((frame.kind, frame.payload.to_vec()));
                }
            }
            prop_assert_eq!(out, frames);
            prop_assert!(input.is_empty());
        }

        #[test]
        fn any_payload_is_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            prop_assert_eq!(read_ping(&bytes).is_ok(), bytes.len() == 8);
        }
    }
}
