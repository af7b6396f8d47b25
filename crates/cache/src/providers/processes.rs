//! Machines that are host processes of this machine, each in a cgroup where that is allowed.
//!
//! A host announces itself by one line, `ready NAME at ADDRESS`, on its standard output. It is told to end
//! by SIGTERM, and killed when it does not.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::{Error, Machine, Provider, Wish};
use crate::links::HostConfig;

/// How long a host may take to announce itself: to lock memory takes seconds.
const START_LIMIT: Duration = Duration::from_secs(30);
/// How long one that was told to end may take, beyond its grace period.
const END_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(5);
/// Longest announcement.
const LINE_BYTES_MAX: usize = 4096;
/// Memory of a host beside what it lends.
const OWN_BYTES: u64 = 128 << 20;
/// Of a cgroup's processor time, what is given out at once.
const CPU_PERIOD_US: u64 = 100_000;

/// How hosts are started.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program, `cenote`.
    pub program: PathBuf,
    /// Where their sockets and logs are.
    pub folder: PathBuf,
    /// The cluster's key.
    pub key: PathBuf,
    /// Over loopback TCP, and not over shared memory.
    pub over_tcp: bool,
    /// What they give their clients when they are told to end.
    pub grace: Duration,
    /// A cgroup (version 2) whose children they are, with memory and processors as wished; where that
    /// is not allowed, without.
    pub cgroup: Option<PathBuf>,
    /// Most of them.
    pub count_max: usize,
}

/// Starts hosts here. Dropping it ends them.
pub struct Processes {
    settings: Settings,
    running: BTreeMap<String, Running>,
    started: u64,
}

struct Running {
    order: String,
    child: Child,
    cgroup: Option<PathBuf>,
}

impl Processes {
    /// None runs yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            running: BTreeMap::new(),
            started: 0,
        }
    }

    /// The process of a machine, as long as it is there.
    #[must_use]
    pub fn pid(&self, id: &str) -> Option<u32> {
        self.running.get(id).map(|running| running.child.id())
    }

    fn command(&self, id: &str, wish: &Wish) -> Command {
        let address = if self.settings.over_tcp {
            "tcp:127.0.0.1:0".to_owned()
        } else {
            let socket = self.settings.folder.join(format!("{id}.socket"));
            format!("shm:{}", socket.display())
        };
        let mut command = Command::new(&self.settings.program);
        command
            .args(["host", "--name", id, "--listen", &address])
            .args(["--memory", &kib(wish.memory_bytes)])
            .args(["--slab", &kib(wish.slab_bytes)])
            .args(["--cache-threads", &wish.cores.to_string()])
            .args(["--grace", &format!("{}us", self.settings.grace.as_micros())])
            .arg("--key")
            .arg(&self.settings.key)
            .env_remove("CENOTE_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        command
    }
}

/// As the program's sizes are written.
fn kib(bytes: u64) -> String {
    format!("{}K", bytes >> 10)
}

impl Provider for Processes {
    fn acquire(&mut self, wish: &Wish) -> Result<Machine, Error> {
        if self.running.len() >= self.settings.count_max {
            let machine_type = wish.machine_type.clone();
            return Err(Error::None { machine_type });
        }
        self.started += 1;
        let id = format!("m{}-{}", std::process::id(), self.started);
        let what = format!("start host {id}");
        let log = self.settings.folder.join(format!("{id}.log"));
        let log = fs::File::create(log).map_err(|error| Error::os(&what, error))?;
        let mut command = self.command(&id, wish);
        let child = command.stderr(log).spawn();
        let mut child = child.map_err(|error| Error::os(&what, error))?;
        let announcement = child.stdout.take().expect("it is piped");
        let cgroup = self.settings.cgroup.as_deref();
        let cgroup = cgroup.and_then(|parent| {
            confine(
                parent,
                &id,
                child.id(),
                wish.memory_bytes,
                wish.cores.into(),
            )
        });
        // From here on it is ended with this provider, at the latest.
        let running = Running {
            order: wish.order.clone(),
            child,
            cgroup,
        };
        self.running.insert(id.clone(), running);
        match announced(announcement, &id, &what) {
            Ok(host) => {
                let order = wish.order.clone();
                Ok(Machine { order, id, host })
            }
            Err(error) => {
                self.end(&id, Duration::ZERO)?;
                Err(error)
            }
        }
    }

    fn release(&mut self, machine: &Machine) -> Result<(), Error> {
        self.end(&machine.id, self.settings.grace + END_LIMIT)
    }

