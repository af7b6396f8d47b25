//! The file system as the real kernel shows it, over a medium in memory.

mod edges;
mod exerciser;
mod mounted;
mod programs;
mod suites;
