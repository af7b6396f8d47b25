//! A file system on a medium in memory that the kernel shows in a folder.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use cenote_vfs::Files;
use cenote_vfs::medium::model::{ModelMedium, Survival};
use cenote_vfs::mount::{Mount, MountPoint, Options, this_process};

pub struct Mounted {
    pub medium: Arc<ModelMedium>,
    // Before the folder.
    mount: Option<Mount>,
    folder: tempfile::TempDir,
}

/// Why nothing can be mounted here; said, and the test passes.
fn cannot_mount() -> Option<&'static str> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("only root mounts");
    }
    match std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
    {
        Ok(_) => None,
        Err(_) => Some("there is no /dev/fuse"),
    }
}

impl Mounted {
    /// `None` where nothing can be mounted.
    pub fn new(size_bytes: u64) -> Option<Self> {
        if let Some(reason) = cannot_mount() {
            println!("skipped: {reason}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let mut mounted = Self {
            medium: Arc::new(ModelMedium::new(size_bytes)),
            mount: None,
            folder,
        };
        mounted.mount();
        Some(mounted)
    }

    fn mount(&mut self) {
        let files = Files::open(self.medium.clone(), this_process()).expect("a file system");
        let point = MountPoint::new(self.folder.path()).expect("an empty folder");
        let options = Options {
            source: "test".to_owned(),
            threads: 4,
            allow_other: true,
        };
        self.mount = Some(Mount::start(files, &point, &options, || {}).expect("a mount"));
    }

    /// Unmounts, keeps what is durable alone, and mounts again.
    pub fn again(&mut self) {
        let mut mount = self.mount.take().expect("a mount");
        mount.end().expect("a clean end");
        drop(mount);
        self.medium = Arc::new(self.medium.crash(Survival::None));
        self.mount();
    }

    /// The same where not everything could be committed.
    pub fn again_after_failure(&mut self) {
        let mut mount = self.mount.take().expect("a mount");
        assert!(mount.end().is_err(), "a commit failed");
        drop(mount);
        self.medium = Arc::new(self.medium.crash(Survival::None));
        self.mount();
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(mut mount) = self.mount.take()
            && let Err(error) = mount.end()
        {
            println!("end the mount: {error}");
        }
    }
}

/// Runs a line of the shell in `folder`, which must succeed; what it printed.
pub fn shell(folder: &Path, line: &str) -> String {
    let output = sh(folder, line);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{line}: {stderr}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn sh(folder: &Path, line: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder);
    command.output().expect("a shell")
}

/// Whether there is a program; says so where there is none.
pub fn has(program: &str) -> bool {
    let found = sh(Path::new("/"), &format!("command -v {program}"));
    if !found.status.success() {
        println!("skipped: {program} is not installed");
    }
    found.status.success()
}
