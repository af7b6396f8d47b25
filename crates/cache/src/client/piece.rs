//! The part of a request that lies in one slab.

use bytes::{Bytes, BytesMut};
use cenote_fabric::{RemoteWindow, Time};
use smallvec::SmallVec;

use super::queue::Span;
use super::region::WindowName;
use crate::owner::HostIndex;

/// What a piece does.
#[derive(Debug)]
pub enum PieceKind {
    /// The buffer; elsewhere while a path has it.
    Read(BytesMut),
    /// The bytes.
    Write(Bytes),
}

/// Copies of a slab, by host.
pub type Targets = SmallVec<[(HostIndex, RemoteWindow); 1]>;

/// Where a piece is.
#[derive(Debug)]
pub enum Progress {
    /// It waits for its turn.
    Waiting,
    /// Its verbs are under way.
    UnderWay {
        /// Of the region's entry when it was started.
        generation: u64,
        /// The client's lease when it was started.
        lease: u64,
        /// Where its verb is under way, or was last.
        window: WindowName,
        /// Of the region's bytes until then: what was written before another one went with it.
        losses: u32,
        /// Copies that it is to go to yet, the next one last: the copy that is read comes last of
        /// all, so that what is read is in the others, too.
        rest: Targets,
    },
}

/// How many copies may have a write, or a part of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Trace {
    /// None.
    Nowhere,
    /// Some, and it was not seen to end in all of them.
    Somewhere,
}

/// A part of a request.
#[derive(Debug)]
pub struct Piece {
    pub request: u64,
    pub part: usize,
    pub region: usize,
    pub slab: usize,
    pub offset: u64,
    len_bytes: usize,
    pub kind: PieceKind,
    pub progress: Progress,
    pub trace: Trace,
    /// Of the region's entry when it was last under way; 0: never.
    pub begun_at: u64,
    pub submitted_at: Time,
}

impl Piece {
    pub fn new(
        request: u64,
        part: usize,
        slab: usize,
        offset: u64,
        kind: PieceKind,
        submitted_at: Time,
    ) -> Self {
        let len_bytes = match &kind {
            PieceKind::Read(buffer) => buffer.len(),
            PieceKind::Write(bytes) => bytes.len(),
        };
        Self {
            request,
            part,
            region: 0,
            slab,
            offset,
            len_bytes,
            kind,
            progress: Progress::Waiting,
            trace: Trace::Nowhere,
            begun_at: 0,
            submitted_at,
        }
    }

    pub fn of(mut self, region: usize) -> Self {
        self.region = region;
        self
    }

    pub fn is_write(&self) -> bool {
        matches!(self.kind, PieceKind::Write(_))
    }

    /// Of a write that waits and may be in some copies alone: the generation under which it got there.
    pub fn left_at(&self) -> Option<u64> {
        let is_left = self.is_write() && self.trace == Trace::Somewhere;
        is_left.then_some(self.begun_at)
    }

    pub fn span(&self) -> Span {
        Span {
            slab: self.slab,
            offset: self.offset,
            len_bytes: self.len_bytes as u64,
            is_write: self.is_write(),
        }
    }
}
