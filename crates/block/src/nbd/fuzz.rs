//! What a client may say on a socket; see [`crate::fuzz`].

use std::sync::{Arc, OnceLock};

use super::export::Export;
use super::handshake::{Handshake, Security, Step};
use super::wire::{Framing, RequestHeader};
use crate::ram::RamDisk;

fn exports() -> &'static [Export] {
    static EXPORTS: OnceLock<Vec<Export>> = OnceLock::new();
    EXPORTS.get_or_init(|| {
        [("first", 1 << 20), ("second", 3 << 20)]
            .map(|(name, size_bytes)| Export {
                name: name.to_owned(),
                disk: Arc::new(RamDisk::new(size_bytes)),
            })
            .to_vec()
    })
}

/// A handshake, from the client's flags on: the same answers and the same end in whatever pieces it
/// comes. The first byte says what it has to do with TLS.
pub fn handshake(bytes: &[u8]) {
    let Some((&first, talk)) = bytes.split_first() else {
        return;
    };
    let security = match first % 4 {
        0 => Security::None,
        1 => Security::Offered,
        2 => Security::Required,
        _ => Security::Running,
    };
    let told = answers(talk, talk.len(), security);
    for piece in [1, 7] {
        let again = answers(talk, piece, security);
        assert_eq!(again, told, "in pieces of {piece}");
    }
}

fn answers(talk: &[u8], piece: usize, security: Security) -> (Vec<u8>, Option<Step>) {
    let mut out = Vec::new();
    let mut handshake = Handshake::start(security, &mut out);
    let (mut at, mut given) = (0, 0);
    loop {
        let (used, step) = handshake.advance(&talk[at..given], exports(), &mut out);
        assert!(used <= given - at, "more is used than came");
        at += used;
        match step {
            Step::More if given == talk.len() => return (out, None),
            Step::More => {
                assert!(
                    given - at < Handshake::INPUT_BYTES_MAX,
                    "it waits for more than it may"
                );
                given = talk.len().min(given + piece.max(1));
            }
            Step::Replied => {}
            Step::Transmit(agreed) => {
                assert!(
                    agreed.export < exports().len(),
                    "an export that is not there"
                );
                assert_ne!(security, Security::Required, "nothing goes without TLS");
                return (out, Some(step));
            }
            Step::StartTls | Step::Close => return (out, Some(step)),
        }
    }
}

/// Headers of requests, of each framing.
pub fn request(bytes: &[u8]) {
    for framing in [Framing::Simple, Framing::Structured, Framing::Extended] {
        let Some(header) = RequestHeader::parse_as(bytes, framing) else {
            continue;
        };
        assert!(header.payload_bytes(framing) <= header.len_bytes);
        if framing != Framing::Extended {
            assert_eq!(header.bytes()[..], bytes[..framing.request_bytes()]);
        }
    }
}
