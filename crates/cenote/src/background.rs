//! Servers in the background: a command started again as a process of its own, which the first one
//! leaves once it serves.
//!
//! ```text
//! DIR/servers/NAME/{pid,started}  which process serves volume NAME in the background; `pid` goes
//!                                 when that process ends in good order
//! DIR/servers/NAME/log            what it says
//! ```

use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use cenote_cli::failure::{DONE, FAILED, Failure};
use cenote_cli::span::Span;
use cenote_cli::stderr;

use crate::folder::Folder;
use crate::place::ClusterDir;
use crate::process::{self, Identity, Process};
use crate::shell::quoted;
use crate::volume_server::WhichVolume;
use crate::volumes::{UNNAMED, check_name_of};

/// The folder with one for each server in the background.
const SERVERS: &str = "servers";
/// What a server says.
const LOG: &str = "log";
/// How long a server may take to end before another one takes its place.
const ENDING: Duration = Duration::from_secs(3);
/// How long a server is waited for without a word.
const SILENCE: Duration = Duration::from_secs(3);

/// Starts the server of a volume; the command lacks the volume's flags. As [`start`].
///
/// # Errors
/// As [`start`]; others may change the folder.
pub fn start_volume(command: &mut Command, dir: &ClusterDir, which: &WhichVolume) -> Result<u8> {
    command.args(which.arguments()?);
    let name = which.name();
    if which.volume.is_none() {
        // `volume stop` is told the volume's name, and looks for its server by that.
        command.args(["--unnamed", &name]);
    }
    // Of two at the same time, the second finds the server of the first.
    let (folder, _lock) = folder_of(dir, &name)?;
    start(command, &folder, &format!("volume {name}"), |_| {
        format!("cenote volume stop {name} --dir {}", quoted(dir.root()))
    })
}

/// The folder of the server of a volume in the background, locked, so that no other command removes
/// it: those of volumes without a name are removed once their servers have ended.
fn folder_of(dir: &ClusterDir, volume: &str) -> Result<(Folder, OwnedFd)> {
    check_name_of("volume", volume)?;
    let servers = dir.folder().make(SERVERS)?;
    let all = servers.lock()?;
    remove_unnamed(dir, &servers, volume)?;
    let folder = servers.make(volume)?;
    if let Some(lock) = folder.try_lock()? {
        return Ok((folder, lock));
    }
    // It stays, as the volume has a name. Others start meanwhile.
    drop(all);
    let lock = folder.lock()?;
    Ok((folder, lock))
}

/// Removes folders of servers of volumes without a name which have ended: not one that is just being
/// started, by the command in its name. To be called before this process makes the one that is called
/// `ours`: what has that name by then is of an earlier process of the same number.
fn remove_unnamed(dir: &ClusterDir, servers: &Folder, ours: &str) -> Result<()> {
    for (name, folder) in dir.folder().subs(SERVERS)? {
        let Some(starter) = name.strip_prefix(UNNAMED) else {
            continue;
        };
        let is_starting = |pid: u32| name != ours && Identity::of(pid).is_ok();
        if starter.parse().is_ok_and(is_starting) {
            continue;
        }
        // The command may run in another container, where no process is seen; it holds this lock.
        let Some(_lock) = folder.try_lock()? else {
            continue;
        };
        if running(&folder)?.is_none() {
            for file in ["pid", "started", LOG] {
                folder.remove(file)?;
            }
            servers.remove_folder(&name)?;
        }
    }
    Ok(())
}

/// The program itself, to be started again.
///
/// # Errors
/// Its file cannot be found.
pub fn this_program() -> Result<Command> {
    let program = std::env::current_exe().context("find this program's file")?;
    Ok(Command::new(program))
}

/// Starts a server and returns once it has said `ready`: where, as which process, and where its log is.
/// One that ends before that is quoted, and its exit code is ours. The caller keeps others from starting
/// one in this folder meanwhile. `shown` is what it serves, and `stop` the command that ends one.
///
/// # Errors
/// One runs already, or the process cannot be started.
pub fn start(
    command: &mut Command,
    folder: &Folder,
    shown: &str,
    stop: impl FnOnce(u32) -> String,
) -> Result<u8> {
    // One that was just unmounted, or asked to end, may be about to.
    if let Some((pid, process)) = running(folder)?
        && !process.wait(Instant::now() + ENDING)?
    {
        let what = format!("{shown}: process {pid} already serves it in the background");
        return Err(Failure::new(what, stop(pid)).into());
    }
    let log = folder.empty_file(LOG)?;
    let mut child = process::in_background(command, log)
        .spawn()
        .context("start the process that serves")?;
    // Before it serves: it may end at once then, and forgets this note.
    if let Err(error) = Identity::of(child.id()).and_then(|identity| identity.save(folder)) {
        child.kill().context("end the process that serves")?;
        child.wait().context("wait for the process to exit")?;
        return Err(error.context("note which process serves"));
    }
    let line = process::first_line(&mut child)?;
    if !line.starts_with("ready ") {
        return not_started(&mut child, folder);
    }
    println!(
        "{}, log {}, pid {}",
        line.trim_end(),
        folder.join(LOG).display(),
        child.id()
    );
    Ok(DONE)
}

