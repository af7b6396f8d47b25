//! Doors for the fuzz targets (`fuzz/` at the repository's root): bytes in, a panic where an
//! invariant breaks. No part of the interface; what users get is built without it.

use bytes::{Bytes, BytesMut};

use crate::group::operation::Operation;
use crate::group::wire;
use crate::protocol::{Dialect, Limits, Parser, Request, Step, binary, udp, whole};

/// Small, so that short inputs go beyond them.
const LIMITS: Limits = Limits {
    item_bytes_max: 200,
    line_bytes_max: 110,
    multiget_bytes_max: 150,
    dialect: Dialect::V1_6_18,
    has_cas: true,
};

/// A datagram, and a stream of memcached's text commands, classic and meta: what comes of it does not depend on the
/// pieces that it comes in, and a request is read again the same from its own bytes.
pub fn text(stream: &[u8]) {
    if let Some((header, rest)) = udp::Header::parse(stream) {
        // The last two bytes are reserved, and read as anything.
        assert_eq!(header.encode()[..6], stream[..6]);
        assert_eq!(rest, &stream[udp::HEADER_BYTES..]);
    }
    for dialect in [Dialect::V1_6_18, Dialect::Later] {
        let limits = Limits { dialect, ..LIMITS };
        let told = text_steps(stream, stream.len(), limits);
        for piece in [1, 7] {
            assert_eq!(
                text_steps(stream, piece, limits),
                told,
                "in pieces of {piece}"
            );
        }
    }
}

fn text_steps(stream: &[u8], piece: usize, limits: Limits) -> Vec<String> {
    let mut parser = Parser::new(limits);
    let (mut start, mut end, mut skipped, mut told) = (0, 0, 0, Vec::new());
    while end < stream.len() {
        end = (end + piece).min(stream.len());
        loop {
            let buffer = &stream[start..end];
            let step = parser.parse(buffer);
            let taken = match step {
                Step::More { needed } => {
                    assert!(needed > buffer.len(), "it waits for what is there");
                    break;
                }
                Step::Close(reason) => {
                    told.push(format!("{reason:?}"));
                    return told;
                }
                Step::Skipped { taken } => {
                    skipped += taken;
                    taken
                }
                Step::Request { request, taken } => {
                    assert_eq!(whole(&buffer[..taken], limits), Some(request));
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    taken
                }
                Step::Refused { taken, .. } => {
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    taken
                }
            };
            assert!(taken > 0 && taken <= buffer.len(), "{taken} bytes taken");
            start += taken;
        }
    }
    told.push(format!("skipped {skipped}, left {}", end - start));
    told
}

/// A stream of the binary protocol, as [`text`]; of a client that is known, and of one that is not.
pub fn binary(stream: &[u8]) {
    for is_known in [true, false] {
        let told = binary_steps(stream, stream.len(), is_known);
        for piece in [1, 7] {
            let again = binary_steps(stream, piece, is_known);
            assert_eq!(again, told, "in pieces of {piece}");
        }
    }
}

fn binary_steps(stream: &[u8], piece: usize, is_known: bool) -> Vec<String> {
    let mut parser = binary::Parser::new(LIMITS);
    let (mut start, mut end, mut skipped, mut told) = (0, 0, 0, Vec::new());
    while end < stream.len() {
        end = (end + piece).min(stream.len());
        loop {
            let buffer = &stream[start..end];
            let step = parser.parse(buffer, is_known);
            let taken = match step {
                binary::Step::More { needed } => {
                    assert!(needed > buffer.len(), "it waits for what is there");
                    break;
                }
                binary::Step::Close => {
                    told.push("closed".to_owned());
                    return told;
                }
                binary::Step::Skipped { taken } => {
                    skipped += taken;
                    taken
                }
                binary::Step::Message { message, taken } => {
                    let text = &buffer[..taken];
                    assert_eq!(binary::whole(text, LIMITS), Some(message));
                    let request = whole(text, LIMITS);
                    let is_for_item = message.is_for_item();
                    assert_eq!(request, is_for_item.then_some(Request::Binary(message)));
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    taken
                }
                binary::Step::Refused { refusal, taken } => {
                    told.push(format!("skipped {skipped}, then {step:?}"));
                    if refusal.is_end {
                        return told;
                    }
                    taken
                }
            };
            assert!(taken > 0 && taken <= buffer.len(), "{taken} bytes taken");
            start += taken;
        }
    }
    told.push(format!("skipped {skipped}, left {}", end - start));
    told
}

/// A message of a group, a view as it is agreed on, an operation: what is read is written the same.
pub fn group(bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    if let Ok(frame) = wire::decode(bytes.clone()) {
        let again = wire::encode(frame.group, frame.view, &frame.message);
        let body = again.body.unwrap_or_default();
        assert_eq!([&again.head[..], &body].concat(), bytes[..]);
    }
    if let Ok(view) = wire::decode_view(bytes.clone()) {
        let mut again = BytesMut::new();
        wire::encode_view(&view, &mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(operation) = Operation::decode(bytes) {
        let (effect, key) = (operation.effect(), operation.key());
        let again = Operation::new(effect, key, |out| out.extend_from_slice(operation.change()));
        assert_eq!(again, operation);
    }
}
