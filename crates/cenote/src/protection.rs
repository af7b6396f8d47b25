//! What a volume's pages are protected by, as it is said on the command line and kept in the
//! volume's file: its key is in a file of its own, of which only the place is kept.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_volume::{Protection, SealKey};

use crate::ask::random_u128;
use crate::shell::quoted;
use crate::volumes::Spec;

/// `--checksum` and `--seal`; chosen once, for the volume's life.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Protected {
    /// Keep a checksum of every page on this machine: corrupted pages are never returned, and are
    /// repaired if enough good splits are left
    #[arg(long, conflicts_with = "seal")]
    pub checksum: bool,
    /// Encrypt every page with the key in this file (cenote key seal), and keep its tag on this
    /// machine: hosts cannot read, change or roll back pages
    #[arg(long, value_name = "KEYFILE")]
    pub seal: Option<PathBuf>,
}

impl Protected {
    /// The flags that say the same to another process.
    ///
    /// # Errors
    /// The place of the key cannot be told.
    pub fn arguments(&self) -> Result<Vec<OsString>> {
        let mut arguments = Vec::new();
        if self.checksum {
            arguments.push("--checksum".into());
        }
        if let Some(path) = &self.seal {
            let path = std::path::absolute(path).context("--seal")?;
            arguments.extend(["--seal".into(), path.into_os_string()]);
        }
        Ok(arguments)
    }

    /// Notes it in the description of a new volume.
    ///
    /// # Errors
    /// There is no key in the file.
    pub fn describe(&self, spec: &mut Spec) -> Result<()> {
        if self.checksum {
            spec.protection = Some("checksum".to_owned());
        }
        if let Some(path) = &self.seal {
            load_key(path, "cenote key seal --out FILE makes one")?;
            let path = std::path::absolute(path).context("--seal")?;
            spec.protection = Some("sealed".to_owned());
            spec.key = Some(path.display().to_string());
        }
        Ok(())
    }

    /// What an existing volume is opened with. What is said must be what it was made with; a key may
    /// have moved.
    ///
    /// # Errors
    /// It was made otherwise; there is no key in the file.
    pub fn of(&self, name: &str, spec: &Spec) -> Result<Protection> {
        let made = spec.protection.as_deref().unwrap_or("none");
        let said = match (self.checksum, &self.seal) {
            (true, _) => "checksum",
            (false, Some(_)) => "sealed",
            (false, None) => made,
        };
        if said != made {
            let flag = match made {
                "checksum" => "with --checksum",
                "sealed" => "with --seal",
                _ => "without --checksum and --seal",
            };
            let what = format!("volume {name} was created {flag}, which cannot change");
            return Err(Failure::usage(what, "leave the flag out, or use another volume").into());
        }
        match made {
            "none" => Ok(Protection::None),
            "checksum" => Ok(Protection::Checksum),
            "sealed" => {
                let kept = spec.key.as_ref().map(PathBuf::from);
                let path = self.seal.clone().or(kept).context("volume file: no key")?;
                let remedy = "give the volume's key with --seal FILE; no other key opens it";
                Ok(Protection::Sealed(load_key(&path, remedy)?))
            }
            other => Err(Failure::new(
                format!("volume {name}: protection {other:?} is not known"),
                "use a newer version of this program",
            )
            .into()),
        }
    }
}

/// Writes a new random key, mode 0600.
///
/// # Errors
/// The file is there, or cannot be written.
pub fn make_key(path: &Path) -> Result<()> {
    let text = format!("{:032x}{:032x}\n", random_u128()?, random_u128()?);
    cenote_durable::create(path, text.as_bytes(), 0o600).with_context(|| path.display().to_string())
}

/// Longest file with a key that is read: a key has 64 bytes and a line's end.
const KEY_FILE_BYTES_MAX: u64 = 128;

/// The key in a file that nobody else may read. `remedy` is what helps where there is none.
fn load_key(path: &Path, remedy: &str) -> Result<SealKey> {
    let with_remedy =
        |why: &str, remedy: String| Failure::new(format!("key {}: {why}", path.display()), remedy);
    let refused = |why: String| with_remedy(&why, remedy.to_owned());
    let file = File::open(path).map_err(|error| refused(error.to_string()))?;
    let found = file
        .metadata()
        .map_err(|error| refused(error.to_string()))?;
    let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
    if owner != user && owner != 0 {
        return Err(refused(format!("it belongs to uid {owner}")).into());
    }
    if found.mode() & 0o077 != 0 {
        let chmod = format!("chmod 600 {}", quoted(path));
        return Err(with_remedy("it is readable by others", chmod).into());
    }
    let mut text = String::new();
    file.take(KEY_FILE_BYTES_MAX)
        .read_to_string(&mut text)
        .map_err(|error| refused(error.to_string()))?;
    let key = text.trim_end().parse::<SealKey>();
    Ok(key.map_err(|error| refused(error.to_string()))?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use cenote_cli::size::Size;

    #[test]
    fn a_volume_is_opened_as_it_was_made() {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        make_key(&key).unwrap();
        assert!(make_key(&key).is_err(), "it is never overwritten");
        let said = Protected {
            checksum: false,
            seal: Some(key.clone()),
        };
        let mut spec = Spec::new(Size(4096), "rs:8+2").unwrap();
        assert!(said.of("v", &spec).is_err(), "made without");
        said.describe(&mut spec).unwrap();
        let nothing = Protected::default();
        assert_eq!(nothing.of("v", &spec).unwrap().name(), "sealed");
        let checksum = Protected {
            checksum: true,
            seal: None,
        };
        assert!(checksum.of("v", &spec).is_err());
        std::fs::set_permissions(&key, PermissionsExt::from_mode(0o644)).unwrap();
        assert!(nothing.of("v", &spec).is_err(), "others may read the key");
    }
}
