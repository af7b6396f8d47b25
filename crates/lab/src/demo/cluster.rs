//! The hosts and the swap device on their memory, made with this program's own commands.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::interrupt::Interrupt;
use super::load::Driver;
use super::report::Rebuild;
use super::{Options, swap_file};

/// Running hosts; dropping it stops them.
pub(super) struct Cluster {
    dir: PathBuf,
}

impl Cluster {
    pub(super) fn start(options: &Options) -> anyhow::Result<Self> {
        // Made first: an `up` that fails halfway is taken down as well.
        let cluster = Self {
            dir: options.dir.join("cluster"),
        };
        let hosts = options.host_count.to_string();
        let memory = format!("{}M", options.host_mib);
        cenote(
            &[
                "up",
                "--hosts",
                &hosts,
                "--memory",
                &memory,
                "--transport",
                &options.transport,
            ],
            &cluster.dir,
        )?;
        Ok(cluster)
    }

    /// Kills `count` hosts at once, spread over the cluster; returns their names.
    pub(super) fn kill(&self, count: usize) -> anyhow::Result<Vec<String>> {
        let folder = self.dir.join("hosts");
        let mut names = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        let step = (names.len() / count.max(1)).max(1);
        let victims: Vec<String> = names
            .into_iter()
            .skip(1)
            .step_by(step)
            .take(count)
            .collect();
        let mut pids = Vec::new();
        for name in &victims {
            let text = fs::read_to_string(folder.join(name).join("pid"))
                .with_context(|| format!("read the pid of {name}"))?;
            let pid: libc::pid_t = text
                .trim()
                .parse()
                .with_context(|| format!("pid of {name}"))?;
            if pid <= 1 {
                bail!("{name} has no process of its own");
            }
            pids.push(pid);
        }
        for pid in pids {
            // SAFETY: a host that this run started, by the id that it wrote down.
            if unsafe { libc::kill(pid, libc::SIGKILL) } != 0 {
                return Err(std::io::Error::last_os_error()).context("kill a host");
            }
        }
        Ok(victims)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.dir.exists()
            && let Err(error) = cenote(&["down"], &self.dir)
        {
            eprintln!("{error:#}");
        }
    }
}

/// Swap on the hosts' memory; dropping it turns it off.
pub(super) struct SwapDevice {
    dir: PathBuf,
    is_on: bool,
}

impl SwapDevice {
    pub(super) fn on(
        cluster: &Cluster,
        options: &Options,
        progress: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        let size = format!("{}M", options.swap_mib);
        let priority = swap_file::area_priority().to_string();
        let args = ["swap", "on", "--size", &size, "--scheme", &options.scheme];
        let device = Self {
            dir: cluster.dir.clone(),
            is_on: true,
        };
        let said = cenote(
            &[&args[..], &["--priority", &priority]].concat(),
            &cluster.dir,
        )?;
        for line in said.lines() {
            progress(line);
        }
        Ok(device)
    }

    /// Turns swap off, which fails when pages were lost.
    pub(super) fn off(mut self) -> anyhow::Result<()> {
        self.is_on = false;
        cenote(&["swap", "off"], &self.dir).map(drop)
    }

    /// Waits until no extent has a slab on one of `lost` and all slabs are there; `None` when
    /// that takes longer than [`WHOLE_TIMEOUT`].
    pub(super) fn wait_until_whole(
        &self,
        lost: &[String],
        driver: &Driver<'_>,
        interrupt: &Interrupt,
    ) -> anyhow::Result<Option<Duration>> {
        let began = Instant::now();
        while began.elapsed() < WHOLE_TIMEOUT {
            let status = self.status()?;
            if is_whole(&status, lost) {
                return Ok(Some(began.elapsed()));
            }
            driver.run_for(STATUS_PERIOD, interrupt)?;
        }
        Ok(None)
    }

    /// Adds what the volume says of itself once the load is over.
    pub(super) fn complete(&self, rebuild: Rebuild) -> anyhow::Result<Rebuild> {
        let status = self.status()?;
        Ok(Rebuild {
            rebuilt_bytes: status["counters"]["rebuilt_bytes"].as_u64().unwrap_or(0),
            memory_overhead: status["overhead"].as_f64().unwrap_or(0.0),
            ..rebuild
        })
    }

    /// The status of the one volume that is in use.
    fn status(&self) -> anyhow::Result<Value> {
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

impl Drop for SwapDevice {
    fn drop(&mut self) {
        if self.is_on
            && let Err(error) = cenote(&["swap", "off"], &self.dir)
        {
            eprintln!("{error:#}");
        }
    }
}

/// Right after a kill a volume may not know of it yet, so `healthy` alone proves nothing.
fn is_whole(status: &Value, lost: &[String]) -> bool {
    let Some(extents) = status["extents"].as_array() else {
        return false;
    };
    let on_lost = extents
        .iter()
        .filter_map(|extent| extent["hosts"].as_array())
        .flatten()
        .any(|host| {
            host.as_str()
                .is_some_and(|name| lost.iter().any(|one| one == name))
        });
    status["health"] == "healthy" && !on_lost
}

/// Runs a command of this program on the cluster in `dir` and returns what it prints.
fn cenote(args: &[&str], dir: &Path) -> anyhow::Result<String> {
    let output = spawn(args, dir)?;
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
    let output = spawn(args, dir)?;
    serde_json::from_slice(&output.stdout).with_context(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("cenote {}: {}", args.join(" "), said.trim())
    })
}

fn spawn(args: &[&str], dir: &Path) -> anyhow::Result<std::process::Output> {
    use std::os::unix::process::CommandExt as _;
    let program = std::env::current_exe().context("find this program")?;
    Command::new(program)
        .args(args)
        .arg("--dir")
        .arg(dir)
        .stdin(Stdio::null())
        // Ctrl-C is for the demonstration, which takes down what was made.
        .process_group(0)
        .output()
        .with_context(|| format!("run cenote {}", args.join(" ")))
}

/// How long lost slabs may take; arbitrary, far above what a gigabyte takes.
const WHOLE_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the volume is asked; the resolution of the figure.
const STATUS_PERIOD: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_has_not_noticed_a_loss_is_not_whole() {
        let status = |health: &str, host: &str| serde_json::json!({"health": health, "extents": [{"hosts": ["h0", host]}]});
        let lost = ["h1".to_owned()];
        assert!(!is_whole(&status("healthy", "h1"), &lost));
        assert!(!is_whole(&status("degraded", "h2"), &lost));
        assert!(is_whole(&status("healthy", "h2"), &lost));
        assert!(!is_whole(&Value::Null, &lost));
    }
}
