//! Debian's redis-server under redis-benchmark: GETs of uniformly random keys.
//!
//! The values are stored by us, because those of redis-benchmark are one letter repeated, which
//! a compressed peer would be unduly good at.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_measure::random::Random;

use super::program::{Outcome, Program, Sizes};
use crate::swap_rig::child::{Killed, confine, detach};
use crate::swap_rig::interrupt::Interrupt;

pub(super) struct Redis {
    sizes: Sizes,
    socket: PathBuf,
    server: Option<Killed>,
}

impl Redis {
    pub(super) fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: sizes.clone(),
            socket: sizes.dir.join("redis.sock"),
            server: None,
        }
    }

    fn key_count(&self) -> u64 {
        // Beside its value a key takes about 110 bytes.
        self.sizes.bytes / (VALUE_BYTES as u64 + 110)
    }

    fn fill(&self) -> anyhow::Result<()> {
        let mut stream = BufReader::new(UnixStream::connect(&self.socket)?);
        let mut random = Random::new(self.sizes.seed);
        let mut line = String::new();
        let mut out = Vec::new();
        for first in (0..self.key_count()).step_by(FILL_BATCH) {
            let batch = first..(first + FILL_BATCH as u64).min(self.key_count());
            out.clear();
            for key in batch.clone() {
                // As redis-benchmark names its keys.
                let head = format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${VALUE_BYTES}\r\n");
                out.extend_from_slice(head.as_bytes());
                for _ in 0..VALUE_BYTES / 8 {
                    out.extend_from_slice(&random.next().to_le_bytes());
                }
                out.extend_from_slice(b"\r\n");
            }
            stream.get_mut().write_all(&out).context("fill redis")?;
            for _ in batch {
                line.clear();
                stream.read_line(&mut line).context("fill redis")?;
                ensure!(
                    line == "+OK\r\n",
                    "redis stored nothing: {}",
                    line.trim_end()
                );
            }
        }
        Ok(())
    }

    fn get(&self, count: u64) -> anyhow::Result<Outcome> {
        let mut command = Command::new("redis-benchmark");
        command
            .arg("-s")
            .arg(&self.socket)
            .args(["--csv", "-t", "get", "-c", "4", "-P", "1"])
            .args(["-r", &self.key_count().to_string()])
            .args(["-n", &count.to_string()])
            .stdin(Stdio::null());
        detach(&mut command);
        let output = command.output().context("run redis-benchmark")?;
        let said = String::from_utf8_lossy(&output.stdout);
        match outcome(&said) {
            Some(outcome) if output.status.success() => Ok(outcome),
            _ => bail!(
                "redis-benchmark: {said} {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ),
        }
    }
}

impl Program for Redis {
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.end();
        let mut command = Command::new("redis-server");
        command
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--dir"])
            .arg(&self.sizes.dir)
            .arg("--unixsocket")
            .arg(&self.socket)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        confine(&mut command, group)?;
        let child = command.spawn().context("start redis-server")?;
        let server = self.server.insert(Killed::new(child, "redis-server"));
        let socket = &self.socket;
        super::wait_until(interrupt, "redis-server listens", || {
            if let Some(status) = server.child().try_wait()? {
                bail!("redis-server ended at once: {status}");
            }
            Ok(UnixStream::connect(socket).is_ok())
        })?;
        self.fill()
    }

    fn warm_up(&mut self, _interrupt: &Interrupt) -> anyhow::Result<()> {
        self.get((self.sizes.seconds * 5_000.0) as u64).map(drop)
    }

    fn measure(&mut self, _interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        self.get((self.sizes.seconds * 15_000.0) as u64)
    }

    fn end(&mut self) {
        self.server = None;
    }
}

/// The figures of `redis-benchmark --csv`; its times are in ms.
fn outcome(said: &str) -> Option<Outcome> {
    let mut lines = said.lines();
    let cells = |line: &str| -> Vec<String> {
        line.split(',')
            .map(|cell| cell.trim_matches('"').to_owned())
            .collect()
    };
    let header = cells(lines.find(|line| line.starts_with("\"test\""))?);
    let figures = cells(lines.next()?);
    let figure = |name: &str| -> Option<f64> {
        let column = header.iter().position(|cell| cell == name)?;
        figures.get(column)?.parse().ok()
    };
    Some(Outcome::Served {
        rate: figure("rps")?,
        p50_us: figure("p50_latency_ms")? * 1e3,
        p99_us: figure("p99_latency_ms")? * 1e3,
    })
}

/// Arbitrary: four values to a page.
const VALUE_BYTES: usize = 1000;
/// SETs under way at a time while filling; arbitrary.
const FILL_BATCH: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_redis_benchmark_are_read_from_its_csv() {
        // redis-benchmark 7.0.15.
        let said = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\
                    \"p95_latency_ms\",\"p99_latency_ms\",\"max_latency_ms\"\n\
                    \"GET\",\"71428.57\",\"0.045\",\"0.016\",\"0.039\",\"0.071\",\"0.207\",\"0.775\"\n";
        let expected = Outcome::Served {
            rate: 71428.57,
            p50_us: 39.0,
            p99_us: 207.0,
        };
        assert_eq!(outcome(said), Some(expected));
        assert_eq!(outcome("Could not connect to Redis\n"), None);
    }
}
