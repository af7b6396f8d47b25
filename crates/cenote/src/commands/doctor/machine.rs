//! What this machine has and lacks, whatever cluster it is of.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use cenote_block::swap::{FUSE_RINGS_SWITCH, FuseRingsState};
use cenote_cli::failure::{DONE, NOT_WHOLE};
use cenote_cli::size::Size;
use cenote_vfs::mount::mount_table::{self, Mounted};

use super::finding::Finding;
use super::fix::{Fix, sysctl};
use crate::limits::{self, Limit};
use crate::shell::quoted;

const IO_URING_SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

/// Everything that depends on no cluster, of what is wanted.
pub fn examine(wanted: impl Fn(&str) -> bool) -> Vec<Finding> {
    let wanted = LOOKS.iter().filter(|(subject, _)| wanted(subject));
    wanted.map(|(_, look)| look()).collect()
}

/// What there is to be looked at.
pub fn subjects() -> impl Iterator<Item = &'static str> {
    LOOKS.iter().map(|(subject, _)| *subject)
}

type Examine = fn() -> Finding;

/// What is looked at, as its finding calls it, and how.
const LOOKS: [(&str, Examine); 18] = [
    ("memfd", memfd),
    ("pidfd", pidfd),
    ("free memory", memory),
    ("memory lock", || memory_lock(capabilities())),
    ("open files", open_files),
    ("huge pages for shared memory", huge_pages_shmem),
    ("reserved huge pages", huge_pages_reserved),
    ("swappiness", swappiness),
    ("memory cgroup", cgroup),
    ("io_uring", io_uring),
    ("ublk", ublk),
    ("userfaultfd", userfaultfd),
    ("etcd", etcd),
    ("CAP_SYS_ADMIN", || may_administer(capabilities())),
    ("CAP_SYS_RESOURCE", || may_raise_limits(capabilities())),
    ("swap device", || {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let modules = Path::new("/lib/modules").join(release.trim());
        swap_device(Path::new("/dev"), Path::new("/sys"), &modules)
    }),
    ("FUSE over io_uring", || {
        fuse_rings(cenote_block::swap::fuse_rings_state())
    }),
    ("mounts", || mounts(Mounted::ours(), looks)),
];

fn capabilities() -> limits::Capabilities {
    limits::Capabilities::of_this_process()
}

fn memfd() -> Finding {
    match limits::memfd_works() {
        Ok(()) => Finding::ok("memfd", "shared memory files can be made"),
        Err(error) => Finding::error(
            "memfd",
            format!("memfd_create: {error}"),
            "use Linux 3.17 or newer, and allow memfd_create in the sandbox",
        ),
    }
}

fn pidfd() -> Finding {
    match limits::pidfd_works() {
        Ok(()) => Finding::ok("pidfd", "processes can be signalled safely (pidfd)"),
        Err(error) => Finding::error(
            "pidfd",
            format!("pidfd_open: {error}"),
            "use Linux 5.3 or newer, and allow pidfd_open in the sandbox",
        ),
    }
}

fn memory() -> Finding {
    let subject = "free memory";
    match cenote_host::memory_left_bytes() {
        Some(bytes) if bytes >= 1 << 30 => Finding::ok(subject, Size(bytes).rounded()),
        Some(bytes) => Finding::warning(
            subject,
            Size(bytes).rounded(),
            "stop other programs, or lend less: --memory 16M",
        ),
        None => Finding::warning(subject, "/proc/meminfo has no MemAvailable", "mount /proc"),
    }
}

fn memory_lock(capabilities: limits::Capabilities) -> Finding {
    let subject = "memory lock";
    if capabilities.has(limits::CAP_IPC_LOCK) {
        return Finding::ok(subject, "unlimited by CAP_IPC_LOCK");
    }
    let limit = limits::soft(Limit::MemoryLock);
    let swap = cenote_host::swap_bytes().unwrap_or(0);
    let found = format!("RLIMIT_MEMLOCK {}", limits::display(limit));
    match limit {
        None => Finding::ok(subject, found),
        Some(_) if swap == 0 => Finding::warning(
            subject,
            found + ", no swap: lent memory stays in RAM unlocked",
            "ulimit -l unlimited, or CAP_IPC_LOCK",
        )
        .with_fix(Fix::Limit(Limit::MemoryLock, None)),
        Some(_) => Finding::warning(
            subject,
            found + " and this machine swaps: lent memory can be swapped out",
            "ulimit -l unlimited, or CAP_IPC_LOCK",
        )
        .with_fix(Fix::Limit(Limit::MemoryLock, None)),
    }
}

