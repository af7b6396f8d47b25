//! A window's name.

use crate::messages;

messages! {
    /// A window as its host names it: what one process tells another of it.
    ///
    /// It is here since the pool's messages carry it and the fabric attaches it, and neither of them
    /// depends on the other.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    pub struct Window {
        /// Index in the host's table.
        pub id: u32,
        /// The life that this name is valid for.
        pub generation: u64,
        /// Length in bytes.
        pub len_bytes: u64,
        /// Bit set of what verbs may do.
        pub rights: u8,
    }
}
