//! Address spaces that are not served any more, or never were: the kernel refused what their pages
//! need, or they were forked when there were too many.
//!
//! There is nothing right to install for them. So their faults wait, and their descriptors stay
//! open until they are dead: without those the kernel would show zeros. The end comes from the
//! program's library: its agent ends it when the connection ends, and a child ends itself when its
//! hello is refused. Before that it asks at its doorbell who it is, which is answered here.

use super::super::store::Store;
use super::{Fault, Space};

impl Space {
    /// As [`Space::turn`], of one that is given up.
    pub(super) fn turn_away(&mut self, store: &mut Store) -> bool {
        // What cannot be read waits, as all else of it does.
        self.kernel.read().ok();
        let forked = std::mem::take(&mut self.kernel.forked);
        let faults = std::mem::take(&mut self.kernel.faults);
        let is_busy = !(forked.is_empty() && faults.is_empty());
        // Its last answer.
        if let Some(change) = self.put_off.take() {
            self.change(change, store);
        }
        for kernel in forked {
            self.refuse_child(kernel, store);
        }
        let asks = |fault: &Fault| self.layout.page(fault.address) == Some(0);
        if faults.iter().any(asks) {
            self.answer(0, store);
        }
        is_busy
    }
}
