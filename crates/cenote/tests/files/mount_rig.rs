//! A cluster and a folder in which its files are mounted.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cenote_block::swap::{FUSE_RINGS_SWITCH, FuseRingsState, fuse_rings_state};

use crate::support::server::Server;
use crate::support::{Ended, Folder, cenote};

/// A cluster and a folder to mount in.
pub struct MountRig {
    pub folder: Folder,
    // Not below the cluster's folder, which is only this user's.
    pub point: tempfile::TempDir,
}

pub const PATIENCE: Duration = Duration::from_secs(120);

impl MountRig {
    /// Ten hosts; `None` where nothing can be mounted.
    pub fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            println!("skipped: only root mounts");
            return None;
        }
        if File::options()
            .read(true)
            .write(true)
            .open("/dev/fuse")
            .is_err()
        {
            println!("skipped: there is no /dev/fuse");
            return None;
        }
        let folder = Folder::new();
        folder
            .run(&["up", "--hosts", "8", "--memory", "48M"])
            .expect(0);
        Some(Self {
            folder,
            point: tempfile::tempdir().expect("a folder"),
        })
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.path().join(name)
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = cenote();
        command.arg("mount").arg(self.point.path()).args(arguments);
        command.args(["--dir", self.folder.str()]);
        command
    }

    /// Mounts in the foreground.
    pub fn mount(&self, arguments: &[&str]) -> Server {
        self.mount_over(arguments, "on").0
    }

    /// The same with `CENOTE_FUSE_URING` set; what it says as well.
    pub fn mount_over(&self, arguments: &[&str], setting: &str) -> (Server, String) {
        let mut command = self.command(arguments);
        command.env("CENOTE_FUSE_URING", setting);
        let mut server = Server::spawn(command);
        let line = server.ready();
        assert!(line.starts_with("ready "), "{line}");
        (server, line)
    }

    /// Runs to the end.
    pub fn run(&self, arguments: &[&str]) -> Ended {
        Ended::from(self.command(arguments).output().expect("the binary runs"))
    }

    pub fn unmount(&self) {
        let status = Command::new("umount").arg(self.point.path()).status();
        assert!(status.expect("umount runs").success());
    }

    pub fn shell(&self, line: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(self.point.path());
        let output = command.output().expect("a shell");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {stderr}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for MountRig {
    fn drop(&mut self) {
        // Whatever a test that failed left there.
        let mut unmount = Command::new("umount");
        unmount
            .arg("-l")
            .arg(self.point.path())
            .stderr(Stdio::null());
        drop(unmount.status());
    }
}

pub const NEW: [&str; 6] = ["--volume", "v", "--size", "64M", "--scheme", "rs:4+2"];
pub const OLD: [&str; 2] = ["--volume", "v"];

/// FUSE over io_uring allowed by the kernel, as long as this lives.
pub struct Switch {
    was_off: bool,
}

impl Switch {
    /// `Err`: what this machine lacks.
    pub fn on() -> Result<Self, &'static str> {
        match fuse_rings_state() {
            FuseRingsState::On => Ok(Self { was_off: false }),
            FuseRingsState::Off if fs::write(FUSE_RINGS_SWITCH, "Y").is_ok() => {
                Ok(Self { was_off: true })
            }
            FuseRingsState::Off => Err("the right to switch it on"),
            FuseRingsState::Missing => Err("a kernel with it"),
        }
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.was_off {
            fs::write(FUSE_RINGS_SWITCH, "N").expect("the switch can be turned back");
        }
    }
}
