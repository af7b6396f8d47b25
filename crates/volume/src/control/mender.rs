//! Pages of a protected volume that are looked through while their slabs are rebuilt.
//!
//! Hosts have no tags. Where what a slab is rebuilt from disagrees (`relocation::sources`), or may be wrong without
//! showing, the relocation lets writers into its chunk, has the pages read whole, judged by their tags and
//! healed here, as a scrub does, and then goes on. A page that no k of its splits make is left to its tag.
//!
//! Invariants: never blocks; a relocation that waits here has nothing fenced. The worker that reads is this
//! thread's own: it is there from the first time that it is needed until it was not for a while.
//! Decision 33.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, sync_channel};
use std::time::Duration;

use cenote_fabric::Time;

use super::context::Context;
use crate::command::Command;
use crate::core::Core;
use crate::directory::WorkerEpoch;
use crate::worker::Worker;

/// Who looks through pages, and which.
pub(super) struct Mender {
    /// Where a worker is asked for, and says that it is gone.
    orders: Sender<Command>,
    hand: Hand,
    jobs: VecDeque<Job>,
    /// Pages under way: their extent, and the scrub.
    flights: Vec<(usize, u16)>,
    used_at: Time,
}

/// The worker.
#[derive(Default)]
enum Hand {
    #[default]
    Missing,
    /// Its endpoints are being opened.
    Coming {
        id: usize,
        epoch: WorkerEpoch,
        ready: Receiver<std::io::Result<()>>,
    },
    There(Box<Worker>),
}

/// Pages of an extent, from `next` on.
struct Job {
    extent: usize,
    next: u64,
    end: u64,
}

/// Pages under way at a time, and begun per turn: enough to hide a network's round trip.
const FLIGHTS_MAX: usize = 32;

/// A worker that had nothing to do for this long goes: it maps memory of hosts that may be gone.
const IDLE: Duration = Duration::from_secs(5);

impl Mender {
    pub fn new(orders: Sender<Command>) -> Self {
        Self {
            orders,
            hand: Hand::Missing,
            jobs: VecDeque::new(),
            flights: Vec::with_capacity(FLIGHTS_MAX),
            used_at: Time(0),
        }
    }

    pub fn is_idle(&self) -> bool {
        self.jobs.is_empty() && self.flights.is_empty()
    }

    /// Whether pages of an extent are still to be looked at.
    pub fn has(&self, extent: usize) -> bool {
        let mut flights = self.flights.iter();
        self.jobs.iter().any(|job| job.extent == extent) || flights.any(|&(of, _)| of == extent)
    }

    /// Has these pages of an extent looked through.
    pub fn ask(&mut self, extent: usize, pages: Range<u64>) {
        self.jobs.push_back(Job {
            extent,
            next: pages.start,
            end: pages.end,
        });
    }

    /// Looks at some of the pages.
    pub fn tend(&mut self, cx: &mut Context) {
        let now = cx.now();
        if self.is_idle() {
            if now.since(self.used_at) > IDLE {
                self.hand = Hand::Missing;
            }
            return;
        }
        self.used_at = now;
        if let Some(hand) = self.next_hand(cx) {
            self.hand = hand;
        } else {
            // The sources stay as they are, and the pages' tags say what they have become.
            tracing::warn!("no worker to look through pages of slabs that are rebuilt");
            self.jobs.clear();
            self.flights.clear();
        }
        self.step(&cx.core);
    }

    /// The worker, or how far it is; `None`: there is none to be had.
    fn next_hand(&mut self, cx: &mut Context) -> Option<Hand> {
        match std::mem::take(&mut self.hand) {
            Hand::Missing => {
                let (id, epoch) = cx.core.directory.register()?;
                let (answer, ready) = sync_channel(1);
                let order = Command::AddWorker { id, ready: answer };
                // Behind the farewell of the worker that had the number before.
                self.orders.send(order).ok()?;
                Some(Hand::Coming { id, epoch, ready })
            }
            Hand::Coming { id, epoch, ready } => match ready.try_recv() {
                Err(TryRecvError::Empty) => Some(Hand::Coming { id, epoch, ready }),
                Err(TryRecvError::Disconnected) => None,
                Ok(Err(error)) => {
                    tracing::warn!(%error, "open endpoints of a worker");
                    None
                }
                Ok(Ok(())) => {
                    let (core, orders) = (Arc::clone(&cx.core), self.orders.clone());
                    let worker = Worker::new(core, id, epoch, cx.hosts.len(), orders);
                    let worker = worker.inspect_err(|error| {
                        tracing::warn!(%error, "make a worker");
                    });
                    Some(Hand::There(Box::new(worker.ok()?)))
                }
            },
            hand @ Hand::There(_) => Some(hand),
        }
    }

    /// Takes what has ended and begins what there is room for.
    fn step(&mut self, core: &Core) {
        let Hand::There(worker) = &mut self.hand else {
            return;
        };
        // Scrubs are told apart from requests: none comes out of it.
        worker.poll(&mut Vec::new());
        let flights = &mut self.flights;
        flights.retain(|&(_, scrub)| worker.end_scrub(scrub).is_none());
        while flights.len() < FLIGHTS_MAX
            && let Some(job) = self.jobs.front_mut()
        {
            let Some(page) = core.held(job.extent, job.next, job.end) else {
                self.jobs.pop_front();
                continue;
            };
            let Some(scrub) = worker.begin_scrub(page) else {
                break;
            };
            job.next = page + 1;
            flights.push((job.extent, scrub));
        }
        // Where verbs complete at once, these have.
        flights.retain(|&(_, scrub)| worker.end_scrub(scrub).is_none());
    }
}

impl Drop for Mender {
    /// What is on its way is not waited for: it makes no page other than it is, and the volume ends.
    fn drop(&mut self) {
        if let Hand::There(worker) = std::mem::take(&mut self.hand) {
            worker.abandon();
        }
    }
}
