//! Messages as bytes, each declared once.
//!
//! [`messages!`] takes types with the order, numbers and bounds of their fields on the wire. It
//! generates the types, their writers and their readers, so that these cannot differ and a
//! message's layout is in one place:
//!
//! ```
//! use cenote_wire::{Reader, Text, Writer, messages};
//!
//! messages! {
//!     /// What is asked.
//!     #[derive(Debug, Eq, PartialEq)]
//!     pub enum Question | "an unknown question" {
//!         /// Who is there?
//!         1 => Who,
//!         /// How is it called?
//!         2 => Call {
//!             /// Of what.
//!             id: u32,
//!             /// At most 10 bytes, behind their number.
//!             name: String as Text<u8, 10>,
//!         },
//!     }
//! }
//!
//! let mut bytes = Vec::new();
//! let name = "ab".to_owned();
//! Writer::new(&mut bytes).put(&Question::Call { id: 7, name });
//! assert_eq!(bytes, [2, 7, 0, 0, 0, 2, b'a', b'b']);
//! assert_eq!(Reader::new(&[1]).whole(), Ok(Question::Who));
//! assert!(Reader::new(&[3]).whole::<Question>().is_err());
//! ```
//!
//! Numbers are little-endian. Input may be hostile: nothing is read past the end, and a count of
//! bytes or items is checked against its bound and the available input before it is used. Layouts
//! that cannot be declared are written by hand as a [`Field`] or a [`Layout`], in their place among
//! the others.

#![forbid(unsafe_code)]

mod declaration;
mod field;
mod layouts;
mod reader;
#[cfg(test)]
mod tests;
mod window;
mod writer;

pub use field::{Field, Layout, Plain, Tagged};
pub use layouts::{Bytes, Count, List, ListToEnd, Rest, Since, Text};
pub use reader::Reader;
pub use window::Window;
pub use writer::Writer;

/// Bytes that are no message: what is wrong with them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed(pub &'static str);

/// What reading gives.
pub type Taken<T> = Result<T, Malformed>;

impl Malformed {
    /// More or fewer items than a list may have, unless its declaration says it in other words.
    pub const ITEMS: Self = Self("too many items, or too few");

    /// In the words of a list's declaration, if this is about its number of items.
    #[doc(hidden)]
    #[must_use]
    pub fn of_list(self, words: &'static str) -> Self {
        if self == Self::ITEMS {
            Self(words)
        } else {
            self
        }
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
