//! A cluster's memory for C programs, and for languages that call C. `include/cenote.h` is made from
//! the public items here, and `docs/guides/c.md` is the way in.
//!
//! No panic leaves a call, and no pointer of the caller's is kept after it.

mod arguments;
mod cache;
mod handle;
mod result;
mod volume;

pub use cache::*;
pub use result::*;
pub use volume::*;
