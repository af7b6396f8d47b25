//! A disk in memory as a real swap device and under real filesystems, on this machine's kernel.
//!
//! Needs root, nbd or FUSE and loop devices, and memory cgroups; a test says what it lacks and is skipped.

use std::fs;
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_block::disk::Disk;
use cenote_block::ram::RamDisk;
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_block::swap::launch::{self, Announcer};
use cenote_block::swap::{Device, Discard, Error, FuseTransport, Options, control, server};
use cenote_test_kit::Random;
use cenote_volume::{Op, Request};

mod faulty;
mod leftovers;
mod program;
mod reclaim;
mod transport;

use faulty::FaultyDisk;
use leftovers::{assert_nothing_left, kill, wait_until, wait_until_gone};
use program::Program;
use transport::{Switch, transports};

const PAGE: usize = 4096;
const MIB: u64 = 1 << 20;

#[test]
fn a_program_over_its_limit_gets_every_byte_back() {
    let Some(_turn) = turn("memory over the limit of a cgroup") else {
        return;
    };
    let all = transports();
    let each = |discard| all.iter().map(move |transport| (discard, *transport));
    let discards = [Discard::None, Discard::Pages];
    for (discard, (fuse, name)) in discards.into_iter().flat_map(each) {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(filled_ram_disk(192 * MIB));
        let mut options = Options::new(dir.path());
        options.discard = discard;
        options.fuse = fuse;
        let mut device = swap_on(&disk, options);
        assert_eq!(device.transport(), name);
        let path = device.path().to_owned();
        println!("swapping to {} over {name}", path.display());

        let program = Program::filled(48 * MIB, 128 * MIB);
        // What is beyond the limit goes a moment after it came.
        let used_bytes = || device.used_bytes().expect("swap is on");
        wait_until("64 MiB went", || used_bytes() >= 64 * MIB);
        program.go_on();
        assert_eq!(program.wait(), 0, "pages that came back wrong");

        let report = device.swap_off(|_| ()).unwrap();
        assert_eq!(report.unreadable_pages, 0);
        drop(device);
        assert_nothing_left(dir.path(), &path);
    }
}

/// The kernel does not look for signals behind the last page: swap is off then, whoever was told to stop.
#[test]
fn swap_is_as_it_is_told_when_a_reclaim_is_stopped_at_its_last_page() {
    let Some(_turn) = turn("a reclaim that is stopped") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(filled_ram_disk(192 * MIB));
    let mut device = swap_on(&disk, Options::new(dir.path()));
    let program = Program::filled(32 * MIB, 64 * MIB);
    for round in 0..8 {
        program.group.set_limit(256 * MIB).unwrap();
        let home = device.reclaim(|left_bytes| left_bytes > 0);
        let is_on = device.used_bytes().is_some();
        assert!(is_on && device.is_on(), "round {round}: {home:?}, {is_on}");
        assert_eq!(nomerges(&device), "0\n", "as before");
        wait_until("the group holds less", || {
            program.group.set_limit(32 * MIB).is_ok()
        });
    }
    program.group.set_limit(256 * MIB).unwrap();
    program.go_on();
    assert_eq!(program.wait(), 0, "pages that came back wrong");
    device.swap_off(|_| ()).unwrap();
}

#[test]
fn a_device_is_as_fast_as_before_after_a_swapoff_that_failed() {
    let Some(_turn) = turn("a swapoff that fails") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(filled_ram_disk(192 * MIB));
    let mut device = swap_on(&disk, Options::new(dir.path()));
    // The kernel looks for signals between two programs.
    let programs = [32, 33].map(|limit| Program::filled(limit * MIB, 64 * MIB));
    for program in &programs {
        program.group.set_limit(256 * MIB).unwrap();
    }
    let outcome = device.swap_off(|_| {
        // The process that turns it off, as the kernel kills it where memory is short.
        let children = fs::read_to_string("/proc/thread-self/children").unwrap();
        let newest = children.split_whitespace().next_back().unwrap();
        kill(newest.parse().unwrap(), libc::SIGKILL);
    });
    assert!(matches!(outcome, Err(Error::StillOn { .. })), "{outcome:?}");
    assert!(device.is_on() && device.used_bytes().is_some());
    assert_eq!(nomerges(&device), "0\n");
    for program in &programs {
        program.go_on();
        assert_eq!(program.wait(), 0, "pages that came back wrong");
    }
    device.swap_off(|_| ()).unwrap();
}

