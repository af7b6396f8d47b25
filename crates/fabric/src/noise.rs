//! The handshake that proves the cluster's key both ways, and the encryption after it.
//!
//! `Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s`, without any input or output of its own: the client
//! side is [`Initiator`], the host side [`Responder`], and both end as a [`Transport`].
//! A host sends nothing until a first message decrypted under the key, and believes the peer only
//! after its hello: that one is bound to the host's fresh key, so a replayed start gains nothing.
//! Byte tables: `docs/protocols/fabric.md`.
//!
//! Other protocols prove the key the same way under a name of their own ([`Protocol`]), so that a
//! member of the one is a stranger to the other; what they say afterwards is theirs.

use ring::hkdf;
use snow::{Builder, HandshakeState, TransportState};

use crate::record::connection_secret;
use crate::{ClientId, ClusterKey, Hello, WireProtection};

/// Newest version of the protocol that this program speaks: of the fabric and of what is said over it.
pub const VERSION: u16 = 7;
/// Oldest version that it speaks, so that a cluster is upgraded machine by machine.
pub const VERSION_OLDEST: u16 = 1;

/// The versions that one end speaks, each between the two.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Versions {
    /// The oldest.
    pub oldest: u16,
    /// The newest.
    pub newest: u16,
}

impl Versions {
    /// Those of this program.
    pub const OURS: Self = Self {
        oldest: VERSION_OLDEST,
        newest: VERSION,
    };

    /// The newest that both ends speak.
    fn agree(self, other: Self) -> Option<u16> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.oldest == self.newest {
            write!(f, "version {}", self.newest)
        } else {
            write!(f, "versions {} to {}", self.oldest, self.newest)
        }
    }
}

/// What is spoken once the key is proven; both ends must mean the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Protocol {
    /// Its name in the handshake.
    pub magic: [u8; 4],
    /// The versions that this end speaks.
    pub versions: Versions,
}

impl Protocol {
    /// The fabric's own.
    pub const FABRIC: Self = Self {
        magic: *b"cnte",
        versions: Versions::OURS,
    };
}

/// Length of both handshake messages: a public key, the preamble, an authentication tag.
pub const HANDSHAKE_BYTES: usize = 32 + PREAMBLE_BYTES + TAG_BYTES;
/// Length of the encrypted hello.
pub(crate) const HELLO_BYTES: usize = HELLO_PLAIN_BYTES + TAG_BYTES;
/// What encryption adds.
pub const TAG_BYTES: usize = 16;
/// Longest sealed message.
pub const SEALED_BYTES_MAX: usize = 65535;
/// Names of clients are shown on terminals: nothing may move a cursor.
pub(crate) fn is_printable(name: &str) -> bool {
    !name.chars().any(char::is_control)
}

/// Longest client name in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// Version from which on data connections over `tcp` may be protected.
pub(crate) const VERSION_PROTECTED: u16 = 5;
/// Version from which on there are connections for calls.
pub(crate) const VERSION_CALLS: u16 = 6;

/// What a connection is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Purpose {
    Control,
    /// How verbs on it are to be protected; looked at on `tcp` alone.
    Data(WireProtection),
    /// Messages for a server thread; protected as verbs are.
    Calls(WireProtection),
}

/// Why a handshake ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refusal {
    /// The bytes do not decrypt under the key, or are not this protocol's.
    Unauthenticated,
    /// The key is right, but there is no version that both speak; those of the peer.
    Version(Versions),
}

/// The client's half of the handshake.
pub struct Initiator {
    state: HandshakeState,
    protocol: Protocol,
}

impl Initiator {
    /// Starts, with the first message.
    pub(crate) fn start(key: &ClusterKey) -> (Self, [u8; HANDSHAKE_BYTES]) {
        Self::start_of(Protocol::FABRIC, key)
    }

    /// As `start`, of another protocol.
    #[must_use]
    pub fn start_of(protocol: Protocol, key: &ClusterKey) -> (Self, [u8; HANDSHAKE_BYTES]) {
        let mut state = builder(key)
            .build_initiator()
            .expect("the pattern's name is right and it needs no static key");
        let mut message = [0; HANDSHAKE_BYTES];
        let len = state
            .write_message(&preamble(protocol), &mut message)
            .expect("it is our turn and the message fits");
        debug_assert_eq!(len, HANDSHAKE_BYTES);
        (Self { state, protocol }, message)
    }

