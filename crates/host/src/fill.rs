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
mod landings;
mod sources;
mod together;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use cenote_fabric::{ClientId, Connector, PeerId, Region, Time, Waker};
use cenote_pool::control::{FILL_BYTES_MAX, K_MAX, R_MAX, Source};

use crate::Result;
use crate::daemon::Outcome;
use crate::machine::random_u128;
use crate::side_thread::SideThread;
pub(crate) use filler::Filler;
pub(crate) use together::Reach;

/// Connections to other hosts are closed when no fill came for this long.
const IDLE: Duration = Duration::from_secs(5);

/// The numbers of a fill, which must fit together.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    /// The split to compute.
    pub split: u8,
    /// Data splits.
    pub k: u8,
    /// Parity splits.
    pub r: u8,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub len_bytes: u64,
    /// Where `k` others are, or more to compare with each other.
    pub sources: Vec<Source>,
}

impl Fill {
    /// Whether the numbers fit each other and a target of `target_bytes`.
    pub(crate) fn is_sound(&self, target_bytes: u64) -> bool {
        let splits = self.k.saturating_add(self.r);
        let end = self.offset.checked_add(self.len_bytes);
        let fits = |bytes: u64| end.is_some_and(|end| end <= bytes);
        let mut seen = 1_u64 << (self.split & 63);
        let distinct = self.sources.iter().all(|source| {
            let bit = 1_u64 << (source.split & 63);
            let is_new = seen & bit == 0;
            seen |= bit;
            is_new && source.split < splits && fits(source.window.len_bytes)
        });
        (1..=K_MAX).contains(&self.k)
            && self.r <= R_MAX
            && self.split < splits
            && (1..=FILL_BYTES_MAX).contains(&self.len_bytes)
            && fits(target_bytes)
            && self.sources.len() >= usize::from(self.k)
            && distinct
    }
}

/// A fill on its way through the filler.
pub(crate) struct Job {
    /// The session that asked.
    pub peer: PeerId,
    /// Its client.
    pub client: u128,
    /// Which of its requests.
    pub request: u64,
    /// What to do; sound.
    pub fill: Fill,
    /// Where the bytes go.
    pub target: Arc<Region>,
    /// Cleared when the asking session ends: nobody waits for the answer then.
    pub wanted: Arc<AtomicBool>,
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::control::Window;

    fn fill() -> Fill {
        let window = Window {
            id: 1,
            generation: 2,
            len_bytes: 1 << 20,
            rights: 1,
        };
        let source = |split| Source {
            split,
            address: "shm:/s".into(),
            window,
        };
        let sources = [0, 1, 2, 4].map(source).to_vec();
        Fill {
            split: 3,
            k: 4,
            r: 2,
            offset: 4096,
            len_bytes: (1 << 20) - 4096,
            sources,
        }
    }

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        let sound = |change: fn(&mut Fill)| {
            let mut fill = fill();
            change(&mut fill);
            fill.is_sound(1 << 20)
        };
        assert!(sound(|_| ()));
        assert!(!sound(|f| f.split = 6), "a split that the code lacks");
        assert!(!sound(|f| f.split = 2), "the target among the sources");
        assert!(!sound(|f| f.sources[1].split = 0), "a source twice");
        assert!(
            !sound(|f| f.sources[1].split = 6),
            "a source that the code lacks"
        );
        assert!(
            !sound(|f| f.sources[1].split = 67),
            "no alias of split 3 by its low bits"
        );
        assert!(
            !sound(|f| f.sources[0].window.len_bytes -= 1),
            "past a source's end"
        );
        assert!(!sound(|f| f.offset += 1), "past the target's end");
        assert!(!sound(|f| f.offset = u64::MAX), "an end that wraps");
        assert!(!sound(|f| f.len_bytes = 0), "nothing");
        assert!(sound(|f| f.k = 3), "one more than k, to compare");
        assert!(!sound(|f| f.k = 5), "fewer sources than k");
        assert!(!sound(|f| {
            f.k = 0;
            f.sources.clear();
        }));
        assert!(!sound(|f| f.r = 9), "more parities than there are");
        assert!(!fill().is_sound(1 << 19));
    }
}
