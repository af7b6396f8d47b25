//! `cenote dashboard`: a web page that shows a cluster as it changes.
//!
//! ```text
//! watcher   threads that ask the parts of the cluster, each its own kind; what they found last
//! snapshot  what the page shows of an answer        extents   the map of a volume's extents
//! history   rates and latencies of the last hour    events    what changed between two answers
//! work      what is under way, and how long         actions   what may be ordered
//! access    who may ask for what                    server    HTTP, and the page itself
//! ```
//!
//! All but `watcher`, `actions` and `server` is without I/O. The page is files of `page/`, which are
//! part of the program; nothing is loaded from elsewhere.

pub mod access;
pub mod actions;
mod events;
mod extents;
mod history;
pub mod server;
mod snapshot;
mod stores;
pub mod watcher;
mod work;
