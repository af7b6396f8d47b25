//! `stats cachedump`: the keys of a process, for `memcdump` and its like.
//!
//! Each worker is asked for its own, and all answers together have at most [`DUMP_BYTES_MAX`], as in
//! memcached.

use std::io::Write;

use super::backend::Backend;
use super::core::Core;
use crate::engine::Partition;
use crate::memory::classes::CLASSES;
use crate::protocol::Words;

/// Bytes of a dump.
const DUMP_BYTES_MAX: usize = 2 << 20;

/// What is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Dump {
    class: usize,
    /// Most items of each worker.
    items_max: usize,
}

impl Dump {
    /// Reads the words after `cachedump`; an error is its text.
    pub(super) fn parse(mut words: Words<'_>) -> Result<Self, &'static [u8]> {
        let mut number = || {
            let word = std::str::from_utf8(words.next()?).ok()?;
            word.parse::<u32>().ok()
        };
        let (Some(class), Some(items)) = (number(), number()) else {
            return Err(b"CLIENT_ERROR bad command line format\r\n");
        };
        let class = usize::try_from(class).ok();
        let class = class.filter(|class| *class < CLASSES);
        let class = class.ok_or(&b"CLIENT_ERROR Illegal slab id\r\n"[..])?;
        Ok(Self {
            class,
            items_max: if items == 0 {
                usize::MAX
            } else {
                items as usize
            },
        })
    }

    /// The text by which a worker is asked.
    pub(super) fn text(self) -> Vec<u8> {
        let items = if self.items_max == usize::MAX {
            0
        } else {
            self.items_max
        };
        format!("stats cachedump {} {items}\r\n", self.class).into_bytes()
    }

    /// Writes a line for each item of a worker, without the `END`.
    pub(super) fn write<B: Backend>(self, core: &mut Core<B>, out: &mut Vec<u8>) {
        let end = out.len() + DUMP_BYTES_MAX / core.shared.workers.len();
        let mut left = self.items_max;
        for index in 0..core.backend.partition_count() {
            if !core.backend.is_here(index) {
                continue;
            }
            let partition = core.backend.partition(index);
            let mut next = Some(0);
            while let Some(from) = next.filter(|_| left > 0 && out.len() < end) {
                next = partition.walk(from, &mut |key, item| {
                    if left > 0 && out.len() < end && item.class(key.len()) == self.class {
                        left -= 1;
                        out.extend_from_slice(b"ITEM ");
                        out.extend_from_slice(key);
                        write!(out, " [{} b; {} s]\r\n", item.value_bytes, item.expiry)
                            .expect("a vector takes all");
                    }
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_is_read_and_said_again() {
        for text in ["1 0", "1 7", "63 1"] {
            let dump = Dump::parse(Words::new(text.as_bytes())).unwrap();
            assert_eq!(
                dump.text(),
                format!("stats cachedump {text}\r\n").into_bytes()
            );
        }
        for (text, error) in [
            ("", "bad command line format"),
            ("1", "bad command line format"),
            ("x 1", "bad command line format"),
            ("1 -1", "bad command line format"),
            ("64 0", "Illegal slab id"),
            ("4000000000 0", "Illegal slab id"),
        ] {
            let said = Dump::parse(Words::new(text.as_bytes())).unwrap_err();
            assert_eq!(
                said,
                format!("CLIENT_ERROR {error}\r\n").as_bytes(),
                "{text}"
            );
        }
    }
}
