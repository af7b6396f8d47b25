//! A file system on a medium in memory that the kernel shows in a folder.
//!
//! Another process serves it, this program started again: one that waits in munmap for its own
//! files holds what its serving threads need to go on.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_vfs::Files;
use cenote_vfs::medium::MediumError;
use cenote_vfs::medium::model::{ModelMedium, Survival};
use cenote_vfs::mount::{Mount, MountPoint, Options, Transport, this_process};

use crate::gate::{Gate, Rule};
use crate::switch::Switch;

pub struct Mounted {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Below the folder of the test, so that there is one to rename.
    point: PathBuf,
    _folder: tempfile::TempDir,
    /// The server has ended, as it should not without a word.
    died: bool,
    _switch: Option<Switch>,
}

const FOLDER: &str = "CENOTE_TEST_FOLDER";
const SIZE_BYTES: &str = "CENOTE_TEST_SIZE_BYTES";
const TRANSPORT: &str = "CENOTE_TEST_TRANSPORT";
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
    /// Over io_uring where that can be; `None` where nothing can be mounted.
    pub fn new(size_bytes: u64) -> Option<Self> {
        let switch = match cannot_mount() {
            None => Switch::on().ok(),
            Some(_) => None,
        };
        Self::start(size_bytes, Transport::Auto, switch)
    }

    /// `None` where that cannot be.
    pub fn over_io_uring(size_bytes: u64) -> Option<Self> {
        match cannot_mount().map_or_else(Switch::on, Err) {
            Ok(switch) => Self::start(size_bytes, Transport::Auto, Some(switch)),
            Err(lacks) => {
                println!("skipped: FUSE over io_uring: {lacks}");
                None
            }
        }
    }

    /// `None` where nothing can be mounted.
    pub fn over_dev_fuse(size_bytes: u64) -> Option<Self> {
        Self::start(size_bytes, Transport::DevFuse, None)
    }

    fn start(size_bytes: u64, transport: Transport, switch: Option<Switch>) -> Option<Self> {
        if let Some(reason) = cannot_mount() {
            println!("skipped: {reason}");
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let point = folder.path().join("outer/inner");
        std::fs::create_dir_all(&point).expect("a folder");
        let program = std::env::current_exe().expect("this program");
        let mut child = Command::new(program)
            .args(["mount::serves_another_process", "--exact", "--nocapture"])
            .env(FOLDER, &point)
            .env(SIZE_BYTES, size_bytes.to_string())
            .env(TRANSPORT, format!("{transport:?}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        let has_rings = switch.is_some();
        let mut mounted = Self {
            child,
            orders,
            answers,
            point,
            _folder: folder,
            died: false,
            _switch: switch,
        };
        assert_eq!(mounted.answer(), format!("ready {has_rings}"));
        Some(mounted)
    }

    fn answer(&mut self) -> String {
        loop {
            let mut line = String::new();
            let read = self.answers.read_line(&mut line).expect("an answer");
            if read == 0 {
                let how = self.child.wait().expect("how it ended");
                panic!("the serving process ended: {how}");
            }
            // The harness may have begun the line.
            if let Some((_, answer)) = line.split_once(MARK) {
                return answer.trim_end().to_owned();
            }
        }
    }

    pub fn order(&mut self, order: &str) -> String {
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

    /// The process that serves.
    pub fn server(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end, which was not ordered.
    pub fn died(&mut self) -> ExitStatus {
        self.died = true;
        self.child.wait().expect("a child of ours")
    }

    pub fn path(&self) -> &Path {
        &self.point
    }

    pub fn at(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.orders.take());
        if self.died {
            let line = format!("umount -l {}", self.point.display());
            sh(Path::new("/"), &line);
            return;
        }
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
    let transport = match std::env::var(TRANSPORT).as_deref() {
        Ok("DevFuse") => Transport::DevFuse,
        _ => Transport::Auto,
    };
    let folder = Path::new(&folder);
    let mut medium = Arc::new(ModelMedium::new(size_bytes));
    let mut shown = Shown::new(&medium, folder, transport);
    println!("{MARK}ready {}", shown.mount.has_rings());
    for order in std::io::stdin().lines() {
        let said = match order.expect("a line").as_str() {
            "again" => {
                let outcome = shown.mount.end();
                drop(shown);
                medium = Arc::new(medium.crash(Survival::None));
                shown = Shown::new(&medium, folder, transport);
                if outcome.is_ok() { "clean" } else { "failed" }.to_owned()
            }
            "end" => match shown.mount.end() {
                Ok(()) => "clean".to_owned(),
                Err(error) => error.to_string(),
            },
            "fail" => {
                medium.fail(Some(MediumError::Io));
                "done".to_owned()
            }
            "mend" => {
                medium.fail(None);
                "done".to_owned()
            }
            "free" => shown.mount.files().usage().free_blocks.to_string(),
            "held" => medium.held_bytes().to_string(),
            "hold" => shown.rule(Rule::Wait),
            "pass" => shown.rule(Rule::Pass),
            "panic" => shown.rule(Rule::Panic),
            "waiting" => shown.gate.waiting().to_string(),
            "threads" => threads().to_string(),
            "devices" => devices().to_string(),
            "ended" => shown.ended.load(Ordering::Relaxed).to_string(),
            other => panic!("{other}"),
        };
        println!("{MARK}{said}");
    }
    shown.mount.end().expect("a clean end");
}

/// A file system that is shown.
struct Shown {
    mount: Mount,
    gate: Arc<Gate>,
    /// Set when it is no longer shown.
    ended: Arc<AtomicBool>,
}

impl Shown {
    fn new(medium: &Arc<ModelMedium>, folder: &Path, transport: Transport) -> Self {
        let gate = Arc::new(Gate::new(Arc::clone(medium)));
        let files = Files::open(gate.clone(), this_process()).expect("a file system");
        let point = MountPoint::new(folder).expect("an empty folder");
        let options = Options {
            name: "test".to_owned(),
            threads: 4,
            allow_other: true,
            transport,
        };
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let mount = Mount::start(files, &point, &options, move || {
            end.store(true, Ordering::Relaxed);
        });
        Self {
            mount: mount.expect("a mount"),
            gate,
            ended,
        }
    }

    fn rule(&self, rule: Rule) -> String {
        self.gate.set(rule);
        "done".to_owned()
    }
}

/// How many threads of this process serve the kernel, or wait for those that do.
fn threads() -> usize {
    let serve = |name: &str| {
        ["cenote-ring", "cenote-fuse", "cenote-files"]
            .iter()
            .any(|prefix| name.starts_with(prefix))
    };
    // A thread names itself, once it has a processor: until it sleeps its name may be its maker's.
    loop {
        let tasks = std::fs::read_dir("/proc/self/task").expect("threads");
        let stats =
            tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("stat")).ok());
        let stats: Vec<String> = stats.collect();
        // Number, name in brackets, state.
        let of = |stat: &String| {
            let (name, rest) = stat.split_once('(')?.1.rsplit_once(") ")?;
            Some((name.to_owned(), rest.starts_with('R')))
        };
        let tasks: Vec<_> = stats.iter().filter_map(of).collect();
        // This one runs.
        if tasks.iter().filter(|(_, runs)| *runs).count() <= 1 {
            return tasks.iter().filter(|(name, _)| serve(name)).count();
        }
        std::thread::yield_now();
    }
}

/// How many descriptors of `/dev/fuse` this process has.
fn devices() -> usize {
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let paths = open.filter_map(|open| std::fs::read_link(open.ok()?.path()).ok());
    paths.filter(|path| path == Path::new("/dev/fuse")).count()
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
