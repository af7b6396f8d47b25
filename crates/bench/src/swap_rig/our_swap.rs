//! Swap on the memory of a local cluster, by this program's own commands, as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, bail};
use cenote_cli::program;
use serde_json::Value;

use super::area;

/// Swap on the hosts of the cluster in a folder; dropping it turns it off.
pub(crate) struct OurSwap {
    dir: PathBuf,
    is_on: bool,
}

impl OurSwap {
    /// `cenote swap on` with `args`, above any other swap. Returns what it said as well.
    pub(crate) fn on(dir: &Path, args: &[&str]) -> anyhow::Result<(Self, String)> {
        Self::on_with(dir, args, &[])
    }

    /// As [`OurSwap::on`], with variables of the environment.
    pub(crate) fn on_with(
        dir: &Path,
        args: &[&str],
        variables: &[(&str, &str)],
    ) -> anyhow::Result<(Self, String)> {
        // Made first: a command that was interrupted may have turned it on nevertheless.
        let mut device = Self {
            dir: dir.to_owned(),
            is_on: true,
        };
        let priority = area::PRIORITY.to_string();
        let args = [&["swap", "on", "--priority", &priority], args].concat();
        let output = spawn(&args, dir, variables)?;
        let said = said(&args, &output)
            .inspect_err(|_| device.is_on = cenote(&["swap", "status"], dir).is_ok())?;
        Ok((device, said))
    }

    /// Turns swap off, which fails when pages were lost.
    pub(crate) fn off(mut self) -> anyhow::Result<()> {
        self.is_on = false;
        cenote(&["swap", "off"], &self.dir).map(drop)
    }

    /// What `cenote swap status` says.
    pub(crate) fn swap_status(&self) -> anyhow::Result<Value> {
        json(&["swap", "status", "--json"], &self.dir)
    }

    /// What the volume says of itself.
    pub(crate) fn volume_status(&self) -> anyhow::Result<Value> {
        let list = json(&["volume", "list", "--json"], &self.dir)?;
        let name = list.as_array().and_then(|volumes| {
            let used = volumes.iter().find(|volume| volume["in_use"] == true);
            used?["name"].as_str().map(str::to_owned)
        });
        let name = name.context("the swap volume is not in use")?;
        let mut answer = json(&["volume", "status", &name, "--json"], &self.dir)?;
        Ok(answer["status"].take())
    }
}

impl Drop for OurSwap {
    fn drop(&mut self) {
        if self.is_on
            && let Err(error) = cenote(&["swap", "off"], &self.dir)
        {
            eprintln!("{error:#}");
        }
    }
}

/// Runs a command of this program on the cluster in `dir` and returns what it prints.
pub(crate) fn cenote(args: &[&str], dir: &Path) -> anyhow::Result<String> {
    said(args, &spawn(args, dir, &[])?)
}

/// What a command that went well printed.
fn said(args: &[&str], output: &Output) -> anyhow::Result<String> {
    if !output.status.success() {
        bail!(
            "cenote {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As [`cenote`], for an answer in JSON; its exit code only repeats what the answer says.
fn json(args: &[&str], dir: &Path) -> anyhow::Result<Value> {
    let output = spawn(args, dir, &[])?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("cenote {}: {}", args.join(" "), said.trim())
    })
}

fn spawn(args: &[&str], dir: &Path, variables: &[(&str, &str)]) -> anyhow::Result<Output> {
    use std::os::unix::process::CommandExt as _;
    let program = program::cenote()?;
    Command::new(program)
        .args(args)
        .arg("--dir")
        .arg(dir)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        // Ctrl-C is for this process, which takes down what was made.
        .process_group(0)
        .output()
        .with_context(|| format!("run cenote {}", args.join(" ")))
}
