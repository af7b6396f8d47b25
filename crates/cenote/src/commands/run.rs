//! `cenote run`: a program whose big memory is in the cluster, without swap.
//!
//! This process owns the volume and answers the program's page faults; the program loads a library
//! that has its memory served. See decision 122.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::{io, ptr};

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_cli::size::Size;
use cenote_cli::{signals, stderr};
use cenote_pager::{Handlers, Keeper, SERVED_RESIDENT_MIN_BYTES, Served};
use cenote_preload::LIBRARY;
use tempfile::TempDir;

use crate::place::Which;
use crate::volume_server::{End, Serving, WhichVolume};
use crate::{limits, seccomp};

/// `run` and what follows it.
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "cenote run [OPTIONS] --local <SIZE> --volume <NAME> -- <PROGRAM>...
       cenote run [OPTIONS] --local <SIZE> --size <SIZE> -- <PROGRAM>..."
)]
#[command(after_help = "Examples:
  cenote run --dir ~/.cenote/well --local 256M --size 4G --scheme rs:8+2 -- python3 big.py
  cenote run --dir ~/.cenote/well --local 1G --size 16G --verbose -- redis-server --save 60 1
  cenote run --dir ~/.cenote/well --local 64M --size 2G -- sort -S 1G big.txt -o sorted.txt

The program's heap and its mappings of 128K and more live in the cluster's memory; at most --local of
them is resident on this machine, and page faults fetch the rest. Code, stacks, files, shared memory and
allocations beyond --size stay in ordinary memory. Child processes are included, with copies after a
fork. Needs Linux 6.6, and root, or CAP_SYS_PTRACE and access to /dev/userfaultfd.

Signals are forwarded to the program. The exit code is the program's, or 128 plus the signal number if a
signal killed it. The command exits when every process with memory in the cluster has exited. Signals
that arrive in the first 10 seconds after the program's end are ignored; later ones end the command, and
the processes that still run. If more hosts are lost than the scheme tolerates, a process that touches
lost pages gets SIGBUS, never wrong bytes.

The memory is given back when the command ends, so a volume of --volume that holds data is refused.

