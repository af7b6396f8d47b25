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
//! A store that is gone stops changes, or reads if it is the last: who decides that takes it out of the row,
//! for all clients. One that comes in gets what it lacks by [`Copies::bring`], and reads last.

use std::time::Duration;

use crate::client::{Client, ClientError, Command, Outcome};
use crate::format::VALUE_BYTES_MAX;
use crate::pool::{Condition, Version};
use crate::protocol::Refusal;
use crate::schemes::Durable;

/// In front of the bytes: this, whether it is a deletion, and its number.
const MAGIC: [u8; 4] = *b"copy";
const HEAD_BYTES: usize = 16;

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
}

/// One copy, as it is in a store.
#[derive(Clone, Debug, Eq, PartialEq)]
struct Copy {
    /// Of the object's changes, from 1.
    number: u64,
    /// `None`: it was deleted.
    value: Option<Vec<u8>>,
}

impl Copy {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + self.value.as_ref().map_or(0, Vec::len));
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&u32::from(self.value.is_none()).to_le_bytes());
        bytes.extend_from_slice(&self.number.to_le_bytes());
        bytes.extend_from_slice(self.value.as_deref().unwrap_or_default());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, value) = bytes.split_at_checked(HEAD_BYTES)?;
        let kind = head.strip_prefix(&MAGIC)?.first_chunk()?;
        let number = u64::from_le_bytes(*head.last_chunk()?);
        let value = match u32::from_le_bytes(*kind) {
            0 => Some(value.to_vec()),
            1 if value.is_empty() => None,
            _ => return None,
        };
        (number > 0).then_some(Self { number, value })
    }

    fn visible(&self) -> Option<u64> {
        self.value.is_some().then_some(self.number)
    }
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
    /// [`CopiesError`] of the last store.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Version>, CopiesError> {
        let found = self.read(self.stores.len() - 1, key)?;
        Ok(found.and_then(|(_, copy)| {
            let sequence = copy.number;
            copy.value.map(|value| Version { sequence, value })
        }))
    }

    /// All keys that begin with `prefix` and have a value, in order.
    ///
    /// # Errors
    /// [`CopiesError`] of the last store.
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
            if let Some((_, copy)) = self.read(0, &key)? {
                self.hand_on(&key, &copy)?;
                count += 1;
            }
        }
        Ok(count)
    }

    fn change(
        &mut self,
        key: &[u8],
        value: Option<Vec<u8>>,
        condition: Condition,
    ) -> Result<u64, CopiesError> {
        loop {
            let found = self.read(0, key)?;
            let visible = found.as_ref().and_then(|(_, copy)| copy.visible());
            let holds = match condition {
                Condition::Always => true,
                Condition::Absent => visible.is_none(),
                Condition::Sequence(wanted) => visible == Some(wanted),
            };
            let is_done = value.is_none() && visible.is_none();
            if !holds || is_done {
                // A change that its client did not bring to the end would never be read, and stand in the
                // way of all that ask for what is read.
                if let Some((_, copy)) = &found {
                    self.hand_on(key, copy)?;
                }
                return match holds {
                    true => Ok(found.map_or(0, |(_, copy)| copy.number)),
                    false => Err(at(0, ClientError::Refused(Refusal::Condition(visible)))),
                };
            }
            let number = found.as_ref().map_or(1, |(_, copy)| copy.number + 1);
            let value = value.clone();
            let copy = Copy { number, value };
            let before = found.map(|(sequence, _)| sequence);
            if self.replace(0, key, &copy, before)? {
                self.hand_on(key, &copy)?;
                return Ok(number);
            }
        }
    }

    /// Brings a copy that the first store has to all others, unless theirs is newer.
    fn hand_on(&mut self, key: &[u8], copy: &Copy) -> Result<(), CopiesError> {
        for store in 1..self.stores.len() {
            loop {
                let found = self.read(store, key)?;
                if let Some((_, theirs)) = &found {
                    if theirs.number > copy.number || theirs == copy {
                        break;
                    }
                    if theirs.number == copy.number {
                        let error = CopyError::Diverged;
                        return Err(CopiesError { store, error });
                    }
                }
                let before = found.map(|(sequence, _)| sequence);
                if self.replace(store, key, copy, before)? {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The copy that a store has, and the store's own version of it.
    fn read(&mut self, store: usize, key: &[u8]) -> Result<Option<(u64, Copy)>, CopiesError> {
        let command = Command::Get { key: key.to_vec() };
        match self.call(store, command)? {
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

    /// Puts a copy in place of a version. `false`: there is another one by now.
    fn replace(
        &mut self,
        store: usize,
        key: &[u8],
        copy: &Copy,
        before: Option<u64>,
    ) -> Result<bool, CopiesError> {
        let command = Command::Put {
            key: key.to_vec(),
            value: copy.encode(),
            condition: before.map_or(Condition::Absent, Condition::Sequence),
            is_durable: true,
        };
        match self.call(store, command) {
            Ok(_) => Ok(true),
            Err(CopiesError {
                error: CopyError::Client(ClientError::Refused(Refusal::Condition(_))),
                ..
            }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn call(&mut self, store: usize, command: Command) -> Result<Outcome, CopiesError> {
        let said = self.stores[store].call(command, self.limit);
        said.map_err(|error| at(store, error))
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn copies_are_what_they_were() {
        for value in [None, Some(Vec::new()), Some(b"bytes".to_vec())] {
            let copy = Copy { number: 7, value };
            assert_eq!(Copy::decode(&copy.encode()), Some(copy));
        }
        let deleted = Copy {
            number: 7,
            value: None,
        };
        // A deletion with bytes, a number that is none, another kind.
        assert_eq!(Copy::decode(&[&deleted.encode()[..], b"x"].concat()), None);
        assert_eq!(Copy::decode(&[&b"copy"[..], &[0; 12]].concat()), None);
        assert_eq!(Copy::decode(&[&b"copy"[..], &[2; 12]].concat()), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_copy_or_none(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Some(copy) = Copy::decode(&bytes) {
                prop_assert_eq!(copy.encode(), bytes);
            }
        }
    }
}
