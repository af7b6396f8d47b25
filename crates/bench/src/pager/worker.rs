//! The process whose memory is measured: over a region, or anonymous and swapped.
//!
//! It fills its memory, says `ready`, and obeys lines: `room BYTES` bounds what is resident of a
//! region, `touch PATTERN THREADS SECONDS` measures. Its answers are `done` and figures.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use cenote_block::swap::cgroup::MemoryCgroup;
use cenote_cli::program;
use cenote_pager::{Counters, Handlers, Region, RegionConfig};
use cenote_volume::{Scheme, Volume};

use super::touch::{Pattern, Touched, fill, touch};
use crate::cluster::{open_cluster, volume_config};
use crate::swap_rig::child::{Killed, confine, detach};

/// What a worker is told.
#[derive(Clone, Debug)]
pub struct Job {
    /// Memory that is touched.
    pub bytes: u64,
    /// The cluster and the scheme of the volume that a region is over, and the region's handlers;
    /// none: memory that may be swapped.
    pub region: Option<(PathBuf, Scheme, Handlers)>,
}

/// The worker's life, on standard input and output.
///
/// # Errors
/// When there is no memory, a page is wrong, or nobody listens.
pub fn work(job: &Job) -> anyhow::Result<()> {
    match &job.region {
        Some((file, scheme, handlers)) => {
            let (hosts, connector) = open_cluster(file)?;
            let volume = Volume::open(volume_config(hosts, *scheme, job.bytes), connector)?;
            let config = RegionConfig {
                offset: 0,
                len_bytes: job.bytes,
                resident_max_bytes: job.bytes,
                handlers: *handlers,
            };
            let mut region = Region::new(&volume, config)?;
            fill(region.bytes_mut());
            obey(|order| match order {
                Order::Room(bytes) => {
                    region.set_resident_max(bytes)?;
                    while region.status().resident_bytes > bytes {
                        std::thread::yield_now();
                    }
                    Ok(String::new())
                }
                Order::Touch(pattern, threads, seconds) => {
                    let before = region.status().counters;
                    let touched = touch(region.bytes(), pattern, threads, seconds)?;
                    let after = region.status().counters;
                    Ok(format!("{} {}", figures(touched), ahead(before, after)))
                }
            })
        }
        None => {
            let mut bytes = vec![0; usize::try_from(job.bytes).context("too much memory")?];
            fill(&mut bytes);
            obey(|order| match order {
                Order::Room(_) => bail!("only a region has room"),
                Order::Touch(pattern, threads, seconds) => {
                    let touched = touch(&bytes, pattern, threads, seconds)?;
                    Ok(format!("{} 0 0", figures(touched)))
                }
            })
        }
    }
}

enum Order {
    Room(u64),
    Touch(Pattern, usize, f64),
}

impl Order {
    fn parse(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["room", bytes] => Some(Self::Room(bytes.parse().ok()?)),
            ["touch", pattern, threads, seconds] => Some(Self::Touch(
                Pattern::parse(pattern)?,
                threads
                    .parse()
                    .ok()
                    .filter(|count| (1..=64).contains(count))?,
                seconds
                    .parse()
                    .ok()
                    .filter(|time| (0.0..=3600.0).contains(time))?,
            )),
            _ => None,
        }
    }
}

fn obey(mut act: impl FnMut(Order) -> anyhow::Result<String>) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "ready")?;
    out.flush()?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let order = Order::parse(&line).with_context(|| format!("an order, not {line:?}"))?;
        writeln!(out, "done {}", act(order)?)?;
        out.flush()?;
    }
    Ok(())
}

fn figures(touched: Touched) -> String {
    let figures = [
        touched.pages_per_s,
        touched.fault_share,
        touched.fault_us_p50,
        touched.fault_us_p99,
        touched.wait_share,
        touched.wait_us_p50,
        touched.wait_us_p99,
    ];
    figures.map(|figure| figure.to_string()).join(" ")
}

