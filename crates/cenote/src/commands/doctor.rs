//! `cenote doctor`: what this machine lacks, and how to mend it.
//!
//! It only looks. An error is one without which a command cannot work at
//! all; a warning costs speed or safety.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::Result;
use cenote_block::swap::{FUSE_RINGS_SWITCH, FuseRingsState};
use serde::Serialize;

use crate::failure::{DONE, FAILED};
use crate::limits::{self, Limit};
use crate::size::Size;

/// `doctor` and what follows it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  cenote doctor
  cenote doctor --json | jq '.findings[] | select(.state != \"ok\")'

Exit code 1: there is an error.")]
pub struct Args {
    /// One JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Ok,
    Warning,
    Error,
}

/// One thing looked at.
#[derive(Debug, Serialize)]
struct Finding {
    subject: &'static str,
    state: State,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Finding {
    fn ok(subject: &'static str, found: impl Into<String>) -> Self {
        Self {
            subject,
            state: State::Ok,
            found: found.into(),
            mend: None,
        }
    }

    fn warning(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            subject,
            state: State::Warning,
            found: found.into(),
            mend: Some(mend.into()),
        }
    }

    fn error(subject: &'static str, found: impl Into<String>, mend: impl Into<String>) -> Self {
        Self {
            state: State::Error,
            ..Self::warning(subject, found, mend)
        }
    }
}

#[derive(Serialize)]
struct Report {
    state: State,
    findings: Vec<Finding>,
}

pub fn run(args: &Args) -> Result<u8> {
    let findings = examine();
    let state = findings
        .iter()
        .map(|finding| finding.state)
        .max()
        .unwrap_or(State::Ok);
    let report = Report { state, findings };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        print(&mut out, &report)?;
    }
    Ok(if state == State::Error { FAILED } else { DONE })
}

fn print(out: &mut impl Write, report: &Report) -> Result<()> {
    for finding in &report.findings {
        let mark = match finding.state {
            State::Ok => "ok     ",
            State::Warning => "warning",
            State::Error => "ERROR  ",
        };
        writeln!(out, "{mark}  {}: {}", finding.subject, finding.found)?;
        if let Some(mend) = &finding.mend {
            writeln!(out, "         mend: {mend}")?;
        }
    }
    let count = |state| report.findings.iter().filter(|f| f.state == state).count();
    writeln!(
        out,
        "{} ok, {} warnings, {} errors",
        count(State::Ok),
        count(State::Warning),
        count(State::Error)
    )?;
    Ok(())
}

fn examine() -> Vec<Finding> {
    let capabilities = limits::Capabilities::of_this_process();
    let mut findings = vec![
        memfd(),
        pidfd(),
        memory(),
        memory_lock(capabilities),
        open_files(),
        huge_pages_shmem(),
        huge_pages_reserved(),
        swappiness(),
        cgroup(),
        io_uring(),
        ublk(),
    ];
    findings.extend(capability_findings(capabilities));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = Path::new("/lib/modules").join(release.trim());
    findings.push(swap_device(Path::new("/dev"), Path::new("/sys"), &modules));
    findings.push(fuse_rings(cenote_block::swap::fuse_rings_state()));
    findings
}

fn memfd() -> Finding {
    match limits::memfd_works() {
        Ok(()) => Finding::ok("memfd", "shared memory files can be made"),
        Err(error) => Finding::error(
            "memfd",
            format!("memfd_create: {error}"),
            "Linux 3.17 or newer; allow memfd_create in the sandbox",
        ),
    }
}