#[test]
fn unreadable_pages_are_reported_though_swapoff_succeeds() {
    let Some(_turn) = turn("unreadable pages at swapoff") else {
        return;
    };
    for (fuse, name) in transports() {
        println!("over {name}");
        let dir = tempfile::tempdir().unwrap();
        let faulty = Arc::new(FaultyDisk::new(filled_ram_disk(192 * MIB)));
        let disk: Arc<dyn Disk> = Arc::clone(&faulty) as _;
        let mut options = Options::new(dir.path());
        options.fuse = fuse;
        let mut device = swap_on(&disk, options);
        assert_eq!(device.transport(), name);
        let program = Program::filled(32 * MIB, 96 * MIB);

        // Under its limit the pages would not fit, and the kernel would kill the program for it.
        faulty.state.broken.store(true, Ordering::Relaxed);
        program.group.set_limit(256 * MIB).unwrap();
        let report = device.swap_off(|_| ()).unwrap();

        let refused = faulty.state.refused.lock().unwrap().len() as u64;
        assert!(refused > 0, "swapoff read no page that was broken");
        assert_eq!(report.unreadable_pages, refused);
        assert!(report.used_bytes >= refused * PAGE as u64);
        program.go_on();
        assert_ne!(program.wait(), 0, "a lost page must not read as good");
    }
}

#[test]
fn a_device_is_served_over_dev_fuse_where_rings_are_switched_off() {
    let Some(_turn) = turn("FUSE over io_uring that is switched off") else {
        return;
    };
    if has_nbd() {
        println!("skipped: FUSE over io_uring that is switched off: this kernel has nbd");
        return;
    }
    let _off = Switch::off();
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(filled_ram_disk(16 * MIB));
    let device = Device::serve(&disk, Options::new(dir.path())).unwrap();
    let path = device.path().to_owned();
    assert_eq!(device.transport(), "/dev/fuse");
    let content = pattern(3, MIB as usize);
    fs::write(&path, &content).unwrap();
    let mut read = vec![0; content.len()];
    let mut file = fs::File::open(&path).unwrap();
    file.read_exact(&mut read).unwrap();
    drop(file);
    assert!(read == content, "the device came back different");
    drop(device);
    assert_nothing_left(dir.path(), &path);
}

#[test]
fn filesystems_live_on_the_device() {
    let Some(_turn) = turn("filesystems through the loop device") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let makers: [(&str, &[&str], &[&str]); 3] = [
        ("ext4", &["-q", "-F"], &["fsck.ext4", "-f", "-n"]),
        ("xfs", &["-q", "-f"], &["xfs_repair", "-n"]),
        ("btrfs", &["-q", "-f"], &["btrfs", "check"]),
    ];
    let all = transports();
    let both = |maker| all.iter().map(move |transport| (maker, *transport));
    for ((kind, flags, check), (fuse, name)) in makers.into_iter().flat_map(both) {
        println!("{kind} over {name}");
        let disk: Arc<dyn Disk> = Arc::new(RamDisk::new(512 * MIB));
        let mut options = Options::new(dir.path());
        options.fuse = fuse;
        let device = Device::serve(&disk, options).unwrap();
        let maker = format!("mkfs.{kind}");
        if !exists(&maker) {
            println!("skipped: {maker} is not installed");
            continue;
        }
        run(Command::new(maker).args(flags).arg(device.path()));
        let mount = dir.path().join("fs");
        fs::create_dir_all(&mount).unwrap();
        let content = pattern(7, 8 * MIB as usize);

        run(Command::new("mount").arg(device.path()).arg(&mount));
        fs::write(mount.join("first"), &content).unwrap();
        fs::write(mount.join("gone"), &content).unwrap();
        fs::remove_file(mount.join("gone")).unwrap();
        run(Command::new("fstrim").arg(&mount));
        run(Command::new("umount").arg(&mount));
        run(Command::new(check[0]).args(&check[1..]).arg(device.path()));
        run(Command::new("mount").arg(device.path()).arg(&mount));
        let read = fs::read(mount.join("first")).unwrap();
        run(Command::new("umount").arg(&mount));

        assert!(read == content, "{kind}: the file came back different");
        let counters = device.counters();
        let discards = counters.discards.load(Ordering::Relaxed);
        assert!(discards > 0, "{kind}: nothing was discarded");
        let errors = counters.errors.load(Ordering::Relaxed);
        assert_eq!(errors, 0, "{kind}: requests failed");
        fs::remove_dir(&mount).unwrap();
        let path = device.path().to_owned();
        drop(device);
        assert_nothing_left(dir.path(), &path);
    }
}

