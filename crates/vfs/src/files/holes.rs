//! Blocks for the holes of a file.
//!
//! A volume has memory for whole extents, and hosts may have none for another one while blocks are free in
//! extents that have it. So what could not be stored in the blocks that came first is tried in those.

use super::extents::Piece;
use super::space_use::EXTENT_BYTES;
use super::{Files, State};
use crate::medium::BLOCK_BYTES;
use crate::records::{Extent, Ino};
use crate::space::{Memory, Run};
use crate::{FsError, Result};

/// Blocks that fill a hole.
pub(super) struct Given {
    /// First block in the file.
    pub(super) block: u64,
    pub(super) run: Run,
}

impl Given {
    pub(super) fn extent(&self, is_written: bool) -> Extent {
        Extent {
            start: self.run.start,
            len: self.run.len,
            is_written,
        }
    }
}

/// What holes are filled for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Purpose {
    Write,
    SetAside,
}

impl Purpose {
    /// Rows that may come of it: later writes may make one of each block that is set aside.
    fn rows(self, given: &[Given]) -> u64 {
        match self {
            Self::Write => given.len() as u64,
            Self::SetAside => given.iter().map(|given| given.run.len).sum(),
        }
    }
}

impl Files {
    /// Gives blocks to the holes of a file in blocks `from .. to`, and has `store` use what the file has
    /// there then and attach them; again where there is memory if that lacks some. The caller has the range.
    pub(super) fn fill_holes<T>(
        &self,
        ino: Ino,
        blocks: (u64, u64),
        purpose: Purpose,
        mut store: impl FnMut(&[Piece], &[Given]) -> Result<T>,
    ) -> Result<T> {
        let fill = |memory: Option<&_>| self.edit(|state| state.fill(ino, blocks, purpose, memory));
        let (pieces, mut given) = fill(None)?;
        let mut stored = store(&pieces, &given);
        if matches!(stored, Err(FsError::NoSpace)) && !given.is_empty() {
            let memory = |block| {
                let (has_memory, end) = self.medium.has_memory(self.place(block));
                (has_memory, (end - self.data_offset) / BLOCK_BYTES)
            };
            {
                let mut state = self.state();
                for given in given.drain(..) {
                    state.space.take_back(given.run, &memory);
                }
            }
            let Ok(elsewhere) = fill(Some(&memory)) else {
                return stored;
            };
            given = elsewhere.1;
            stored = store(&elsewhere.0, &given);
        }
        if stored.is_err() {
            let mut state = self.state();
            for given in given {
                // Part of the bytes may be there: not before their memory was given back.
                state.space.free(given.run);
            }
            state.space.keep();
        }
        stored
    }
}

impl State {
    /// What a file has in blocks `from .. to`, and blocks for the holes, which are its own only
    /// once they are attached; with `memory`, such as have some.
    fn fill(
        &mut self,
        ino: Ino,
        (from, to): (u64, u64),
        purpose: Purpose,
        memory: Option<&impl Memory>,
    ) -> Result<(Vec<Piece>, Vec<Given>)> {
        let mut given: Vec<Given> = Vec::new();
        let found = self.pieces(ino, from, to)?;
        let holes = found.iter().filter(|piece| piece.start.is_none());
        let wanted: u64 = holes.map(|piece| piece.len).sum();
        if wanted > self.space.free_blocks() {
            return Err(FsError::NoSpace);
        }
        let mut pieces = Vec::with_capacity(found.len());
        let mut goal = None;
        for piece in found {
            if piece.start.is_some() {
                goal = piece.start.map(|start| start + piece.len);
                pieces.push(piece);
                continue;
            }
            let (mut block, end) = (piece.block, piece.block + piece.len);
            while block < end {
                let run = match memory {
                    Some(memory) => self.space.give_with_memory(end - block, memory),
                    None => {
                        let goal_here = match goal {
                            Some(goal) => Some(goal),
                            None => self.goal(ino, block)?,
                        };
                        self.space.give(end - block, goal_here)
                    }
                };
                let run = run.ok_or(FsError::NoSpace)?;
                given.push(Given { block, run });
                pieces.push(Piece {
                    block,
                    len: run.len,
                    start: Some(run.start),
                    is_written: false,
                });
                block += run.len;
                goal = Some(run.start + run.len);
            }
        }
        // Where nothing is added, rows may be more than that: bytes are overwritten all the same.
        if !given.is_empty() {
            self.check_room(purpose.rows(&given) * EXTENT_BYTES)?;
        }
        Ok((pieces, given))
    }
}