fn open_files() -> Finding {
    /// Descriptors that a client of many slabs over shm needs.
    const WANTED: u64 = 16_384;
    let subject = "open files";
    let limit = limits::hard(Limit::OpenFiles);
    let found = format!("hard limit {}", limits::display(limit));
    match limit {
        Some(count) if count < WANTED => Finding::warning(
            subject,
            found,
            format!("ulimit -Hn {WANTED}, or LimitNOFILE= of the service"),
        )
        .with_fix(Fix::Limit(Limit::OpenFiles, Some(WANTED))),
        _ => Finding::ok(subject, found),
    }
}

fn huge_pages_shmem() -> Finding {
    let subject = "huge pages for shared memory";
    let base = "/sys/kernel/mm/transparent_hugepage";
    let per_size = format!("{base}/hugepages-2048kB/shmem_enabled");
    let general = format!("{base}/shmem_enabled");
    let specific = chosen(&per_size);
    // "inherit" means what the general switch says.
    let (file, value) = match specific.as_deref() {
        Some("inherit") | None => (&general, chosen(&general)),
        Some(_) => (&per_size, specific),
    };
    match value.as_deref() {
        Some("advise" | "always" | "within_size" | "force") => {
            Finding::ok(subject, format!("{file}: {}", value.unwrap_or_default()))
        }
        Some(other) => Finding::warning(
            subject,
            format!("{file} is {other}; mapping and freeing slabs is 10 to 100 times slower"),
            format!("echo advise > {file}"),
        )
        .with_fix(Fix::Switch {
            path: file.into(),
            value: "advise",
            is_sysctl: false,
        }),
        None => Finding::warning(
            subject,
            "not in this kernel",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
    }
}

/// The word in brackets of a switch in /sys.
fn chosen(path: &str) -> Option<String> {
    bracketed(&fs::read_to_string(path).ok()?)
}

fn bracketed(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn huge_pages_reserved() -> Finding {
    let subject = "reserved huge pages";
    let path = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
    match number(path) {
        Some(count) => Finding::ok(subject, format!("{count} of 2 MiB free (none are needed)")),
        None => Finding::ok(subject, "none (none are needed)"),
    }
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn swappiness() -> Finding {
    let subject = "swappiness";
    let path = "/proc/sys/vm/swappiness";
    match number(path) {
        Some(0) => Finding::warning(
            subject,
            "0: the kernel swaps only when it is out of memory",
            format!("echo 60 > {path}, if cenote swap is used"),
        )
        .with_fix(sysctl(path, "60")),
        Some(value) => Finding::ok(subject, value.to_string()),
        None => Finding::warning(subject, format!("{path} cannot be read"), "mount /proc"),
    }
}

fn cgroup() -> Finding {
    let subject = "memory cgroup";
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        let controllers =
            fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
        if controllers.split_whitespace().any(|name| name == "memory") {
            return Finding::ok(subject, "version 2");
        }
    }
    if Path::new("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists() {
        return Finding::ok(subject, "version 1");
    }
    Finding::warning(
        subject,
        "not mounted: programs' memory cannot be limited",
        "mount -t cgroup2 none /sys/fs/cgroup",
    )
}

fn io_uring() -> Finding {
    let subject = "io_uring";
    match cenote_volume::backing_works() {
        Ok(()) => Finding::ok(
            subject,
            "available: --backing works, and tcp batches system calls",
        ),
        Err(error) => Finding::warning(
            subject,
            format!(
                "{error}: --backing and cenote ublk do not work, and tcp makes more system calls"
            ),
            format!("echo 0 > {IO_URING_SWITCH}, and allow io_uring_setup in the sandbox"),
        )
        .with_fix_if(
            number(IO_URING_SWITCH).is_some_and(|is_off| is_off > 0),
            || sysctl(IO_URING_SWITCH, "0"),
        ),
    }
}

fn ublk() -> Finding {
    if Path::new("/dev/ublk-control").exists() {
        return Finding::ok("ublk", "/dev/ublk-control");
    }
    Finding::warning(
        "ublk",
        "no /dev/ublk-control: cenote ublk does not work; cenote nbd does",
        "modprobe ublk_drv, on Linux 6.4 or newer",
    )
    .with_fix(Fix::Modules(&["ublk_drv"]))
}

/// What `cenote run` and a paged heap stand on.
fn userfaultfd() -> Finding {
    const SWITCH: &str = "/proc/sys/vm/unprivileged_userfaultfd";
    let subject = "userfaultfd";
    match cenote_pager::works() {
        Ok(()) => Finding::ok(subject, "cenote run works"),
        Err(error) => Finding::warning(
            subject,
            format!("{error}: cenote run does not work"),
            format!("echo 1 > {SWITCH}, access to /dev/userfaultfd, or run as root"),
        )
        .with_fix_if(number(SWITCH) == Some(0), || sysctl(SWITCH, "1")),
    }
}

/// What `cenote kv up` starts where no other etcd is named.
fn etcd() -> Finding {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&paths)
        .map(|folder| folder.join("etcd"))
        .find(|file| file.is_file());
    match found {
        Some(file) => Finding::ok("etcd", file.display().to_string()),
        None => Finding::warning(
            "etcd",
            "not installed: cenote kv up needs it; kv node can use one elsewhere with --etcd",
            "apt-get install etcd-server, or use a running one with --etcd",
        ),
    }
}

fn may_administer(capabilities: limits::Capabilities) -> Finding {
    if capabilities.has(limits::CAP_SYS_ADMIN) {
        Finding::ok(
            "CAP_SYS_ADMIN",
            "swap can be turned on and file systems mounted",
        )
    } else {
        Finding::warning(
            "CAP_SYS_ADMIN",
            "missing: cenote swap does not work",
            "run cenote swap as root",
        )
    }
}

fn may_raise_limits(capabilities: limits::Capabilities) -> Finding {
    if capabilities.has(limits::CAP_SYS_RESOURCE) {
        Finding::ok(
            "CAP_SYS_RESOURCE",
            "processes on the swap path can be protected from the OOM killer",
        )
    } else {
        Finding::warning(
            "CAP_SYS_RESOURCE",
            "missing: no PR_SET_IO_FLUSHER and no negative oom_score_adj; under heavy pressure the \
             OOM killer may kill cenote",
            "setcap cap_sys_resource+ep on the binary, or AmbientCapabilities= of the service",
        )
    }
}

/// What `cenote swap` would stand on, with the kernel's modules in `modules`.
fn swap_device(dev: &Path, sys: &Path, modules: &Path) -> Finding {
    let subject = "swap device";
    let nbd = dev.join("nbd0").exists() || sys.join("module/nbd").exists();
    let names = fs::read_to_string(modules.join("modules.dep")).unwrap_or_default();
    let loadable = names
        .lines()
        .filter_map(|line| line.split(':').next()?.rsplit('/').next())
        .any(|name| name == "nbd.ko" || name.starts_with("nbd.ko."));
    if !nbd && loadable {
        return Finding::ok(subject, "the kernel's nbd (a module, loaded on demand)");
    }
    let fuse = dev.join("fuse").exists();
    let looped = dev.join("loop-control").exists();
    match (nbd, fuse, looped) {
        (true, ..) => Finding::ok(subject, "the kernel's nbd"),
        (false, true, true) => {
            Finding::ok(subject, "FUSE under a loop device (no nbd in this kernel)")
        }
        (false, false, _) => Finding::warning(
            subject,
            "neither nbd nor /dev/fuse: cenote swap does not work",
            "modprobe nbd, or modprobe fuse loop",
        )
        .with_fix(Fix::Modules(&["fuse", "loop"])),
        (false, true, false) => Finding::warning(
            subject,
            "neither nbd nor /dev/loop-control: cenote swap does not work",
            "modprobe nbd, or modprobe loop",
        )
        .with_fix(Fix::Modules(&["loop"])),
    }
}

/// Whether FUSE files of ours are served over io_uring.
fn fuse_rings(state: FuseRingsState) -> Finding {
    let subject = "FUSE over io_uring";
    match state {
        FuseRingsState::On => Finding::ok(
            subject,
            "available to cenote mount, and to cenote swap without nbd",
        ),
        FuseRingsState::Off => Finding::warning(
            subject,
            "switched off: cenote mount, and cenote swap without nbd, use the slower /dev/fuse",
            format!("echo Y > {FUSE_RINGS_SWITCH}, before mount or swap on"),
        )
        .with_fix(Fix::Switch {
            path: FUSE_RINGS_SWITCH.into(),
            value: "Y",
            is_sysctl: false,
        }),
        FuseRingsState::Missing => Finding::ok(
            subject,
            "not in this kernel (Linux 6.14, CONFIG_FUSE_IO_URING): /dev/fuse is used",
        ),
    }
}

/// File systems of ours whose server has gone: whoever looks there gets an error. Behind one that is
/// stopped a look does not end.
fn mounts(ours: io::Result<Vec<Mounted>>, looks: impl Fn(&[Mounted]) -> Vec<Look>) -> Finding {
    let subject = "mounts";
    let ours = match ours {
        Ok(ours) => ours,
        Err(error) => {
            let found = format!("/proc/self/mountinfo: {error}");
            return Finding::warning(subject, found, "mount /proc");
        }
    };
    let seen = looks(&ours);
    let of = |look| {
        let found = ours.iter().zip(&seen).filter(|(_, seen)| **seen == look);
        found
            .map(|(mounted, _)| mounted.clone())
            .collect::<Vec<_>>()
    };
    let shown = |places: &[Mounted]| {
        let paths = places.iter().map(|place| quoted(place.path()));
        paths.collect::<Vec<_>>().join(" ")
    };
    let (dead, silent) = (of(Look::Dead), of(Look::Silent));
    if !dead.is_empty() {
        return Finding::warning(
            subject,
            format!("mounts without a server: {}", shown(&dead)),
            format!("umount --lazy {}", shown(&dead)),
        )
        .with_fix(Fix::Unmount(dead));
    }
    if !silent.is_empty() {
        return Finding::warning(
            subject,
            format!("no answer within {LOOK_LIMIT:?} from: {}", shown(&silent)),
            "check whether the server is stopped (SIGSTOP); if it is killed, waiting requests fail",
        );
    }
    Finding::ok(subject, format!("{} of volumes", ours.len()))
}

/// Whether a file system of ours is mounted at a folder whose server does not answer. Nobody but
/// [`looks`] may look there: who does waits for as long as the server is stopped.
pub fn is_silent(point: &Path) -> bool {
    // By its parent: the mount is not to be asked.
    let absolute = std::path::absolute(point).unwrap_or_else(|_| point.to_owned());
    let parent = absolute
        .parent()
        .and_then(|parent| parent.canonicalize().ok());
    let name = absolute.file_name();
    let path = match (parent, name) {
        (Some(parent), Some(name)) => parent.join(name),
        _ => absolute,
    };
    // Without a list nothing is known to be mounted; what is looked at next says more.
    let ours = Mounted::ours().unwrap_or_default();
    let here: Vec<_> = ours
        .into_iter()
        .filter(|mounted| mounted.path() == path)
        .collect();
    looks(&here).contains(&Look::Silent)
}

/// How long mounts may take to answer.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

/// What a look at a mount showed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Look {
    /// Its server answers, whatever it says.
    Answers,
    /// Its server has ended.
    Dead,
    /// No answer.
    Silent,
}

