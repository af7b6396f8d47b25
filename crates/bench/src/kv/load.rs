//! A load on one server, or on several that are one store: filling, reading everything back, and
//! a mix of reads and writes for a time.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use cenote_measure::random::{Random, mix as mixed};
use cenote_measure::zipf::Scrambled;

use super::items::{Book, Items};
use super::shards::Shards;
use super::source::{Mix, Source};
use super::tally::{Kind, SLICE, Tally};
use super::wire::Protocol;
use super::worker::Worker;
use crate::beside::{self, beside};

/// Where requests go.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) protocol: Protocol,
    pub(super) addresses: Vec<SocketAddr>,
    pub(super) route: Route,
}

/// Which of several servers has a key.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Route {
    /// Clients spread keys over the servers, which know nothing of each other.
    ByKey,
    /// Any server answers for all keys.
    Any,
    /// Any server tells which of them has a key; the others would have to ask it.
    ByMap,
}

/// How many ask at a time.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Closed loops.
    pub clients: usize,
    /// Requests that each has under way.
    pub depth: usize,
    /// Threads that serve them.
    pub threads: usize,
}

pub(super) struct Load<'a> {
    pub(super) target: &'a Target,
    pub(super) items: &'a Items,
    pub(super) book: &'a Book,
    pub(super) shape: Shape,
    /// Whether a lost connection is counted rather than the end.
    pub(super) is_tolerant: bool,
}

/// Requests of a client under way while it fills or reads back; arbitrary.
const FILL_DEPTH: usize = 16;

impl Load<'_> {
    /// Stores every item.
    ///
    /// # Errors
    /// Those of the connections; an item that was not stored.
    pub(super) fn fill(&self) -> Result<()> {
        let tally = self.each(Kind::Set)?;
        let stored = tally.count(Kind::Set);
        ensure!(
            stored == u64::from(self.items.count()),
            "{stored} of {} items were stored: {}",
            self.items.count(),
            tally.troubles()
        );
        Ok(())
    }

    /// Reads every item.
    ///
    /// # Errors
    /// Those of the connections.
    pub(super) fn read_back(&self) -> Result<Tally> {
        self.each(Kind::Get)
    }

    fn each(&self, kind: Kind) -> Result<Tally> {
        let load = Load {
            shape: Shape {
                depth: FILL_DEPTH,
                ..self.shape
            },
            ..*self
        };
        let threads = u32::try_from(self.shape.threads)?;
        let source = |thread: usize| Source::Each {
            kind,
            next: u32::try_from(thread).expect("few threads"),
            step: threads,
            end: self.items.count(),
        };
        let (tally, _) = load.drive(0, source, None::<fn(Instant) -> Result<()>>)?;
        Ok(tally)
    }

    /// Reads and writes by `mix` for as long as `lead` takes, which is told when it began; answers
    /// of the first `slices` are told apart by time.
    ///
    /// # Errors
    /// Those of the connections and of `lead`.
    pub(super) fn run<T>(
        &self,
        (mix, seed): (Mix, u64),
        slices: Duration,
        lead: impl FnOnce(Instant) -> Result<T>,
    ) -> Result<(Tally, T)> {
        let popularity = Scrambled::new(u64::from(self.items.count()));
        let source = |thread: usize| Source::Mixed {
            mix,
            popularity: &popularity,
            random: Box::new(Random::new(mixed(seed) ^ thread as u64)),
        };
        let slice_count = slices.as_nanos().div_ceil(SLICE.as_nanos());
        let (tally, led) = self.drive(usize::try_from(slice_count)?, source, Some(lead))?;
        Ok((tally, led.expect("the leader was given")))
    }

    /// Runs the threads until `lead` ends, or until their sources have no more.
    fn drive<'s, T>(
        &'s self,
        slice_count: usize,
        source: impl Fn(usize) -> Source<'s>,
        lead: Option<impl FnOnce(Instant) -> Result<T>>,
    ) -> Result<(Tally, Option<T>)> {
        let threads = self.shape.threads;
        ensure!(
            threads > 0 && self.shape.depth > 0 && self.shape.clients >= threads,
            "each thread of a load has a client, and each client a request: {:?}",
            self.shape
        );
        let shards = Shards::of(self.target)?;
        let workers = (0..threads)
            .map(|thread| {
                let clients = (thread..self.shape.clients).step_by(threads);
                Worker::connect(self, &shards, clients, source(thread), slice_count)
            })
            .collect::<Result<Vec<_>>>()?;
        let began = Instant::now();
        let (led, tallies) = match lead {
            Some(lead) => {
                let drive = |worker: Worker<'_>, stop: &AtomicBool| worker.drive(began, stop);
                let (led, tallies) = beside(workers, drive, || lead(began));
                (Some(led), tallies)
            }
            None => {
                let never = AtomicBool::new(false);
                (
                    None,
                    beside::all(workers, |worker| worker.drive(began, &never)),
                )
            }
        };
        let mut sum = Tally::new(slice_count)?;
        for tally in tallies {
            sum.add(tally?)?;
        }
        Ok((sum, led.transpose()?))
    }
}
