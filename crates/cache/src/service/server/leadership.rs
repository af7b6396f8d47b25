//! Whether this manager can prove that no other one followed it.
//!
//! Where managers of several machines may begin, an [`Agreement`] holds the epoch of the last one.
//! A thread asks it each second. An answer proves, for [`PROOF_LEASE`] from when it was asked for, that
//! this manager is in charge; without one it gets and gives back no machine and changes nothing in
//! the region table. It goes on serving what the table says. A manager that follows one in another
//! place waits as long before it begins: then the other one's proof is over, and it writes no more.
//!
//! Where a lock keeps all others out, the proof is the lock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::{Time, Waker};

use crate::service::injected_faults::{InjectedFault, is_injected};

/// Who keeps two managers of a cache apart.
pub enum Claim {
    /// A lock of this machine, which the caller holds.
    Lock,
    /// Something that several machines reach.
    Agreed(Box<dyn Agreement>),
}

/// Where managers of several machines agree on who is the last. Calls block.
pub trait Agreement: Send {
    /// Has an epoch above `last` agreed on.
    ///
    /// # Errors
    /// Another manager has begun, or nobody answers.
    fn claim(&mut self, last: u64) -> Result<Claimed, String>;

    /// Whether no higher epoch was claimed since.
    ///
    /// # Errors
    /// Nobody answers.
    fn is_last(&mut self, epoch: u64) -> Result<bool, String>;
}

/// An epoch that was agreed on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Claimed {
    /// The epoch.
    pub epoch: u64,
    /// The manager before may still run, elsewhere.
    pub may_have_rival: bool,
}

/// How long an answer proves that this manager is in charge. Longer than an election of etcd takes.
pub const PROOF_LEASE: Duration = Duration::from_secs(5);
/// For clocks of two machines that do not run equally fast, and a command that is just beginning.
pub const PROOF_LEASE_MARGIN: Duration = Duration::from_secs(1);
/// Between two questions.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// What threads that act for the manager look at.
#[derive(Clone, Debug)]
pub struct Proof {
    /// A [`Time`].
    until: Arc<AtomicU64>,
}

impl Proof {
    /// It does not hold at `until` any more.
    #[must_use]
    pub fn new(until: Time) -> Self {
        let until = Arc::new(AtomicU64::new(until.0));
        Self { until }
    }

    /// Whether the manager may act at this moment.
    #[must_use]
    pub fn holds(&self, now: Time) -> bool {
        now < self.until() || is_injected(InjectedFault::UnprovenActs)
    }

    fn until(&self) -> Time {
        Time(self.until.load(Ordering::Relaxed))
    }

    /// Whether it is over or will be soon, as nobody answered for half of [`PROOF_LEASE`].
    fn is_ageing(&self, now: Time) -> bool {
        now.after(PROOF_LEASE / 2) >= self.until()
    }

    fn prolong(&self, asked_at: Time) {
        let until = asked_at.after(PROOF_LEASE);
        self.until.fetch_max(until.0, Ordering::Relaxed);
    }
}

/// See the module's text.
pub(super) struct Leadership {
    proof: Proof,
    asked: Option<Asked>,
    /// As it was at the last look.
    held: bool,
}

/// A thread that asks.
struct Asked {
    shared: Arc<Shared>,
    /// The thread ends with it.
    _end: Sender<()>,
}

#[derive(Default)]
struct Shared {
    is_superseded: AtomicBool,
    error: Mutex<Option<String>>,
}

/// How this manager stands now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Stand {
    /// It may act, and could at the last look, or neither.
    AsBefore,
    /// It may act again.
    Proven,
    /// It may not act any more.
    Unproven,
    /// Another manager followed.
    Superseded,
}