mod long {
    use super::*;

    /// This very program in a guest whose kernel has nbd: all the other tests, over that client.
    #[test]
    fn the_kernels_nbd_passes_the_same_tests() {
        if has_nbd() {
            println!(
                "skipped: kernel nbd in a guest: this machine has it, the other tests used it"
            );
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let steps = dir.path().join("steps");
        let program = std::env::current_exe().unwrap();
        let name = program.file_name().unwrap().to_str().unwrap();
        let text =
            format!("modprobe nbd\nexec {name} --test-threads=1 --nocapture --color=never\n");
        fs::write(&steps, text).unwrap();
        let ended = Command::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../scripts/test-guest.sh"
        ))
        .arg(concat!(env!("CARGO_TARGET_TMPDIR"), "/guest"))
        .args([&steps, &program])
        // The guest's processor is emulated: beside other tests this takes more than the usual limit.
        .env("GUEST_SECONDS", "900")
        .output()
        .unwrap();
        let text = String::from_utf8_lossy(&ended.stdout);
        let last = text.lines().last().unwrap_or_default();
        if ended.status.code() == Some(77) {
            println!("skipped: kernel nbd in a guest: {last}");
            return;
        }
        // Marked, so that its lines are not taken for this machine's results.
        text.lines().for_each(|line| println!("guest: {line}"));
        assert!(ended.status.success(), "{:?}", ended.status);
        assert!(text.contains("/dev/nbd"), "no device was the kernel's nbd");
    }
}

#[test]
fn a_device_larger_than_its_disk_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RamDisk::new(MIB));
    let mut options = Options::new(dir.path());
    options.size_bytes = Some(2 * MIB);
    let refused = Device::serve(&disk, options).map(|_| ());
    assert!(matches!(refused, Err(Error::Refused(_))), "{refused:?}");
}

#[test]
fn a_background_server_is_found_and_ended_by_its_directory() {
    let Some(_turn) = turn("a swap server in the background") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let started = start_server(dir.path(), FuseTransport::Auto).unwrap();
    let status = control::status(dir.path()).unwrap();
    assert_eq!(status.device, started.device);
    assert_eq!(status.size_bytes, 64 * MIB);
    let second = start_server(dir.path(), FuseTransport::Auto);
    let Err(Error::Server(text)) = second else {
        panic!("a second server in one directory: {second:?}");
    };
    assert!(text.contains("already"), "{text}");

    let report = control::off(dir.path(), |_| ()).unwrap();

    assert_eq!(report.unreadable_pages, 0);
    assert_nothing_left(dir.path(), &started.device);
    let gone = control::status(dir.path());
    assert!(matches!(gone, Err(Error::NotRunning { .. })), "{gone:?}");
}

#[test]
fn a_server_that_gets_sigterm_leaves_nothing() {
    let Some(_turn) = turn("a swap server that gets SIGTERM") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let started = start_server(dir.path(), FuseTransport::Auto).unwrap();
    kill(started.pid, libc::SIGTERM);
    wait_until_gone(started.pid);
    assert_nothing_left(dir.path(), &started.device);
}

