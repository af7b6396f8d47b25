//! Children of a program: their books, which are a copy of its own.

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
        for kernel in std::mem::take(&mut self.kernel.forked) {
            let why = if store.ids.is_full() {
                Some("there are too many programs")
            } else if kernel.has_missed {
                Some("its memory cannot be served")
            } else {
                None
            };
            if let Some(why) = why {
                let space = self.id;
                reports::say(move || tracing::error!(space, why, "a child is ended"));
                self.refuse_child(kernel, store);
                continue;
            }
            // Those that are writable by the books get a fault at a write, and become so.
            let (mut pages, _) = self.pages.copied();
            for page in self.leaving.poisoned() {
                pages.stays_poisoned(page);
            }
            let mut shared = store.slots();
            let slots = (0..self.layout.count())
                .map(|page| match pages.is_stored(page) {
                    true => self.slots[page as usize],
                    false => NONE,
                })
                .inspect(|slot| shared.share(*slot))
                .collect();
            drop(shared);
            let mut child = Self::of(store.ids.take(), kernel, self.layout, pages, slots);
            child.pages.set_room(UNBOUNDED, store.now());
            // Its mailbox has its parent's last request, which is not its own.
            child.answered = self.answered;
            self.children.push(child);
        }
    }

    /// A child that is not served. It has no tables.
    fn refused(id: u32, kernel: Kernel, parent: &Self) -> Self {
        let pages = Pages::new(0, UNBOUNDED);
        let mut child = Self::of(id, kernel, parent.layout, pages, Vec::new());
        child.give_up();
        child
    }

    /// Takes a child in that is not served.
    pub(super) fn refuse_child(&mut self, kernel: Kernel, store: &mut Store) {
        let child = Self::refused(store.ids.take(), kernel, self);
        self.children.push(child);
    }
}
