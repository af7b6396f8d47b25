//! Which files our programs are: each starts others of them, and itself.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};

/// What experiments and benchmarks are in.
pub const LAB: &str = "cenote-lab";

/// This program's file.
///
/// # Errors
/// The system does not say.
pub fn this() -> Result<PathBuf> {
    std::env::current_exe().context("find this program's file")
}

/// The file of `cenote`: this one, or the one beside it where this is [`LAB`].
///
/// # Errors
/// There is none beside it.
pub fn cenote() -> Result<PathBuf> {
    let this = this()?;
    if this.file_name().is_none_or(|name| name != LAB) {
        return Ok(this);
    }
    let cenote = this.with_file_name("cenote");
    ensure!(
        cenote.is_file(),
        "{}: no such program; it must be beside {}",
        cenote.display(),
        this.display()
    );
    Ok(cenote)
}
