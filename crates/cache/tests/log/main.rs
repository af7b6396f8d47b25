//! The log store against models: one thread, several, crashes, real disks and processes, and
//! mistakes made on purpose.

mod crash;
mod disk;
mod harness;
mod injected_faults;
mod kills;
mod medium;
mod model;
mod refusals;
mod remote;
mod ring;
mod states;
mod threads;
mod tiers;
mod values;
