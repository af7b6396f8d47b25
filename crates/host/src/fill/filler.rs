//! One fill from its first connection to its outcome, in steps that do not wait.
//!
//! States: `Attaching` (every source's window was asked for) `-> Reading -> ` outcome.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_fabric::{ClientId, Connector, FAILURE_TIMEOUT, RemoteWindow, Time};
use cenote_pool::control::FillResult;

use super::gather::{Gather, Progress, Run};
use super::job::Job;
use super::sources::{Sources, Unusable};
use super::together::Reach;
use crate::outcome::Outcome;

/// Connections to other hosts are closed when no fill came for this long.
pub(super) const IDLE: Duration = Duration::from_secs(5);

/// The rebuilding of one split after the other. Connecting to a source may block; nothing else does.
///
/// `begin`, then `step` until it returns the outcome, then the next.
pub(crate) struct Filler {
    // Before the landings that its endpoints may still refer to.
    sources: Sources,
    gather: Gather,
    current: Option<Current>,
}

/// The fill in hand.
struct Current {
    job: Job,
    /// Per source: the index of its host, and its window once that is attached.
    attaching: Vec<(usize, Option<RemoteWindow>)>,
    /// When an attach that is not answered is given up.
    attach_by: Time,
    /// As `attaching`, once all are.
    sources: Vec<(usize, RemoteWindow)>,
    progress: Progress,
    /// Known before anything was read.
    ended: Option<FillResult>,
}

impl Filler {
    /// Of the host `name`; reaches other hosts as `client`.
    pub(crate) fn new(
        connector: Box<dyn Connector>,
        reach: Reach,
        client: ClientId,
        name: &str,
    ) -> Self {
        Self {
            sources: Sources::new(connector, reach, client, name),
            gather: Gather::new(),
            current: None,
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        !self.sources.is_empty()
    }

    /// Closes the connections to other hosts.
    pub(super) fn disconnect(&mut self) {
        self.sources.clear();
        self.gather = Gather::new();
    }

    /// Takes a fill in hand. There is none in hand yet.
    pub(crate) fn begin(&mut self, job: Job, now: Time) {
        debug_assert!(self.current.is_none(), "one fill at a time");
        let mut current = Current {
            attaching: Vec::with_capacity(job.fill.sources.len()),
            attach_by: now.after(FAILURE_TIMEOUT),
            sources: Vec::new(),
            progress: Progress::default(),
            ended: None,
            job,
        };
        current.ended = self.open(&mut current, now).err();
        self.current = Some(current);
    }

    /// Reaches every source and asks for its window, all of them at once.
    fn open(&mut self, current: &mut Current, now: Time) -> Result<(), FillResult> {
        if !current.job.wanted.load(Ordering::Relaxed) {
            return Err(FillResult::TargetStale);
        }
        self.sources.prepare(now);
        if !self.gather.begin(&current.job.fill) {
            return Err(FillResult::Bad);
        }
        let sources = &current.job.fill.sources;
        let addresses: Vec<&str> = sources.iter().map(|source| &*source.address).collect();
        let opened = self.sources.open(&addresses, now);
        for (source, host) in sources.iter().zip(opened) {
            let failed = |Unusable| FillResult::SourceFailed {
                split: source.split,
            };
            let host = host.map_err(failed)?;
            let window = self.sources.host(host).window(source.window);
            current.attaching.push((host, window.map_err(failed)?));
        }
        Ok(())
    }

    /// Moves the fill in hand on as far as it goes without waiting; its outcome at its end.
    pub(crate) fn step(&mut self, now: Time) -> Option<Outcome> {
        let current = self.current.as_mut()?;
        let result = match current.ended {
            Some(result) => result,
            None => match attach(current, &mut self.sources, now) {
                Err(result) => result,
                Ok(false) => return None,
                Ok(true) => {
                    let mut run = Run {
                        fill: &current.job.fill,
                        target: &current.job.target,
                        sources: &current.sources,
                        progress: &mut current.progress,
                    };
                    self.gather.step(&mut run, &mut self.sources, now)?
                }
            },
        };
        let job = self.current.take().expect("in hand, as above").job;
        Some(Outcome::Filled {
            peer: job.peer,
            client: job.client,
            volume: job.volume,
            request: job.request,
            len_bytes: job.fill.len_bytes,
            result,
        })
    }

    /// Blocks until `step` may have something to do.
    pub(super) fn wait(&mut self) {
        let Some(current) = &self.current else { return };
        let (mut fds, mut limit) = (Vec::new(), IDLE);
        for (host, _) in &current.attaching {
            let (some, patience) = self.sources.host(*host).interest();
            fds.extend(some);
            limit = limit.min(patience);
        }
        if let Err(error) = cenote_fabric::wait(&fds, Some(limit)) {
            // The next step finds the source that is broken, or gives it up in time.
            tracing::error!(%error, "wait for the sources of a fill");
        }
    }
}

/// Takes answers to attaches; whether all windows are there.
fn attach(current: &mut Current, hosts: &mut Sources, now: Time) -> Result<bool, FillResult> {
    if !current.sources.is_empty() {
        return Ok(true);
    }
    let is_late = now >= current.attach_by;
    let mut silent = None;
    for ((host, window), source) in current
        .attaching
        .iter_mut()
        .zip(&current.job.fill.sources)
        .filter(|((_, window), _)| window.is_none())
    {
        let failed = FillResult::SourceFailed {
            split: source.split,
        };
        *window = hosts
            .host(*host)
            .attached(source.window)
            .map_err(|Unusable| failed)?;
        if window.is_none() && is_late {
            // All of them: the next fill does not wait for the others again.
            if !hosts.is_silent(*host, now) {
                hosts.give_up(*host, now);
            }
            silent.get_or_insert(failed);
        }
    }
    if let Some(failed) = silent {
        return Err(failed);
    }
    let attached = |(host, window): &(usize, Option<RemoteWindow>)| Some((*host, window.clone()?));
    let Some(all) = current.attaching.iter().map(attached).collect() else {
        return Ok(false);
    };
    current.sources = all;
    Ok(true)
}
