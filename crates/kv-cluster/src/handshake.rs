//! The start of a link, without input or output of its own: the proof of the cluster's key both
//! ways, then who is who.
//!
//! The caller sends its proof, the answerer its own, then each one hello, encrypted whatever follows
//! is. A stranger that does not hold the key is told nothing. Frames are protected as the end wants that
//! wants more: nobody in between can talk the two out of it, since hellos are encrypted.

use bytes::{Buf, BytesMut};
use cenote_fabric::{
    ClusterKey, HANDSHAKE_BYTES, Initiator, Protocol, RecordOpener, RecordSealer, Refusal,
    Responder, TAG_BYTES, Transport, Versions, WireProtection,
};

use super::NodeId;
use super::config::NAME_BYTES_MAX;

/// The protocol between nodes, in the proof of the key.
pub const PROTOCOL: Protocol = Protocol {
    magic: *b"cnkv",
    versions: Versions {
        oldest: 4,
        newest: 4,
    },
};
/// In the place of a node's number: one that asks and is no node.
pub const OBSERVER: NodeId = NodeId(u32::MAX);
/// Length of an encrypted hello.
pub const HELLO_BYTES: usize = HELLO_PLAIN_BYTES + TAG_BYTES;

/// What records of a link are for: others of the connection have other keys.
const PURPOSE: &str = "kv link";

const HELLO_PLAIN_BYTES: usize = 16 + NAME_BYTES_MAX;

/// Who an end is.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Hello {
    /// Name of its cluster.
    pub cluster: String,
    /// Its number, or [`OBSERVER`].
    pub node: NodeId,
    /// Greater each time it starts.
    pub incarnation: u64,
    /// Which of the links between the two nodes this is.
    pub lane: u16,
    /// How it wants frames to be protected, at least.
    pub protection: WireProtection,
}

/// Why a handshake came to nothing.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer does not hold our key, or speaks something else.
    #[error("the peer does not prove the cluster's key")]
    Stranger,
    /// It speaks other versions only.
    #[error("the peer speaks {0} of the protocol between nodes, this program {ours}", ours = PROTOCOL.versions)]
    Version(Versions),
    /// The hello makes no sense.
    #[error("the peer's hello makes no sense")]
    Hello,
    /// It is of another cluster.
    #[error("the peer is of cluster {0:?}")]
    Cluster(String),
}

/// One end's half, up to the peer's hello.
pub struct Handshake {
    hello: Hello,
    stage: Option<Stage>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "one per connection that is being opened"
)]
enum Stage {
    Called(Initiator),
    Waiting(ClusterKey),
    Proven {
        transport: Transport,
        we_answer: bool,
    },
}

/// What a finished handshake leaves.
pub struct Finished {
    /// Who the peer is.
    pub peer: Hello,
    /// What makes and opens records of frames, unless these go as they are.
    pub records: Option<(RecordSealer, RecordOpener)>,
}

impl Handshake {
    /// Calls; the bytes to send first.
    #[must_use]
    pub fn call(key: &ClusterKey, hello: Hello) -> (Self, [u8; HANDSHAKE_BYTES]) {
        let (initiator, first) = Initiator::start_of(PROTOCOL, key);
        let stage = Some(Stage::Called(initiator));
        (Self { hello, stage }, first)
    }

    /// Waits for a call.
    #[must_use]
    pub fn wait(key: &ClusterKey, hello: Hello) -> Self {
        let stage = Some(Stage::Waiting(key.clone()));
        Self { hello, stage }
    }

    /// Takes what has come, and appends to `out` what is to be sent: also with an error.
    ///
    /// # Errors
    /// See [`HandshakeError`]; the connection is to be closed.
    ///
    /// # Panics
    /// It had finished or failed before.
    pub fn take(
        &mut self,
        input: &mut BytesMut,
        out: &mut BytesMut,
    ) -> Result<Option<Finished>, HandshakeError> {
        loop {
            let stage = self.stage.take().expect("not called after its end");
            let needed = match stage {
                Stage::Called(_) | Stage::Waiting(_) => HANDSHAKE_BYTES,
                Stage::Proven { .. } => HELLO_BYTES,
            };
            if input.len() < needed {
                self.stage = Some(stage);
                return Ok(None);
            }
            let stage = match stage {
                Stage::Called(initiator) => {
                    let mut transport = initiator.finish(&fixed(input)).map_err(refused)?;
                    self.say_hello(&mut transport, out);
                    Stage::Proven {
                        transport,
                        we_answer: false,
                    }
                }
                Stage::Waiting(key) => {
                    let first = fixed(input);
                    let (responder, answer, refusal) =
                        Responder::answer_of(PROTOCOL, &key, &first).map_err(refused)?;
                    out.extend_from_slice(&answer);
                    if let Some(refusal) = refusal {
                        return Err(refused(refusal));
                    }
                    Stage::Proven {
                        transport: responder.transport(),
                        we_answer: true,
                    }
                }
                Stage::Proven {
                    mut transport,
                    we_answer,
                } => {
                    let peer = read_hello(&mut transport, &fixed(input))?;
                    // Also to one of another cluster: it holds the key and may know why.
                    if we_answer {
                        self.say_hello(&mut transport, out);
                    }
                    if peer.cluster != self.hello.cluster {
                        return Err(HandshakeError::Cluster(peer.cluster));
                    }
                    let protection = peer.protection.max(self.hello.protection);
                    let records = transport.records(PURPOSE, protection);
                    return Ok(Some(Finished { peer, records }));
                }
            };
            self.stage = Some(stage);
        }
    }

