//! How far a checkpoint is, and what became of those before it.

use std::collections::VecDeque;
use std::path::PathBuf;

use cenote_fabric::{Time, Waker};

use crate::checkpoint::format;
use crate::checkpoint::restorer::Restorer;
use crate::checkpoint::saver::Saver;
use crate::links::Caller;
use crate::owner::Held;

/// A checkpoint that was made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Made {
    /// Regions in it.
    pub regions: u32,
    /// Bytes of the file.
    pub len_bytes: u64,
    /// The longest that writes of a region were held, in milliseconds.
    pub longest_hold_ms: u64,
}

/// Why there is no checkpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// One is being made.
    #[error("a checkpoint is being made")]
    Busy,
    /// The manager cannot reach hosts for data.
    #[error("this manager makes no checkpoints")]
    Off,
    /// The file.
    #[error("{0}")]
    File(#[from] format::Error),
    /// A region could not be copied.
    #[error("region {region} could not be copied: {why}")]
    Region {
        /// The region.
        region: u32,
        /// The last reason.
        why: String,
    },
}

/// What the manager has of checkpoints.
pub(super) struct Checkpoints {
    pub caller: Caller,
    pub waker: Waker,
    pub saving: Option<Saving>,
    pub restorer: Restorer,
    pub ends: VecDeque<Result<Made, CheckpointError>>,
}

/// A checkpoint that is being made.
pub(super) struct Saving {
    pub path: PathBuf,
    pub saver: Saver,
    pub step: Step,
    pub tries: u32,
    pub made: Made,
    /// What traces have of it; ends with it.
    pub span: tracing::Span,
}

#[derive(Debug)]
pub(super) enum Step {
    /// The region is to be held, or is about to be.
    Hold(u32),
    /// It is held since then, and copied.
    Copy(u32, Held, Time),
    /// The file is put in place.
    Finish,
}
