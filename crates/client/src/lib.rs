//! A cluster's memory for Rust programs: open a [`Volume`], and read and write it at any offset, from any
//! thread.
//!
//! ```no_run
//! # fn main() -> Result<(), cenote::Error> {
//! let volume = cenote::Volume::open("cluster.toml")?;
//! volume.write_at(b"kept by many hosts", 4096)?;
//! let mut back = [0; 18];
//! volume.read_at(&mut back, 4096)?;
//! assert_eq!(&back, b"kept by many hosts");
//! # Ok(())
//! # }
//! ```
//!
//! It is what a program needs of `cenote-volume`, which does the work, and of `cenote-fabric` and
//! `cenote-pool`: no type of these is in this crate's interface, so they may change behind it.
//!
//! Deliberately not here: volumes with names, which outlive their programs. `cenote nbd` and
//! `cenote mount` serve those.

#![forbid(unsafe_code)]

mod cluster;
mod error;
mod options;
mod volume;

pub use error::{AccessError, Error};
pub use options::Options;
pub use volume::{Status, Volume};
