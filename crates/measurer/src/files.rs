//! Models and catalogues on disk.

use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context, Result};
use cenote_cache::market::Catalogue;
use cenote_cache::tuner::Model;
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;

/// Most bytes of a file that is read: far above any model.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The model at `path`; `None` if there is no file.
///
/// # Errors
/// It cannot be read, or is no model.
pub fn find_model(path: &Path) -> Result<Option<Model>> {
    match read(path) {
        Ok(text) => text
            .parse()
            .map(Some)
            .with_context(|| path.display().to_string()),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// The model at `path`.
///
/// # Errors
/// It cannot be read, or is no model.
pub fn model(path: &Path) -> Result<Model> {
    let model = find_model(path)?;
    let none = || Failure::new(format!("model {}: no such file", path.display()), MODEL);
    Ok(model.ok_or_else(none)?)
}

/// Puts a model in place of what is at `path`. Whoever reads it sees all of the old one or all of the new.
///
/// # Errors
/// The disk refuses.
pub fn save(path: &Path, model: &Model) -> Result<()> {
    cenote_durable::replace(path, model.to_text().as_bytes(), 0o644)
        .with_context(|| path.display().to_string())
}

/// The catalogue at `path`.
///
/// # Errors
/// It cannot be read, or is none.
pub fn catalogue(path: &Path) -> Result<Catalogue> {
    let shown = || format!("catalogue {}", path.display());
    read(path).with_context(shown)?.parse().with_context(shown)
}

/// A size as bytes of a record.
///
/// # Errors
/// It is 0 or more than a region can be.
pub fn record_bytes(size: Size) -> Result<u32> {
    let bytes = u32::try_from(size.bytes()).ok();
    let bytes = bytes.filter(|bytes| (1..=RECORD_BYTES_MAX).contains(bytes));
    let what = || Failure::usage(format!("a record of {size}"), "from 1 byte to 1G");
    Ok(bytes.ok_or_else(what)?)
}

const RECORD_BYTES_MAX: u32 = 1 << 30;

/// A way out when there is no model.
pub const MODEL: &str = "cenote cache model --transport sim --record 16";

fn read(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    // A pipe would be waited for without end.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(
            ErrorKind::InvalidInput,
            "no ordinary file",
        ));
    }
    let read = file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    match read as u64 > FILE_BYTES_MAX {
        true => Err(std::io::Error::new(
            ErrorKind::FileTooLarge,
            "more than 64 MiB",
        )),
        false => Ok(text),
    }
}