/// Looks at all of them, each in a process of its own: the kernel does not let one end that waits for an
/// answer of a server that is stopped, not even when another of its threads waits.
fn looks(ours: &[Mounted]) -> Vec<Look> {
    let deadline = Instant::now() + LOOK_LIMIT;
    let start = |place: &Mounted| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["doctor", "--look"]).arg(place.path());
        // Whoever reads what we say is not to wait for its end.
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
    };
    let started: Vec<_> = ours.iter().map(start).collect();
    let ended = started.into_iter().map(|child| match child {
        Ok(child) => end_of_look(child, deadline),
        Err(error) => {
            tracing::warn!(%error, "start a process that looks at a mount");
            Look::Answers
        }
    });
    ended.collect()
}

fn end_of_look(mut child: Child, deadline: Instant) -> Look {
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.code() == Some(i32::from(NOT_WHOLE)) => return Look::Dead,
            Ok(Some(_)) | Err(_) => return Look::Answers,
            Ok(None) if Instant::now() >= deadline => return Look::Silent,
            Ok(None) => thread::sleep(Duration::from_millis(2)),
        }
    }
}

/// What a process does that [`looks`] has started.
pub fn look(path: &Path) -> u8 {
    match mount_table::look(path) {
        Err(error) if mount_table::is_dead(&error) => NOT_WHOLE,
        _ => DONE,
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    #[test]
    fn fuse_over_io_uring_that_is_off_says_how_to_switch_it_on() {
        let finding = fuse_rings(FuseRingsState::Off);
        assert_eq!(finding.state, State::Warning);
        assert!(finding.mend.unwrap().contains("/sys/module/fuse/"));
        assert_eq!(fuse_rings(FuseRingsState::On).state, State::Ok);
        assert_eq!(fuse_rings(FuseRingsState::Missing).state, State::Ok);
    }

    #[test]
    fn the_word_in_brackets_is_the_one_chosen() {
        assert_eq!(
            bracketed("always inherit [never] advise\n").as_deref(),
            Some("never")
        );
        assert_eq!(bracketed("never"), None);
        assert_eq!(bracketed("[never"), None);
    }

    #[test]
    fn a_swap_device_needs_nbd_or_fuse_and_loop() {
        let root = tempfile::tempdir().unwrap();
        let state = || swap_device(root.path(), root.path(), root.path()).state;
        assert_eq!(state(), State::Warning);
        fs::write(root.path().join("fuse"), "").unwrap();
        assert_eq!(state(), State::Warning);
        fs::write(root.path().join("loop-control"), "").unwrap();
        assert_eq!(state(), State::Ok);
        fs::remove_file(root.path().join("fuse")).unwrap();
        assert_eq!(state(), State::Warning);
        let modules = root.path().join("modules.dep");
        fs::write(&modules, "drivers/block/nbdx.ko: drivers/nbd.ko\n").unwrap();
        assert_eq!(state(), State::Warning);
        fs::write(&modules, "drivers/block/nbd.ko.xz:\n").unwrap();
        assert_eq!(state(), State::Ok);
        fs::remove_file(&modules).unwrap();
        fs::write(root.path().join("nbd0"), "").unwrap();
        assert_eq!(state(), State::Ok);
    }

    #[test]
    fn whatever_is_not_ok_says_how_to_mend_it() {
        for finding in examine(|_| true) {
            assert_eq!(
                finding.state == State::Ok,
                finding.mend.is_none(),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn what_is_looked_at_is_called_as_its_finding_is() {
        let found = examine(|_| true);
        let subjects = found.iter().map(|finding| finding.subject);
        assert!(subjects.eq(LOOKS.iter().map(|(subject, _)| *subject)));
        assert_eq!(examine(|subject| subject == "pidfd").len(), 1);
    }

    #[test]
    fn mounts_of_volumes_are_looked_at() {
        let mountinfo = b"30 22 0:40 / /mnt/$(id)\\040b rw - fuse.cenote cenote:v0 rw";
        let seen = |look: Look| mounts(Ok(Mounted::ours_in(mountinfo)), |_| vec![look]);
        assert_eq!(seen(Look::Answers).state, State::Ok);
        let ended = seen(Look::Dead);
        assert_eq!(ended.state, State::Warning);
        assert!(ended.mend.unwrap().contains("umount --lazy '/mnt/$(id) b'"));
        let stopped = seen(Look::Silent);
        assert_eq!(stopped.state, State::Warning);
        assert!(stopped.found.contains("no answer"), "{}", stopped.found);
    }

    #[test]
    fn a_look_that_does_not_end_is_not_waited_for() {
        let sleep = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = sleep.id();
        // One that were waited for would have ended.
        let look = end_of_look(sleep, Instant::now() + Duration::from_millis(50));
        assert_eq!(look, Look::Silent);
        let ended = Command::new("kill").arg(pid.to_string()).status().unwrap();
        assert!(ended.success());
    }
}
