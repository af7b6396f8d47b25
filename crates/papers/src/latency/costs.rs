//! What the processor's work costs in virtual time: the worker says what it does, time passes.
//!
//! One simulated cluster at a time per thread; what is charged moves its network on, so that what is
//! under way goes on meanwhile.

use std::cell::RefCell;
use std::time::Duration;

use cenote_fabric::sim::Net;
use cenote_volume::Work;

/// Nanoseconds each.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Costs {
    /// Making the parities of a page.
    pub encode_ns: u64,
    /// Making data splits that did not come.
    pub decode_ns: u64,
    /// Copying a page.
    pub copy_ns: u64,
    /// An interrupt and a context switch, or a thread that wakes another.
    pub wake_ns: u64,
}

thread_local! {
    static METER: RefCell<Option<(Net, Costs)>> = const { RefCell::new(None) };
}

/// Charges this thread's work to a network's clock from now on.
pub(super) fn set(net: &Net, costs: Costs) {
    METER.set(Some((net.clone(), costs)));
}

/// Nothing is charged any more.
pub(super) fn unset() {
    METER.set(None);
}

/// A worker has done something.
pub(super) fn charge(work: Work) {
    pass(|costs| match work {
        Work::Encode => costs.encode_ns,
        Work::Decode => costs.decode_ns,
        Work::Copy => costs.copy_ns,
    });
}

/// A thread was woken.
pub(super) fn wake() {
    pass(|costs| costs.wake_ns);
}

fn pass(cost: impl FnOnce(&Costs) -> u64) {
    METER.with_borrow(|meter| {
        if let Some((net, costs)) = meter {
            let spent = Duration::from_nanos(cost(costs));
            net.advance_to(net.now().after(spent));
        }
    });
}
