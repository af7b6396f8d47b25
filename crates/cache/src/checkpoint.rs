//! A cache's regions in a file, and back: what comes back when a machine takes its regions with it.
//!
//! | file | owns |
//! |---|---|
//! | `format` | the file |
//! | `bulk` | whole regions of a host, read or written |
//! | `saver` | the thread that writes a checkpoint |
//! | `restorer` | regions from a checkpoint into new memory |
//!
//! The manager says which region is copied when; the owner holds its writes meanwhile.

pub mod bulk;
pub mod format;
pub mod restorer;
pub mod saver;
