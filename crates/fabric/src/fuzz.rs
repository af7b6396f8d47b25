//! Doors for the fuzz targets (`fuzz/` at the repository's root): bytes in, a panic where an
//! invariant breaks. No part of the interface; what users get is built without it.

use std::fmt::Display;
use std::str::FromStr;

use crate::frame::Frame;
use crate::noise::{Initiator, Responder};
use crate::tcp::{REQUEST_BYTES, RESPONSE_BYTES, Request, Response};
use crate::{
    Address, ClusterKey, HANDSHAKE_BYTES, Host, HostName, HostPort, Protocol, RECORD_LENGTH_BYTES,
    RECORD_OVERHEAD_BYTES, RecordOpener, TAG_BYTES, Transport, WireProtection,
};

pub use crate::calls::fuzz::{ring, stream};

fn key() -> ClusterKey {
    ClusterKey::from_hex(&"5a".repeat(32)).expect("64 digits")
}

/// A frame of a control connection, and the headers of a data connection: what is read is written
/// the same.
pub fn frame(bytes: &[u8]) {
    if let Ok(frame) = Frame::decode(bytes) {
        let mut again = Vec::new();
        frame.encode(&mut again);
        assert_eq!(again, bytes);
    }
    if let Some(header) = bytes.first_chunk::<REQUEST_BYTES>()
        && let Ok(request) = Request::decode(header)
    {
        let mut wanted = *header;
        if request.immediate.is_none() {
            wanted[12..16].fill(0);
        }
        assert_eq!(request.encode(), wanted);
    }
    if let Some(trailer) = bytes.first_chunk::<RESPONSE_BYTES>()
        && let Ok(response) = Response::decode(trailer)
    {
        assert_eq!(response.encode(), *trailer);
    }
}

/// What somebody between two ends does to their records. The first byte says how they are
/// protected, the second how many there are, the third how long; then follow changes, three bytes
/// each: a place and what it is xored with. Each record arrives as it was sent, until the first
/// that was changed.
pub fn records(bytes: &[u8]) {
    let Some((&[protection, count, length], changes)) = bytes.split_first_chunk::<3>() else {
        return;
    };
    let protection = match protection % 2 {
        0 => WireProtection::Authenticated,
        _ => WireProtection::Encrypted,
    };
    let (mut sealer, mut opener) = ENDS.with(|(caller, answerer)| {
        let ends = (
            caller.records("fuzz", protection),
            answerer.records("fuzz", protection),
        );
        let (there, back) = (ends.0.expect("it has records"), ends.1.expect("as well"));
        (there.0, back.1)
    });
    let body_bytes = 1 + usize::from(length);
    let record_bytes = RECORD_OVERHEAD_BYTES + body_bytes;
    let count = 1 + usize::from(count % 8);
    let mut sent = vec![0; count * record_bytes];
    for (number, record) in sent.chunks_mut(record_bytes).enumerate() {
        record[RECORD_LENGTH_BYTES..][..body_bytes].fill(number as u8);
        sealer.seal(record);
    }
    let mut come = sent.clone();
    for change in changes.chunks_exact(3) {
        let place = usize::from(change[0]) << 8 | usize::from(change[1]);
        let place = place % come.len();
        come[place] ^= change[2];
    }
    let same = sent.iter().zip(&come).take_while(|(a, b)| a == b).count() / record_bytes;
    let mut rest = &mut come[..];
    let mut arrived = 0;
    while let Ok(Some(total)) = RecordOpener::record_bytes(rest) {
        if total > rest.len() {
            break;
        }
        let (record, after) = rest.split_at_mut(total);
        match opener.open(record) {
            Ok(body) => {
                assert_eq!(body, vec![arrived as u8; body_bytes], "another body");
                arrived += 1;
            }
            Err(_) => {
                // What was sent does not open either any more.
                let at = arrived * record_bytes;
                assert!(opener.open(&mut sent[at..][..record_bytes]).is_err());
                break;
            }
        }
        rest = after;
    }
    assert_eq!(
        arrived, same,
        "records arrive up to the first that was changed"
    );
    // Nor does anything that was made up.
    let (_, mut fresh) = ENDS
        .with(|(_, answerer)| answerer.records("fuzz", protection))
        .expect("it has records");
    assert!(fresh.open(&mut bytes.to_vec()).is_err());
}

thread_local! {
    /// Caller and answerer of a connection. Its keys are other ones in each process.
    static ENDS: (Transport, Transport) = {
        let (initiator, first) = Initiator::start_of(Protocol::FABRIC, &key());
        let (responder, answer, _) = Responder::answer_of(Protocol::FABRIC, &key(), &first)
            .unwrap_or_else(|_| panic!("the key is the same"));
        let caller = initiator.finish(&answer).unwrap_or_else(|_| panic!("as well"));
        (caller, responder.transport())
    };
}

/// A handshake by somebody who has no key: refused by both ends, whatever the bytes.
pub fn handshake(bytes: &[u8]) {
    let mut message = [0; HANDSHAKE_BYTES];
    let len = bytes.len().min(HANDSHAKE_BYTES);
    message[..len].copy_from_slice(&bytes[..len]);
    let answer = Responder::answer_of(Protocol::FABRIC, &key(), &message);
    assert!(answer.is_err(), "a stranger is answered");
    let (initiator, _) = Initiator::start_of(Protocol::FABRIC, &key());
    assert!(initiator.finish(&message).is_err(), "a stranger's answer");
    const { assert!(HANDSHAKE_BYTES > TAG_BYTES) };
}

/// Addresses as people write them: what is read is told so that it is read the same.
pub fn address(text: &[u8]) {
    let Ok(text) = std::str::from_utf8(text) else {
        return;
    };
    reads_back::<Address>(text);
    reads_back::<HostPort>(text);
    reads_back::<Host>(text);
    reads_back::<HostName>(text);
    reads_back::<WireProtection>(text);
    // It is never printed, so there is nothing to read back.
    let _key = ClusterKey::from_hex(text);
}

fn reads_back<T: FromStr + Display + PartialEq>(text: &str) {
    if let Ok(read) = text.parse::<T>() {
        let told = read.to_string();
        let again = told.parse::<T>().ok();
        assert!(again == Some(read), "{text:?} is told as {told:?}");
    }
}
