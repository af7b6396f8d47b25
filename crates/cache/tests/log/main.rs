//! The log store against models: one thread, several, crashes, real disks and processes, and
//! mistakes made on purpose.

mod crash;
mod disk;
mod harness;
mod killed;
mod medium;
mod model;
mod planted;
mod threads;
mod tiers;
