//! What the copy of a region takes with nothing else going on: one host reads another, as fast as it can.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use cenote_cache::links::HostConfig;
use cenote_fabric::{Connector, FAILURE_TIMEOUT, Incoming, Session};
use cenote_pool::control::{FILL_BYTES_MAX, FillResult, Reply, Request, Source, Window};

use super::link::caller;

/// Fills under way: fewer than a host takes of one client.
const AHEAD: usize = 16;
/// How long a host may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// The median of so many copies counts.
const ROUNDS: usize = 3;
/// Not a volume's, nor a cache's.
const VOLUME: u128 = 0x6261_7265;

/// A host as this process asks it.
struct Asked {
    session: Box<dyn Session>,
    address: String,
}

/// What the same bytes take by the same verbs, between the same hosts.
#[derive(Clone, Copy, Debug)]
pub struct Bare {
    /// Until the target had memory for all of them, which is zeroed.
    pub memory: Duration,
    /// Until they were there, in memory that nobody had read before: the target maps the source's, as it does
    /// for a region that moves.
    pub copy: Duration,
}

/// How long `slabs` slabs take from `source` to `target`.
///
/// # Errors
/// A host refuses, or does not answer.
pub fn copy(
    connector: &Arc<dyn Connector>,
    source: &HostConfig,
    target: &HostConfig,
    slabs: u32,
) -> Result<Bare> {
    let mut from = Asked::connect(connector, source)?;
    let mut to = Asked::connect(connector, target)?;
    let (mut memory, mut copies) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let windows = from.map(slabs)?;
        let begun = Instant::now();
        let targets = to.map(slabs)?;
        memory.push(begun.elapsed());
        copies.push(to.fill(&targets, &windows, &from.address)?);
        from.unmap(&windows)?;
        to.unmap(&targets)?;
    }
    memory.sort_unstable();
    copies.sort_unstable();
    Ok(Bare {
        memory: memory[ROUNDS / 2],
        copy: copies[ROUNDS / 2],
    })
}

impl Asked {
    fn connect(connector: &Arc<dyn Connector>, host: &HostConfig) -> Result<Self> {
        let hello = caller(connector, "bare copy", false).hello;
        let session = connector.connect(&host.address, &hello, FAILURE_TIMEOUT)?;
        let address = host.address.to_string();
        Ok(Self { session, address })
    }

    fn send(&mut self, request: &Request) -> Result<()> {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        Ok(self.session.send(&bytes)?)
    }

    fn answer(&mut self) -> Result<Reply> {
        let begun = Instant::now();
        loop {
            match self.session.receive()? {
                Some(Incoming::Message(bytes)) => return Ok(Reply::decode(&bytes)?),
                Some(_) => {}
                None if begun.elapsed() > PATIENCE => bail!("{}: no answer", self.address),
                None => {
                    let fd = self.session.fd().context("a session to wait for")?;
                    cenote_fabric::wait(&[fd], Some(Duration::from_millis(100)))?;
                }
            }
        }
    }

    fn map(&mut self, slabs: u32) -> Result<Vec<Window>> {
        let mut windows = Vec::new();
        for extent in 0..slabs {
            self.send(&Request::Map {
                request: u64::from(extent),
                volume: VOLUME,
                extent,
                member: 0,
            })?;
            match self.answer()? {
                Reply::Mapped { window, .. } => windows.push(window),
                other => bail!("{}: no slab: {other:?}", self.address),
            }
        }
        Ok(windows)
    }

    fn unmap(&mut self, windows: &[Window]) -> Result<()> {
        for &window in windows {
            self.send(&Request::Unmap { window })?;
            let answer = self.answer()?;
            if !matches!(answer, Reply::Unmapped { .. }) {
                bail!("{}: {answer:?}", self.address);
            }
        }
        Ok(())
    }

    fn fill(&mut self, targets: &[Window], sources: &[Window], address: &str) -> Result<Duration> {
        let mut fills = Vec::new();
        for (&target, &window) in targets.iter().zip(sources) {
            for offset in (0..window.len_bytes).step_by(usize::try_from(FILL_BYTES_MAX)?) {
                fills.push((target, window, offset));
            }
        }
        let begun = Instant::now();
        let (mut next, mut done) = (0, 0);
        while done < fills.len() {
            while next < fills.len() && next - done < AHEAD {
                let (target, window, offset) = fills[next];
                self.send(&Request::Fill {
                    request: next as u64,
                    target,
                    split: 0,
                    k: 1,
                    r: 1,
                    offset,
                    len_bytes: FILL_BYTES_MAX.min(window.len_bytes - offset),
                    sources: vec![Source {
                        split: 1,
                        address: address.to_owned(),
                        window,
                    }],
                })?;
                next += 1;
            }
            match self.answer()? {
                Reply::Filled {
                    result: FillResult::Done,
                    ..
                } => done += 1,
                other => bail!("{}: no copy: {other:?}", self.address),
            }
        }
        Ok(begun.elapsed())
    }
}
