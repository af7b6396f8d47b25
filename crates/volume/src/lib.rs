//! Resilient remote memory for one client.
mod request;
pub use request::{Done, IoError, Op, PAGE_BYTES, REQUEST_BYTES_MAX, Request};
