//! Doors for the fuzz targets (`fuzz/` at the repository's root): bytes in, a panic where an
//! invariant breaks. No part of the interface; what users get is built without it.

pub use crate::journal::fuzz::journal;
