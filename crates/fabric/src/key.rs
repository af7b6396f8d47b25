//! The cluster's key: 32 random bytes that every host and client of a cluster holds.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::{Error, Result};

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
        getrandom::fill(&mut bytes).map_err(|_| Error::Key("the system gave no random bytes"))?;
        Ok(Self(bytes))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// `Key` when others than the owner may touch the file or it holds no key; `Os` when it cannot be read.
    pub fn load(path: &Path) -> Result<Self> {
        let what = || format!("read the cluster key {}", path.display());
        let file = File::open(path).map_err(|e| Error::os(what(), e))?;
        let mode = file.metadata().map_err(|e| Error::os(what(), e))?.mode();
        if mode & 0o077 != 0 {
            return Err(Error::Key(
                "others than its owner may access the file; run chmod 600 on it",
            ));
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
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|e| Error::os(what(), e))?;
        writeln!(file, "{}", self.to_hex())
            .and_then(|()| file.sync_all())
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
const NOT_A_KEY: Error = Error::Key("a key is 64 hexadecimal digits");

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
        assert!(matches!(ClusterKey::load(&path), Err(Error::Key(_))));
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
            assert!(matches!(ClusterKey::from_hex(bad), Err(Error::Key(_))));
        }
    }
}
