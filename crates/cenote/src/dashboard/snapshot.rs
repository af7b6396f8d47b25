//! What the page shows of a cluster at one moment, made of what its parts answered.
//!
//! Everything here is text and numbers; that text from hosts is never taken for markup is the page's
//! part. What is not told stays `None`, and is shown as unknown.

mod host;
mod service;
mod volume;

use serde::Serialize;

pub use host::{HostFigures, HostState, HostView, Level};
pub use service::{CacheState, CacheView, KvView, Operations, StoreFigures, StoreView};
pub use volume::{Counted, VolumeState, VolumeView};

/// A part of the cluster, as it answered last.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part<T> {
    /// When it was asked, in milliseconds since 1970.
    pub asked_ms: u64,
    /// Why there is no newer answer.
    pub error: Option<String>,
    /// What it answered last.
    pub answer: Option<T>,
}

impl<T> Default for Part<T> {
    fn default() -> Self {
        Self {
            asked_ms: 0,
            error: None,
            answer: None,
        }
    }
}

/// What other tests here make their clusters of.
#[cfg(test)]
pub mod tests {
    pub use super::host::Pressure;
    pub use super::host::tests::host;
    pub use super::service::{GroupView, NodeView};
    pub use super::volume::tests::volume;
}
