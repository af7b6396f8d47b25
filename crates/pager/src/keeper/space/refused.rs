//! Address spaces that are not served any more, or never were: the kernel refused what their pages
//! need, or they were forked when there were too many.
//!
//! There is nothing right to install for them. So their faults wait, and their descriptors stay
//! open until they are dead: without those the kernel would show zeros. The end comes from the
//! program's library: its agent ends it when the connection ends, and a child ends itself when its
//! hello is refused. Before that it asks at its doorbell who it is, which is answered here.

use std::os::fd::OwnedFd;

use super::super::kernel::Kernel;
use super::super::store::Store;
use super::{Space, UNBOUNDED};
use crate::pages::Pages;

impl Space {
    /// A child that is not served. It has no tables.
    fn refused(id: u32, uffd: OwnedFd, parent: &Self) -> Self {
        let pages = Pages::new(0, UNBOUNDED);
        let kernel = Kernel::of_child(uffd);
        let mut child = Self::of(id, kernel, parent.layout, pages, Vec::new());
        child.give_up();
        child
    }

    /// Takes a child in that is not served.
    pub(super) fn refuse_child(&mut self, uffd: OwnedFd, store: &mut Store) {
        let child = Self::refused(store.ids.take(), uffd, self);
        self.children.push(child);
    }

    /// As [`Space::turn`], of one that is given up.
    pub(super) fn turn_away(&mut self, store: &mut Store) -> bool {
        // What cannot be read waits, as all else of it does.
        self.kernel.read().ok();
        let forked = std::mem::take(&mut self.kernel.forked);
        let faults = std::mem::take(&mut self.kernel.faults);
        let is_busy = !(forked.is_empty() && faults.is_empty());
        for uffd in forked {
            self.refuse_child(uffd, store);
        }
        let asks = |fault: &super::Fault| self.layout.page(fault.address) == Some(0);
        if faults.iter().any(asks) {
            self.answer(0);
        }
        is_busy
    }
}
