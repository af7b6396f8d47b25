//! A small file system in memory with a cluster's file, its key and its volumes, whose hosts are elsewhere.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Ended, Folder, cenote};

/// Mounted until it is dropped.
pub struct SmallDisk {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl SmallDisk {
    /// For the hosts of a folder; `None`, with the reason printed, where nothing may be mounted.
    pub fn mount(hosts: &Folder, size: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("disk");
        fs::create_dir(&path).expect("a folder");
        let mounted = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("mode=0700,size={size}"),
                "small",
            ])
            .arg(&path)
            .status();
        if !mounted.is_ok_and(|mounted| mounted.success()) {
            println!("skipped: mounting a small tmpfs needs root");
            return None;
        }
        for name in ["cluster.toml", "cluster.key"] {
            fs::copy(hosts.path().join(name), path.join(name)).expect("room");
        }
        let _folder = folder;
        Some(Self { _folder, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn run(&self, arguments: &[&str]) -> Ended {
        let output = cenote()
            .args(arguments)
            .arg("--dir")
            .arg(&self.path)
            .output();
        Ended::from(output.expect("the binary runs"))
    }

    /// Leaves no byte free.
    pub fn fill(&self) {
        let mut filler = File::create(self.path.join("filler")).expect("a file");
        for len in [1 << 20, 4096, 1] {
            let bytes = vec![1; len];
            while filler.write_all(&bytes).is_ok() {}
        }
    }

    /// Ends [`SmallDisk::fill`].
    pub fn make_room(&self) {
        fs::remove_file(self.path.join("filler")).expect("it is there");
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that a failed test left may still have files there.
        let unmounted = Command::new("umount").arg("-l").arg(&self.path).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("{} stays mounted", self.path.display());
        }
    }
}
