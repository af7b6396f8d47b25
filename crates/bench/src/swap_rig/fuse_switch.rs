//! The kernel's switch of FUSE over io_uring.

use std::fs;

use anyhow::Context as _;
use cenote_block::swap::FUSE_RINGS_SWITCH;

/// FUSE over io_uring allowed by the kernel, for as long as this lives.
pub(crate) struct FuseSwitch {
    before: Option<String>,
}

impl FuseSwitch {
    /// Switches it on.
    ///
    /// # Errors
    /// This kernel has no such thing, or this user may not.
    pub(crate) fn on() -> anyhow::Result<Self> {
        let path = FUSE_RINGS_SWITCH;
        let found = fs::read_to_string(path)
            .with_context(|| format!("{path}: this kernel has no FUSE over io_uring"))?;
        let before = found.trim().to_owned();
        if before == "Y" {
            return Ok(Self { before: None });
        }
        fs::write(path, "Y").with_context(|| format!("write {path}"))?;
        Ok(Self {
            before: Some(before),
        })
    }
}

impl Drop for FuseSwitch {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = fs::write(FUSE_RINGS_SWITCH, before)
        {
            eprintln!("switch FUSE over io_uring back: {error}");
        }
    }
}
