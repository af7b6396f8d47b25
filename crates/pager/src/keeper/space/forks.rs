//! Children of a program: their books, which are a copy of its own.

use std::os::fd::OwnedFd;

use super::super::kernel::Kernel;
use super::super::slots::NONE;
use super::super::store::Store;
use super::{Space, UNBOUNDED};
use crate::pages::Pages;
use crate::reports;

impl Space {
    /// Makes the books of children that were forked.
    pub(super) fn settle_forks(&mut self, store: &mut Store) {
        // What was left to be done is not done by one that is given up: there are no books for a
        // child. What is put off is done in the child, too.
        if self.is_given_up || self.put_off.is_some() {
            return;
        }
        for uffd in std::mem::take(&mut self.kernel.forked) {
            if store.ids.is_full() {
                let space = self.id;
                reports::say(move || {
                    tracing::error!(space, "a child is ended: there are too many programs");
                });
                self.refuse_child(uffd, store);
                continue;
            }
            // Those that are writable by the books get a fault at a write, and become so.
            let (pages, _) = self.pages.copied();
            let mut shared = store.slots();
            let slots = (0..self.layout.count())
                .map(|page| match pages.is_stored(page) {
                    true => self.slots[page as usize],
                    false => NONE,
                })
                .inspect(|slot| shared.share(*slot))
                .collect();
            drop(shared);
            let kernel = Kernel::of_child(uffd);
            let mut child = Self::of(store.ids.take(), kernel, self.layout, pages, slots);
            child.pages.set_room(UNBOUNDED, store.now());
            // Its mailbox has its parent's last request, which is not its own.
            child.answered = self.answered;
            self.children.push(child);
        }
    }

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
}
