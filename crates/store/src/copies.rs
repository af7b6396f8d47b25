//! Objects with copies in several stores: a change is acknowledged once all of them have it durably.
//!
//! The stores are in a row that all clients agree on. A change is ordered at the first one, goes from each
//! to the next, and is done at the last one, where reads go: what is read there is in all of them, so any
//! that is left has whatever was acknowledged or read. This is chain replication (van Renesse and
//! Schneider, 2004), driven by the clients: stores know nothing of each other.
//!
//! Each copy has the object's number in front of its bytes, which counts the object's changes, deletions as
//! well. A store takes a copy only over one of a smaller number, so clients that pass each other, stall or
//! die leave no older copy behind a newer one. Who finds a change that its client did not bring to the last
//! store, and has to go past it, brings it there.
//!
//! A store that is gone stops changes, or reads if it is the last: who decides that takes it out of
//! the row, for all clients. One that comes in is named between the first and the last, gets what
//! it lacks by [`Copies::bring`], and stays there: a last store that were another one than before
//! could show what others lack. Where one store is left, it is the first and the last until the new
//! one has all. What is ordered there can be read at once, so who reads it brings it to the new one
//! first. A store that lacks something is never the first: changes that meet one are refused.

mod change;
mod copy;
#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::client::{Client, ClientError, Command, Outcome};
use crate::format::VALUE_BYTES_MAX;
use crate::pool::{Condition, Version};
use crate::schemes::Durable;
pub use change::{Change, Step};
use copy::{Copy, HEAD_BYTES};

/// Largest value of an object with copies.
pub const COPIED_BYTES_MAX: usize = VALUE_BYTES_MAX - HEAD_BYTES;

/// Connections to all stores of a row.
pub struct Copies {
    stores: Vec<Client>,
    /// For each answer.
    limit: Duration,
}

/// Which store said what. A change that began may be in some stores then, and in all of them later.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("copy {}: {error}", store + 1)]
pub struct CopiesError {
    /// Its place in the row, from 0.
    pub store: usize,
    /// What happened.
    pub error: CopyError,
}

/// What went wrong at one store.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CopyError {
    /// The store's client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The object was put into this store alone.
    #[error("the object is not one of a store with copies")]
    Foreign,
    /// The store's scheme makes nothing durable.
    #[error("a crash may take what is read from a store of this scheme: no copies")]
    Scheme,
    /// Another row of stores had changes that this one has not seen.
    #[error(
        "the object differs from the copy before it: empty this store, and copy the others into it"
    )]
    Diverged,
    /// It does not have the newest copy, which another has. Numbers that it gives are no order.
    #[error(
        "the first store is behind the others: name another first, and copy from that one into it"
    )]
    Behind,
}

impl Copies {
    /// A row of stores. `limit` is for each of their answers.
    ///
    /// # Errors
    /// [`CopyError::Scheme`].
    ///
    /// # Panics
    /// There is none.
    pub fn new(stores: Vec<Client>, limit: Duration) -> Result<Self, CopiesError> {
        assert!(!stores.is_empty(), "a row of no stores");
        // What is read there, and built upon, a crash may take.
        let is_unsafe = |one: &Client| one.scheme().durable() == Durable::Never;
        match stores.iter().position(is_unsafe) {
            Some(store) => {
                let error = CopyError::Scheme;
                Err(CopiesError { store, error })
            }
            None => Ok(Self { stores, limit }),
        }
    }

    /// Puts a value into all stores, durably; the object's number. Conditions are about numbers.
    ///
    /// # Errors
    /// [`CopiesError`]; of the first store, `Refused(Condition)`: nothing was changed.
    pub fn put(
        &mut self,
        key: &[u8],
        value: &[u8],
        condition: Condition,
    ) -> Result<u64, CopiesError> {
        if value.len() > COPIED_BYTES_MAX {
            let error = ClientError::Size {
                key_bytes: key.len(),
                value_bytes: value.len(),
                value_bytes_max: COPIED_BYTES_MAX,
            };
            return Err(at(0, error));
        }
        self.change(key, Some(value.to_vec()), condition)
    }

    /// Deletes an object in all stores; its number. A few bytes of it are left, which keep older copies away.
    ///
    /// # Errors
    /// As [`Copies::put`].
    pub fn delete(&mut self, key: &[u8], condition: Condition) -> Result<u64, CopiesError> {
        self.change(key, None, condition)
    }

