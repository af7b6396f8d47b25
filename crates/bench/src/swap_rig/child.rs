//! A child process inside a memory cgroup from its first instruction on.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use anyhow::Context as _;
use cenote_block::swap::cgroup::MemoryCgroup;

/// A process that is killed, and waited for, when dropped.
pub(crate) struct Killed {
    child: Child,
    name: &'static str,
}

impl Killed {
    pub(crate) fn new(child: Child, name: &'static str) -> Self {
        Self { child, name }
    }

    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // A child that was waited for is not killed again: its id may be another's by now.
        if !matches!(self.child.try_wait(), Ok(None)) {
            return;
        }
        if self.child.kill().is_err() || self.child.wait().is_err() {
            eprintln!("{} could not be ended", self.name);
        }
    }
}

/// Has `command` start inside `group`, end with the thread that starts it, and get no Ctrl-C of
/// the terminal: that is for this program, which ends the child in its turn.
pub(crate) fn confine(command: &mut Command, group: &MemoryCgroup) -> anyhow::Result<()> {
    let procs = File::options()
        .write(true)
        .open(group.procs_path())
        .context("open the memory cgroup")?;
    detach(command);
    // SAFETY: between fork and exec only an async-signal-safe call: a write of one byte. "0"
    // stands for the writing process.
    unsafe {
        command.pre_exec(move || (&procs).write_all(b"0"));
    }
    Ok(())
}

/// As [`confine`], without a limit on its memory.
pub(crate) fn detach(command: &mut Command) {
    command.process_group(0);
    // SAFETY: prctl is async-signal-safe and takes integers only.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}
