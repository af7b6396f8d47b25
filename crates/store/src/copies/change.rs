//! One change on its way through a row of stores: which to ask next, and what its answer means. No I/O.

use super::copy::Copy;
use super::{CopiesError, CopyError, at, found};
use crate::client::{ClientError, Command, Outcome};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::pool::Condition;
use crate::protocol::Refusal;

/// What is next for a change.
#[derive(Debug)]
pub enum Step {
    /// A store is to be asked; [`Change::handle`] takes its answer.
    Ask {
        /// Its place in the row.
        store: usize,
        /// What.
        command: Command,
    },
    /// It is over: the object's number, or why not.
    Ended(Result<u64, CopiesError>),
}

/// A change that is ordered at the first store and goes from there to the last.
///
/// It may be dropped at any moment: what it began may then be in some stores, and comes into all of
/// them with the next change of the object.
#[derive(Debug)]
pub struct Change {
    key: Vec<u8>,
    /// `None`: a deletion.
    value: Option<Vec<u8>>,
    condition: Condition,
    /// How many stores there are.
    row: usize,
    stage: Stage,
}

/// Whose answer is awaited.
#[derive(Debug)]
enum Stage {
    /// The first store's, about what it has.
    Looking,
    /// The last store's, about what it has of an object that the first does not have.
    Founding,
    /// The first store's, which is to have this number at least: another store has it.
    Verifying { least: u64, then: Verified },
    /// The first store's, to the new copy.
    Ordering { copy: Copy },
    /// A later store's.
    Handing {
        store: usize,
        copy: Copy,
        /// It was asked to take the copy, not what it has.
        is_put: bool,
        /// How the change ends once the last store has the copy.
        end: Result<u64, CopiesError>,
    },
}

/// What is done once the first store is known not to be behind.
#[derive(Debug)]
enum Verified {
    /// Another client has been there meanwhile.
    Order,
    /// The newer copy is on its way as well.
    Hand {
        store: usize,
        copy: Copy,
        end: Result<u64, CopiesError>,
    },
}

impl Change {
    /// Puts a value, or deletes the object if there is none, in a row of so many stores.
    ///
    /// Ends with the object's number. Errors: of the first store `Refused(Condition)`: nothing was
    /// changed.
    #[must_use]
    pub fn new(
        key: Vec<u8>,
        value: Option<Vec<u8>>,
        condition: Condition,
        row: usize,
    ) -> (Self, Step) {
        let mut change = Self {
            key,
            value,
            condition,
            row,
            stage: Stage::Looking,
        };
        let step = change.look();
        (change, step)
    }

    /// Brings a copy that the first store has to all others.
    pub(super) fn hand_on(key: Vec<u8>, copy: Copy, row: usize) -> (Self, Step) {
        let mut change = Self {
            key,
            value: None,
            condition: Condition::Always,
            row,
            stage: Stage::Looking,
        };
        let number = copy.number;
        let step = change.hand(1, copy, Ok(number));
        (change, step)
    }

    /// Brings a copy that was read at the last store, which is the first as well, to those between.
    pub(super) fn hand_on_read(key: Vec<u8>, copy: Copy, row: usize) -> (Self, Step) {
        Self::hand_on(key, copy, row - 1)
    }

    /// Takes the answer to the last [`Step::Ask`].
    #[must_use]
    pub fn handle(&mut self, said: Result<Outcome, ClientError>) -> Step {
        let stage = std::mem::replace(&mut self.stage, Stage::Looking);
        self.go_on(stage, said)
            .unwrap_or_else(|error| Step::Ended(Err(error)))
    }

    fn go_on(
        &mut self,
        stage: Stage,
        said: Result<Outcome, ClientError>,
    ) -> Result<Step, CopiesError> {
        match stage {
            Stage::Looking => {
                let said = said.map_err(|error| at(0, error))?;
                match found(0, said)? {
                    None if self.row > 1 => Ok(self.ask_last()),
                    found => Ok(self.order(found)),
                }
            }
            Stage::Founding => {
                let last = self.row - 1;
                let said = said.map_err(|error| at(last, error))?;
                match found(last, said)? {
                    None => Ok(self.order(None)),
                    Some((_, copy)) => Ok(self.verify(copy.number, Verified::Order)),
                }
            }
            Stage::Verifying { least, then } => {
                let said = said.map_err(|error| at(0, error))?;
                let found = found(0, said)?;
                if found.as_ref().map_or(0, |(_, copy)| copy.number) < least {
                    let error = CopyError::Behind;
                    return Err(CopiesError { store: 0, error });
                }
                Ok(match then {
                    Verified::Order => self.order(found),
                    Verified::Hand { store, copy, end } => self.hand(store, copy, end),
                })
            }
            Stage::Ordering { copy } => match is_taken(0, said)? {
                true => {
                    let number = copy.number;
                    match is_injected(InjectedFault::CopyAcknowledgedFirst) {
                        true => Ok(Step::Ended(Ok(number))),
                        false => Ok(self.hand(1, copy, Ok(number))),
                    }
                }
                false => Ok(self.look()),
            },
            Stage::Handing {
                store,
                copy,
                is_put: true,
                end,
            } => Ok(match is_taken(store, said)? {
                true => self.hand(store + 1, copy, end),
                false => self.hand(store, copy, end),
            }),
            Stage::Handing {
                store, copy, end, ..
            } => {
                let said = said.map_err(|error| at(store, error))?;
                self.compare(store, found(store, said)?, copy, end)
            }
        }
    }

