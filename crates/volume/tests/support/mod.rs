//! What the tests of a volume use: hosts, and what goes wrong between them and it.

#![allow(dead_code, unused_imports, reason = "each test file uses its part")]

pub mod backed;
pub mod disk;
pub mod operator;
pub mod relay;
pub mod replaced;
pub mod rot;
pub mod tardy;

pub use cenote_test_kit::cluster::{
    Cluster, Transport, assert_pages, wait_changed, wait_for_health,
};
pub use cenote_test_kit::{Random, guarded, page, wait_until};
