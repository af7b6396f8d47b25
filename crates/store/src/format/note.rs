//! What a header notes beside its own checksum, and how it is told from bytes of a value.
//!
//! Clients read the log, so they know all that a header's checksum is made of, and could write what
//! looks like headers into their values. The note's sum is keyed with a secret that no client can
//! read: recovery takes nothing for a header whose sum is another. A log may begin with headers
//! that were written without the secret; [`Keyed`] says where they end.

use siphasher::sip::SipHasher24;

use super::{FLAG_AT, GRAIN_BYTES, SUMMED_BYTES, checksum, u32_at, u64_at};

/// Where in the object its checksum and its note are.
const NOTE_AT: usize = SUMMED_BYTES;
/// Where the note's sum is, behind the place that it notes.
const SUM_AT: usize = NOTE_AT + 8;
/// Bytes of an object up to the end of its note.
pub(crate) const NOTED_BYTES: usize = SUM_AT + 4;
const _: () = assert!(NOTED_BYTES as u64 == FLAG_AT);

/// What a store keeps from its clients.
///
/// It may not be in a pool's file: clients read the memory that holds it.
#[derive(Clone, Copy, Eq, PartialEq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// One of random bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    fn hash(&self, bytes: &[u8]) -> u64 {
        SipHasher24::new_with_key(&self.0).hash(bytes)
    }

    /// Tells secrets from each other; says nothing of what they are.
    fn fingerprint(&self) -> u64 {
        self.hash(b"fingerprint")
    }

    fn sum(&self, at: u64, epoch: u64, bytes: &[u8]) -> u32 {
        let mut summed = [0; 16 + SUM_AT];
        summed[..8].copy_from_slice(&at.to_le_bytes());
        summed[8..16].copy_from_slice(&epoch.to_le_bytes());
        summed[16..].copy_from_slice(&bytes[..SUM_AT]);
        self.hash(&summed) as u32
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Where in the head it is said from which place on headers are keyed: a sector of its own.
pub(crate) const KEYED_AT: usize = 2048;

/// From which place on all headers were written with a secret, and which one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Keyed {
    fingerprint: u64,
    epoch: u64,
    at: u64,
}

impl Keyed {
    pub const BYTES: usize = 24;

    pub fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.fingerprint.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        bytes[16..20].copy_from_slice(&((self.at / GRAIN_BYTES) as u32).to_le_bytes());
        let sum = checksum(&[&bytes[..20]]);
        bytes[20..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(head: &[u8]) -> Option<Self> {
        let bytes = head.get(KEYED_AT..KEYED_AT + Self::BYTES)?;
        (checksum(&[&bytes[..20]]) == u32_at(bytes, 20)).then(|| Self {
            fingerprint: u64_at(bytes, 0),
            epoch: u64_at(bytes, 8),
            at: u64::from(u32_at(bytes, 16)) * GRAIN_BYTES,
        })
    }
}

/// Notes of one pool's headers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Notes {
    secret: Option<Secret>,
    keyed: Option<Keyed>,
}

impl Notes {
    /// Of a pool with this head; `is_keyed`: its last life wrote its headers with a secret.
    pub fn new(secret: Option<Secret>, head: &[u8], is_keyed: bool) -> Self {
        let keyed = Keyed::decode(head).filter(|keyed| {
            is_keyed && secret.is_some_and(|secret| secret.fingerprint() == keyed.fingerprint)
        });
        Self { secret, keyed }
    }

    /// Whether headers are written with a secret.
    pub fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Whether the log has headers that were written with this secret, as the head says.
    pub fn is_keyed(&self) -> bool {
        self.keyed.is_some()
    }

    /// Headers from this place on will be written with the secret. What the head is to say of it;
    /// `None`: there is no secret, or the head says enough.
    pub fn key_from(&mut self, epoch: u64, at: u64) -> Option<Keyed> {
        let fingerprint = self.secret.filter(|_| self.keyed.is_none())?.fingerprint();
        self.keyed = Some(Keyed {
            fingerprint,
            epoch,
            at,
        });
        self.keyed
    }

