//! `cenote-memcached`: the server alone, started as memcached is.
//!
//! With no other node it keeps its items as memcached does: until it ends.

#![forbid(unsafe_code)]

mod options;
mod resolver;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use cenote_cli::stderr;
use cenote_kv::memory::key_hash::KeyHasher;
use cenote_memcached::files::Files;
use cenote_memcached::{Alone, Handle, Server, Settings, Stopped, threads};
use clap::Parser;
use clap::error::ErrorKind;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::unistd::{User, geteuid, setgid, setgroups, setuid};
use options::{Options, Refused};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

/// What memcached ends with where the system refuses something.
const OS_ERROR: u8 = 71;
/// What memcached ends with where there is no such user.
const NO_USER: u8 = 67;
/// Descriptors beside those of connections.
const OTHER_DESCRIPTORS: u64 = 64;

fn main() -> ExitCode {
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => return refused_arguments(&error),
    };
    if options.version {
        println!("memcached {}", options::VERSION);
        return ExitCode::SUCCESS;
    }
    if options.license {
        println!("Cenote is under the Apache License, version 2.0.");
        return ExitCode::SUCCESS;
    }
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(refused) => {
            stderr::say(refused.text);
            ExitCode::from(refused.status)
        }
    }
}

/// memcached ends by 1 on arguments that it does not know.
fn refused_arguments(error: &clap::Error) -> ExitCode {
    // Where nobody reads there is nobody to tell that.
    error.print().ok();
    match error.kind() {
        ErrorKind::DisplayHelp => ExitCode::SUCCESS,
        _ => ExitCode::from(1),
    }
}

fn run(options: &Options) -> Result<(), Refused> {
    let (mut settings, mut files, notes) = options.settings()?;
    let mut pidfile = options.pidfile.clone().filter(|_| options.daemon);
    let verbosity = settings.verbosity;
    if verbosity > 0 {
        for note in notes {
            stderr::say(note);
        }
    }
    if let Some(warning) = options::warning(&settings, &files) {
        stderr::say(warning);
    }
    prepare(options)?;
    if options.daemon {
        // It leaves its working directory, and reads some of its files again later.
        make_absolute(&mut settings, &mut files, &mut pidfile)?;
        // No thread has been started yet. Standard streams go to /dev/null.
        let stays = options.enable_coredumps;
        nix::unistd::daemon(stays, verbosity > 0).map_err(|error| {
            Refused::new(
                1,
                format!("failed to daemon() in order to daemonize: {error}"),
            )
        })?;
        if options.lock_memory {
            // It is another process: those do not inherit locks.
            lock_memory();
        }
    }
    let workers = settings.workers;
    let (memory_bytes, evicts) = (settings.memory_bytes, settings.evicts);
    let server =
        Server::bind(settings).map_err(|error| Refused::new(OS_ERROR, error.to_string()))?;
    // Before the ports and its number are known: who knows them may end it.
    watch_signals(server.handle(), files, verbosity)?;
    write_ports(&server)?;
    if let Some(path) = &pidfile {
        save_pid(path);
    }
    let hasher = KeyHasher::random()
        .map_err(|error| Refused::new(OS_ERROR, format!("failed to get random bytes: {error}")))?;
    let stopped = server.run(|worker| Alone::new(worker, workers, memory_bytes, evicts, hasher));
    if let Some(path) = &pidfile
        && let Err(error) = std::fs::remove_file(path)
    {
        stderr::say(format_args!(
            "Could not remove the pid file {}: {error}",
            path.display()
        ));
    }
    match stopped {
        Ok(Stopped::AtOnce) => Ok(()),
        Ok(Stopped::Gracefully) => {
            stderr::say("Gracefully stopping");
            Ok(())
        }
        Err(error) => Err(Refused::new(1, error.to_string())),
    }
}

