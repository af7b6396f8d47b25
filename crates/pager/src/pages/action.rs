//! What [`Pages`] has its driver do, and what the driver is told of ends of I/O.

#[cfg(doc)]
use super::Pages;

/// What is to be done with a page, in this order.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Action {
    /// Get it zeros, once it is out of the memory; then [`Pages::zero_done`].
    Zero(u32),
    /// Read it from the store; then [`Pages::read_done`].
    Read(u32),
    /// Protect it against writes.
    Protect(u32),
    /// Write it to the store as [`Pages::written_as`] says; then [`Pages::write_done`].
    Write(u32),
    /// Let writes through again, and wake who waits.
    Unprotect(u32),
    /// Take it out of the memory, before another page comes at the latest.
    Drop(u32),
    /// Take its poison out of the memory, before another page comes at the latest.
    Unpoison(u32),
    /// Make the store forget it; then [`Pages::erase_done`].
    Erase(u32),
    /// Wake who waits for it: what was waited for has happened.
    Wake(u32),
}

/// What becomes of a page that was read, or gets zeros.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arrival {
    /// Install the bytes and wake who waits.
    Install {
        /// Whether writes to it are faults.
        protected: bool,
    },
    /// Nobody wants the bytes any more.
    Ignore,
    /// The bytes are lost: whoever touches the page gets SIGBUS.
    Poison,
}

/// How a page is written.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WrittenAs {
    /// Its bytes.
    Bytes,
    /// It is all zeros, and the store has other bytes: these are erased.
    Erased,
    /// It is all zeros, as the store has it.
    Nothing,
}
