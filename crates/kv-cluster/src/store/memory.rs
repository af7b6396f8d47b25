//! A store in memory, for tests: it answers at once, and others may change it between any two calls.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use super::Store;
use super::{Entry, EtcdError, LeaseId, Listing, Swap};

/// What others do.
type Doing = Box<dyn FnOnce(&Memory)>;

/// See the [module](self).
#[derive(Default)]
pub(in super::super) struct Memory {
    entries: RefCell<BTreeMap<String, Entry>>,
    revision: Cell<i64>,
    /// What others do just before the next swap.
    before_swap: RefCell<Option<Doing>>,
}

impl Memory {
    pub(in super::super) fn put(&self, key: &str, value: &[u8]) -> i64 {
        self.revision.set(self.revision.get() + 1);
        let entry = Entry {
            key: key.to_owned(),
            value: value.to_vec(),
            mod_revision: self.revision.get(),
            lease: None,
        };
        self.entries.borrow_mut().insert(key.to_owned(), entry);
        self.revision.get()
    }

    pub(in super::super) fn remove(&self, key: &str) {
        self.entries.borrow_mut().remove(key);
    }

    /// All that it had is gone.
    pub(in super::super) fn lose(&self) {
        self.entries.borrow_mut().clear();
    }

    pub(in super::super) fn entry(&self, key: &str) -> Option<Entry> {
        self.entries.borrow().get(key).cloned()
    }

    /// All of it, as a watch tells it first.
    pub(in super::super) fn listing(&self) -> Listing {
        self.list("").expect("it is there")
    }

    /// Has others do something just before the next swap.
    pub(in super::super) fn before_swap(&self, doing: impl FnOnce(&Self) + 'static) {
        *self.before_swap.borrow_mut() = Some(Box::new(doing));
    }

    fn revision_of(&self, key: &str) -> i64 {
        self.entry(key).map_or(0, |entry| entry.mod_revision)
    }
}

impl Store for Memory {
    fn read(&self, key: &str) -> Result<Option<Entry>, EtcdError> {
        Ok(self.entry(key))
    }

    fn swap(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        _: Option<LeaseId>,
    ) -> Result<Swap, EtcdError> {
        self.swap_with(key, expected, value, &[])
    }

    fn swap_with(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        others: &[(String, i64)],
    ) -> Result<Swap, EtcdError> {
        let doing = self.before_swap.borrow_mut().take();
        doing.into_iter().for_each(|doing| doing(self));
        let are_unchanged = others
            .iter()
            .all(|(other, revision)| self.revision_of(other) == *revision);
        if self.revision_of(key) == expected && are_unchanged {
            return Ok(Swap::Done(self.put(key, value)));
        }
        Ok(match self.entry(key) {
            Some(entry) if entry.value == value => Swap::Done(entry.mod_revision),
            other => Swap::Changed(other),
        })
    }

    fn list(&self, prefix: &str) -> Result<Listing, EtcdError> {
        let entries = self.entries.borrow();
        let all = entries.values();
        Ok(Listing {
            cluster: 1,
            revision: self.revision.get(),
            entries: all
                .filter(|entry| entry.key.starts_with(prefix))
                .cloned()
                .collect(),
        })
    }

    fn grant(&self, _: Duration) -> Result<LeaseId, EtcdError> {
        unreachable!("nobody registers")
    }

    fn renew(&self, _: LeaseId) -> Result<bool, EtcdError> {
        unreachable!("nobody registers")
    }

    fn revoke(&self, _: LeaseId) -> Result<(), EtcdError> {
        unreachable!("nobody registers")
    }
}
