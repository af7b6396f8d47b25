//! What `doctor --fix` may do. None of it touches what hosts, volumes, caches or stores hold.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use cenote_cli::failure::chain;
use cenote_vfs::mount::mount_table::Mounted;
use serde::Serialize;

use crate::folder::Folder;
use crate::limits::{self, Limit};
use crate::place::ClusterDir;
use crate::process::Identity;

/// One thing that can be mended.
#[derive(Debug)]
pub enum Fix {
    /// A switch of the kernel gets a value, until the machine starts again.
    Switch {
        path: PathBuf,
        value: &'static str,
        /// It is a setting of the whole machine that `--sysctl` has to allow.
        is_sysctl: bool,
    },
    /// Modules of the kernel are loaded.
    Modules(&'static [&'static str]),
    /// A limit of the shell is raised to this; to none.
    Limit(Limit, Option<u64>),
    /// Places where file systems were whose server has ended are given back.
    Unmount(Vec<Mounted>),
    /// Notes of processes that have ended are removed.
    Notes {
        dir: ClusterDir,
        ended: Vec<(String, Folder)>,
    },
}

/// A setting below /proc/sys.
pub fn sysctl(path: &str, value: &'static str) -> Fix {
    Fix::Switch {
        path: path.into(),
        value,
        is_sysctl: true,
    }
}

/// What was done about a finding, or why nothing was.
#[derive(Debug, Serialize)]
pub struct Mended {
    pub subject: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub did: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left: Option<String>,
}

impl Fix {
    /// Does it.
    pub fn apply(&self, subject: &'static str, allows_sysctl: bool) -> Mended {
        let done = match self {
            Self::Switch {
                path,
                is_sysctl: true,
                value,
            } if !allows_sysctl => Err(anyhow::anyhow!(
                "{} is a machine-wide setting: --sysctl sets it to {value}",
                path.display()
            )),
            Self::Switch { path, value, .. } => switch(path, value),
            Self::Modules(names) => load(names),
            Self::Limit(limit, wanted) => raise(*limit, *wanted),
            Self::Unmount(places) => {
                let (did, left) = unmount(places);
                return Mended { subject, did, left };
            }
            Self::Notes { dir, ended } => forget(dir, ended),
        };
        let (did, left) = match done {
            Ok(did) => (Some(did), None),
            Err(error) => (None, Some(chain(&error))),
        };
        Mended { subject, did, left }
    }
}

fn switch(path: &Path, value: &str) -> Result<String> {
    let shown = path.display();
    let before = fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
    // Some of them take the write and stay as they are.
    fs::write(path, value).with_context(|| format!("write {shown}"))?;
    let after = fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
    let (before, after) = (before.trim(), after.trim());
    ensure!(before != after, "{shown} is still {after}");
    Ok(format!(
        "set {shown} to {after} until the next reboot; it was {before}"
    ))
}

fn load(names: &[&str]) -> Result<String> {
    for name in names {
        run(Command::new("modprobe").arg(name))?;
    }
    Ok(format!("loaded {}", names.join(" ")))
}

fn raise(limit: Limit, wanted: Option<u64>) -> Result<String> {
    let before = limits::raise_of_parent(limit, wanted).context("raise the limit of the shell")?;
    Ok(format!(
        "raised the limit of this shell and its children to {}; it was {}",
        limits::display(wanted),
        limits::display(before)
    ))
}

/// What was given back, and what was not. Each is looked at again: it may have changed since it was found.
fn unmount(places: &[Mounted]) -> (Option<String>, Option<String>) {
    let (mut back, mut left) = (Vec::new(), Vec::new());
    for place in places {
        let shown = place.path().display();
        // Whoever has a file open there has lost it already.
        match place.take_away_if_dead() {
            Ok(()) => back.push(shown.to_string()),
            Err(error) => left.push(format!("{shown}: {error}")),
        }
    }
    let back = (!back.is_empty()).then(|| format!("unmounted {}", back.join(" ")));
    (back, (!left.is_empty()).then(|| left.join("; ")))
}

/// Under the folder's lock, and of each only if it still has ended.
fn forget(dir: &ClusterDir, ended: &[(String, Folder)]) -> Result<String> {
    let _lock = dir.lock()?;
    let mut forgotten = Vec::new();
    for (name, folder) in ended {
        // Servers note themselves without the cluster's lock.
        if let Some(pid) = Identity::forget_ended(folder)? {
            forgotten.push(format!("{name} (was {pid})"));
        }
    }
    if forgotten.is_empty() {
        bail!("they are running again");
    }
    Ok(format!("removed the pid files of {}", forgotten.join(", ")))
}

fn run(command: &mut Command) -> Result<()> {
    let shown = format!("{command:?}").replace('"', "");
    let ended = command.output();
    let ended = ended.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => anyhow::anyhow!("{shown}: it is not installed"),
        _ => anyhow::Error::new(error).context(shown.clone()),
    })?;
    if !ended.status.success() {
        let said = String::from_utf8_lossy(&ended.stderr);
        bail!("{shown}: {}", said.lines().next().unwrap_or("it failed"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_whole_machine_wait_for_a_clear_word() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), "2\n").unwrap();
        let fix = sysctl(file.path().to_str().unwrap(), "0");
        let mended = fix.apply("x", false);
        assert!(mended.left.unwrap().contains("--sysctl sets it to 0"));
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "2\n");
        let mended = fix.apply("x", true);
        assert!(mended.did.unwrap().contains("it was 2"));
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "0");
        // It is as it should be: nothing was done.
        assert!(fix.apply("x", true).did.is_none());
    }

    #[test]
    fn a_mount_that_changed_since_it_was_found_is_left() {
        let mountinfo = b"1 1 0:1 / /proc rw - fuse.cenote cenote:v0 rw";
        let mended = Fix::Unmount(Mounted::ours_in(mountinfo)).apply("mounts", false);
        assert_eq!(mended.did, None);
        assert!(mended.left.unwrap().starts_with("/proc: something else"));
        assert!(Path::new("/proc/self").exists());
    }

    #[test]
    fn what_cannot_be_done_says_why() {
        let gone = PathBuf::from("/nowhere/switch");
        let fix = Fix::Switch {
            path: gone,
            value: "Y",
            is_sysctl: false,
        };
        assert!(
            fix.apply("x", false)
                .left
                .unwrap()
                .contains("/nowhere/switch")
        );
        let fix = Fix::Modules(&["cenote_no_such_module"]);
        assert!(fix.apply("x", false).left.unwrap().contains("modprobe"));
    }
}
