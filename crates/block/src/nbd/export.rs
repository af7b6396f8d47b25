//! What a server offers: its exports, by name.

use std::sync::Arc;

use crate::disk::Disk;

/// One disk under one name.
#[derive(Clone)]
pub struct Export {
    /// Name that clients ask for, at most 4096 bytes; the first export is also
    /// found under the empty name.
    pub name: String,
    /// What is served.
    pub disk: Arc<dyn Disk>,
}

/// The one metadata context: which runs are holes.
pub(crate) const META_CONTEXT_NAME: &[u8] = b"base:allocation";
/// Its number on every connection.
pub(crate) const META_CONTEXT_ID: u32 = 1;