    fn cancel(&mut self, order: &str) -> Result<(), Error> {
        let of_it = self.running.iter().find(|(_, one)| one.order == order);
        match of_it.map(|(id, _)| id.clone()) {
            Some(id) => self.end(&id, END_LIMIT),
            None => Ok(()),
        }
    }
}

impl Processes {
    /// Tells a process to end, and kills it after `patience`.
    fn end(&mut self, id: &str, patience: Duration) -> Result<(), Error> {
        let what = format!("end host {id}");
        let Some(running) = self.running.get_mut(id) else {
            return Ok(());
        };
        let deadline = Instant::now() + patience;
        if !patience.is_zero()
            && let Some(pid) = Pid::from_raw(running.child.id().cast_signed())
        {
            // A child that is not waited for keeps its number.
            if let Err(error) = kill_process(pid, Signal::TERM) {
                tracing::debug!(%error, "a host has ended by itself");
            }
        }
        loop {
            match running.child.try_wait() {
                Ok(Some(_)) => break,
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) => {
                    let ended = running.child.kill().and_then(|()| running.child.wait());
                    ended.map_err(|error| Error::os(&what, error))?;
                    break;
                }
                Err(error) => return Err(Error::os(&what, error)),
            }
        }
        let running = self.running.remove(id).expect("it was there");
        if let Some(cgroup) = running.cgroup
            && let Err(error) = fs::remove_dir(&cgroup)
        {
            tracing::warn!(cgroup = %cgroup.display(), %error, "remove a cgroup");
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        let all: Vec<String> = self.running.keys().cloned().collect();
        for id in all {
            if let Err(error) = self.end(&id, END_LIMIT) {
                tracing::error!(%error, "a host is left");
            }
        }
    }
}

/// Puts a host's process into a cgroup of its own below `parent`, with what it lends and so many cores; `None` where
/// that is not allowed.
pub fn confine(
    parent: &Path,
    id: &str,
    pid: u32,
    memory_bytes: u64,
    cores: u64,
) -> Option<PathBuf> {
    let group = parent.join(id);
    let memory = memory_bytes.saturating_add(OWN_BYTES).to_string();
    // Its control thread and agent need a processor, too.
    let quota = cores.saturating_add(1).saturating_mul(CPU_PERIOD_US);
    // In a cgroup these are there; anywhere else they are not to be made.
    let put = |file: &str, text: &str| {
        let mut file = fs::OpenOptions::new().write(true).open(group.join(file))?;
        file.write_all(text.as_bytes())
    };
    let made = fs::create_dir(&group)
        .and_then(|()| put("memory.max", &memory))
        .and_then(|()| put("cpu.max", &format!("{quota} {CPU_PERIOD_US}")))
        .and_then(|()| put("cgroup.procs", &pid.to_string()));
    match made {
        Ok(()) => Some(group),
        Err(error) => {
            tracing::info!(%error, host = id, "runs without a cgroup of its own");
            // Empty, or never made.
            drop(fs::remove_dir(&group));
            None
        }
    }
}

/// Removes the cgroup of a process that has ended, if it had one.
pub fn release_confined(parent: &Path, id: &str) {
    // It is empty, or was never made.
    drop(fs::remove_dir(parent.join(id)));
}

/// Waits for the host's line.
fn announced(mut from: ChildStdout, id: &str, what: &str) -> Result<HostConfig, Error> {
    let deadline = Instant::now() + START_LIMIT;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            let (what, limit) = (what.to_owned(), START_LIMIT);
            return Err(Error::Late { what, limit });
        }
        let fd = std::os::fd::AsRawFd::as_raw_fd(&from);
        let is_ready = cenote_fabric::wait(&[fd], Some(left));
        if !is_ready.map_err(|error| nonsense(what, &error))? {
            continue;
        }
        let mut some = [0; 256];
        let len = from
            .read(&mut some)
            .map_err(|error| Error::os(what, error))?;
        if len == 0 || line.len() > LINE_BYTES_MAX {
            return Err(nonsense(
                what,
                &"it ended, or said too much; its log says why",
            ));
        }
        line.extend(&some[..len]);
    }
    let line = String::from_utf8_lossy(&line);
    let address = line
        .trim_end()
        .strip_prefix("ready ")
        .and_then(|rest| rest.strip_prefix(id))
        .and_then(|rest| rest.strip_prefix(" at "))
        .ok_or_else(|| nonsense(what, &"it announced something else"))?;
    let address = address.parse().map_err(|error| nonsense(what, &error))?;
    Ok(HostConfig {
        name: id.to_owned(),
        address,
        domain: id.to_owned(),
    })
}

fn nonsense(what: &str, said: &dyn std::fmt::Display) -> Error {
    Error::Nonsense {
        what: what.to_owned(),
        said: said.to_string(),
    }
}
