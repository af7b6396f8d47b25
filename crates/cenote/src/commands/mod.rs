//! One module per command, each with its arguments and its `run`.

pub mod attach;
pub mod cache;
pub mod completions;
pub mod dashboard;
pub mod doctor;
pub mod down;
pub mod fabric;
pub mod host;
pub mod key;
pub mod kv;
pub mod lab;
pub mod man;
pub mod mount;
pub mod nbd;
pub mod plan;
pub mod run;
pub mod scrub;
mod set;
pub mod status;
pub mod store;
pub mod support_bundle;
pub mod swap;
pub mod top;
pub mod ublk;
pub mod up;
pub mod volume;
