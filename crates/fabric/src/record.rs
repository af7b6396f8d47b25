//! Records: how bytes are protected on a connection whose ends have proven the key.
//!
//! [`Transport::records`] gives each end a [`RecordSealer`] for what it sends and a
//! [`RecordOpener`] for what it receives, with a key of their own for each direction of each
//! connection. A record is a length, a body and a tag; its number is its nonce, so that a record
//! that was changed, repeated, left out, reordered or made up does not open, and nothing after it
//! does. No input or output here, and no allocation per record.
//!
//! AES-256-GCM: of what `ring` has it protects a page at the least cost, also where only a tag is
//! asked for (`docs/decisions/0054-page-traffic-in-records.md`). Byte tables: `docs/protocols/fabric.md`.

use std::fmt;
use std::str::FromStr;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf;

use crate::{Error, Result, TAG_BYTES, Transport};

/// How what travels on a connection is protected. Each is stronger than the one before.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum WireProtection {
    /// Not at all: whoever can change packets changes pages.
    Plain,
    /// A changed, repeated or forged byte ends the connection; bytes can be read on the way.
    Authenticated,
    /// As well, and nobody reads them on the way.
    #[default]
    Encrypted,
}

impl WireProtection {
    /// All, from the weakest on.
    pub const ALL: [Self; 3] = [Self::Plain, Self::Authenticated, Self::Encrypted];

    /// As users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Authenticated => "authenticated",
            Self::Encrypted => "encrypted",
        }
    }
}

impl fmt::Display for WireProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for WireProtection {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|known| known.name() == text);
        found.ok_or_else(|| Error::Protection {
            text: text.to_owned(),
        })
    }
}

/// Purpose of the records that carry verbs.
pub(crate) const DATA_RECORDS: &str = "data";
/// As [`DATA_RECORDS`], of connections for calls.
pub(crate) const CALL_RECORDS: &str = "calls";

/// Length of a record before its body: the length of what follows.
pub const RECORD_LENGTH_BYTES: usize = 2;
/// Longest record, all in all.
pub const RECORD_BYTES_MAX: usize = 32 * 1024;
/// What a record adds to its body.
pub const RECORD_OVERHEAD_BYTES: usize = RECORD_LENGTH_BYTES + TAG_BYTES;
/// Longest body.
pub const RECORD_BODY_BYTES_MAX: usize = RECORD_BYTES_MAX - RECORD_OVERHEAD_BYTES;

/// Records under one key. Fewer blocks than the 2^34.5 for which AES-GCM's bounds are usually
/// kept, even if each record is the longest.
const RECORDS_PER_KEY: u64 = 1 << 22;

/// Bytes that are no record of this connection; it is of no more use.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The length is none that a record has.
    #[error("a record of {0} bytes")]
    Length(usize),
    /// The tag does not fit: it was changed, repeated, reordered or forged on its way.
    #[error("a record was changed, repeated or forged on its way")]
    Forged,
}

/// Makes the records of one direction.
pub struct RecordSealer(Direction);

/// Opens the records of one direction; none any more after one that did not open.
pub struct RecordOpener(Option<Direction>);

impl RecordSealer {
    /// Makes a record of `record`: room for the length, the body, room for the tag.
    ///
    /// # Panics
    /// The body is empty, or longer than [`RECORD_BODY_BYTES_MAX`].
    pub fn seal(&mut self, record: &mut [u8]) {
        let total = record.len();
        assert!(
            (RECORD_OVERHEAD_BYTES + 1..=RECORD_BYTES_MAX).contains(&total),
            "a record of {total} bytes"
        );
        let length = u16::try_from(total - RECORD_LENGTH_BYTES).expect("RECORD_BYTES_MAX is less");
        record[..RECORD_LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        let (content, tag_place) = record.split_at_mut(total - TAG_BYTES);
        let protection = self.0.protection;
        let (key, nonce) = self.0.next();
        let tag = match protection {
            Sealed::Encrypted => {
                let (length, body) = content.split_at_mut(RECORD_LENGTH_BYTES);
                key.seal_in_place_separate_tag(nonce, Aad::from(&*length), body)
            }
            Sealed::Authenticated => {
                key.seal_in_place_separate_tag(nonce, Aad::from(&*content), &mut [])
            }
        };
        let tag = tag.expect("a body is far below the cipher's limit");
        tag_place.copy_from_slice(tag.as_ref());
    }
}

impl RecordOpener {
    /// Length of the whole record that begins with `bytes`; `None`: more of it is needed to tell.
    ///
    /// # Errors
    /// `Length`.
    pub fn record_bytes(bytes: &[u8]) -> std::result::Result<Option<usize>, RecordError> {
        let Some(length) = bytes.first_chunk::<RECORD_LENGTH_BYTES>() else {
            return Ok(None);
        };
        let total = RECORD_LENGTH_BYTES + usize::from(u16::from_le_bytes(*length));
        if (RECORD_OVERHEAD_BYTES + 1..=RECORD_BYTES_MAX).contains(&total) {
            Ok(Some(total))
        } else {
            Err(RecordError::Length(total))
        }
    }

    /// Opens the next record, all of it in `record`, in place; its body.
    ///
    /// # Errors
    /// `Forged`, and `Length` where `record` is not as long as it says: nothing of it is to be used.
    pub fn open<'r>(&mut self, record: &'r mut [u8]) -> std::result::Result<&'r [u8], RecordError> {
        let direction = self.0.as_mut().ok_or(RecordError::Forged)?;
        if let Err(error) = direction.open(record) {
            self.0 = None;
            return Err(error);
        }
        Ok(&record[RECORD_LENGTH_BYTES..record.len() - TAG_BYTES])
    }
}