/// Limits, locks and the user, before any thread starts.
fn prepare(options: &Options) -> Result<(), Refused> {
    let failed = |what: &str, error: nix::Error| Refused::new(OS_ERROR, format!("{what}: {error}"));
    if options.enable_coredumps {
        let (_, most) = getrlimit(Resource::RLIMIT_CORE)
            .map_err(|error| failed("failed to ensure corefile creation", error))?;
        setrlimit(Resource::RLIMIT_CORE, most, most)
            .map_err(|error| failed("failed to ensure corefile creation", error))?;
    }
    let wanted = options.conn_limit as u64 + OTHER_DESCRIPTORS;
    let (now, most) = getrlimit(Resource::RLIMIT_NOFILE)
        .map_err(|error| failed("failed to getrlimit number of files", error))?;
    if now < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, most.max(wanted)).map_err(|error| {
            failed(
                "failed to set rlimit for open files. Try starting as root or requesting smaller maxconns value",
                error,
            )
        })?;
    }
    if options.lock_memory {
        // For the time after the user is another, and of a daemon: it cannot tell what fails there.
        setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).ok();
        lock_memory();
    }
    if geteuid().is_root() {
        become_user(options.user.as_deref())?;
    }
    Ok(())
}

/// Keeps all memory of this process from being swapped, also what it takes later.
fn lock_memory() {
    if let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE) {
        stderr::say(format_args!(
            "warning: -k invalid, mlockall() failed: {error}"
        ));
    }
}

/// Has files mean the same in any working directory.
fn make_absolute(
    settings: &mut Settings,
    files: &mut Files,
    pidfile: &mut Option<PathBuf>,
) -> Result<(), Refused> {
    let unix = settings.unix.as_mut().map(|(path, _)| path);
    for path in unix.into_iter().chain(pidfile).chain(files.paths_mut()) {
        *path = std::path::absolute(&*path).map_err(|error| {
            let text = format!("failed to find {}: {error}", path.display());
            Refused::new(OS_ERROR, text)
        })?;
    }
    Ok(())
}

fn become_user(name: Option<&str>) -> Result<(), Refused> {
    let Some(name) = name else {
        return Err(Refused::new(
            Refused::USAGE,
            "can't run as root without the -u switch",
        ));
    };
    let user = User::from_name(name)
        .ok()
        .flatten()
        .ok_or_else(|| Refused::new(NO_USER, format!("can't find the user {name} to switch to")))?;
    if user.uid.is_root() {
        return Ok(());
    }
    setgroups(&[])
        .and_then(|()| setgid(user.gid))
        .and_then(|()| setuid(user.uid))
        .map_err(|error| {
            let text = format!("failed to assume identity of user {name}: {error}");
            Refused::new(OS_ERROR, text)
        })
}

/// Leaves the number of this process. It serves without, as memcached does: who started it has been told
/// already that all is well.
fn save_pid(path: &Path) {
    if let Err(error) = std::fs::write(path, format!("{}\n", std::process::id())) {
        let path = path.display();
        stderr::say(format_args!(
            "Could not open the pid file {path} for writing: {error}"
        ));
    }
}

/// Tells the ports that were chosen, in the file that memcached's own tests read.
fn write_ports(server: &Server) -> Result<(), Refused> {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME") else {
        return Ok(());
    };
    let failed = |error: std::io::Error| {
        let path = Path::new(&path).display();
        Refused::new(OS_ERROR, format!("Failed to open \"{path}\": {error}"))
    };
    let mut text = Vec::new();
    let tcp = server
        .tcp_addresses()
        .into_iter()
        .map(|address| ("TCP", address));
    let udp = server
        .udp_addresses()
        .into_iter()
        .map(|address| ("UDP", address));
    for (kind, address) in tcp.chain(udp) {
        let family = if address.is_ipv4() { "INET" } else { "INET6" };
        writeln!(text, "{kind} {family}: {}", address.port()).map_err(failed)?;
    }
    // Who waits for the file finds it whole.
    let mut draft = path.clone();
    draft.push(".lck");
    std::fs::write(&draft, text).map_err(failed)?;
    std::fs::rename(&draft, &path).map_err(failed)
}

/// Ends the server on SIGTERM, SIGINT and SIGUSR1, and reads files again on SIGHUP.
fn watch_signals(handle: Handle, files: Files, verbosity: u8) -> Result<(), Refused> {
    let failed = |error: std::io::Error| Refused::new(OS_ERROR, error.to_string());
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGUSR1, SIGHUP]).map_err(failed)?;
    let watch = move || {
        for signal in signals.forever() {
            match signal {
                SIGHUP => {
                    for error in files.reload(&handle) {
                        stderr::say(format_args!("{error}; what was read before stays"));
                    }
                }
                SIGUSR1 => handle.stop_gracefully(),
                _ => {
                    if verbosity > 1 {
                        stderr::say("Exiting normally");
                    }
                    handle.stop();
                }
            }
        }
    };
    threads::spawn("signals", watch).map(drop).map_err(failed)
}