    /// Whether the peer's proof was taken and ours is said.
    #[must_use]
    pub fn has_answered(&self) -> bool {
        matches!(self.stage, Some(Stage::Proven { .. }))
    }

    fn say_hello(&self, transport: &mut Transport, out: &mut BytesMut) {
        let mut sealed = [0; HELLO_BYTES];
        transport.seal(&encode_hello(&self.hello), &mut sealed);
        out.extend_from_slice(&sealed);
    }
}

fn refused(refusal: Refusal) -> HandshakeError {
    match refusal {
        Refusal::Unauthenticated => HandshakeError::Stranger,
        Refusal::Version(theirs) => HandshakeError::Version(theirs),
    }
}

fn fixed<const N: usize>(input: &mut BytesMut) -> [u8; N] {
    let mut bytes = [0; N];
    input.copy_to_slice(&mut bytes);
    bytes
}

fn encode_hello(hello: &Hello) -> [u8; HELLO_PLAIN_BYTES] {
    let mut bytes = [0; HELLO_PLAIN_BYTES];
    let name = hello.cluster.as_bytes();
    bytes[..4].copy_from_slice(&hello.node.0.to_le_bytes());
    bytes[4..6].copy_from_slice(&hello.lane.to_le_bytes());
    bytes[6] = match hello.protection {
        WireProtection::Plain => 0,
        WireProtection::Authenticated => 1,
        WireProtection::Encrypted => 2,
    };
    bytes[7] = u8::try_from(name.len()).expect("a cluster's name was checked");
    bytes[8..16].copy_from_slice(&hello.incarnation.to_le_bytes());
    bytes[16..16 + name.len()].copy_from_slice(name);
    bytes
}

fn read_hello(
    transport: &mut Transport,
    sealed: &[u8; HELLO_BYTES],
) -> Result<Hello, HandshakeError> {
    let mut plain = [0; HELLO_BYTES];
    let length = transport
        .open(sealed, &mut plain)
        .ok_or(HandshakeError::Stranger)?;
    decode_hello(&plain[..length]).ok_or(HandshakeError::Hello)
}

fn decode_hello(bytes: &[u8]) -> Option<Hello> {
    let bytes: &[u8; HELLO_PLAIN_BYTES] = bytes.try_into().ok()?;
    let protection = match bytes[6] {
        0 => WireProtection::Plain,
        1 => WireProtection::Authenticated,
        2 => WireProtection::Encrypted,
        _ => return None,
    };
    let name = bytes[16..].get(..usize::from(bytes[7]))?;
    // Shown on terminals, so nothing that moves a cursor.
    if name.is_empty() || !name.iter().all(u8::is_ascii_graphic) {
        return None;
    }
    Some(Hello {
        cluster: String::from_utf8(name.to_vec()).ok()?,
        node: NodeId(u32::from_le_bytes(bytes[..4].try_into().ok()?)),
        incarnation: u64::from_le_bytes(bytes[8..16].try_into().ok()?),
        lane: u16::from_le_bytes(bytes[4..6].try_into().ok()?),
        protection,
    })
}

#[cfg(test)]
mod tests {
    use cenote_fabric::RECORD_OVERHEAD_BYTES;
    use proptest::prelude::*;

    use super::*;

    fn hello(node: u32, protection: WireProtection) -> Hello {
        Hello {
            cluster: "well".to_owned(),
            node: NodeId(node),
            incarnation: 7,
            lane: 2,
            protection,
        }
    }

    type Ended = Result<Option<Finished>, HandshakeError>;

    /// Runs both halves to their ends, byte by byte where `piece` is 1.
    fn meet(
        mut caller: Handshake,
        first: &[u8],
        mut answerer: Handshake,
        piece: usize,
    ) -> (Ended, Ended) {
        let (mut to_answerer, mut to_caller) = (BytesMut::from(first), BytesMut::new());
        let (mut ours, mut theirs) = (Ok(None), Ok(None));
        let (mut got, mut given) = (BytesMut::new(), BytesMut::new());
        while !(to_answerer.is_empty() && to_caller.is_empty()) {
            let bytes = to_answerer.split_to(piece.min(to_answerer.len()));
            given.extend_from_slice(&bytes);
            if matches!(theirs, Ok(None)) {
                theirs = answerer.take(&mut given, &mut to_caller);
            }
            let bytes = to_caller.split_to(piece.min(to_caller.len()));
            got.extend_from_slice(&bytes);
            if matches!(ours, Ok(None)) {
                ours = caller.take(&mut got, &mut to_answerer);
            }
        }
        (ours, theirs)
    }