/// Ends the server of a volume; its process number.
///
/// # Errors
/// None was started in the background, or it does not end in time.
pub fn stop(dir: &ClusterDir, volume: &str, timeout: Duration) -> Result<u32> {
    let none = || {
        let what = format!("volume {volume} has no server in the background");
        Failure::new(what, "SIGTERM or Ctrl-C ends one in the foreground")
    };
    let servers = dir.folder().sub(SERVERS)?;
    let folder = servers.map(|servers| servers.sub(volume)).transpose()?;
    let folder = folder.flatten().ok_or_else(none)?;
    let identity = Identity::load(&folder)?.ok_or_else(none)?;
    let process = identity.open()?.ok_or_else(none)?;
    process.signal(libc::SIGTERM).context("end the server")?;
    let (pid, begun) = (identity.pid, Instant::now());
    let mut has_ended = process.wait(begun + timeout.min(SILENCE))?;
    if !has_ended && timeout > SILENCE {
        let limit = Span::from(timeout);
        let what = match process::is_stopped(pid) {
            true => format!("process {pid} is stopped; kill -CONT {pid} lets it exit"),
            false => format!("waiting for process {pid} to exit, for at most {limit}"),
        };
        stderr::say(what);
        has_ended = process.wait(begun + timeout)?;
    }
    if !has_ended {
        let what = format!("process {pid} did not exit within {}", Span::from(timeout));
        let remedy = match process::is_stopped(pid) {
            true => format!("kill -CONT {pid}: it is stopped"),
            false => "wait: it is still exiting".to_owned(),
        };
        return Err(Failure::new(what, remedy).into());
    }
    Identity::forget_ended(&folder)?;
    Ok(identity.pid)
}

/// Asks all servers of volumes in the background to end, and waits for them; volumes whose servers
/// have ended. One whose server cannot be asked does not keep the others.
///
/// # Errors
/// The folder cannot be read.
pub fn stop_all(dir: &ClusterDir, timeout: Duration) -> Result<Vec<String>> {
    let mut asked = Vec::new();
    for (name, folder) in dir.folder().each_sub(SERVERS)? {
        let asking = || -> Result<Option<(Folder, Process)>> {
            let folder = folder?;
            let Some((_, process)) = running(&folder)? else {
                return Ok(None);
            };
            process.signal(libc::SIGTERM).context("end the server")?;
            Ok(Some((folder, process)))
        };
        match asking() {
            Ok(Some((folder, process))) => asked.push((name, folder, process)),
            Ok(None) => {}
            Err(error) => {
                let error = cenote_cli::failure::chain(&error);
                tracing::warn!(volume = name, error, "end the server of a volume");
            }
        }
    }
    let (deadline, mut ended) = (Instant::now() + timeout, Vec::new());
    for (name, folder, process) in asked {
        if process.wait(deadline)? {
            Identity::forget_ended(&folder)?;
            ended.push(name);
        }
    }
    Ok(ended)
}

/// The process that serves a volume in the background, if one does that can be told.
pub fn server_of(dir: &ClusterDir, volume: &str) -> Option<u32> {
    let folder = dir.folder().sub(SERVERS).ok()??.sub(volume).ok()??;
    running(&folder).ok()?.map(|(pid, _)| pid)
}

/// Forgets that this process serves a volume in the background, if it does: it ends in good order, so
/// that nobody has to look why.
pub fn ends(dir: &ClusterDir, volume: &str) {
    let forget = || -> Result<()> {
        let servers = dir.folder().sub(SERVERS)?;
        let folder = servers.map(|servers| servers.sub(volume)).transpose()?;
        match folder.flatten() {
            Some(folder) => Identity::forget_own(&folder),
            None => Ok(()),
        }
    };
    if let Err(error) = forget() {
        let error = cenote_cli::failure::chain(&error);
        tracing::warn!(volume, error, "forget the server, which has ended");
    }
}

/// The process that was started here, if it still runs.
fn running(folder: &Folder) -> Result<Option<(u32, Process)>> {
    let Some(identity) = Identity::load(folder)? else {
        return Ok(None);
    };
    Ok(identity.open()?.map(|process| (identity.pid, process)))
}

/// What the process said before it ended, in its own words.
fn not_started(child: &mut Child, folder: &Folder) -> Result<u8> {
    let status = child.wait().context("wait for the process to exit")?;
    let said = folder.read(LOG)?.unwrap_or_default();
    eprint!("{said}");
    Identity::forget_ended(folder)?;
    if said.is_empty() {
        let what = format!("the server exited without a message: {status}");
        return Err(Failure::new(what, "run it without --background").into());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(code.unwrap_or(FAILED))
}
