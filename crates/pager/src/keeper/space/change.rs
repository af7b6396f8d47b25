//! Changes of a program's memory, and the one that the kernel puts off.
//!
//! From the copy of a page table on, the kernel refuses changes until the fork's event is read and
//! the thread that forks has gone on. That thread may copy for long, or get no processor. So a
//! change that is refused waits here, everything else of the address space waits for it, and the
//! handler goes on with others.

use std::io;

use cenote_volume::PAGE_BYTES;

use super::super::kernel::is_again;
use super::super::store::Store;
use super::{Space, WrittenAs};

/// A change of a page.
pub(super) enum Change {
    /// Zeros, where nothing is.
    Zero(u32),
    /// Zeros at a resident page, if the program took it out by itself; protected, or not.
    Restore(u32, bool),
    /// Bytes; protected, or not.
    Install(u32, Vec<u8>, bool),
    /// Writes are faults from now on, or are not.
    Protect(u32, bool),
    /// Touching it is SIGBUS.
    Poison(u32),
}

impl Change {
    fn what(&self) -> &'static str {
        match self {
            Self::Zero(_) | Self::Restore(..) => "a page of zeros",
            Self::Install(..) => "install",
            Self::Protect(..) => "protect",
            Self::Poison(_) => "poison",
        }
    }
}

impl Space {
    /// Changes a page, or has the change wait. What the kernel refuses otherwise is about a mapping
    /// that is gone, or the program ends.
    pub(super) fn change(&mut self, change: Change, store: &mut Store) {
        let result = self.try_change(&change);
        if result.as_ref().is_err_and(is_again) {
            self.put_off = Some(change);
            return;
        }
        let is_done = self.done(change.what(), result);
        match change {
            Change::Restore(page, _) if is_done == Some(true) => self.pages.vanished(page),
            Change::Install(_, bytes, _) => store.keep(bytes),
            Change::Poison(page) if is_done == Some(false) => self.pages.found(page, store.now()),
            _ => {}
        }
    }

    /// Whether it was done to a page that was not there.
    fn try_change(&mut self, change: &Change) -> io::Result<bool> {
        let address = |page: u32| self.layout.address(page);
        match change {
            Change::Zero(page) => self.kernel.zero(address(*page), false),
            Change::Restore(page, protected) => self.kernel.zero(address(*page), *protected),
            Change::Install(page, bytes, protected) => {
                debug_assert_eq!(bytes.len(), PAGE_BYTES);
                let installed = self.kernel.install(address(*page), bytes, *protected);
                installed.map(|()| true)
            }
            Change::Protect(page, protected) => {
                let result = self.kernel.protect(address(*page), *protected);
                result.map(|()| false)
            }
            Change::Poison(page) => self.kernel.poison(address(*page)),
        }
    }

    /// A page that is to be written could not be read. Whether it stays: it is there, or may be. `false`:
    /// its mapping is gone.
    ///
    /// One that the program took out by itself reads zeros. It gets them and is written another time:
    /// the program may write to it from now on.
    pub(super) fn stays_unread(&mut self, page: u32, store: &Store) -> bool {
        let written = match self.try_change(&Change::Restore(page, true)) {
            Ok(true) => {
                self.pages.vanished(page);
                Some(WrittenAs::Nothing)
            }
            Ok(false) => None,
            Err(error) if is_again(&error) => None,
            Err(error) => {
                self.done("look for a page", Err::<(), _>(error));
                return false;
            }
        };
        self.pages.write_done(page, written, store.now());
        true
    }

    /// Tries the change again that was put off. Whether there is none any more.
    pub(super) fn catch_up(&mut self, store: &mut Store) -> bool {
        let Some(change) = self.put_off.take() else {
            return true;
        };
        self.change(change, store);
        if self.put_off.is_some() {
            return false;
        }
        self.release(store);
        true
    }

    /// Looks again at what is held.
    pub(super) fn release(&mut self, store: &mut Store) {
        self.kernel.faults.append(&mut self.held_faults);
        for (place, purpose, end) in std::mem::take(&mut self.held_ends) {
            self.end(place, purpose, end, store);
        }
        for page in std::mem::take(&mut self.held_zeros) {
            self.zero(page, store);
        }
        // A fork is settled between actions.
        self.act(store);
        let is_held = !(self.held_ends.is_empty() && self.held_zeros.is_empty());
        if is_held || self.request.is_some() {
            self.flush();
        }
    }
}