    /// Takes the host's answer.
    ///
    /// # Errors
    /// The peer has another key, another protocol or only other versions of it.
    pub fn finish(mut self, answer: &[u8; HANDSHAKE_BYTES]) -> Result<Transport, Refusal> {
        let version = read_preamble(&mut self.state, answer, self.protocol)?;
        Ok(Transport::new(self.state, version))
    }
}

/// The host's half of the handshake.
pub struct Responder {
    state: HandshakeState,
    version: u16,
}

impl Responder {
    /// Takes the first message of a stranger; the answer is to be sent even when only the version
    /// is wrong, so that the client can tell its user.
    pub(crate) fn answer(
        key: &ClusterKey,
        message: &[u8; HANDSHAKE_BYTES],
    ) -> Result<(Self, [u8; HANDSHAKE_BYTES], Option<Refusal>), Refusal> {
        Self::answer_of(Protocol::FABRIC, key, message)
    }

    /// As `answer`, of another protocol. The answer comes with the refusal when only the versions
    /// do not meet.
    ///
    /// # Errors
    /// `Unauthenticated`: nothing is to be sent.
    pub fn answer_of(
        protocol: Protocol,
        key: &ClusterKey,
        message: &[u8; HANDSHAKE_BYTES],
    ) -> Result<(Self, [u8; HANDSHAKE_BYTES], Option<Refusal>), Refusal> {
        let mut state = builder(key)
            .build_responder()
            .expect("the pattern's name is right and it needs no static key");
        let (version, refusal) = match read_preamble(&mut state, message, protocol) {
            Ok(version) => (version, None),
            Err(Refusal::Unauthenticated) => return Err(Refusal::Unauthenticated),
            Err(refusal) => (protocol.versions.newest, Some(refusal)),
        };
        let mut answer = [0; HANDSHAKE_BYTES];
        // Refused by the library when the stranger's public key is a bad point.
        state
            .write_message(&preamble(protocol), &mut answer)
            .map_err(|_| Refusal::Unauthenticated)?;
        Ok((Self { state, version }, answer, refusal))
    }

    /// Takes the hello; from here on the peer holds the key.
    pub(crate) fn finish(
        self,
        hello: &[u8; HELLO_BYTES],
    ) -> Result<(Transport, Purpose, Hello), Refusal> {
        let mut transport = self.transport();
        let mut plain = [0; HELLO_BYTES];
        let len = transport
            .open(hello, &mut plain)
            .ok_or(Refusal::Unauthenticated)?;
        let (purpose, hello) = decode_hello(&plain[..len]).ok_or(Refusal::Unauthenticated)?;
        Ok((transport, purpose, hello))
    }

    /// For protocols with a hello of their own: believe the peer only when its first sealed message
    /// has opened, since what it sent so far may be a recording.
    #[must_use]
    pub fn transport(self) -> Transport {
        Transport::new(self.state, self.version)
    }
}

/// Encryption of an established connection; each direction counts its messages.
pub struct Transport {
    state: TransportState,
    version: u16,
    /// What keys beside the transport's own come from.
    secret: hkdf::Prk,
}

impl Transport {
    fn new(mut state: HandshakeState, version: u16) -> Self {
        let keys = state.dangerously_get_raw_split();
        let secret = connection_secret(state.get_handshake_hash(), keys);
        Self {
            state: state
                .into_transport_mode()
                .expect("both handshake messages are done"),
            version,
            secret,
        }
    }

    pub(crate) fn secret(&self) -> &hkdf::Prk {
        &self.secret
    }

    /// Whether this end began the handshake.
    pub(crate) fn is_caller(&self) -> bool {
        self.state.is_initiator()
    }

    /// The version that both ends agreed on.
    #[must_use]
    pub fn version(&self) -> u16 {
        self.version
    }

