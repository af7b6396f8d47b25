//! PageRank as a process of its own: the worker, and the program that has it run.
//!
//! The worker builds its graph, says `ready`, and runs as many rounds as each line on its
//! standard input asks for; its answer is `done SECONDS SUM`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_cli::program;

use super::graph::{Graph, PageRank};
use super::program::{Outcome, Program, Sizes};
use crate::swap_rig::child::{Killed, confine};
use crate::swap_rig::interrupt::Interrupt;

/// What the worker is told.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// The graph has two to the power of this many vertices.
    pub scale: u32,
    /// Edges of the graph.
    pub edges: u64,
    /// Seed of the graph.
    pub seed: u64,
}

/// The worker's life, on standard input and output.
///
/// # Errors
/// When it is asked for what is no number of rounds, or nobody listens.
pub fn work(job: Job) -> anyhow::Result<()> {
    let graph = Graph::power_law(job.scale, job.edges, job.seed);
    let mut ranks = PageRank::new(&graph);
    ranks.round(&graph);
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lines() {
        let rounds: u32 = line?.trim().parse().context("a number of rounds")?;
        let began = Instant::now();
        for _ in 0..rounds {
            ranks.round(&graph);
        }
        let seconds = began.elapsed().as_secs_f64();
        writeln!(out, "done {seconds} {}", ranks.sum())?;
        out.flush()?;
    }
    Ok(())
}

pub(super) struct Ranking {
    sizes: Sizes,
    worker: Option<Worker>,
}

struct Worker {
    _process: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Ranking {
    pub(super) fn new(sizes: &Sizes) -> Self {
        Self {
            sizes: sizes.clone(),
            worker: None,
        }
    }

    fn job(&self) -> Job {
        // A vertex takes 24 bytes, an edge 4: a quarter of the memory is vertices.
        let vertices = self.sizes.bytes / 4 / 24;
        let scale = vertices.max(2).ilog2();
        Job {
            scale,
            edges: (self.sizes.bytes - (24 << scale)) / 4,
            seed: self.sizes.seed,
        }
    }
}

impl Program for Ranking {
    fn load(&mut self, group: &MemoryCgroup, interrupt: &Interrupt) -> anyhow::Result<()> {
        self.end();
        let job = self.job();
        let mut command = Command::new(program::this()?);
        command
            .args(["bench", "apps-worker", "--scale", &job.scale.to_string()])
            .args(["--edges", &job.edges.to_string()])
            .args(["--seed", &job.seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        confine(&mut command, group)?;
        let mut child = command.spawn().context("start the PageRank process")?;
        let input = child.stdin.take().context("its input is a pipe")?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let mut worker = Worker {
            _process: Killed::new(child, "the PageRank process"),
            input,
            output: BufReader::new(output),
        };
        let line = worker.line()?;
        ensure!(line == "ready", "the PageRank process said {line:?}");
        self.worker = Some(worker);
        interrupt.check()
    }

    fn warm_up(&mut self, _interrupt: &Interrupt) -> anyhow::Result<()> {
        let worker = self.worker.as_mut().context("PageRank is not loaded")?;
        worker.run(1).map(drop)
    }

    fn measure(&mut self, _interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        let worker = self.worker.as_mut().context("PageRank is not loaded")?;
        let seconds = worker.run(ROUND_COUNT)?;
        Ok(Outcome::Completed { seconds })
    }

    fn end(&mut self) {
        self.worker = None;
    }
}

impl Worker {
    fn run(&mut self, rounds: u32) -> anyhow::Result<f64> {
        writeln!(self.input, "{rounds}").context("ask the PageRank process")?;
        let line = self.line()?;
        let (seconds, sum) = answer(&line).with_context(|| format!("an answer, not {line:?}"))?;
        ensure!(
            (sum - 1.0).abs() < 1e-6,
            "ranks sum up to {sum}: memory was garbled"
        );
        Ok(seconds)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.output
            .read_line(&mut line)
            .context("hear from the PageRank process")?;
        ensure!(line.ends_with('\n'), "the PageRank process went away");
        line.truncate(line.trim_end().len());
        Ok(line)
    }
}

/// Seconds and sum of `done SECONDS SUM`.
fn answer(line: &str) -> Option<(f64, f64)> {
    let (seconds, sum) = line.strip_prefix("done ")?.split_once(' ')?;
    Some((seconds.parse().ok()?, sum.parse().ok()?))
}

/// Rounds of a measurement; each touches all memory once.
const ROUND_COUNT: u32 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_both_figures() {
        assert_eq!(answer("done 1.5 0.9999999"), Some((1.5, 0.999_999_9)));
        assert_eq!(answer("done 1.5"), None);
        assert_eq!(answer("ready"), None);
    }
}
