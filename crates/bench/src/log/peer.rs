//! Another store, a process that works when a line tells it to: see `scripts/peers`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use anyhow::{Context, bail};

use super::Mix;
use super::contender::{Contender, Rate};
use super::ours::Sizes;
use crate::swap_rig::interrupt;

/// See the module. Ended when dropped.
pub struct Peer {
    name: String,
    process: Child,
    input: ChildStdin,
    /// What it says, read by a thread that ends with it.
    lines: Receiver<std::io::Result<String>>,
}

/// How soon an interruption is noticed; arbitrary.
const LOOK: Duration = Duration::from_millis(50);

impl Peer {
    /// Starts `program`, which loads its store in `folder` and then says its name.
    pub fn start(program: &Path, sizes: Sizes, folder: &Path) -> anyhow::Result<Self> {
        let mut process = Command::new(program)
            .arg(folder)
            .args([sizes.keys, sizes.memory_bytes].map(|number| number.to_string()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("start it")?;
        let input = process.stdin.take().context("its input")?;
        let output = BufReader::new(process.stdout.take().context("its output")?);
        let (said, lines) = channel();
        std::thread::spawn(move || {
            for line in output.lines() {
                if said.send(line).is_err() {
                    return;
                }
            }
        });
        let mut peer = Self {
            name: String::new(),
            process,
            input,
            lines,
        };
        peer.name = peer.line()?;
        Ok(peer)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        loop {
            interrupt::check()?;
            match self.lines.recv_timeout(LOOK) {
                Ok(line) => return Ok(line?),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("it ended: {:?}", self.process.wait()?)
                }
            }
        }
    }
}

impl Contender for Peer {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn run(&mut self, mix: Mix, seconds: u64, seed: u64) -> anyhow::Result<Rate> {
        writeln!(self.input, "{} {seconds} {seed}", mix.name())?;
        let line = self.line()?;
        let words: Vec<f64> = line
            .split(' ')
            .map(str::parse)
            .collect::<Result<_, _>>()
            .with_context(|| format!("{}: {line}", self.name))?;
        match words[..] {
            [clock, processor] => Ok(Rate { clock, processor }),
            _ => bail!("{}: {line}", self.name),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _killed = self.process.kill();
        let _waited = self.process.wait();
    }
}
