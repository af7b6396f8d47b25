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
//! With the feature `cache` there are clients of remote caches, `cache::Cache`, and with `store`
//! clients of object stores, `store::Store`. Any thread may use them, with many requests in flight.
//!
//! It wraps `cenote-volume`, `cenote-cache` and `cenote-store`, which do the work, and
//! `cenote-fabric` and `cenote-pool`: none of their types is in this crate's interface, so they may
//! change behind it.
//!
//! Deliberately not here: volumes with names, which outlive their programs. `cenote nbd` and
//! `cenote mount` serve those.

#![forbid(unsafe_code)]

#[cfg(feature = "cache")]
pub mod cache;
mod cluster;
#[cfg(any(feature = "cache", feature = "store"))]
pub mod driver;
mod error;
mod options;
#[cfg(feature = "store")]
pub mod store;
mod volume;

pub use error::{AccessError, Error};
pub use options::Options;
pub use volume::{Status, Volume};