    /// Notes in a header up to where headers of its half were durable.
    pub fn write(&self, bytes: &mut [u8; NOTED_BYTES], at: u64, epoch: u64, durable_to: u64) {
        let grains = (durable_to / GRAIN_BYTES) as u32;
        bytes[NOTE_AT + 4..SUM_AT].copy_from_slice(&grains.to_le_bytes());
        let sum = match self.secret {
            Some(secret) => secret.sum(at, epoch, bytes),
            None => checksum(&[&bytes[NOTE_AT..SUM_AT]]),
        };
        bytes[SUM_AT..].copy_from_slice(&sum.to_le_bytes());
    }

    /// What a header notes; 0: nothing, as in logs of earlier versions. `None`: this store did not
    /// write it.
    pub fn read(&self, bytes: &[u8], at: u64, epoch: u64) -> Option<u64> {
        let noted = u64::from(u32_at(bytes, NOTE_AT + 4)) * GRAIN_BYTES;
        let sum = u32_at(bytes, SUM_AT);
        match (self.secret, self.keyed) {
            (Some(secret), Some(keyed)) if (epoch, at) >= (keyed.epoch, keyed.at) => {
                (secret.sum(at, epoch, bytes) == sum).then_some(noted)
            }
            _ if checksum(&[&bytes[NOTE_AT..SUM_AT]]) == sum => Some(noted),
            _ => Some(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::POOL_BYTES_MAX;

    const SECRET: Secret = Secret([7; 16]);

    fn head(keyed: Keyed) -> Vec<u8> {
        let mut head = vec![0; 4096];
        head[KEYED_AT..KEYED_AT + Keyed::BYTES].copy_from_slice(&keyed.encode());
        head
    }

    fn header() -> [u8; NOTED_BYTES] {
        std::array::from_fn(|at| at as u8)
    }

    #[test]
    fn a_note_counts_beside_the_checksum_that_it_was_made_for_and_nothing_else_does() {
        let notes = Notes::default();
        for to in [4096, POOL_BYTES_MAX - GRAIN_BYTES] {
            let mut bytes = header();
            notes.write(&mut bytes, 32, 1, to);
            assert_eq!(notes.read(&bytes, 32, 1), Some(to));
            for at in NOTE_AT..NOTED_BYTES {
                let mut damaged = bytes;
                damaged[at] ^= 0x10;
                assert_eq!(notes.read(&damaged, 32, 1), Some(0), "byte {at}");
            }
        }
        // As earlier versions left it.
        let mut bytes = header();
        bytes[NOTE_AT + 4..].fill(0);
        assert_eq!(notes.read(&bytes, 32, 1), Some(0));
    }

    #[test]
    fn a_header_that_was_written_without_the_secret_counts_before_its_place_alone() {
        let mut notes = Notes::new(Some(SECRET), &[], false);
        let keyed = notes.key_from(3, 4096).unwrap();
        assert_eq!(notes.key_from(3, 8192), None);
        assert!(Notes::new(Some(SECRET), &head(keyed), true).is_keyed());
        assert!(!Notes::new(Some(SECRET), &head(keyed), false).is_keyed());
        let other = Secret([8; 16]);
        assert!(!Notes::new(Some(other), &head(keyed), true).is_keyed());
        let notes = Notes::new(Some(SECRET), &head(keyed), true);
        for (forger, name) in [(None, "no secret"), (Some(other), "another secret")] {
            let forger = Notes::new(forger, &[], false);
            let mut bytes = header();
            for (epoch, at, counts) in [
                (2, 8192, true),
                (3, 4080, true),
                (3, 4096, false),
                (3, 8192, false),
                (4, 16, false),
            ] {
                forger.write(&mut bytes, at, epoch, 4096);
                assert_eq!(notes.read(&bytes, at, epoch).is_some(), counts, "{name}");
                notes.write(&mut bytes, at, epoch, 4096);
                assert!(notes.read(&bytes, at, epoch).is_some());
            }
        }
    }

    #[test]
    fn any_changed_byte_of_a_keyed_header_and_any_other_place_is_seen() {
        let mut notes = Notes::new(Some(SECRET), &[], false);
        notes.key_from(1, 16);
        let mut bytes = header();
        notes.write(&mut bytes, 4096, 2, 160);
        assert_eq!(notes.read(&bytes, 4096, 2), Some(160));
        for at in 0..NOTED_BYTES {
            let mut damaged = bytes;
            damaged[at] ^= 1;
            assert_eq!(notes.read(&damaged, 4096, 2), None, "byte {at}");
        }
        assert_eq!(notes.read(&bytes, 4112, 2), None);
        assert_eq!(notes.read(&bytes, 4096, 3), None);
    }
}
