//! A file system on a medium in memory that the kernel shows in a folder.
//!
//! Another process serves it, this program started again: one that waits in munmap for its own
//! files holds what its serving threads need to go on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::Arc;

use cenote_vfs::Files;
use cenote_vfs::medium::MediumError;
use cenote_vfs::medium::model::{ModelMedium, Survival};
use cenote_vfs::mount::{Mount, MountPoint, Options, this_process};

pub struct Mounted {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

const FOLDER: &str = "CENOTE_TEST_FOLDER";
const SIZE_BYTES: &str = "CENOTE_TEST_SIZE_BYTES";
/// Begins what the serving process answers; the harness prints other lines.
const MARK: &str = "@ ";

/// Why nothing can be mounted here; said, and the test passes.
fn cannot_mount() -> Option<&'static str> {
    // SAFETY: takes nothing and cannot fail.
    if unsafe { libc::geteuid() } != 0 {
        return Some("only root mounts");
    }
    let device = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse");
    device.is_err().then_some("there is no /dev/fuse")
}

impl Mounted {
    /// `None` where nothing can be mounted.
    pub fn new(size_bytes: u64) -> Option<Self> {
        if let Some(reason) = cannot_mount() {
            println!("skipped: {reason}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["mounted::serves_another_process", "--exact", "--nocapture"])
            .env(FOLDER, folder.path())
            .env(SIZE_BYTES, size_bytes.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut mounted = Self {
            child,
            orders,
            answers,
            folder,
        };
        mounted.answer();
        Some(mounted)
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("an answer");
            assert!(read > 0, "the serving process ended");
            // The harness may have begun the line.
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn order(&mut self, order: &str) -> String {
        let orders = self.orders.as_mut().expect("a pipe");
        writeln!(orders, "{order}").expect("the serving process hears");
        self.answer()
    }

    /// Unmounts, keeps what is durable alone, and mounts again.
    pub fn again(&mut self) {
        assert_eq!(self.order("again"), "clean");
    }

    /// The same where a commit may have failed.
    pub fn again_after_failure(&mut self) {
        self.order("again");
    }

    /// Every write to the medium fails from now on, or no more.
    pub fn fail(&mut self, fails: bool) {
        self.order(if fails { "fail" } else { "mend" });
    }

    /// Bytes that the medium holds.
    pub fn held_bytes(&mut self) -> u64 {
        self.order("held").parse().expect("a number")
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
        drop(self.orders.take());
        let status = self.child.wait().expect("a child of ours");
        if !status.success() && !std::thread::panicking() {
            panic!("the serving process: {status}");
        }
    }
}

/// Not a test: what [`Mounted::new`] starts.
#[test]
fn serves_another_process() {
    let (Some(folder), Some(size)) = (std::env::var_os(FOLDER), std::env::var_os(SIZE_BYTES))
    else {
        return;
    };
    let size_bytes = size
        .to_str()
        .and_then(|size| size.parse().ok())
        .expect("a size");
    let mut medium = Arc::new(ModelMedium::new(size_bytes));
    let mut mount = shown(&medium, Path::new(&folder));
    println!("{MARK}ready");
    for order in std::io::stdin().lines() {
        let said = match order.expect("a line").as_str() {
            "again" => {
                let outcome = mount.end();
                drop(mount);
                medium = Arc::new(medium.crash(Survival::None));
                mount = shown(&medium, Path::new(&folder));
                if outcome.is_ok() { "clean" } else { "failed" }.to_owned()
            }
            "fail" => {
                medium.fail(Some(MediumError::Io));
                "done".to_owned()
            }
            "mend" => {
                medium.fail(None);
                "done".to_owned()
            }
            "held" => medium.held_bytes().to_string(),
            other => panic!("{other}"),
        };
        println!("{MARK}{said}");
    }
    mount.end().expect("a clean end");
}

fn shown(medium: &Arc<ModelMedium>, folder: &Path) -> Mount {
    let files = Files::open(medium.clone(), this_process()).expect("a file system");
    let point = MountPoint::new(folder).expect("an empty folder");
    let options = Options {
        name: "test".to_owned(),
        threads: 4,
        allow_other: true,
    };
    Mount::start(files, &point, &options, || {}).expect("a mount")
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