O_DIRECT, io_uring, process_vm_writev, AF_ALG, AF_XDP and TLS in the kernel are unavailable to the
program. See docs/guides/heap.md.")]
pub struct Args {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    volume: WhichVolume,
    /// Maximum resident memory on this machine, not counting ordinary memory
    #[arg(long, value_name = "SIZE")]
    local: Size,
    /// Threads that handle page faults, 1 to 8; fewer if --local is less than 4M for each [default:
    /// one per two cores, at most 4]
    #[arg(long, value_name = "N")]
    handlers: Option<Handlers>,
    /// Print statistics to stderr at exit
    #[arg(long)]
    verbose: bool,
    /// Print the statistics as one JSON object
    #[arg(long)]
    json: bool,
    /// Program and its arguments, after --
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// Of the size that the program may have, what its heap may be; the rest is for mappings. The heap
/// needs addresses alone.
const HEAP_PART: u64 = 2;

pub fn run(args: &Args) -> Result<u8> {
    check(args)?;
    // Before the first thread: threads inherit the mask.
    let forwarding = signals::Forwarding::begin()?;
    // Tried, and removed again: a signal ends this process while hosts are awaited.
    drop(Library::write()?);
    let loaded = args.which.load()?;
    let mut serving = Serving::open(&loaded, &args.volume, End::GiveBack)?;
    let library = Library::write()?;
    let socket = library.folder.path().join("socket");
    let handlers = args.handlers.unwrap_or_default();
    let keeper = Keeper::start(&serving.volume, &socket, args.local.bytes(), handlers)?;
    let size_bytes = serving.volume.size_bytes();
    let settings = keeper.settings(size_bytes, size_bytes / HEAP_PART);
    let started = forwarding.to(|| start(args, &library.path, &settings));
    let mut program = match started {
        Ok(program) => program,
        Err(error) => {
            let Served { .. } = keeper.finish();
            return Err(error);
        }
    };
    serving.announced();
    let status = forwarding.wait(&mut program);
    let status = status.context("wait for the program")?;
    let served = keeper.finish();
    if args.json {
        stderr::say(as_json(&served));
    } else if args.verbose {
        stderr::say(as_line(&served));
    }
    let code = status.code().or(status.signal().map(|signal| 128 + signal));
    Ok(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

fn check(args: &Args) -> Result<()> {
    if LIBRARY.is_empty() {
        let what = "cenote run needs x86-64 with glibc";
        return Err(Failure::new(what, "cenote swap").into());
    }
    if args.local.bytes() < SERVED_RESIDENT_MIN_BYTES {
        let least = Size(SERVED_RESIDENT_MIN_BYTES);
        let what = format!("--local {}: must be at least {least}", args.local);
        return Err(Failure::usage(what, format!("--local {least}")).into());
    }
    let handlers = args.handlers.unwrap_or_default();
    let open_files = Keeper::open_files_min(args.local.bytes(), handlers);
    limits::check_open_files("cenote run", open_files)?;
    check_inherited()?;
    cenote_pager::works()
        .map_err(|error| Failure::new(error.to_string(), "use cenote swap in its place"))?;
    Ok(())
}

/// The program inherits this process's descriptors, and no filter of its calls says how they were
/// opened. Pipes know O_DIRECT as a kind of packets.
fn check_inherited() -> Result<()> {
    for entry in std::fs::read_dir("/proc/self/fdinfo").context("list open files")? {
        let info = entry.context("list open files")?.path();
        // One that is closed again, as that of this list, is not inherited.
        let Ok(text) = std::fs::read_to_string(&info) else {
            continue;
        };
        let flags = flags(&text).with_context(|| format!("read {}", info.display()))?;
        if flags & libc::O_CLOEXEC != 0 || flags & libc::O_DIRECT == 0 {
            continue;
        }
        let fd = info.file_name().unwrap_or_default().display();
        let path = PathBuf::from(format!("/proc/self/fd/{fd}"));
        if std::fs::metadata(&path).is_ok_and(|file| file.file_type().is_fifo()) {
            continue;
        }
        let target = std::fs::read_link(&path).unwrap_or(path);
        let what = format!(
            "file descriptor {fd}, {}, was opened with O_DIRECT: the program would inherit it",
            target.display()
        );
        return Err(Failure::new(what, "open it without O_DIRECT, or close it").into());
    }
    Ok(())
}

/// How a file was opened, from the text of `/proc/self/fdinfo/FD`.
fn flags(info: &str) -> Option<i32> {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

/// The program's library, in a folder that is removed with this, or, if this process is killed, by
/// the next.
struct Library {
    folder: TempDir,
    path: PathBuf,
    _running: File,
}

/// Beginning of the folder's name.
const FOLDER_PREFIX: &str = "cenote-run-";
/// In the folder, and locked while the process lives that made it.
const RUNNING: &str = "running";

impl Library {
    /// Writes it to where the loader can load it. One that it cannot load it goes on without, and
    /// so would the program: with all of its memory on this machine.
    fn write() -> Result<Self> {
        remove_left(&std::env::temp_dir());
        let (folder, running) = folder().context("make a folder for the program's library")?;
        let at = folder.path();
        let refused = |why: &str, hint: &str| {
            let what = "the program's library cannot be loaded from";
            Failure::new(format!("{what} {}: {why}", at.display()), hint)
        };
        // The loader takes these for the end of a path.
        if (at.as_os_str().as_bytes().iter()).any(|byte| b" :".contains(byte)) {
            let hint = "set TMPDIR to a folder without them";
            return Err(refused("its path has spaces or colons", hint).into());
        }
        let path = at.join("libcenote_preload.so");
        std::fs::write(&path, LIBRARY).context("write the program's library")?;
        let file = File::open(&path).context("open the program's library")?;
        map_code(&file).map_err(|error| {
            let hint = "set TMPDIR to a folder that is not mounted noexec";
            refused(&error.to_string(), hint)
        })?;
        Ok(Self {
            folder,
            path,
            _running: running,
        })
    }
}

/// A folder, and the lock that keeps it from being removed as one that was left.
fn folder() -> io::Result<(TempDir, File)> {
    loop {
        let folder = tempfile::Builder::new().prefix(FOLDER_PREFIX).tempdir()?;
        let running = File::create_new(folder.path().join(RUNNING))?;
        // Another process may have taken it for one that was left, before it was locked.
        if running.try_lock().is_ok() && running.metadata()?.nlink() > 0 {
            return Ok((folder, running));
        }
    }
}

/// Removes folders of processes that were killed; one that cannot be removed stays.
fn remove_left(all: &Path) {
    let Ok(entries) = std::fs::read_dir(all) else {
        return;
    };
    let user = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        let name = entry.file_name();
        // Of another user nothing is opened: they may put anything there.
        let is_own = || {
            entry
                .metadata()
                .is_ok_and(|found| found.is_dir() && found.uid() == user)
        };
        if !name.as_bytes().starts_with(FOLDER_PREFIX.as_bytes()) || !is_own() {
            continue;
        }
        let Ok(running) = File::open(entry.path().join(RUNNING)) else {
            continue;
        };
        // Locked until it is gone, so that whoever just made it finds out.
        if running.try_lock().is_ok()
            && let Err(error) = std::fs::remove_dir_all(entry.path())
        {
            tracing::debug!(%error, folder = %entry.path().display(), "remove what was left");
        }
    }
}

/// Maps a library as the loader does.
#[allow(unsafe_code, reason = "mappings have no safe wrapper in std")]
fn map_code(library: &File) -> io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_EXEC;
    let (len, fd) = (LIBRARY.len(), library.as_raw_fd());
    // SAFETY: a new private mapping at an address that the kernel chooses touches nothing.
    let at = unsafe { libc::mmap(ptr::null_mut(), len, access, libc::MAP_PRIVATE, fd, 0) };
    if at == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the range was just mapped, and nobody else knows it.
    unsafe { libc::munmap(at, len) };
    Ok(())
}

fn start(args: &Args, library: &Path, settings: &OsStr) -> Result<Child> {
    let [name, arguments @ ..] = args.program.as_slice() else {
        return Err(Failure::usage("no program given", "-- PROGRAM ARGS").into());
    };
    let mut preload = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(name);
    command
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .env(variable(), settings);
    confine(&mut command);
    command.spawn().map_err(|error| {
        let what = format!("start {}: {error}", name.display());
        Failure::new(what, "name an existing program after --").into()
    })
}

fn variable() -> &'static OsStr {
    let name = cenote_preload::wire::VARIABLE.trim_ascii_end();
    let name = name.strip_suffix(b"\0").unwrap_or(name);
    OsStr::new(str::from_utf8(name).expect("a name in ASCII"))
}

#[allow(
    unsafe_code,
    reason = "what runs between fork and exec has to be promised by hand"
)]
fn confine(command: &mut Command) {
    let prepare = || {
        signals::unblock()?;
        seccomp::confine()
    };
    // SAFETY: both make system calls alone.
    unsafe { command.pre_exec(prepare) };
}

fn as_line(served: &Served) -> String {
    let counters = served.counters;
    format!(
        "{} address spaces; {} faults, {} waited for room; {} pages read, {} prefetched, {} of them hits; \
         {} evicted, {} written; {} lost; at most {} resident, {} in the cluster",
        served.spaces,
        counters.faults,
        counters.waits,
        counters.reads,
        counters.reads_ahead,
        counters.reads_ahead_useful,
        counters.drops,
        counters.writes,
        counters.lost,
        Size(served.resident_max_bytes).rounded(),
        Size(served.stored_bytes).rounded(),
    )
}

fn as_json(served: &Served) -> serde_json::Value {
    let counters = served.counters;
    serde_json::json!({
        "spaces": served.spaces,
        "faults": counters.faults,
        "waits": counters.waits,
        "write_faults": counters.write_faults,
        "zeroed": counters.zeroed,
        "reads": counters.reads,
        "prefetched": counters.reads_ahead,
        "hits": counters.reads_ahead_useful,
        "evicted": counters.drops,
        "written": counters.writes,
        "write_failures": counters.write_failures,
        "lost": counters.lost,
        "resident_max_bytes": served.resident_max_bytes,
        "stored_bytes": served.stored_bytes,
    })
}
