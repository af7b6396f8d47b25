//! Batches: many reads and writes of a client's slabs in one message, for a host's server threads.
//!
//! A batch is a list of items that are carried out in order: a WINDOW names the slab that the
//! READs and WRITEs after it are about. Each READ and WRITE has one answer, in order. What is
//! refused changes nothing and does not stop the rest. Byte tables: `docs/protocols/calls.md`.
//!
//! Paper: \[redy22\] configuration (c, s, b, q): b operations in a batch, q batches under way.

use crate::control::Malformed;

/// First byte of a call that is a batch; others are for other services of a host.
pub const BATCH: u8 = 1;
/// Most bytes that one READ or WRITE moves.
pub const OPERATION_BYTES_MAX: usize = 32 * 1024;
/// Longest batch and longest answer: as long as calls are (`cenote_fabric::calls::CALL_BYTES_MAX`).
pub const BATCH_BYTES_MAX: usize = 64 * 1024;

const WINDOW: u8 = 1;
const READ: u8 = 2;
const WRITE: u8 = 3;
/// Tag, offset, length.
const OPERATION_BYTES: usize = 1 + 8 + 2;
/// Tag, id, generation.
const WINDOW_BYTES: usize = 1 + 4 + 8;

/// How an operation ended; the numbers are those of the fabric's statuses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Outcome {
    /// It took effect.
    Done = 0,
    /// The window has another generation, or is not this client's.
    Stale = 1,
    /// The range passes the window's end.
    OutOfBounds = 2,
    /// The window does not allow it.
    NoRights = 3,
    /// The window was revoked while it ran; memory of a later one is untouched.
    Revoked = 4,
}

impl Outcome {
    fn from_byte(byte: u8) -> Result<Self, Malformed> {
        Ok(match byte {
            0 => Self::Done,
            1 => Self::Stale,
            2 => Self::OutOfBounds,
            3 => Self::NoRights,
            4 => Self::Revoked,
            _ => return Err(Malformed("an outcome that there is not")),
        })
    }
}

/// A batch that is being made.
#[derive(Debug, Default)]
pub struct BatchWriter {
    bytes: Vec<u8>,
    window: Option<(u32, u64)>,
    answer_bytes: usize,
}

impl BatchWriter {
    /// The bytes of the batch; empty if nothing was put in.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Starts again.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.window = None;
        self.answer_bytes = 0;
    }

    /// Appends a READ of `len_bytes`; false, and nothing is appended: the batch or its answer would
    /// be too long.
    ///
    /// # Panics
    /// If it is longer than [`OPERATION_BYTES_MAX`].
    pub fn read(&mut self, window: (u32, u64), offset: u64, len_bytes: usize) -> bool {
        self.operation(READ, window, offset, len_bytes, &[])
    }

    /// Appends a WRITE; false as for [`BatchWriter::read`].
    ///
    /// # Panics
    /// If it is longer than [`OPERATION_BYTES_MAX`].
    pub fn write(&mut self, window: (u32, u64), offset: u64, source: &[u8]) -> bool {
        self.operation(WRITE, window, offset, source.len(), source)
    }

    fn operation(
        &mut self,
        tag: u8,
        window: (u32, u64),
        offset: u64,
        len_bytes: usize,
        source: &[u8],
    ) -> bool {
        assert!(
            len_bytes <= OPERATION_BYTES_MAX,
            "{len_bytes} bytes at once"
        );
        let len = u16::try_from(len_bytes).expect("OPERATION_BYTES_MAX is less");
        let answer_bytes = 1 + if tag == READ { len_bytes } else { 0 };
        let start = self.bytes.len().max(1);
        let longest = start + WINDOW_BYTES + OPERATION_BYTES + source.len();
        let answer_start = self.answer_bytes.max(1);
        if longest > BATCH_BYTES_MAX || answer_start + answer_bytes > BATCH_BYTES_MAX {
            return false;
        }
        if self.bytes.is_empty() {
            self.bytes.push(BATCH);
        }
        self.answer_bytes = answer_start + answer_bytes;
        if self.window != Some(window) {
            self.window = Some(window);
            self.bytes.push(WINDOW);
            self.bytes.extend_from_slice(&window.0.to_le_bytes());
            self.bytes.extend_from_slice(&window.1.to_le_bytes());
        }
        self.bytes.push(tag);
        self.bytes.extend_from_slice(&offset.to_le_bytes());
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(source);
        true
    }
}

