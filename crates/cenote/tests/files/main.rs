//! `cenote mount` on a real cluster: real programs, kills of its process and of hosts, remounts.

mod bench;
mod kills;
mod mount_rig;
mod mounts;
mod programs;
#[path = "../support/mod.rs"]
mod support;
