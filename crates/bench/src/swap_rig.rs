//! An unmodified program in a memory cgroup over one kind of swap: the parts that the
//! demonstration and the benchmarks of programs share.
//!
//! Every part that changes the machine (a process, a swap area, a device) is a guard, dropped in
//! the reverse order of its start, also on an error, an interruption or a panic.
//! Elsewhere: what is measured, and in which order.

pub(crate) mod area;
pub(crate) mod child;
pub(crate) mod fuse_switch;
pub(crate) mod interrupt;
pub(crate) mod memcached;
pub(crate) mod oom;
pub(crate) mod our_swap;
pub(crate) mod squeeze;
pub(crate) mod swap_file;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// A path in `parent` that nobody can have foreseen, for [`Folder::make`].
pub(crate) fn fresh(parent: &Path, what: &str) -> PathBuf {
    let prefix = format!("cenote-{what}-");
    let named = tempfile::Builder::new()
        .prefix(&prefix)
        .rand_bytes(RANDOM_CHARS)
        .make_in(parent, |path| Ok(path.to_owned()));
    named.expect("nothing is made yet").path().to_owned()
}

/// Of 62 each. Short, since sockets are in such folders, and longer than anybody guesses.
const RANDOM_CHARS: usize = 12;

/// Where runs that need a real disk have their folders.
pub(crate) const ON_DISK: &str = "/var/tmp";

/// A run's folder, for this user alone, removed with what is in it.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn make(path: PathBuf) -> anyhow::Result<Self> {
        let made = || {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            // One that is there is somebody's: it is not used, and not removed.
            DirBuilder::new().mode(0o700).create(&path)
        };
        made().with_context(|| format!("make {}", path.display()))?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("remove {}: {error}", self.0.display());
        }
    }
}

/// Whether `program` is on the PATH.
pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

/// Turning swap on and limiting memory takes root.
pub(crate) fn is_root() -> bool {
    // SAFETY: no arguments, no memory.
    unsafe { libc::geteuid() == 0 }
}

/// One test at a time: swap areas are the machine's, and signals the process's.
#[cfg(test)]
pub(crate) fn turn() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