    /// Encrypts into `out`, which has `plain.len() + TAG_BYTES` bytes.
    ///
    /// # Panics
    /// `out` is shorter, or longer than [`SEALED_BYTES_MAX`].
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) {
        self.state
            .write_message(plain, out)
            .expect("the output fits, and 2^64 messages are never sent");
    }

    /// Decrypts into `out`, which is as long as `sealed`; the length, or `None` for a forgery.
    pub fn open(&mut self, sealed: &[u8], out: &mut [u8]) -> Option<usize> {
        self.state.read_message(sealed, out).ok()
    }

    /// The client's first message.
    pub(crate) fn hello(&mut self, purpose: Purpose, hello: &Hello) -> [u8; HELLO_BYTES] {
        let mut sealed = [0; HELLO_BYTES];
        self.seal(&encode_hello(purpose, hello), &mut sealed);
        sealed
    }
}

fn builder(key: &ClusterKey) -> Builder<'_> {
    let pattern = PATTERN.parse().expect("a pattern that the library knows");
    Builder::new(pattern)
        .psk(0, key.bytes())
        .expect("the pattern has a key at place 0")
}

fn preamble(protocol: Protocol) -> [u8; PREAMBLE_BYTES] {
    let mut bytes = [0; PREAMBLE_BYTES];
    bytes[..4].copy_from_slice(&protocol.magic);
    bytes[4..6].copy_from_slice(&protocol.versions.oldest.to_le_bytes());
    bytes[6..].copy_from_slice(&protocol.versions.newest.to_le_bytes());
    bytes
}

fn read_preamble(
    state: &mut HandshakeState,
    message: &[u8; HANDSHAKE_BYTES],
    protocol: Protocol,
) -> Result<u16, Refusal> {
    let mut payload = [0; HANDSHAKE_BYTES];
    let len = state
        .read_message(message, &mut payload)
        .map_err(|_| Refusal::Unauthenticated)?;
    if len != PREAMBLE_BYTES || !payload.starts_with(&protocol.magic) {
        return Err(Refusal::Unauthenticated);
    }
    let oldest = u16::from_le_bytes([payload[4], payload[5]]);
    let newest = u16::from_le_bytes([payload[6], payload[7]]);
    let theirs = Versions {
        oldest,
        // Version 1 knew one version only, and left the second place empty.
        newest: newest.max(oldest),
    };
    let agreed = protocol.versions.agree(theirs);
    agreed.ok_or(Refusal::Version(theirs))
}

fn encode_hello(purpose: Purpose, hello: &Hello) -> [u8; HELLO_PLAIN_BYTES] {
    let mut bytes = [0; HELLO_PLAIN_BYTES];
    let protection = |protection| match protection {
        WireProtection::Plain => 0,
        WireProtection::Authenticated => 1,
        WireProtection::Encrypted => 2,
    };
    (bytes[0], bytes[2]) = match purpose {
        Purpose::Control => (1, 0),
        Purpose::Data(wanted) => (2, protection(wanted)),
        Purpose::Calls(wanted) => (3, protection(wanted)),
    };
    bytes[1] = u8::try_from(hello.name.len()).expect("checked when the session was opened");
    bytes[8..24].copy_from_slice(&hello.client.0.to_le_bytes());
    bytes[24..24 + hello.name.len()].copy_from_slice(hello.name.as_bytes());
    bytes
}