impl Leadership {
    /// The epoch, and who is asked about it from now on. `waker` is woken when an answer changes
    /// something. Where the manager before may run elsewhere, this returns when it can act no more:
    /// what it left is to be read after that.
    pub fn begin(claim: Claim, last: u64, waker: Waker) -> Result<(u64, Self), BeginError> {
        let mut agreement = match claim {
            Claim::Lock => {
                let proof = Proof::new(Time(u64::MAX));
                let next = last.checked_add(1);
                let epoch = next.ok_or_else(|| BeginError::Refused("no epoch is left".into()))?;
                let lock = Self {
                    proof,
                    asked: None,
                    held: true,
                };
                return Ok((epoch, lock));
            }
            Claim::Agreed(agreement) => agreement,
        };
        let asked_at = Time::now();
        let Claimed {
            epoch,
            may_have_rival,
        } = agreement.claim(last).map_err(BeginError::Refused)?;
        let proof = Proof::new(asked_at.after(PROOF_LEASE));
        let (end, ended) = channel();
        let shared = Arc::new(Shared::default());
        let of_thread = (Arc::clone(&shared), proof.clone());
        let ask = move || {
            let (shared, proof) = of_thread;
            ask_again_and_again(&mut *agreement, epoch, &proof, &shared, &waker, &ended);
        };
        let builder = std::thread::Builder::new().name("cenote-leadership".to_owned());
        builder.spawn(ask).map_err(BeginError::System)?;
        if may_have_rival {
            tracing::info!("waits until the manager before it, elsewhere, cannot act");
            std::thread::sleep(PROOF_LEASE + PROOF_LEASE_MARGIN);
        }
        let asked = Some(Asked { shared, _end: end });
        let mut begun = Self {
            proof,
            asked,
            held: true,
        };
        let now = Time::now();
        match begun.look(now) {
            Stand::AsBefore => Ok((epoch, begun)),
            Stand::Superseded => Err(BeginError::Refused("another manager has begun".into())),
            Stand::Unproven | Stand::Proven => {
                let why = begun.trouble(now).unwrap_or_default();
                Err(BeginError::Refused(why))
            }
        }
    }

    pub fn proof(&self) -> Proof {
        self.proof.clone()
    }

    /// Whether the manager may act.
    pub fn holds(&self, now: Time) -> bool {
        self.proof.holds(now)
    }

    /// Whether the proof is over or will be soon, as nobody answered for a while.
    pub fn is_ageing(&self, now: Time) -> bool {
        self.proof.is_ageing(now)
    }

    /// What changed since the last look.
    pub fn look(&mut self, now: Time) -> Stand {
        let asked = self.asked.as_ref();
        if asked.is_some_and(|asked| asked.shared.is_superseded.load(Ordering::Relaxed)) {
            return Stand::Superseded;
        }
        let held = std::mem::replace(&mut self.held, self.proof.holds(now));
        match (held, self.held) {
            (false, true) => Stand::Proven,
            (true, false) => Stand::Unproven,
            (true, true) | (false, false) => Stand::AsBefore,
        }
    }

    /// Why the manager may not act, for people; nothing while it may.
    pub fn trouble(&self, now: Time) -> Option<String> {
        if self.holds(now) {
            return None;
        }
        let error = self.asked.as_ref().and_then(|asked| {
            let error = asked.shared.error.lock();
            error.unwrap_or_else(PoisonError::into_inner).clone()
        });
        let error = error.unwrap_or_else(|| "no answer yet".to_owned());
        Some(format!(
            "cannot prove that no other manager began: changes wait ({error})"
        ))
    }
}

/// Why no manager begins.
pub(super) enum BeginError {
    /// The agreement does not have it.
    Refused(String),
    /// There is no thread to be had.
    System(std::io::Error),
}

fn ask_again_and_again(
    agreement: &mut dyn Agreement,
    epoch: u64,
    proof: &Proof,
    shared: &Shared,
    waker: &Waker,
    ended: &Receiver<()>,
) {
    while ended.recv_timeout(ASK_EVERY) == Err(RecvTimeoutError::Timeout) {
        let asked_at = Time::now();
        let held = proof.holds(asked_at);
        let error = match agreement.is_last(epoch) {
            Ok(true) => {
                proof.prolong(asked_at);
                None
            }
            Ok(false) => {
                shared.is_superseded.store(true, Ordering::Relaxed);
                waker.wake();
                return;
            }
            Err(error) => Some(error),
        };
        *shared.error.lock().unwrap_or_else(PoisonError::into_inner) = error;
        if held != proof.holds(Time::now()) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_ages_in_its_second_half_and_that_of_a_lock_never() {
        let at = |share: u32| Time(7).after(PROOF_LEASE * share / 4);
        let proof = Proof::new(at(4));
        let ages = [0, 1, 2, 3, 4].map(|share| proof.is_ageing(at(share)));
        assert_eq!(ages, [false, false, true, true, true]);
        proof.prolong(at(3));
        assert!(proof.holds(at(4)) && !proof.is_ageing(at(4)));
        let lock = Proof::new(Time(u64::MAX));
        assert!(!lock.is_ageing(at(1000)));
    }
}
