//! coreutils sort over generated records, all of them in its memory.
//!
//! Records go to its standard input, so that no page cache is in its cgroup; while that is open
//! it has stored them and not begun to sort, which is when the limit is lowered.

use std::io::{BufRead as _, BufReader, BufWriter, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_measure::random::Random;

use super::program::{Outcome, Program, Sizes};
use crate::swap_rig::child::{Killed, confine};
use crate::swap_rig::interrupt::Interrupt;

pub(super) struct Sort {
    sizes: Sizes,
    running: Option<Running>,
}

struct Running {
    process: Killed,
    input: ChildStdin,
    output: ChildStdout,
    /// Sum of the records' keys, by which it is seen that none is missing.
    sum: u64,
}

impl Sort {
    pub(super) fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: sizes.clone(),
            running: None,
        }
    }

    fn record_count(&self) -> u64 {
        // A record takes its bytes and, sorted in one thread, one and a half times 32 more. A
        // quarter of what other programs get: each comparison may be two page faults, and a sort
        // of 128 MiB in half of that took nbdkit two minutes.
        self.sizes.bytes / 4 / (RECORD_BYTES as u64 + 48)
    }
}

impl Program for Sort {
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.end();
        let mut command = Command::new("sort");
        command
            .arg(format!("--buffer-size={}K", self.sizes.bytes >> 10))
            .args(["--parallel=1", "--temporary-directory"])
            .arg(&self.sizes.dir)
            .env("LC_ALL", "C")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        confine(&mut command, group)?;
        let mut child = command.spawn().context("start sort")?;
        let input = child.stdin.take().context("sort's input is a pipe")?;
        let output = child.stdout.take().context("sort's output is a pipe")?;
        let process = Killed::new(child, "sort");
        let mut input = BufWriter::with_capacity(64 << 10, input);
        let mut random = Random::new(self.sizes.seed);
        let mut sum = 0_u64;
        for index in 0..self.record_count() {
            let key = random.next();
            sum = sum.wrapping_add(key);
            write!(input, "{key:016x}").context("write records")?;
            for _ in 0..(RECORD_BYTES - 17) / 16 {
                write!(input, "{:016x}", random.next()).context("write records")?;
            }
            input.write_all(b"\n").context("write records")?;
            if index % 65_536 == 0 {
                interrupt.check()?;
            }
        }
        let input = input.into_inner().context("write records")?;
        self.running = Some(Running {
            process,
            input,
            output,
            sum,
        });
        Ok(())
    }

    fn measure(&mut self, _interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        let mut running = self.running.take().context("sort is not loaded")?;
        let began = Instant::now();
        drop(running.input);
        let mut output = BufReader::with_capacity(64 << 10, running.output);
        let (mut count, mut sum, mut last) = (0, 0_u64, 0);
        let mut line = Vec::new();
        while output
            .read_until(b'\n', &mut line)
            .context("read records")?
            > 0
        {
            let digits = line
                .get(..16)
                .and_then(|digits| std::str::from_utf8(digits).ok());
            let key = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
            let key = key.context("sort wrote what it was not given")?;
            ensure!(key >= last, "sort's output is not sorted");
            (last, count, sum) = (key, count + 1, sum.wrapping_add(key));
            line.clear();
        }
        let status = running.process.child().wait().context("wait for sort")?;
        let seconds = began.elapsed().as_secs_f64();
        ensure!(status.success(), "sort: {status}");
        ensure!(
            count == self.record_count() && sum == running.sum,
            "sort lost records: {count} of {} came back",
            self.record_count()
        );
        Ok(Outcome::Completed { seconds })
    }

    fn is_spent(&self) -> bool {
        self.running.is_none()
    }

    fn end(&mut self) {
        self.running = None;
    }
}

/// 16 digits of key, 992 more and the end of the line.
const RECORD_BYTES: usize = 1009;