#[test]
fn what_a_killed_server_left_is_ended_and_counted() {
    let Some(_turn) = turn("a swap server that is killed") else {
        return;
    };
    for (fuse, name) in transports() {
        println!("over {name}");
        let dir = tempfile::tempdir().unwrap();
        let started = start_server(dir.path(), fuse).unwrap();
        assert_eq!(control::status(dir.path()).unwrap().transport, name);
        let program = Program::filled(16 * MIB, 48 * MIB);
        kill(started.pid, libc::SIGKILL);
        wait_until_gone(started.pid);
        let refused = start_server(dir.path(), FuseTransport::Auto);
        assert!(matches!(refused, Err(Error::LeftOn { .. })), "{refused:?}");

        // Under its limit the kernel would kill the program for the pages that come back.
        program.group.set_limit(256 * MIB).unwrap();
        let report = control::off(dir.path(), |_| ()).unwrap();

        assert!(report.unreadable_pages > 0);
        assert_eq!(report.unreadable_pages, report.used_bytes / PAGE as u64);
        program.go_on();
        let end = program.wait();
        assert_ne!(end, 0, "a lost page must not read as good: {report:?}");
        assert_nothing_left(dir.path(), &started.device);
    }
}

/// The kernel waits for room in a socket that the server does not read, and holds what the end of the device needs.
#[test]
fn a_server_that_is_killed_while_requests_wait_for_it_is_gone() {
    let Some(_turn) = turn("a swap server that is killed while its disk hangs") else {
        return;
    };
    for (fuse, name) in transports() {
        println!("over {name}");
        let dir = tempfile::tempdir().unwrap();
        let mut command = server_command(dir.path(), fuse);
        command.env(SERVER_STUCK, "1");
        let started = launch::start(command, dir.path(), |_| ()).unwrap();
        let program = Program::start(16 * MIB, 48 * MIB);
        let mut before = 0;
        wait_until("requests wait, and no more come", || {
            std::thread::sleep(Duration::from_millis(500));
            let count = inflight_count(&started.device);
            std::mem::replace(&mut before, count) == count && count > 0
        });

        kill(started.pid, libc::SIGKILL);

        wait_until_gone(started.pid);
        drop(program);
        control::off(dir.path(), |_| ()).unwrap();
        assert_nothing_left(dir.path(), &started.device);
    }
}

#[test]
fn a_server_that_is_stopped_for_a_while_loses_nothing() {
    let Some(_turn) = turn("a swap server that is stopped") else {
        return;
    };
    for (fuse, name) in transports() {
        println!("over {name}");
        let dir = tempfile::tempdir().unwrap();
        let started = start_server(dir.path(), fuse).unwrap();
        assert_eq!(control::status(dir.path()).unwrap().transport, name);
        let program = Program::filled(16 * MIB, 48 * MIB);
        kill(started.pid, libc::SIGSTOP);
        program.go_on();
        wait_until("a request waits", || inflight_count(&started.device) > 0);

        kill(started.pid, libc::SIGCONT);

        assert_eq!(program.wait(), 0, "pages that came back wrong");
        let report = control::off(dir.path(), |_| ()).unwrap();
        assert_eq!(report.unreadable_pages, 0);
        assert_nothing_left(dir.path(), &started.device);
    }
}

/// Swap on a device of `disk`, before all other swap.
fn swap_on(disk: &Arc<dyn Disk>, mut options: Options) -> Device {
    options.priority = Some(32000);
    let mut device = Device::serve(disk, options).unwrap();
    device.swap_on().unwrap();
    device
}

/// What the kernel says of the merging of requests; 0 is all of it.
fn nomerges(device: &Device) -> String {
    let name = device.path().file_name().unwrap();
    let merging = Path::new("/sys/block").join(name).join("queue/nomerges");
    fs::read_to_string(merging).unwrap()
}

fn start_server(dir: &Path, fuse: FuseTransport) -> Result<control::Status, Error> {
    launch::start(server_command(dir, fuse), dir, |_| ())
}

/// Requests that a device was given and has not answered.
fn inflight_count(device: &Path) -> u64 {
    let name = device.strip_prefix("/dev").unwrap();
    let text = fs::read_to_string(Path::new("/sys/block").join(name).join("inflight")).unwrap();
    let counts = text.split_whitespace();
    counts.map(|count| count.parse::<u64>().unwrap()).sum()
}

