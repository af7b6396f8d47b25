//! What is asked for a bundle: our own commands, each a process that is ended when it takes too
//! long, pages of metrics, and the kernel.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::{Map, Value};

use super::part::{Content, Part};

/// Most bytes that a command may say, and a page may have.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// Most bytes of what a command says on standard error.
const SAID_BYTES_MAX: u64 = 16 << 10;
/// How long a command may take to end that was killed, or has closed what it writes to.
const END_LIMIT: Duration = Duration::from_secs(1);
/// Files of the kernel that explain what our programs meet. Each has a few KiB at most.
const KERNEL: &[&str] = &[
    "/proc/version",
    "/proc/meminfo",
    "/proc/loadavg",
    "/proc/uptime",
    "/proc/swaps",
    "/proc/self/limits",
    "/proc/self/cgroup",
    "/proc/pressure/cpu",
    "/proc/pressure/io",
    "/proc/pressure/memory",
    "/proc/sys/fs/file-max",
    "/proc/sys/fs/nr_open",
    "/proc/sys/kernel/io_uring_disabled",
    "/proc/sys/kernel/pid_max",
    "/proc/sys/kernel/threads-max",
    "/proc/sys/net/core/rmem_max",
    "/proc/sys/net/core/somaxconn",
    "/proc/sys/net/core/wmem_max",
    "/proc/sys/vm/max_map_count",
    "/proc/sys/vm/min_free_kbytes",
    "/proc/sys/vm/nr_hugepages",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/vm/swappiness",
    "/proc/sys/vm/unprivileged_userfaultfd",
    "/proc/sys/vm/watermark_scale_factor",
    "/sys/fs/cgroup/cgroup.controllers",
    "/sys/fs/cgroup/memory.max",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
    "/sys/module/fuse/parameters/enable_uring",
];
const KERNEL_FILE_BYTES_MAX: u64 = 16 << 10;
/// Modules that commands use.
const MODULES: &[&str] = &[
    "nbd", "ublk_drv", "fuse", "loop", "rdma_rxe", "ib_core", "zram",
];

/// Has a command of ours say something.
pub fn command(name: &str, program: &Path, arguments: &[String], limit: Duration) -> Part {
    Part::made(name, || {
        let mut child = Command::new(program)
            .args(arguments)
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("start it")?;
        let deadline = Instant::now() + limit;
        let (answer, said) = (child.stdout.take(), child.stderr.take());
        let (answer, said) = (
            read(answer.context("a pipe")?, ANSWER_BYTES_MAX),
            read(said.context("a pipe")?, SAID_BYTES_MAX),
        );
        let left = || deadline.saturating_duration_since(Instant::now());
        let told = answer.recv_timeout(left());
        let said = said.recv_timeout(left());
        let (Ok(text), Ok(said)) = (told, said) else {
            child.kill().context("end it")?;
            let is_left = ended(&mut child)?.is_none();
            let left = if is_left {
                " (it could not be ended)"
            } else {
                ""
            };
            bail!("no answer within {} s{left}", limit.as_secs_f64());
        };
        // It has closed both: it is ending.
        let code = ended(&mut child)?.and_then(|status| status.code());
        Ok(Content::Answer { text, said, code })
    })
}

/// How it has ended, if it has soon. One that waits in the kernel, for a file system that does not answer,
/// is left to itself.
fn ended(child: &mut Child) -> anyhow::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + END_LIMIT;
    loop {
        let status = child.try_wait().context("wait for it")?;
        if status.is_some() || Instant::now() >= deadline {
            return Ok(status);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads to the end, in a thread that ends with its pipe.
fn read(mut from: impl Read + Send + 'static, most: u64) -> mpsc::Receiver<String> {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What came before an error is said all the same.
        drop(from.by_ref().take(most).read_to_end(&mut bytes));
        // With its pipe closed it would be ended in the middle of what it does.
        drop(io::copy(&mut from, &mut io::sink()));
        // The other end may have given up.
        drop(tell.send(String::from_utf8_lossy(&bytes).into_owned()));
    });
    told
}

/// Reads a page of metrics.
pub fn metrics(address: &str, limit: Duration) -> Part {
    Part::made(
        &format!("metrics/{}.txt", address.replace(':', "_")),
        || {
            let agent = ureq::Agent::config_builder()
                .timeout_global(Some(limit))
                .proxy(None)
                .max_redirects(0)
                .build()
                .new_agent();
            let mut page = agent.get(format!("http://{address}/metrics")).call()?;
            let body = page.body_mut().with_config().limit(ANSWER_BYTES_MAX);
            Ok(Content::Text(body.read_to_string()?))
        },
    )
}

/// What the kernel says of itself.
pub fn kernel() -> Part {
    Part::made("kernel.json", || {
        let mut files = Map::new();
        for path in KERNEL {
            let text = std::fs::File::open(path).and_then(|file| {
                let mut text = String::new();
                file.take(KERNEL_FILE_BYTES_MAX).read_to_string(&mut text)?;
                Ok(text)
            });
            // That one is not there says something, too.
            let text = text.map_or(Value::Null, |text| text.trim_end().into());
            files.insert((*path).to_owned(), text);
        }
        let there = |name: &&str| Path::new("/sys/module").join(name).exists();
        let modules: Vec<&str> = MODULES.iter().copied().filter(there).collect();
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        Ok(Content::Json(serde_json::json!({
            "files": files, "modules": modules, "processors": cpus, "model": processor_model(),
        })))
    })
}

fn processor_model() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_complains_a_lot_is_heard_to_its_end() {
        let script = "head -c 65536 /dev/zero >&2 && echo ok";
        let arguments = ["-c", script].map(str::to_owned);
        let limit = Duration::from_secs(60);
        let part = command("x", Path::new("/bin/sh"), &arguments, limit);
        let Ok(Content::Answer { text, said, code }) = part.content else {
            panic!("{part:?}");
        };
        assert_eq!((text.as_str(), code), ("ok\n", Some(0)));
        assert_eq!(said.len() as u64, SAID_BYTES_MAX);
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        let arguments = ["-c", "echo part; exec sleep 60"].map(str::to_owned);
        let limit = Duration::from_millis(100);
        let part = command("x", Path::new("/bin/sh"), &arguments, limit);
        let said = part.content.expect_err("no answer");
        assert_eq!(said, "no answer within 0.1 s");
    }

    #[test]
    fn a_command_that_closes_its_pipes_and_stays_is_not_waited_for() {
        let script = "echo there; exec sleep 20 >&- 2>&-";
        let arguments = ["-c", script].map(str::to_owned);
        let part = command(
            "x",
            Path::new("/bin/sh"),
            &arguments,
            Duration::from_secs(60),
        );
        assert!(part.took < Duration::from_secs(15), "{part:?}");
        let Ok(Content::Answer { text, code, .. }) = part.content else {
            panic!("{part:?}");
        };
        assert_eq!((text.as_str(), code), ("there\n", None));
    }
}
