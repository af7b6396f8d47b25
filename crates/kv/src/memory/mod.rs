//! Where the keys and values of a partition lie.

pub mod allocator;
pub mod buffer;
pub mod classes;
pub mod footprint;
pub mod key_hash;
pub mod reaper;
pub mod region;
pub mod table;
