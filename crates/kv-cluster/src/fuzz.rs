//! Doors for the fuzz targets (`fuzz/` at the repository's root): bytes in, a panic where an
//! invariant breaks. No part of the interface; what users get is built without it.

use bytes::{Bytes, BytesMut};

use crate::config::{ClusterConfig, Registration};
use crate::forward::{Forward, read_reply, reply_head};
use crate::frame;

/// What comes on a link between nodes: frames, and the payloads that are known here.
pub fn link(stream: &[u8]) {
    let told = frames(stream, stream.len());
    for piece in [1, 7] {
        assert_eq!(frames(stream, piece), told, "in pieces of {piece}");
    }
}

fn frames(stream: &[u8], piece: usize) -> (Vec<frame::Frame>, Option<frame::FrameError>) {
    let (mut input, mut told) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece.max(1)) {
        input.extend_from_slice(piece);
        loop {
            let before = input.clone();
            match frame::split(&mut input) {
                Ok(Some(frame)) => {
                    let header = frame::header(frame.kind, frame.payload.len());
                    let header = header.expect("no longer than one that came");
                    let parts = [&header[..], &frame.payload, &input].concat();
                    assert_eq!(parts, before, "the bytes of a frame and what follows");
                    payload(&frame.payload);
                    told.push(frame);
                }
                Ok(None) => {
                    assert_eq!(input, before, "what is not whole stays");
                    break;
                }
                Err(error) => {
                    assert_eq!(input, before, "what is refused stays");
                    return (told, Some(error));
                }
            }
        }
    }
    (told, None)
}

fn payload(payload: &Bytes) {
    if let Ok(number) = frame::read_ping(payload) {
        assert_eq!(frame::ping(number), payload);
    }
    if let Ok(forward) = Forward::read(payload) {
        assert_eq!([&forward.head()[..], &forward.text].concat(), payload[..]);
    }
    if let Ok((number, text)) = read_reply(payload) {
        assert_eq!([&reply_head(number)[..], &text].concat(), payload[..]);
    }
}

/// The documents that nodes agree on: what is read is written so that it is read the same.
pub fn documents(bytes: &[u8]) {
    if let Ok(read) = ClusterConfig::parse("/k", bytes) {
        let again = ClusterConfig::parse("/k", &read.to_bytes());
        assert_eq!(again.expect("what was written is read"), read);
    }
    if let Ok(read) = Registration::parse("/k", bytes) {
        let again = Registration::parse("/k", &read.to_bytes());
        assert_eq!(again.expect("what was written is read"), read);
    }
}
