//! Which blocks a file has where: reading and changing its extents.
//!
//! Neighbours that continue each other on both sides are one row. Positions are blocks of the file.

use std::ops::Bound;

use super::State;
use crate::Result;
use crate::database::damaged;
use crate::records::{Extent, Ino, Inode};
use crate::space::Run;

/// A part of a file, in one extent or in a hole.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Piece {
    /// First block in the file.
    pub block: u64,
    /// Blocks, not 0.
    pub len: u64,
    /// First block in the data area; `None`: a hole.
    pub start: Option<u64>,
    /// Whether the blocks hold bytes of the file.
    pub is_written: bool,
}

impl State {
    /// What the file has in blocks `from .. to`, holes too, in order.
    pub(super) fn pieces(&self, ino: Ino, from: u64, to: u64) -> Result<Vec<Piece>> {
        let mut pieces = Vec::new();
        let mut at = from;
        while at < to {
            let piece = self.piece(ino, at, to)?;
            at += piece.len;
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// What the file has at block `at`, up to `to` at most.
    pub(super) fn piece(&self, ino: Ino, at: u64, to: u64) -> Result<Piece> {
        if let Some((block, extent)) = self.extent_at(ino, at)? {
            let within = at - block;
            return Ok(Piece {
                block: at,
                len: (extent.len - within).min(to - at),
                start: Some(extent.start + within),
                is_written: extent.is_written,
            });
        }
        let after = (Bound::Excluded(&(ino, at)), Bound::Excluded(&(ino, to)));
        let next = self.tables.extents.first(after)?;
        let end = next.map_or(to, |((_, block), _)| block);
        Ok(Piece {
            block: at,
            len: end - at,
            start: None,
            is_written: false,
        })
    }

    /// The extent that holds block `at`, and its first block.
    fn extent_at(&self, ino: Ino, at: u64) -> Result<Option<(u64, Extent)>> {
        let last = self.last_extent(ino, at)?;
        Ok(last.filter(|(block, extent)| at - block < extent.len))
    }

    /// Where the file would best go on at block `at`.
    pub(super) fn goal(&self, ino: Ino, at: u64) -> Result<Option<u64>> {
        let last = self.last_extent(ino, at)?;
        Ok(last.map(|(_, extent)| extent.start + extent.len))
    }

    /// The file's last extent that begins at block `at` or before, and where. Other files' are not
    /// looked at: there may be thousands that were just deleted.
    fn last_extent(&self, ino: Ino, at: u64) -> Result<Option<(u64, Extent)>> {
        let until = (Bound::Included(&(ino, 0)), Bound::Included(&(ino, at)));
        let last = self.tables.extents.last(until)?;
        let last = last.map(|((_, block), extent)| (block, extent));
        last.map(|found| self.checked(ino, found)).transpose()
    }

    /// An extent that was read, if a file may have it there: the mount saw to that, but the database may
    /// have been opened again since.
    fn checked(&self, ino: Ino, (block, extent): (u64, Extent)) -> Result<(u64, Extent)> {
        match extent.is_sound(block, self.space.total_blocks()) {
            true => Ok((block, extent)),
            false => Err(damaged(ino, "an extent")),
        }
    }

    /// Gives the file an extent where it has a hole.
    pub(super) fn attach(&mut self, ino: Ino, block: u64, extent: Extent) -> Result<()> {
        let (mut block, mut extent) = (block, extent);
        if let Some(before) = block.checked_sub(1)
            && let Some((first, left)) = self.extent_at(ino, before)?
            && left.start + left.len == extent.start
            && left.is_written == extent.is_written
        {
            self.remove_extent(ino, first, left);
            block = first;
            extent = Extent {
                len: left.len + extent.len,
                ..left
            };
        }
        let end = block + extent.len;
        if let Some(right) = self.tables.extents.get(&(ino, end))?
            && let (_, right) = self.checked(ino, (end, right))?
            && extent.start + extent.len == right.start
            && right.is_written == extent.is_written
        {
            self.remove_extent(ino, end, right);
            extent.len += right.len;
        }
        self.sequence += 1;
        self.put_extent(ino, block, extent);
        Ok(())
    }

    /// Adds a row, where none is.
    fn put_extent(&mut self, ino: Ino, block: u64, extent: Extent) {
        self.rows_to_come += extent.rows_to_come();
        self.row_bytes[2] += self.tables.extents.put((ino, block), extent);
    }

    /// Takes a row away that was found.
    fn remove_extent(&mut self, ino: Ino, block: u64, extent: Extent) {
        self.rows_to_come = self.rows_to_come.saturating_sub(extent.rows_to_come());
        self.tables.extents.remove(&(ino, block));
    }

    /// Takes the file's extents in blocks `from .. to` away; returns them.
    pub(super) fn detach(&mut self, ino: Ino, from: u64, to: u64) -> Result<Vec<Piece>> {
        let mut taken = Vec::new();
        let mut at = from;
        while at < to {
            // Only the first can begin before `at`; looking back again would meet what was removed.
            let first = match at == from {
                true => self.extent_at(ino, at)?,
                false => None,
            };
            let found = match first {
                Some(found) => Some(found),
                None => {
                    let rest = (Bound::Included(&(ino, at)), Bound::Excluded(&(ino, to)));
                    let next = self.tables.extents.first(rest)?;
                    let next = next.map(|((_, block), extent)| (block, extent));
                    next.map(|found| self.checked(ino, found)).transpose()?
                }
            };
            let Some((block, extent)) = found else { break };
            let (cut, end) = (at.max(block), to.min(block + extent.len));
            let within = cut - block;
            self.remove_extent(ino, block, extent);
            let mut keep = |block: u64, skipped: u64, len: u64| {
                if len > 0 {
                    let part = Extent {
                        start: extent.start + skipped,
                        len,
                        ..extent
                    };
                    self.put_extent(ino, block, part);
                }
            };
            keep(block, 0, within);
            keep(end, end - block, block + extent.len - end);
            self.sequence += 1;
            taken.push(Piece {
                block: cut,
                len: end - cut,
                start: Some(extent.start + within),
                is_written: extent.is_written,
            });
            at = end;
        }
        Ok(taken)
    }

    /// Whether a hole in blocks `from .. to` leaves written blocks of one extent on both sides.
    pub(super) fn is_parted_by(&self, ino: Ino, from: u64, to: u64) -> Result<bool> {
        let found = self.extent_at(ino, from)?;
        Ok(found.is_some_and(|(block, extent)| {
            extent.is_written && block < from && to < block + extent.len
        }))
    }

    /// Frees the blocks `from .. to` of a file, and takes them off its count.
    pub(super) fn cut_out(
        &mut self,
        ino: Ino,
        inode: &mut Inode,
        (from, to): (u64, u64),
    ) -> Result<()> {
        let freed = self.free_blocks_of(ino, from, to)?;
        let left = inode.blocks.checked_sub(freed);
        inode.blocks = left.ok_or_else(|| damaged(ino, "its number of blocks"))?;
        Ok(())
    }

    /// As [`State::detach`], of blocks that nobody needs any more; returns how many.
    pub(super) fn free_blocks_of(&mut self, ino: Ino, from: u64, to: u64) -> Result<u64> {
        let mut blocks = 0;
        for piece in self.detach(ino, from, to)? {
            if let Some(start) = piece.start {
                let len = piece.len;
                self.space.free(Run { start, len });
                blocks += len;
            }
        }
        Ok(blocks)
    }

    /// Notes that blocks `from .. to`, where no hole is, hold bytes of the file.
    pub(super) fn mark_written(&mut self, ino: Ino, from: u64, to: u64) -> Result<()> {
        for piece in self.pieces(ino, from, to)? {
            let Some(start) = piece.start.filter(|_| !piece.is_written) else {
                continue;
            };
            self.detach(ino, piece.block, piece.block + piece.len)?;
            let extent = Extent {
                start,
                len: piece.len,
                is_written: true,
            };
            self.attach(ino, piece.block, extent)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::files::{Caller, NewInode, Write};
    use crate::medium::BLOCK_BYTES;
    use crate::medium::model::ModelMedium;
    use crate::table::steps;
    use crate::{Files, ROOT};

    #[test]
    fn writes_in_order_to_space_set_aside_look_at_rows_linear_in_their_number() {
        const BLOCKS: u64 = 1000;
        let caller = Caller::default();
        // So large that no request commits by itself.
        let medium = Arc::new(ModelMedium::new(4 << 30));
        let files = Files::open(medium, caller).expect("a file system");
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        let (ino, _) = files.make(&caller, ROOT, b"f", new).expect("a file");
        let all = (0, BLOCKS * BLOCK_BYTES);
        files.allocate(&caller, ino, all, 0).expect("space");
        steps::take();
        for block in 0..BLOCKS {
            let at = block * BLOCK_BYTES;
            let written = files.write(&caller, ino, at, &[7; 4096], Write::default());
            written.expect("a write");
        }
        let steps = steps::take();
        assert!(steps < 50 * BLOCKS, "{steps} rows were looked at");
    }
}
