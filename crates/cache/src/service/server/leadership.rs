//! Whether this manager can prove that no other one followed it.
//!
//! Where managers of several machines may begin, an [`Agreement`] holds the epoch of the last one.
//! A thread asks it each second. An answer proves, for [`PROOF_LEASE`] from when it was asked for, that
//! this manager is in charge; without one it gets and gives back no machine and changes nothing in
//! the region table. It goes on serving what the table says. A manager that follows one in another
//! place waits as long before it begins: then the other one's proof is over, and it writes no more.
//!
//! Where a lock keeps all others out, the proof is the lock.
//!
//! Claims and looks may take long: the thread makes both, so that a manager that waits for them, or for
//! the other one's end, can be stopped.

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

    /// The journal has the epoch that was claimed last, and its manager begins if this says so: no
    /// earlier journal is good for another any more. Until then one may follow that has the journal
    /// before.
    ///
    /// # Errors
    /// Nobody answers: it does not begin.
    fn begin(&mut self, epoch: u64) -> Result<bool, String> {
        self.is_last(epoch)
    }
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
/// Between two looks of a manager that waits, whether it is to stop.
const LOOK_EVERY: Duration = Duration::from_millis(50);

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
    /// Where to answer whether the manager begins. The thread ends with it.
    begin: Sender<Sender<Result<bool, String>>>,
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
    /// what it left is to be read after that. Once `stop` is set it waits for nothing.
    pub fn begin(
        claim: Claim,
        last: u64,
        waker: Waker,
        stop: &AtomicBool,
    ) -> Result<(u64, Self), BeginError> {
        let agreement = match claim {
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
        // Nothing is proven before the claim.
        let proof = Proof::new(Time(0));
        let (begin, begins) = channel();
        let (tell, claimed) = channel();
        let shared = Arc::new(Shared::default());
        let asker = Asker {
            agreement,
            proof: proof.clone(),
            shared: Arc::clone(&shared),
            waker,
        };
        let builder = std::thread::Builder::new().name("cenote-leadership".to_owned());
        let ask = move || asker.run(last, &tell, &begins);
        builder.spawn(ask).map_err(BeginError::System)?;
        let Claimed {
            epoch,
            may_have_rival,
        } = told(&claimed, stop)?;
        if may_have_rival {
            tracing::info!("waits until the manager before it, elsewhere, cannot act");
            wait(PROOF_LEASE + PROOF_LEASE_MARGIN, stop, |_| false)?;
        }
        let asked = Some(Asked { shared, begin });
        let mut begun = Self {
            proof,
            asked,
            held: true,
        };
        // A claim may have taken longer than it proves: the next look does.
        wait(PROOF_LEASE, stop, |now| {
            begun.holds(now) || begun.is_superseded()
        })?;
        let now = Time::now();
        match begun.look(now) {
            Stand::AsBefore => Ok((epoch, begun)),
            Stand::Superseded => Err(BeginError::another()),
            Stand::Unproven | Stand::Proven => {
                let why = begun.trouble(now).unwrap_or_default();
                Err(BeginError::Refused(why))
            }
        }
    }

    /// The journal has the epoch: the manager may begin once this has returned.
    pub fn confirm(&self, stop: &AtomicBool) -> Result<(), BeginError> {
        let Some(asked) = &self.asked else {
            return Ok(());
        };
        let (tell, confirmed) = channel();
        // If the thread has ended, nobody tells.
        let _asked = asked.begin.send(tell);
        match told(&confirmed, stop)? {
            true => Ok(()),
            false => Err(BeginError::another()),
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

    /// Whether another manager is known to have followed.
    fn is_superseded(&self) -> bool {
        let asked = self.asked.as_ref();
        asked.is_some_and(|asked| asked.shared.is_superseded.load(Ordering::Relaxed))
    }

    /// What changed since the last look.
    pub fn look(&mut self, now: Time) -> Stand {
        if self.is_superseded() {
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
#[derive(Debug)]
pub(super) enum BeginError {
    /// The agreement does not have it.
    Refused(String),
    /// It is to stop.
    Stopped,
    /// There is no thread to be had.
    System(std::io::Error),
}

impl BeginError {
    fn another() -> Self {
        Self::Refused("another manager has begun".to_owned())
    }
}

/// What came of a claim, unless the manager is to stop before.
fn told<T>(answer: &Receiver<Result<T, String>>, stop: &AtomicBool) -> Result<T, BeginError> {
    loop {
        match answer.recv_timeout(LOOK_EVERY) {
            Ok(said) => return said.map_err(BeginError::Refused),
            Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                return Err(BeginError::Stopped);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let why = "the thread that claims an epoch has ended".to_owned();
                return Err(BeginError::Refused(why));
            }
        }
    }
}

/// Waits until `is_over`, for so long at most, unless the manager is to stop before.
fn wait(
    limit: Duration,
    stop: &AtomicBool,
    is_over: impl Fn(Time) -> bool,
) -> Result<(), BeginError> {
    let end = Time::now().after(limit);
    loop {
        let now = Time::now();
        if now >= end || is_over(now) {
            return Ok(());
        }
        if stop.load(Ordering::Relaxed) {
            return Err(BeginError::Stopped);
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// What the thread that asks has.
struct Asker {
    agreement: Box<dyn Agreement>,
    proof: Proof,
    shared: Arc<Shared>,
    waker: Waker,
}

impl Asker {
    /// Claims an epoch after `last`, and asks about it until nobody wants to know any more.
    fn run(
        mut self,
        last: u64,
        tell: &Sender<Result<Claimed, String>>,
        begins: &Receiver<Sender<Result<bool, String>>>,
    ) {
        let asked_at = Time::now();
        let claimed = self.agreement.claim(last);
        let epoch = claimed.as_ref().ok().map(|claimed| claimed.epoch);
        if epoch.is_some() {
            self.proof.prolong(asked_at);
        }
        if tell.send(claimed).is_ok()
            && let Some(epoch) = epoch
        {
            self.ask_again_and_again(epoch, begins);
        }
    }

    fn ask_again_and_again(&mut self, epoch: u64, begins: &Receiver<Sender<Result<bool, String>>>) {
        loop {
            match begins.recv_timeout(ASK_EVERY) {
                Ok(tell) => {
                    // Where nobody waits any more, it does not begin.
                    let _told = tell.send(self.agreement.begin(epoch));
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let asked_at = Time::now();
            let held = self.proof.holds(asked_at);
            let error = match self.agreement.is_last(epoch) {
                Ok(true) => {
                    self.proof.prolong(asked_at);
                    None
                }
                Ok(false) => {
                    self.shared.is_superseded.store(true, Ordering::Relaxed);
                    self.waker.wake();
                    return;
                }
                Err(error) => Some(error),
            };
            let mut told = self
                .shared
                .error
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            *told = error;
            drop(told);
            if held != self.proof.holds(Time::now()) {
                self.waker.wake();
            }
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

    /// One that answers claims late, or never; who claimed before may still run.
    struct Slow(Receiver<()>);

    impl Agreement for Slow {
        fn claim(&mut self, last: u64) -> Result<Claimed, String> {
            self.0.recv().expect_err("nothing is sent");
            Ok(Claimed {
                epoch: last + 1,
                may_have_rival: true,
            })
        }

        fn is_last(&mut self, _: u64) -> Result<bool, String> {
            Ok(true)
        }
    }

    /// One that answers a claim when this proves nothing any more.
    struct Late;

    impl Agreement for Late {
        fn claim(&mut self, last: u64) -> Result<Claimed, String> {
            std::thread::sleep(PROOF_LEASE);
            Ok(Claimed {
                epoch: last + 1,
                may_have_rival: false,
            })
        }

        fn is_last(&mut self, _: u64) -> Result<bool, String> {
            Ok(true)
        }
    }

    #[test]
    fn a_claim_that_takes_longer_than_it_proves_is_proven_by_the_next_look() {
        let claim = Claim::Agreed(Box::new(Late));
        let stop = AtomicBool::new(false);
        let (epoch, begun) = Leadership::begin(claim, 3, Waker::new().unwrap(), &stop).unwrap();
        assert!(epoch == 4 && begun.holds(Time::now()));
    }

    #[test]
    fn one_that_is_to_stop_waits_neither_for_its_claim_nor_for_the_end_of_a_rival() {
        for answers in [false, true] {
            let (answer, answered) = channel();
            // A claim is answered when this is gone.
            let unanswered = Some(answer).filter(|_| !answers);
            let claim = Claim::Agreed(Box::new(Slow(answered)));
            let begun_at = Time::now();
            let stop = AtomicBool::new(true);
            let begun = Leadership::begin(claim, 3, Waker::new().unwrap(), &stop);
            assert!(matches!(begun, Err(BeginError::Stopped)), "{answers}");
            assert!(Time::now() < begun_at.after(PROOF_LEASE), "{answers}");
            drop(unanswered);
        }
    }
}