fn decode_hello(bytes: &[u8]) -> Option<(Purpose, Hello)> {
    let bytes: &[u8; HELLO_PLAIN_BYTES] = bytes.try_into().ok()?;
    let protection = || match bytes[2] {
        0 => Some(WireProtection::Plain),
        1 => Some(WireProtection::Authenticated),
        2 => Some(WireProtection::Encrypted),
        _ => None,
    };
    let purpose = match bytes[0] {
        1 => Purpose::Control,
        2 => Purpose::Data(protection()?),
        3 => Purpose::Calls(protection()?),
        _ => return None,
    };
    let name = bytes[24..].get(..usize::from(bytes[1]))?;
    let name = std::str::from_utf8(name).ok()?;
    if !is_printable(name) {
        return None;
    }
    let client = ClientId(u128::from_le_bytes(bytes[8..24].try_into().ok()?));
    Some((
        purpose,
        Hello {
            client,
            name: name.to_owned(),
        },
    ))
}

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";
const PREAMBLE_BYTES: usize = 8;
const HELLO_PLAIN_BYTES: usize = 24 + NAME_BYTES_MAX;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DATA: Purpose = Purpose::Data(WireProtection::Authenticated);

    fn hello() -> Hello {
        Hello {
            client: ClientId(7 << 100),
            name: "volume scratch".to_owned(),
        }
    }

    fn established(key: &ClusterKey) -> (Transport, Transport) {
        let (initiator, first) = Initiator::start(key);
        let (responder, answer, version) = Responder::answer(key, &first).unwrap();
        assert_eq!(version, None);
        let mut client = initiator.finish(&answer).unwrap();
        let (host, purpose, said) = responder.finish(&client.hello(DATA, &hello())).unwrap();
        assert_eq!((purpose, said), (DATA, hello()));
        (client, host)
    }

    #[test]
    fn both_ways_are_encrypted_after_the_handshake() {
        let (mut client, mut host) = established(&ClusterKey::generate().unwrap());
        let (mut sealed, mut plain) = ([0; 21], [0; 21]);
        client.seal(b"slabs", &mut sealed);
        assert!(!sealed.windows(5).any(|w| w == b"slabs"));
        assert_eq!(host.open(&sealed, &mut plain), Some(5));
        assert_eq!(&plain[..5], b"slabs");
        assert_eq!(
            host.open(&sealed, &mut plain),
            None,
            "a message counts once"
        );
        host.seal(b"taken", &mut sealed);
        assert_eq!(client.open(&sealed, &mut plain), Some(5));
    }

    #[test]
    fn another_key_is_refused_before_anything_is_said() {
        let (ours, theirs) = (
            ClusterKey::generate().unwrap(),
            ClusterKey::generate().unwrap(),
        );
        let (_, first) = Initiator::start(&theirs);
        assert_eq!(
            Responder::answer(&ours, &first).err(),
            Some(Refusal::Unauthenticated)
        );
        let (initiator, _) = Initiator::start(&ours);
        let (_, first) = Initiator::start(&theirs);
        let (_, answer, _) = Responder::answer(&theirs, &first).unwrap();
        assert_eq!(
            initiator.finish(&answer).err(),
            Some(Refusal::Unauthenticated)
        );
    }

    #[test]
    fn a_member_of_another_protocol_is_a_stranger() {
        let key = ClusterKey::generate().unwrap();
        let other = Protocol {
            magic: *b"othr",
            ..Protocol::FABRIC
        };
        let (_, first) = Initiator::start_of(other, &key);
        let answered = Responder::answer(&key, &first);
        assert_eq!(answered.err(), Some(Refusal::Unauthenticated));
        assert!(Responder::answer_of(other, &key, &first).is_ok());
    }

    #[test]
    fn a_replayed_start_cannot_be_finished() {
        let key = ClusterKey::generate().unwrap();
        let (initiator, first) = Initiator::start(&key);
        let (responder, answer, _) = Responder::answer(&key, &first).unwrap();
        let recorded = initiator
            .finish(&answer)
            .unwrap()
            .hello(Purpose::Control, &hello());
        responder.finish(&recorded).unwrap();
        let (again, _, _) = Responder::answer(&key, &first).unwrap();
        assert_eq!(
            again.finish(&recorded).err(),
            Some(Refusal::Unauthenticated)
        );
    }

    #[test]
    fn another_version_is_named_on_both_sides() {
        let key = ClusterKey::generate().unwrap();
        let theirs = Versions {
            oldest: VERSION + 1,
            newest: VERSION + 2,
        };
        let mut future = builder(&key).build_initiator().unwrap();
        let mut first = [0; HANDSHAKE_BYTES];
        let protocol = Protocol {
            versions: theirs,
            ..Protocol::FABRIC
        };
        let said = preamble(protocol);
        future.write_message(&said, &mut first).unwrap();
        let (_, answer, refusal) = Responder::answer(&key, &first).unwrap();
        assert_eq!(refusal, Some(Refusal::Version(theirs)));
        assert_eq!(
            read_preamble(&mut future, &answer, Protocol::FABRIC),
            Ok(VERSION),
            "the answer names ours"
        );
    }

    /// What a program of version 1 writes, and what it takes: bytes 4 and 5 are 1, and it never
    /// looked at the last two, which it wrote as zeros.
    #[test]
    fn the_version_before_is_spoken_with_those_who_speak_no_newer_one() {
        let key = ClusterKey::generate().unwrap();
        let mut earlier = builder(&key).build_initiator().unwrap();
        let mut first = [0; HANDSHAKE_BYTES];
        earlier
            .write_message(b"cnte\x01\x00\x00\x00", &mut first)
            .unwrap();
        let (responder, answer, refusal) = Responder::answer(&key, &first).unwrap();
        assert_eq!(refusal, None);
        let mut payload = [0; HANDSHAKE_BYTES];
        let len = earlier.read_message(&answer, &mut payload).unwrap();
        assert_eq!(
            payload[..len][..6],
            *b"cnte\x01\x00",
            "as version 1 checks it"
        );
        let mut client = Transport::new(earlier, 1);
        let said = client.hello(Purpose::Control, &hello());
        let (transport, _, _) = responder.finish(&said).unwrap();
        assert_eq!(transport.version(), 1);

        let (client, host) = established(&key);
        assert_eq!((client.version(), host.version()), (VERSION, VERSION));
    }

    #[test]
    fn ends_agree_on_the_newest_version_that_both_speak() {
        let versions = |oldest, newest| Versions { oldest, newest };
        let agreed = |ours: (u16, u16), theirs: (u16, u16)| {
            let one = versions(ours.0, ours.1).agree(versions(theirs.0, theirs.1));
            let other = versions(theirs.0, theirs.1).agree(versions(ours.0, ours.1));
            assert_eq!(one, other);
            one
        };
        assert_eq!(agreed((1, 2), (1, 1)), Some(1));
        assert_eq!(agreed((1, 2), (1, 2)), Some(2));
        assert_eq!(agreed((1, 2), (2, 3)), Some(2));
        assert_eq!(agreed((1, 2), (3, 4)), None);
        assert_eq!(versions(1, 2).to_string(), "versions 1 to 2");
        assert_eq!(versions(3, 3).to_string(), "version 3");
    }

    #[test]
    fn a_hello_is_checked() {
        let good = encode_hello(Purpose::Control, &hello());
        assert_eq!(decode_hello(&good), Some((Purpose::Control, hello())));
        for (index, value) in [(0, 0), (0, 4), (1, 65), (1, 255), (24, 0xff), (24, 0x1b)] {
            let mut bad = good;
            bad[index] = value;
            assert_eq!(decode_hello(&bad), None, "byte {index} = {value}");
        }
        assert_eq!(decode_hello(&good[1..]), None);
        for purpose in WireProtection::ALL.map(Purpose::Calls) {
            let mut calls = encode_hello(purpose, &hello());
            assert_eq!(decode_hello(&calls), Some((purpose, hello())));
            calls[2] = 3;
            assert_eq!(decode_hello(&calls), None);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_changed_handshake_is_refused(place in 0..HANDSHAKE_BYTES, flip in 1..=255_u8) {
            let key = ClusterKey::from_hex(&"5a".repeat(32)).unwrap();
            let (initiator, mut first) = Initiator::start(&key);
            let (_, mut answer, _) = Responder::answer(&key, &first).unwrap();
            first[place] ^= flip;
            answer[place] ^= flip;
            // The top bit of a public key's last byte is ignored by X25519, but not by the transcript.
            prop_assert_eq!(Responder::answer(&key, &first).err(), Some(Refusal::Unauthenticated));
            prop_assert_eq!(initiator.finish(&answer).err(), Some(Refusal::Unauthenticated));
        }

        #[test]
        fn any_hello_bytes_are_parsed_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..120),
            fixed in any::<[u8; 24]>(),
        ) {
            let _: Option<_> = decode_hello(&bytes);
            let mut whole = [b'a'; HELLO_PLAIN_BYTES];
            whole[..24].copy_from_slice(&fixed);
            if let Some((purpose, hello)) = decode_hello(&whole) {
                prop_assert!(hello.name.len() <= NAME_BYTES_MAX);
                let again = decode_hello(&encode_hello(purpose, &hello));
                prop_assert_eq!(again, Some((purpose, hello)));
            }
        }
    }
}