/// Not a test of its own: the server that others start by running this binary again.
#[test]
fn server_process() {
    let Some(dir) = std::env::var_os(SERVER_DIR) else {
        return;
    };
    let mut options = Options::new(PathBuf::from(dir));
    options.priority = Some(32000);
    if std::env::var_os(SERVER_DEV_FUSE).is_some() {
        options.fuse = FuseTransport::DevFuse;
    }
    let outcome = server::run(options, Announcer::to_starter(), |progress| {
        progress("filling");
        let disk = FaultyDisk::new(filled_ram_disk(64 * MIB));
        let is_stuck = std::env::var_os(SERVER_STUCK).is_some();
        disk.state.is_stuck.store(is_stuck, Ordering::Relaxed);
        if let Some(dir) = std::env::var_os(SERVER_SPARE) {
            disk.state.spare.set((1 << 40, dir.into())).unwrap();
        }
        Ok(Arc::new(disk) as Arc<dyn Disk>)
    });
    std::process::exit(i32::from(outcome.is_err()));
}

const SERVER_DIR: &str = "CENOTE_SWAP_TEST_DIR";
/// It keeps to `/dev/fuse`.
const SERVER_DEV_FUSE: &str = "CENOTE_SWAP_TEST_DEV_FUSE";
/// Its disk never ends the write of a page.
const SERVER_STUCK: &str = "CENOTE_SWAP_TEST_STUCK";
/// There is memory to spare; in this folder are the files of its disk.
const SERVER_SPARE: &str = "CENOTE_SWAP_TEST_SPARE";

fn server_command(dir: &Path, fuse: FuseTransport) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "server_process", "--nocapture"]);
    command.env(SERVER_DIR, dir);
    if fuse == FuseTransport::DevFuse {
        command.env(SERVER_DEV_FUSE, "1");
    }
    // The server blocks signals in its first thread; the test harness, which has others by then,
    // inherits the same from here.
    // SAFETY: sigprocmask is async-signal-safe; `set` is initialised before it is read.
    unsafe {
        command.pre_exec(|| {
            let mut set = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            libc::sigaddset(&raw mut set, libc::SIGTERM);
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            Ok(())
        });
    }
    command
}

/// Such that no two pages are alike and none compresses.
fn mix(seed: u64) -> u64 {
    Random(seed).next()
}

fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let words = (0..len as u64 / 8).flat_map(|index| mix(seed ^ (index << 20)).to_le_bytes());
    words.collect()
}

/// A disk whose memory is all there, as a mapped volume's is.
fn filled_ram_disk(size_bytes: u64) -> RamDisk {
    let disk = RamDisk::new(size_bytes);
    let mut queue = disk.queue().unwrap();
    let mut done = Vec::new();
    for offset in (0..size_bytes).step_by(MIB as usize) {
        let op = Op::Write(vec![0; MIB as usize]);
        let request = Request { tag: 0, offset, op };
        assert!(queue.submit(request).is_ok());
        queue.poll(&mut done);
        assert_eq!(done.pop().expect("a RAM disk ends at once").result, Ok(()));
    }
    drop(queue);
    disk
}

/// The right to use the machine's swap, with FUSE over io_uring switched on where it can be.
struct Turn {
    _switch: Switch,
    _guard: MutexGuard<'static, ()>,
}

/// One of these tests at a time, and only where the machine can run them.
fn turn(what: &str) -> Option<Turn> {
    static TURN: Mutex<()> = Mutex::new(());
    let guard = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: no arguments, no memory.
    let lacks = if unsafe { libc::geteuid() } != 0 {
        Some("root")
    } else if !has_nbd() && !Path::new("/dev/fuse").exists() {
        Some("nbd or /dev/fuse")
    } else if !has_nbd() && !Path::new("/dev/loop-control").exists() {
        Some("nbd or /dev/loop-control")
    } else if !Path::new("/proc/swaps").exists() {
        Some("swap in the kernel")
    } else if let Err(error) = MemoryCgroup::create("cenote-test-probe", MIB) {
        println!("memory cgroups: {error}");
        Some("memory cgroups")
    } else {
        None
    };
    if let Some(lacks) = lacks {
        println!("skipped: {what}: needs {lacks}");
        return None;
    }
    Some(Turn {
        _switch: Switch::on(),
        _guard: guard,
    })
}

fn has_nbd() -> bool {
    Path::new("/sys/block/nbd0").exists()
}

fn exists(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).exists())
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {text}");
}