    #[test]
    fn both_ends_learn_who_the_other_is_and_protect_frames_as_who_wants_more() {
        let key = ClusterKey::generate().unwrap();
        let all = WireProtection::ALL;
        for (ours_wants, theirs_wants) in all.into_iter().flat_map(|one| all.map(|two| (one, two)))
        {
            let (caller, first) = Handshake::call(&key, hello(1, ours_wants));
            let answerer = Handshake::wait(&key, hello(2, theirs_wants));
            let (ours, theirs) = meet(caller, &first, answerer, 1);
            let (ours, theirs) = (ours.unwrap().unwrap(), theirs.unwrap().unwrap());
            assert_eq!(ours.peer, hello(2, theirs_wants));
            assert_eq!(theirs.peer, hello(1, ours_wants));
            let is_plain = ours_wants.max(theirs_wants) == WireProtection::Plain;
            let (Some((mut sealer, _)), Some((_, mut opener))) = (ours.records, theirs.records)
            else {
                assert!(is_plain);
                continue;
            };
            assert!(!is_plain);
            let mut record = vec![7; RECORD_OVERHEAD_BYTES + 3];
            sealer.seal(&mut record);
            assert_eq!(opener.open(&mut record).unwrap().len(), 3);
        }
    }

    #[test]
    fn strangers_and_members_of_other_clusters_are_refused() {
        let key = ClusterKey::generate().unwrap();
        let (caller, first) = Handshake::call(
            &ClusterKey::generate().unwrap(),
            hello(1, WireProtection::Plain),
        );
        let (ours, theirs) = meet(
            caller,
            &first,
            Handshake::wait(&key, hello(2, WireProtection::Plain)),
            99,
        );
        assert_eq!(theirs.err(), Some(HandshakeError::Stranger));
        assert!(ours.unwrap().is_none(), "it is told nothing");

        let other = Hello {
            cluster: "pond".to_owned(),
            ..hello(2, WireProtection::Plain)
        };
        let (caller, first) = Handshake::call(&key, hello(1, WireProtection::Plain));
        let (ours, theirs) = meet(caller, &first, Handshake::wait(&key, other), 99);
        assert_eq!(ours.err(), Some(HandshakeError::Cluster("pond".to_owned())));
        assert_eq!(
            theirs.err(),
            Some(HandshakeError::Cluster("well".to_owned()))
        );
    }

    #[test]
    fn a_recorded_call_is_refused() {
        let key = ClusterKey::generate().unwrap();
        let (mut caller, first) = Handshake::call(&key, hello(1, WireProtection::Plain));
        let mut recorded = BytesMut::from(&first[..]);
        let mut out = BytesMut::new();
        let mut answerer = Handshake::wait(&key, hello(2, WireProtection::Plain));
        let mut given = recorded.clone();
        assert!(answerer.take(&mut given, &mut out).unwrap().is_none());
        assert!(caller.take(&mut out, &mut recorded).unwrap().is_none());
        assert_eq!(recorded.len(), HANDSHAKE_BYTES + HELLO_BYTES);
        let mut again = Handshake::wait(&key, hello(2, WireProtection::Plain));
        let refused = again.take(&mut recorded, &mut BytesMut::new());
        assert_eq!(refused.err(), Some(HandshakeError::Stranger));
    }

    #[test]
    fn a_hello_has_the_bytes_of_the_table() {
        let bytes = encode_hello(&hello(0x0102, WireProtection::Authenticated));
        assert_eq!(bytes[..8], [2, 1, 0, 0, 2, 0, 1, 4]);
        assert_eq!(bytes[8..16], [7, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..20], *b"well");
        assert!(bytes[20..].iter().all(|&byte| byte == 0));
        for (place, value) in [(6, 3), (7, 0), (7, 65), (16, b' '), (16, 0x1b), (16, 0xff)] {
            let mut bad = bytes;
            bad[place] = value;
            assert_eq!(decode_hello(&bad), None, "byte {place} = {value}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_of_a_stranger_end_in_a_refusal(
            bytes in proptest::collection::vec(any::<u8>(), HANDSHAKE_BYTES..300),
        ) {
            let key = ClusterKey::from_hex(&"5a".repeat(32)).unwrap();
            let mut answerer = Handshake::wait(&key, hello(2, WireProtection::Plain));
            let mut out = BytesMut::new();
            let refused = answerer.take(&mut BytesMut::from(&bytes[..]), &mut out);
            prop_assert_eq!(refused.err(), Some(HandshakeError::Stranger));
            prop_assert!(out.is_empty());
        }
    }
}