    /// The newest value that is in all stores, and the object's number.
    ///
    /// # Errors
    /// [`CopiesError`] of the last store; where that is the first as well, of any.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Version>, CopiesError> {
        let Some(copy) = self.read(self.stores.len() - 1, key)? else {
            return Ok(None);
        };
        if self.is_first_last() {
            let row = self.stores.len();
            self.drive(Change::hand_on_read(key.to_vec(), copy.clone(), row))?;
        }
        Ok(copy.into_version())
    }

    /// All keys that begin with `prefix` and have a value, in order.
    ///
    /// # Errors
    /// As [`Copies::get`].
    pub fn keys(&mut self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, CopiesError> {
        let last = self.stores.len() - 1;
        let mut keys = Vec::new();
        for key in self.all_keys(last, prefix)? {
            if self.get(&key)?.is_some() {
                keys.push(key);
            }
        }
        Ok(keys)
    }

    /// Brings what the first store has to all others, as far as theirs is older; how many objects it has.
    /// Changes may go on meanwhile.
    ///
    /// # Errors
    /// [`CopiesError`]; what was brought is there.
    pub fn bring(&mut self) -> Result<u64, CopiesError> {
        let mut count = 0;
        for key in self.all_keys(0, b"")? {
            if let Some(copy) = self.read(0, &key)? {
                self.drive(Change::hand_on(key, copy, self.stores.len()))?;
                count += 1;
            }
        }
        Ok(count)
    }

    /// Whether one store is named on both sides of others.
    fn is_first_last(&self) -> bool {
        let (first, last) = (&self.stores[0], &self.stores[self.stores.len() - 1]);
        self.stores.len() > 2 && first.address() == last.address()
    }

    fn change(
        &mut self,
        key: &[u8],
        value: Option<Vec<u8>>,
        condition: Condition,
    ) -> Result<u64, CopiesError> {
        let row = self.stores.len();
        self.drive(Change::new(key.to_vec(), value, condition, row))
    }

    fn drive(&mut self, (mut change, mut step): (Change, Step)) -> Result<u64, CopiesError> {
        loop {
            match step {
                Step::Ended(end) => return end,
                Step::Ask { store, command } => {
                    let said = self.stores[store].call(command, self.limit);
                    step = change.handle(said);
                }
            }
        }
    }

    /// The copy that a store has.
    fn read(&mut self, store: usize, key: &[u8]) -> Result<Option<Copy>, CopiesError> {
        let command = Command::Get { key: key.to_vec() };
        let said = self.stores[store].call(command, self.limit);
        let said = said.map_err(|error| at(store, error))?;
        Ok(found(store, said)?.map(|(_, copy)| copy))
    }

    fn all_keys(&mut self, store: usize, prefix: &[u8]) -> Result<Vec<Vec<u8>>, CopiesError> {
        let said = self.stores[store].keys(prefix, self.limit);
        said.map_err(|error| at(store, error))
    }
}

fn at(store: usize, error: ClientError) -> CopiesError {
    CopiesError {
        store,
        error: error.into(),
    }
}

/// The copy that a store answered with, and the store's own version of it.
fn found(store: usize, said: Outcome) -> Result<Option<(u64, Copy)>, CopiesError> {
    match said {
        Outcome::Value { sequence, value } => match Copy::decode(&value) {
            Some(copy) => Ok(Some((sequence, copy))),
            None => Err(CopiesError {
                store,
                error: CopyError::Foreign,
            }),
        },
        _ => Ok(None),
    }
}

/// The store that a row may not name again. Each is named once, but the first may be the last as well, with
/// others between: one that comes in where one is left.
#[must_use]
pub fn named_twice<T: PartialEq>(addresses: &[T]) -> Option<&T> {
    let is_between = addresses.len() > 2 && addresses.first() == addresses.last();
    let once = &addresses[..addresses.len() - usize::from(is_between)];
    let mut numbered = once.iter().enumerate();
    let (_, twice) = numbered.find(|(at, address)| once[..*at].contains(address))?;
    Some(twice)
}

/// What a store of a row says of an object: its value and number, `None` if it was deleted.
///
/// # Errors
/// [`CopyError::Foreign`].
pub fn version_of(value: &[u8]) -> Result<Option<Version>, CopyError> {
    let copy = Copy::decode(value).ok_or(CopyError::Foreign)?;
    Ok(copy.into_version())
}