/// One operation of a batch, as its host reads it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Item<'a> {
    /// What the next operations are about: a window's index and generation.
    Window(u32, u64),
    /// So many bytes at an offset.
    Read(u64, usize),
    /// These bytes at an offset.
    Write(u64, &'a [u8]),
}

/// The items of a batch.
#[derive(Clone, Debug)]
pub struct Items<'a> {
    rest: &'a [u8],
    has_window: bool,
}

impl<'a> Items<'a> {
    /// The items of a call.
    ///
    /// # Errors
    /// It is no batch.
    pub fn new(call: &'a [u8]) -> Result<Self, Malformed> {
        match call.split_first() {
            Some((&BATCH, rest)) if call.len() <= BATCH_BYTES_MAX => Ok(Self {
                rest,
                has_window: false,
            }),
            _ => Err(Malformed("not a batch")),
        }
    }

    /// The next item; `None` at the end.
    ///
    /// # Errors
    /// Bytes that are no item: nothing after them is to be believed.
    pub fn next_item(&mut self) -> Result<Option<Item<'a>>, Malformed> {
        let Some((&tag, rest)) = self.rest.split_first() else {
            return Ok(None);
        };
        self.rest = rest;
        if tag == WINDOW {
            self.has_window = true;
            let id = u32::from_le_bytes(self.take()?);
            return Ok(Some(Item::Window(id, u64::from_le_bytes(self.take()?))));
        }
        if !self.has_window {
            return Err(Malformed("an operation on no window"));
        }
        let offset = u64::from_le_bytes(self.take()?);
        let len = usize::from(u16::from_le_bytes(self.take()?));
        if len > OPERATION_BYTES_MAX {
            return Err(Malformed("an operation that is too long"));
        }
        match tag {
            READ => Ok(Some(Item::Read(offset, len))),
            WRITE => {
                let (bytes, rest) = self.rest.split_at_checked(len).ok_or(CUT)?;
                self.rest = rest;
                Ok(Some(Item::Write(offset, bytes)))
            }
            _ => Err(Malformed("an item that there is not")),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(CUT)?;
        self.rest = rest;
        Ok(*taken)
    }
}

/// Begins the answer to a batch; each operation appends its [`Outcome`] as a byte, a READ that is
/// done its bytes after it.
pub fn begin_answer(answer: &mut Vec<u8>) {
    answer.push(BATCH);
}

/// The answers to a batch, in the order of its operations.
#[derive(Clone, Debug)]
pub struct Answers<'a> {
    rest: &'a [u8],
}

impl<'a> Answers<'a> {
    /// The answers in the answer to a call that was a batch.
    ///
    /// # Errors
    /// It is the answer to something else.
    pub fn new(answer: &'a [u8]) -> Result<Self, Malformed> {
        match answer.split_first() {
            Some((&BATCH, rest)) => Ok(Self { rest }),
            _ => Err(Malformed("not the answer to a batch")),
        }
    }

    /// How the next operation ended, and what it read; `len_bytes` is 0 for a WRITE.
    ///
    /// # Errors
    /// There is no answer to it.
    pub fn next_answer(&mut self, len_bytes: usize) -> Result<(Outcome, &'a [u8]), Malformed> {
        let (&outcome, rest) = self.rest.split_first().ok_or(CUT)?;
        let outcome = Outcome::from_byte(outcome)?;
        let len = if outcome == Outcome::Done {
            len_bytes
        } else {
            0
        };
        let (read, rest) = rest.split_at_checked(len).ok_or(CUT)?;
        self.rest = rest;
        Ok((outcome, read))
    }

    /// Checks that all answers were taken.
    ///
    /// # Errors
    /// There are more.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() {
            Ok(())
        } else {
            Err(Malformed("more answers than operations"))
        }
    }
}