    fn look(&mut self) -> Step {
        self.stage = Stage::Looking;
        self.get(0)
    }

    /// Before an object is made, as if it were new: an empty store may have been named first.
    fn ask_last(&mut self) -> Step {
        self.stage = Stage::Founding;
        self.get(self.row - 1)
    }

    fn verify(&mut self, least: u64, then: Verified) -> Step {
        self.stage = Stage::Verifying { least, then };
        self.get(0)
    }

    /// The first store has this: puts the next copy in its place.
    fn order(&mut self, found: Option<(u64, Copy)>) -> Step {
        let visible = found.as_ref().and_then(|(_, copy)| copy.visible());
        let holds = match self.condition {
            Condition::Always => true,
            Condition::Absent => visible.is_none(),
            Condition::Sequence(wanted) => visible == Some(wanted),
        };
        let is_done = self.value.is_none() && visible.is_none();
        if !holds || is_done {
            let end = match holds {
                true => Ok(found.as_ref().map_or(0, |(_, copy)| copy.number)),
                false => Err(at(0, ClientError::Refused(Refusal::Condition(visible)))),
            };
            // A change that its client did not bring to the end would never be read, and stand in
            // the way of all that ask for what is read.
            return match found {
                Some((_, copy)) if !is_injected(InjectedFault::CopyLeftBehind) => {
                    self.hand(1, copy, end)
                }
                _ => Step::Ended(end),
            };
        }
        let before = found.as_ref().map_or(0, |(_, copy)| copy.number);
        let Some(number) = before.checked_add(1) else {
            // Whoever puts into a store without copies chooses these bytes.
            let error = CopyError::Foreign;
            return Step::Ended(Err(CopiesError { store: 0, error }));
        };
        let value = self.value.clone();
        let copy = Copy { number, value };
        let step = self.put(0, &copy, found.map(|(sequence, _)| sequence));
        self.stage = Stage::Ordering { copy };
        step
    }

    /// Brings a copy to a store and those behind it, unless theirs is newer.
    fn hand(&mut self, store: usize, copy: Copy, end: Result<u64, CopiesError>) -> Step {
        if store == self.row {
            return Step::Ended(end);
        }
        let is_put = false;
        self.stage = Stage::Handing {
            store,
            copy,
            is_put,
            end,
        };
        self.get(store)
    }

    /// A later store has this.
    fn compare(
        &mut self,
        store: usize,
        found: Option<(u64, Copy)>,
        copy: Copy,
        end: Result<u64, CopiesError>,
    ) -> Result<Step, CopiesError> {
        if let Some((_, theirs)) = &found {
            let is_newer =
                theirs.number > copy.number && !is_injected(InjectedFault::CopyOverNewer);
            if is_newer {
                let least = theirs.number;
                let store = store + 1;
                return Ok(self.verify(least, Verified::Hand { store, copy, end }));
            }
            if *theirs == copy {
                return Ok(self.hand(store + 1, copy, end));
            }
            if theirs.number == copy.number {
                let error = CopyError::Diverged;
                return Err(CopiesError { store, error });
            }
        }
        let step = self.put(store, &copy, found.map(|(sequence, _)| sequence));
        let is_put = true;
        self.stage = Stage::Handing {
            store,
            copy,
            is_put,
            end,
        };
        Ok(step)
    }

    fn get(&self, store: usize) -> Step {
        let key = self.key.clone();
        let command = Command::Get { key };
        Step::Ask { store, command }
    }

    /// Asks a store to take a copy in place of one of its versions.
    fn put(&self, store: usize, copy: &Copy, before: Option<u64>) -> Step {
        let condition = match before {
            _ if is_injected(InjectedFault::CopyUnconditional) => Condition::Always,
            Some(sequence) => Condition::Sequence(sequence),
            None => Condition::Absent,
        };
        let command = Command::Put {
            key: self.key.clone(),
            value: copy.encode(),
            condition,
            is_durable: true,
        };
        Step::Ask { store, command }
    }
}

/// Whether a store took a copy; if not, it has another version by now.
fn is_taken(store: usize, said: Result<Outcome, ClientError>) -> Result<bool, CopiesError> {
    match said {
        Ok(_) => Ok(true),
        Err(ClientError::Refused(Refusal::Condition(_))) => Ok(false),
        Err(error) => Err(at(store, error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_of_the_last_number_that_there_is_is_not_one_of_copies() {
        for (number, is_foreign) in [(u64::MAX, true), (u64::MAX - 1, false)] {
            let value = Some(b"made by hand".to_vec());
            let value = Copy { number, value }.encode();
            let new = Some(b"new".to_vec());
            let (mut change, _) = Change::new(b"key".to_vec(), new, Condition::Always, 2);
            let step = change.handle(Ok(Outcome::Value { sequence: 5, value }));
            match step {
                Step::Ended(Err(CopiesError { store: 0, error })) => {
                    assert!(is_foreign && error == CopyError::Foreign, "{error}");
                }
                step => assert!(!is_foreign, "{step:?}"),
            }
        }
    }
}