fn pidfd() -> Finding {
    match limits::pidfd_works() {
        Ok(()) => Finding::ok("pidfd", "processes can be named safely"),
        Err(error) => Finding::error(
            "pidfd",
            format!("pidfd_open: {error}"),
            "Linux 5.3 or newer; allow pidfd_open in the sandbox",
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
            "end other programs, or lend less: --memory 16M",
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
        ),
        Some(_) => Finding::warning(
            subject,
            found + " and this machine swaps: lent memory can be swapped out",
            "ulimit -l unlimited, or CAP_IPC_LOCK",
        ),
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
        ),
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
            format!("{file}: {other}; mapping and freeing slabs is 10 to 100 times slower"),
            format!("echo advise > {file}"),
        ),
        None => Finding::warning(
            subject,
            "this kernel has none",
            "a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
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
            format!("echo 60 > {path}, where cenote swap is used"),
        ),
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
        "none mounted: a program's memory cannot be limited",
        "mount -t cgroup2 none /sys/fs/cgroup",
    )
}

fn io_uring() -> Finding {
    let subject = "io_uring";
    match cenote_volume::backing_works() {
        Ok(()) => Finding::ok(
            subject,
            "a volume can have a --backing store; tcp shares system calls",
        ),
        Err(error) => Finding::warning(
            subject,
            format!("{error}: no --backing store, no cenote ublk, and tcp makes more system calls"),
            "echo 0 > /proc/sys/kernel/io_uring_disabled; allow io_uring_setup in the sandbox",
        ),
    }
}

fn ublk() -> Finding {
    if Path::new("/dev/ublk-control").exists() {
        return Finding::ok("ublk", "/dev/ublk-control");
    }
    Finding::warning(
        "ublk",
        "no /dev/ublk-control: cenote ublk cannot work; cenote nbd can",
        "modprobe ublk_drv, on Linux 6.4 or newer",
    )
}

fn capability_findings(capabilities: limits::Capabilities) -> [Finding; 2] {
    let admin = if capabilities.has(limits::CAP_SYS_ADMIN) {
        Finding::ok(
            "CAP_SYS_ADMIN",
            "swap can be turned on and file systems mounted",
        )
    } else {
        Finding::warning(
            "CAP_SYS_ADMIN",
            "missing: cenote swap cannot work",
            "run cenote swap as root",
        )
    };
    let resource = if capabilities.has(limits::CAP_SYS_RESOURCE) {
        Finding::ok(
            "CAP_SYS_RESOURCE",
            "a process on the swap path can be kept from the OOM killer",
        )
    } else {
        Finding::warning(
            "CAP_SYS_RESOURCE",
            "missing: no PR_SET_IO_FLUSHER, no negative oom_score_adj; under heavy pressure the OOM killer may choose us",
            "setcap cap_sys_resource+ep on the binary, or AmbientCapabilities= of the service",
        )
    };
    [admin, resource]
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
        return Finding::ok(subject, "the kernel's nbd (a module, loaded when needed)");
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
            "neither nbd nor /dev/fuse: cenote swap cannot work",
            "modprobe nbd, or modprobe fuse loop",
        ),
        (false, true, false) => Finding::warning(
            subject,
            "neither nbd nor /dev/loop-control: cenote swap cannot work",
            "modprobe nbd, or modprobe loop",
        ),
    }
}

/// Whether FUSE files of ours are served over io_uring.
fn fuse_rings(state: FuseRingsState) -> Finding {
    let subject = "FUSE over io_uring";
    match state {
        FuseRingsState::On => {
            Finding::ok(subject, "mount, and swap without nbd, are served over it")
        }
        FuseRingsState::Off => Finding::warning(
            subject,
            "switched off: mount, and swap without nbd, are served over /dev/fuse, which is slower",
            format!("echo Y > {FUSE_RINGS_SWITCH}, before mount or swap on"),
        ),
        FuseRingsState::Missing => Finding::ok(
            subject,
            "not in this kernel (Linux 6.14, CONFIG_FUSE_IO_URING): /dev/fuse is used",
        ),
    }
}

#[cfg(test)]
mod tests {
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
        for finding in examine() {
            assert_eq!(
                finding.state == State::Ok,
                finding.mend.is_none(),
                "{finding:?}"
            );
        }
    }
}