const CUT: Malformed = Malformed("it ends too early");
const _: () = assert!(OPERATION_BYTES_MAX <= u16::MAX as usize);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn items(batch: &[u8]) -> Result<Vec<Item<'_>>, Malformed> {
        let mut items = Items::new(batch)?;
        let mut all = Vec::new();
        while let Some(item) = items.next_item()? {
            all.push(item);
        }
        Ok(all)
    }

    #[test]
    fn a_window_is_named_once_for_the_operations_on_it() {
        let mut batch = BatchWriter::default();
        assert!(batch.read((7, 8), 16, 3));
        assert!(batch.write((7, 8), 32, b"ab"));
        assert!(batch.read((7, 9), 0, 0));
        let expected = [
            Item::Window(7, 8),
            Item::Read(16, 3),
            Item::Write(32, b"ab"),
            Item::Window(7, 9),
            Item::Read(0, 0),
        ];
        assert_eq!(items(batch.bytes()).unwrap(), expected);
        assert_eq!(batch.bytes().len(), 1 + 2 * 13 + 3 * 11 + 2);
    }

    #[test]
    fn neither_a_batch_nor_its_answer_passes_the_bound() {
        let mut batch = BatchWriter::default();
        let mut answer_bytes = 1;
        while batch.read((1, 1), 0, 5000) {
            answer_bytes += 5001;
        }
        assert!(answer_bytes <= BATCH_BYTES_MAX && answer_bytes + 5001 > BATCH_BYTES_MAX);
        batch.clear();
        while batch.write((1, 1), 0, &[0; 5000]) {}
        let len = batch.bytes().len();
        assert!(len <= BATCH_BYTES_MAX && len + 5100 > BATCH_BYTES_MAX);
        items(batch.bytes()).unwrap();
    }

    #[test]
    fn answers_come_in_order_and_none_is_left() {
        let mut bytes = Vec::new();
        begin_answer(&mut bytes);
        bytes.extend([Outcome::Done as u8, 5, 6, Outcome::Stale as u8, 0]);
        let mut answers = Answers::new(&bytes).unwrap();
        assert_eq!(answers.next_answer(2), Ok((Outcome::Done, &[5, 6][..])));
        assert_eq!(answers.next_answer(9), Ok((Outcome::Stale, &[][..])));
        assert!(answers.clone().end().is_err());
        assert_eq!(answers.next_answer(0), Ok((Outcome::Done, &[][..])));
        assert!(answers.clone().end().is_ok());
        assert!(answers.next_answer(0).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_items_or_malformed(mut bytes in prop::collection::vec(any::<u8>(), 0..200),
                                            is_batch in any::<bool>()) {
            if is_batch && !bytes.is_empty() {
                bytes[0] = BATCH;
            }
            if let Ok(all) = items(&bytes) {
                prop_assert!(all.len() < bytes.len());
            }
            let mut answers = Answers::new(&bytes);
            while let Ok(left) = &mut answers {
                if left.next_answer(3).is_err() {
                    break;
                }
            }
        }

        #[test]
        fn what_is_put_in_comes_out(operations in prop::collection::vec(
            (0..3_u32, 0..3_u64, any::<u64>(), prop::collection::vec(any::<u8>(), 0..50),
             any::<bool>()), 1..60)) {
            let mut batch = BatchWriter::default();
            let mut expected = Vec::new();
            let mut window = None;
            for (id, generation, offset, bytes, is_read) in &operations {
                if window != Some((*id, *generation)) {
                    window = Some((*id, *generation));
                    expected.push(Item::Window(*id, *generation));
                }
                let put = if *is_read {
                    expected.push(Item::Read(*offset, bytes.len()));
                    batch.read((*id, *generation), *offset, bytes.len())
                } else {
                    expected.push(Item::Write(*offset, bytes));
                    batch.write((*id, *generation), *offset, bytes)
                };
                prop_assert!(put);
            }
            prop_assert_eq!(items(batch.bytes()).unwrap(), expected);
        }
    }
}
