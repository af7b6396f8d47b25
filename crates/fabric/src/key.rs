//! The cluster's key: 32 random bytes that every host and client of a cluster holds.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use ring::hmac;

use crate::{Error, KeyError, Result};

/// Proof of membership; never printed. Stored as 64 hexadecimal digits and a newline.
#[derive(Clone, Eq, PartialEq)]
pub struct ClusterKey([u8; KEY_BYTES]);

impl ClusterKey {
    /// A new random key.
    ///
    /// # Errors
    /// The system has no randomness to give.
    pub fn generate() -> Result<Self> {
        let mut bytes = [0; KEY_BYTES];
        getrandom::fill(&mut bytes).map_err(|_| Error::Key(KeyError::NoRandomness))?;
        Ok(Self(bytes))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// `Key` when others than this user and root may touch the file or it holds no key; `Os` when it
    /// cannot be read.
    pub fn load(path: &Path) -> Result<Self> {
        let what = || format!("read the cluster key {}", path.display());
        let file = File::open(path).map_err(|e| Error::os(what(), e))?;
        let found = file.metadata().map_err(|e| Error::os(what(), e))?;
        // SAFETY: it has no arguments and cannot fail.
        let user = unsafe { libc::geteuid() };
        if found.uid() != user && found.uid() != 0 {
            return Err(Error::Key(KeyError::Foreign { owner: found.uid() }));
        }
        let mode = found.mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Error::Key(KeyError::Shared { mode }));
        }
        let mut text = Vec::with_capacity(FILE_BYTES_MAX + 1);
        file.take(FILE_BYTES_MAX as u64 + 1)
            .read_to_end(&mut text)
            .map_err(|e| Error::os(what(), e))?;
        if text.len() > FILE_BYTES_MAX {
            return Err(NOT_A_KEY);
        }
        Self::from_hex(
            std::str::from_utf8(&text)
                .map_err(|_| NOT_A_KEY)?
                .trim_end(),
        )
    }

    /// Writes the key to a new file that only its owner may access.
    ///
    /// # Errors
    /// `Os`, also when the file exists: a key is never overwritten.
    pub fn save(&self, path: &Path) -> Result<()> {
        let what = || format!("write the cluster key {}", path.display());
        cenote_durable::create(path, format!("{}\n", self.to_hex()).as_bytes(), 0o600)
            .map_err(|e| Error::os(what(), e))
    }

    /// The key as 64 lower-case hexadecimal digits.
    #[must_use]
    pub fn to_hex(&self) -> String {
        use fmt::Write as _;
        self.0
            .iter()
            .fold(String::with_capacity(2 * KEY_BYTES), |mut text, byte| {
                write!(text, "{byte:02x}").expect("writing to a String cannot end");
                text
            })
    }

    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    /// `Key` when the text is anything else.
    pub fn from_hex(text: &str) -> Result<Self> {
        let text = text.as_bytes();
        if text.len() != 2 * KEY_BYTES {
            return Err(NOT_A_KEY);
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |c: u8| (c as char).to_digit(16).ok_or(NOT_A_KEY);
            *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).map_err(|_| NOT_A_KEY)?;
        }
        Ok(Self(bytes))
    }

    /// A secret of the cluster for one purpose, which tells nothing of the key or of other purposes'
    /// secrets: HMAC-SHA256 of the purpose under the key.
    #[must_use]
    pub fn derive(&self, purpose: &str) -> [u8; KEY_BYTES] {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let secret = hmac::sign(&key, purpose.as_bytes());
        secret
            .as_ref()
            .try_into()
            .expect("SHA-256 has as many bytes")
    }

    /// For the handshake alone.
    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKey(..)")
    }
}

const KEY_BYTES: usize = 32;
const FILE_BYTES_MAX: usize = 2 * KEY_BYTES + 2;
const NOT_A_KEY: Error = Error::Key(KeyError::Malformed);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_saved_key_loads_and_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let key = ClusterKey::generate().unwrap();
        key.save(&path).unwrap();
        assert!(ClusterKey::load(&path).unwrap() == key);
        assert!(matches!(
            ClusterKey::generate().unwrap().save(&path),
            Err(Error::Os { .. })
        ));
        assert!(ClusterKey::load(&path).unwrap() == key);
    }

    #[test]
    fn refuses_a_file_that_others_may_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        ClusterKey::generate().unwrap().save(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        assert!(matches!(
            ClusterKey::load(&path),
            Err(Error::Key(KeyError::Shared { mode: 0o640 }))
        ));
    }

    #[test]
    fn refuses_a_file_that_somebody_else_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        ClusterKey::generate().unwrap().save(&path).unwrap();
        if std::os::unix::fs::chown(&path, Some(65_534), None).is_err() {
            eprintln!("skipped: only root can give a file to another user");
            return;
        }
        assert!(matches!(
            ClusterKey::load(&path),
            Err(Error::Key(KeyError::Foreign { owner: 65_534 }))
        ));
    }

    #[test]
    fn each_purpose_has_a_secret_of_its_own() {
        let key = ClusterKey::from_hex(&"0b".repeat(32)).unwrap();
        // By Python's hmac.
        let expected = [0x6a, 0x87, 0x81, 0x7f];
        assert_eq!(key.derive("one")[..4], expected);
        assert_ne!(key.derive("one"), key.derive("other"));
        let other = ClusterKey::from_hex(&"0c".repeat(32)).unwrap();
        assert_ne!(key.derive("one"), other.derive("one"));
    }

    #[test]
    fn hex_is_exact_and_secret() {
        let text = "00ff".repeat(16);
        let key = ClusterKey::from_hex(&text).unwrap();
        assert_eq!(key.to_hex(), text);
        assert_eq!(key.bytes()[..2], [0, 255]);
        assert!(!format!("{key:?}").contains("00ff"));
        for bad in [
            "",
            "00",
            &"0".repeat(63),
            &"0".repeat(65),
            &"zz".repeat(32),
            &"\u{e9}".repeat(32),
        ] {
            assert!(matches!(
                ClusterKey::from_hex(bad),
                Err(Error::Key(KeyError::Malformed))
            ));
        }
    }
}