/// Pages read ahead, and those of them that were of use.
fn ahead(before: Counters, after: Counters) -> String {
    format!(
        "{} {}",
        after.reads_ahead - before.reads_ahead,
        after.reads_ahead_useful - before.reads_ahead_useful
    )
}

/// A measurement, as its worker tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Told {
    pub(crate) touched: Touched,
    /// Pages read ahead.
    pub(crate) ahead: u64,
    /// Of these, pages in runs that were reached to the end.
    pub(crate) useful: u64,
}

impl Told {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.strip_prefix("done ")?.split(' ');
        let mut figure = || words.next()?.parse::<f64>().ok();
        let touched = Touched {
            pages_per_s: figure()?,
            fault_share: figure()?,
            fault_us_p50: figure()?,
            fault_us_p99: figure()?,
            wait_share: figure()?,
            wait_us_p50: figure()?,
            wait_us_p99: figure()?,
        };
        Some(Self {
            touched,
            ahead: words.next()?.parse().ok()?,
            useful: words.next()?.parse().ok()?,
        })
    }
}

/// A worker's process; it is killed when dropped.
pub(crate) struct Worker {
    _process: Killed,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub(crate) fn start(job: &Job, group: Option<&MemoryCgroup>) -> anyhow::Result<Self> {
        let mut command = Command::new(program::this()?);
        command
            .args(["bench", "pager-worker", "--bytes", &job.bytes.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some((file, scheme, handlers)) = &job.region {
            command.args(["--handlers", &handlers.to_string()]);
            command.arg("--cluster").arg(file);
            command.args(["--scheme", &scheme.to_string()]);
        }
        match group {
            Some(group) => confine(&mut command, group)?,
            None => detach(&mut command),
        }
        let mut child = command
            .spawn()
            .context("start the process that is measured")?;
        let input = child.stdin.take().context("its input is a pipe")?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let mut worker = Self {
            _process: Killed::new(child, "the process that is measured"),
            input,
            output: BufReader::new(output),
        };
        let line = worker.line()?;
        ensure!(
            line == "ready",
            "the process that is measured said {line:?}"
        );
        Ok(worker)
    }

    pub(crate) fn room(&mut self, bytes: u64) -> anyhow::Result<()> {
        self.ask(&format!("room {bytes}")).map(drop)
    }

    pub(crate) fn touch(
        &mut self,
        pattern: Pattern,
        threads: usize,
        seconds: f64,
    ) -> anyhow::Result<Told> {
        let line = self.ask(&format!("touch {} {threads} {seconds}", pattern.label()))?;
        Told::parse(&line).with_context(|| format!("figures, not {line:?}"))
    }

    fn ask(&mut self, order: &str) -> anyhow::Result<String> {
        writeln!(self.input, "{order}").context("ask the process that is measured")?;
        self.line()
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let heard = self.output.read_line(&mut line);
        heard.context("hear from the process that is measured")?;
        ensure!(
            line.ends_with('\n'),
            "the process that is measured went away"
        );
        line.truncate(line.trim_end_matches('\n').len());
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_heard() {
        let touched = Touched {
            pages_per_s: 1.5,
            fault_share: 0.25,
            fault_us_p50: 3.0,
            fault_us_p99: 4.0,
            wait_share: 0.125,
            wait_us_p50: 5.0,
            wait_us_p99: 6.0,
        };
        let line = format!("done {} 7 6", figures(touched));
        let (ahead, useful) = (7, 6);
        assert_eq!(
            Told::parse(&line),
            Some(Told {
                touched,
                ahead,
                useful
            })
        );
        assert_eq!(Told::parse("done 1 2 3"), None);
    }

    #[test]
    fn orders_that_make_no_sense_are_refused() {
        for line in [
            "",
            "room",
            "room x",
            "touch random 0 1",
            "touch random 1 -1",
            "touch all 1 1",
        ] {
            assert!(Order::parse(line).is_none(), "{line:?}");
        }
        assert!(matches!(Order::parse("room 5"), Some(Order::Room(5))));
    }
}
