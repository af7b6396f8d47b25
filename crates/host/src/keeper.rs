//! The thread that makes slabs' memory and gives it back.
//!
//! Populating a slab takes up to half a second and so does freeing it; the control
//! thread does neither. Fills have a thread of their own, so that a write that waits for
//! a repair never waits for a slab besides. Memory is given back before any is made: a machine that
//! wants it waits. What was taken over is locked last: nobody waits for that.
//! Bound: two jobs per slab.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use cenote_fabric::{Region, RegionOptions, Waker};
use cenote_pool::ledger::SlabIndex;

use crate::outcome::Outcome;
use crate::side_thread::SideThread;
use crate::{Error, Result, machine};

/// What the keeper is asked to do.
pub(crate) enum Job {
    /// Make a slab of zeros, all of it allocated.
    Prepare(SlabIndex),
    /// Give a slab's memory back.
    GiveBack(SlabIndex, Arc<Region>),
    /// Lock the memory of a slab that was taken over: locks end with the process before.
    Lock(Arc<Region>),
}

impl Job {
    /// Jobs of a lower turn go first; those of the same in the order they came in.
    fn turn(&self) -> u8 {
        match self {
            Self::GiveBack(..) => 0,
            Self::Prepare(_) => 1,
            Self::Lock(_) => 2,
        }
    }
}

/// Starts the thread. It makes no slab that would leave the machine less than `reserve_bytes`.
///
/// # Errors
/// `Os`: the system has no thread left.
pub(crate) fn start(
    slab_bytes: u64,
    reserve_bytes: u64,
    options: RegionOptions,
    outcomes: Sender<Outcome>,
    waker: Waker,
) -> Result<SideThread<Job>> {
    SideThread::start("keeper", move |inbox| {
        machine::step_back();
        let carry_out = |job| {
            let available_bytes = machine::available_bytes().saturating_sub(reserve_bytes);
            let outcome = carry_out(job, slab_bytes, options, available_bytes);
            let is_wanted = outcomes.send(outcome).is_ok();
            waker.wake();
            is_wanted
        };
        run(&inbox, carry_out);
    })
}

/// Until the inbox ends, or nobody wants an outcome.
fn run(inbox: &Receiver<Job>, mut carry_out: impl FnMut(Job) -> bool) {
    let mut jobs = VecDeque::new();
    loop {
        if jobs.is_empty() {
            let Ok(job) = inbox.recv() else { return };
            jobs.push_back(job);
        }
        jobs.extend(inbox.try_iter());
        let first = (0..jobs.len()).min_by_key(|&job| jobs[job].turn());
        let job = match jobs.remove(first.unwrap_or(0)).expect("not empty") {
            // All of it was given back meanwhile.
            Job::Lock(region) if region.is_dead() => continue,
            Job::Lock(region) => {
                if let Err(error) = region.lock() {
                    tracing::warn!(%error, "memory that was taken over is not locked");
                }
                continue;
            }
            other => other,
        };
        if !carry_out(job) {
            return; // The daemon is gone; nobody wants the rest.
        }
    }
}

/// Does one job; `available_bytes` is what the machine has left.
pub(crate) fn carry_out(
    job: Job,
    slab_bytes: u64,
    options: RegionOptions,
    available_bytes: u64,
) -> Outcome {
    match job {
        Job::Prepare(slab) => match prepare(slab, slab_bytes, options, available_bytes) {
            Ok(region) => {
                #[cfg(feature = "injected-faults")]
                injected_faults::put_back(&region);
                Outcome::Prepared(slab, Arc::new(region))
            }
            Err(error) => {
                tracing::warn!(slab, %error, "no memory for a slab");
                Outcome::PrepareFailed(slab)
            }
        },
        Job::GiveBack(slab, region) => {
            #[cfg(feature = "injected-faults")]
            injected_faults::keep(&region);
            if let Err(error) = region.truncate() {
                tracing::error!(slab, %error, "a slab's memory is not given back");
            }
            Outcome::GivenBack(slab)
        }
        Job::Lock(_) => unreachable!("has no outcome, and is done where it is taken"),
    }
}

/// Fresh memory: a memfd of its own, so zero, and granted at most once.
fn prepare(
    slab: SlabIndex,
    slab_bytes: u64,
    options: RegionOptions,
    available_bytes: u64,
) -> Result<Region> {
    if available_bytes < slab_bytes.saturating_add(RESERVE_BYTES) {
        return Err(Error::OutOfMemory {
            asked_bytes: slab_bytes,
            available_bytes,
        });
    }
    let region = Region::create(&format!("cenote-slab-{slab}"), slab_bytes, options)?;
    region.populate()?;
    Ok(region)
}

/// Left to the rest of the machine when a slab is populated: below this the kernel would
/// kill somebody for it. Arbitrary.
const RESERVE_BYTES: u64 = 64 << 20;

/// Slabs whose memory goes to the next client as the last one left it, as if nothing made it zero.
#[cfg(feature = "injected-faults")]
mod injected_faults {
    use std::cell::RefCell;

    use cenote_fabric::Region;
    use cenote_pool::injected_faults::{InjectedFault, is_injected};

    thread_local! {
        static KEPT: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    }

    /// Keeps the bytes of a slab that is given back.
    pub(super) fn keep(region: &Region) {
        if !is_injected(InjectedFault::NoZero) {
            return;
        }
        let mut bytes = vec![0; usize::try_from(region.len_bytes()).unwrap_or(0)];
        if region.read(0, &mut bytes).is_ok() {
            KEPT.with_borrow_mut(|kept| kept.push(bytes));
        }
    }

    /// Puts bytes that were kept into the next slab.
    pub(super) fn put_back(region: &Region) {
        if !is_injected(InjectedFault::NoZero) {
            KEPT.with_borrow_mut(Vec::clear);
        }
        if let Some(bytes) = KEPT.with_borrow_mut(Vec::pop) {
            // It is new, and nobody has killed it.
            region.write(0, &bytes).expect("memory that was just made");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn memory_is_given_back_before_any_is_made_and_locked_last() {
        let options = RegionOptions {
            huge: false,
            reserved: false,
            lock: false,
        };
        let region = || Arc::new(Region::create("kept", 4096, options).unwrap());
        let taken_over = region();
        let (jobs, inbox) = channel();
        for job in [
            Job::Lock(Arc::clone(&taken_over)),
            Job::Prepare(1),
            Job::Prepare(2),
            Job::GiveBack(3, region()),
            Job::Prepare(4),
            Job::GiveBack(5, region()),
        ] {
            jobs.send(job).unwrap();
        }
        drop(jobs);
        let mut done = Vec::new();
        run(&inbox, |job| {
            // The job has it still.
            assert_eq!(Arc::strong_count(&taken_over), 2, "is locked last");
            done.push(match job {
                Job::Prepare(slab) | Job::GiveBack(slab, _) => slab,
                Job::Lock(_) => unreachable!("has no outcome"),
            });
            true
        });
        assert_eq!(done, [3, 5, 1, 2, 4]);
        assert_eq!(Arc::strong_count(&taken_over), 1, "was locked");
    }
}
