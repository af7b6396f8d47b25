//! Benchmarks and the demo: each interface against what a user would use instead, in one run, on
//! the same workload.
//!
//! A benchmark measures ours and a peer interleaved in one run and returns one [`Row`] per figure.
//! Conditions and progress go to stderr, so that stdout has only rows. The command line calls the
//! functions here and prints what they return; nothing here reads arguments.

pub mod apps;
mod beside;
pub mod cluster;
pub mod codec;
pub mod demo;
pub mod events;
pub mod fabric;
pub mod files;
mod fio;
pub mod history;
pub mod kv;
pub mod log;
pub mod memcached_text;
pub mod migration;
pub mod nbd;
pub mod page;
pub mod pager;
pub mod protection;
pub mod reclaim;
pub mod regeneration;
mod rot;
mod rounds;
mod row;
pub mod store;
pub mod swap;
mod swap_rig;
pub mod trouble;

pub use row::{RatioRange, Row, Verdict, write_json, write_table};
pub(crate) use row::{figure, write_cells};
