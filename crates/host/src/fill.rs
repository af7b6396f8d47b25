//! The thread that rebuilds lost splits from the splits on other hosts.
//!
//! Repair runs where the new slab is: this host reads `k` survivors as a client of their
//! hosts and decodes into its own memory, so that each rebuilt byte crosses the fabric
//! `k` times and not `k + 1`. One fill at a time; the connections to other hosts stay
//! open while fills follow each other, and are closed when they stop, since a mapping of
//! a dead host's memory keeps that memory from the system.
//!
//! Where more than `k` sources are given, they are compared before they are believed (`comparison`).
//!
//! Invariant: on any end but `Done` the range's content is unspecified; its owner
//! publishes nothing of it.

mod comparison;
mod direct;
mod filler;
mod gather;
mod job;
mod landings;
mod sources;
mod together;

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use cenote_fabric::{ClientId, Connector, Time, Waker};

use crate::Result;
use crate::machine::random_u128;
use crate::outcome::Outcome;
use crate::side_thread::SideThread;
pub(crate) use filler::Filler;
use filler::IDLE;
pub(crate) use job::{Fill, Job};
pub(crate) use together::Reach;

/// Starts the thread of the host `name`, which reads from `sources`; the daemon bounds how many fills wait for it.
///
/// # Errors
/// `Os`: the system has no thread or no randomness left.
pub(crate) fn start(
    name: &str,
    sources: Box<dyn Connector>,
    outcomes: Sender<Outcome>,
    waker: Waker,
) -> Result<SideThread<Job>> {
    let client = ClientId(random_u128()?);
    let filler = Filler::new(sources, Reach::SideBySide, client, name);
    SideThread::start("filler", move |inbox| {
        run(&inbox, filler, &outcomes, &waker);
    })
}

/// After this the end of a fill is told, with those that came meanwhile: at the latest when the fill ends that
/// is in hand then. Each telling wakes the daemon and then its client, on cores that the copy has use for. A
/// rebuilt chunk that writers wait for takes longer than this, and is told at its own end.
const TELL_TOGETHER: Duration = Duration::from_micros(400);

fn run(inbox: &Receiver<Job>, mut filler: Filler, outcomes: &Sender<Outcome>, waker: &Waker) {
    // Since when the daemon has not been woken for an outcome.
    let mut untold: Option<Time> = None;
    loop {
        let job = match inbox.try_recv() {
            Ok(job) => Ok(job),
            Err(_) => {
                if untold.take().is_some() {
                    waker.wake();
                }
                await_job(inbox, filler.is_connected())
            }
        };
        match job {
            Ok(job) => filler.begin(job, Time::now()),
            Err(RecvTimeoutError::Timeout) => {
                filler.disconnect();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        let begun = Time::now();
        let outcome = loop {
            if let Some(outcome) = filler.step(Time::now()) {
                break outcome;
            }
            if untold.take().is_some() {
                // This one has to wait for its sources; the others need not.
                waker.wake();
            }
            filler.wait();
        };
        if outcomes.send(outcome).is_err() {
            return; // The daemon is gone.
        }
        let since = *untold.get_or_insert(begun);
        if Time::now().since(since) >= TELL_TOGETHER {
            untold = None;
            waker.wake();
        }
    }
}

/// For as long as connections stay open, if there are any.
fn await_job(
    inbox: &Receiver<Job>,
    is_connected: bool,
) -> std::result::Result<Job, RecvTimeoutError> {
    if is_connected {
        inbox.recv_timeout(IDLE)
    } else {
        inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
    }
}