impl Transport {
    /// Sealer and opener of this end for records of `purpose`, `None` for [`WireProtection::Plain`].
    /// Both ends name the same purpose and protection; ask once for each purpose.
    #[must_use]
    pub fn records(
        &self,
        purpose: &str,
        protection: WireProtection,
    ) -> Option<(RecordSealer, RecordOpener)> {
        let sealed = match protection {
            WireProtection::Plain => return None,
            WireProtection::Authenticated => Sealed::Authenticated,
            WireProtection::Encrypted => Sealed::Encrypted,
        };
        let direction = |name: &str| {
            let info = [
                b"cenote records".as_slice(),
                purpose.as_bytes(),
                protection.name().as_bytes(),
                name.as_bytes(),
            ];
            Direction::new(expand(self.secret(), &info), sealed)
        };
        let (from_caller, from_answerer) = (direction("caller"), direction("answerer"));
        Some(if self.is_caller() {
            (RecordSealer(from_caller), RecordOpener(Some(from_answerer)))
        } else {
            (RecordSealer(from_answerer), RecordOpener(Some(from_caller)))
        })
    }
}

#[derive(Clone, Copy)]
enum Sealed {
    Authenticated,
    Encrypted,
}

/// Keys and numbers of what travels one way.
struct Direction {
    protection: Sealed,
    key: LessSafeKey,
    /// Mixed with a record's number to its nonce.
    mask: [u8; NONCE_LEN],
    /// Where the key after this one comes from.
    secret: [u8; SECRET_BYTES],
    /// Number of the next record.
    next: u64,
    records_per_key: u64,
}

impl Direction {
    fn new(secret: [u8; SECRET_BYTES], protection: Sealed) -> Self {
        let (key, mask) = keys(&secret);
        Self {
            protection,
            key,
            mask,
            secret,
            next: 0,
            records_per_key: RECORDS_PER_KEY,
        }
    }

    fn open(&mut self, record: &mut [u8]) -> std::result::Result<(), RecordError> {
        let total = record.len();
        if RecordOpener::record_bytes(record)? != Some(total) {
            return Err(RecordError::Length(total));
        }
        let protection = self.protection;
        let (key, nonce) = self.next();
        let opened = match protection {
            Sealed::Encrypted => {
                let (length, sealed) = record.split_at_mut(RECORD_LENGTH_BYTES);
                key.open_in_place(nonce, Aad::from(&*length), sealed)
            }
            Sealed::Authenticated => {
                let (content, tag) = record.split_at_mut(total - TAG_BYTES);
                key.open_in_place(nonce, Aad::from(&*content), tag)
            }
        };
        opened.map(drop).map_err(|_| RecordError::Forged)
    }

    /// Key and nonce of the next record.
    fn next(&mut self) -> (&LessSafeKey, Nonce) {
        if self.next != 0 && self.next.is_multiple_of(self.records_per_key) {
            self.secret = expand(&prk(&self.secret), &[b"next"]);
            (self.key, self.mask) = keys(&self.secret);
        }
        let mut nonce = self.mask;
        for (byte, number) in nonce[NONCE_LEN - 8..]
            .iter_mut()
            .zip(self.next.to_be_bytes())
        {
            *byte ^= number;
        }
        self.next += 1;
        (&self.key, Nonce::assume_unique_for_key(nonce))
    }
}

fn keys(secret: &[u8; SECRET_BYTES]) -> (LessSafeKey, [u8; NONCE_LEN]) {
    let secret = prk(secret);
    let key: [u8; 32] = expand(&secret, &[b"key"]);
    let key = UnboundKey::new(&AES_256_GCM, &key).expect("a key of the cipher's length");
    (LessSafeKey::new(key), expand(&secret, &[b"nonce"]))
}

/// What all keys of a connection come from: both transport keys of its handshake, bound to what
/// was said in it.
pub(crate) fn connection_secret(
    handshake_hash: &[u8],
    (from_caller, from_answerer): ([u8; 32], [u8; 32]),
) -> hkdf::Prk {
    let mut material = [0; 64];
    material[..32].copy_from_slice(&from_caller);
    material[32..].copy_from_slice(&from_answerer);
    hkdf::Salt::new(hkdf::HKDF_SHA256, handshake_hash).extract(&material)
}

fn prk(secret: &[u8; SECRET_BYTES]) -> hkdf::Prk {
    hkdf::Prk::new_less_safe(hkdf::HKDF_SHA256, secret)
}

/// `info`'s parts are joined with a zero byte behind each.
fn expand<const N: usize>(secret: &hkdf::Prk, info: &[&[u8]]) -> [u8; N] {
    struct Length(usize);
    impl hkdf::KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let mut parts: [&[u8]; 2 * INFO_PARTS_MAX] = [&[0]; 2 * INFO_PARTS_MAX];
    for (place, part) in parts.iter_mut().step_by(2).zip(info) {
        *place = part;
    }
    let mut out = [0; N];
    secret
        .expand(&parts[..2 * info.len()], Length(N))
        .and_then(|okm| okm.fill(&mut out))
        .expect("far shorter than the function's limit");
    out
}

const SECRET_BYTES: usize = 32;
const INFO_PARTS_MAX: usize = 4;
const _: () = assert!(RECORD_BYTES_MAX - RECORD_LENGTH_BYTES <= u16::MAX as usize);

#[cfg(test)]
mod tests;
