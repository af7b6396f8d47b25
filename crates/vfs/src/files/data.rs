//! Bytes of files: reading, writing, cutting, setting aside.
//!
//! A request locks its range of the file, plans under the state's lock, moves bytes with that lock
//! given back, and publishes what it wrote. New blocks are written whole before any extent names
//! them, so that no file shows what a block held before.

use super::attributes::CAPABILITY;
use super::extents::Piece;
use super::holes::{Given, Purpose};
use super::space_use::EXTENT_BYTES;
use super::{Caller, Files, State};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::BLOCK_BYTES;
use crate::range_locks::Mode;
use crate::records::{Ino, Inode};
use crate::{FILE_BYTES_MAX, FsError, Result};

/// How bytes are written.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Write {
    /// The kernel writes its cache back, and tells the time of the change apart.
    pub is_cached: bool,
    /// The file loses what lets it run as somebody else.
    pub drops_privileges: bool,
}

/// What is looked for in a file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Seek {
    /// Bytes that were written.
    Data,
    /// Bytes that were not.
    Hole,
}

const BLOCK: usize = BLOCK_BYTES as usize;

impl Files {
    /// Fills `buffer` with bytes of a file; returns how many there are.
    ///
    /// # Errors
    /// `Io` when some cannot be read; `IsDirectory`, `Invalid` of what has no bytes.
    pub fn read(&self, ino: Ino, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let end = offset.saturating_add(buffer.len() as u64);
        let _range = self.ranges.lock(ino, offset, end, Mode::Shared);
        self.warm_inode(ino)?;
        self.warm_extents(ino, offset, end)?;
        let pieces = {
            let state = self.state();
            let inode = state.file(ino)?;
            let end = end.min(inode.size);
            if offset >= end {
                return Ok(0);
            }
            let blocks = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
            (state.pieces(ino, blocks.0, blocks.1)?, end)
        };
        let (pieces, end) = pieces;
        for piece in pieces {
            let from = (piece.block * BLOCK_BYTES).max(offset);
            let to = ((piece.block + piece.len) * BLOCK_BYTES).min(end);
            let part = &mut buffer[(from - offset) as usize..(to - offset) as usize];
            let is_stored = piece.is_written || is_injected(InjectedFault::UnwrittenIsRead);
            match piece.start.filter(|_| is_stored) {
                Some(start) => {
                    let within = from - piece.block * BLOCK_BYTES;
                    self.medium.read(self.place(start) + within, part)?;
                }
                None => part.fill(0),
            }
        }
        Ok((end - offset) as usize)
    }

    /// Writes all of `bytes` to a file; whether its mode changed by it.
    ///
    /// # Errors
    /// `NoSpace`, `TooLarge`, `Io`. The range then holds old or new bytes, block by block.
    pub fn write(
        &self,
        caller: &Caller,
        ino: Ino,
        offset: u64,
        bytes: &[u8],
        how: Write,
    ) -> Result<bool> {
        let end = offset.checked_add(bytes.len() as u64);
        let end = end.filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        self.warm_inode(ino)?;
        self.warm_extents(ino, offset, end)?;
        self.warm_attribute(ino, CAPABILITY)?;
        if bytes.is_empty() {
            return self.state().file(ino).map(|_| false);
        }
        self.change(|| self.write_once(caller, ino, (offset, end), bytes, how))
    }

    fn write_once(
        &self,
        caller: &Caller,
        ino: Ino,
        (offset, end): (u64, u64),
        bytes: &[u8],
        how: Write,
    ) -> Result<bool> {
        let (_range, size) = self.lock_to_end(ino, offset, end)?;
        let blocks = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        self.clear_tail(ino, size, offset)?;
        self.fill_holes(ino, blocks, Purpose::Write, |pieces, given| {
            self.write_pieces(pieces, offset, bytes)?;
            self.edit(|state| state.publish(caller, ino, end, how, pieces, given))
        })
    }

    /// Locks a range for a write, and what lies between the file's end and it.
    fn lock_to_end(
        &self,
        ino: Ino,
        offset: u64,
        end: u64,
    ) -> Result<(crate::range_locks::RangeGuard<'_>, u64)> {
        let to = end.next_multiple_of(BLOCK_BYTES);
        let mut size = self.state().file(ino)?.size;
        loop {
            let from = offset.min(size) / BLOCK_BYTES * BLOCK_BYTES;
            let range = self.ranges.lock(ino, from, to, Mode::Exclusive);
            let now = self.state().file(ino)?.size;
            if now.min(offset) >= from {
                return Ok((range, now));
            }
            size = now;
        }
    }

    /// Makes the rest of the block in which the file ends zero, as far as `until`: bytes that a
    /// file had there once do not come back when it grows. The caller has the range.
    fn clear_tail(&self, ino: Ino, size: u64, until: u64) -> Result<()> {
        let until = until.min(size.next_multiple_of(BLOCK_BYTES));
        if until <= size || is_injected(InjectedFault::TailShowsOldBytes) {
            return Ok(());
        }
        self.write_zeros(ino, size, until)
    }

    /// Writes zeros over bytes in one block that were written.
    fn write_zeros(&self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let block = from / BLOCK_BYTES;
        let piece = self.state().piece(ino, block, block + 1)?;
        let Some(start) = piece.start.filter(|_| piece.is_written && from < to) else {
            return Ok(());
        };
        let zeros = [0; BLOCK];
        let at = self.place(start) + from % BLOCK_BYTES;
        Ok(self.medium.write(at, &zeros[..(to - from) as usize])?)
    }

    /// Moves bytes to the blocks of `pieces`; what is new is written whole.
    fn write_pieces(&self, pieces: &[Piece], offset: u64, bytes: &[u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        for piece in pieces {
            let start = piece.start.expect("holes were filled");
            let place = self.place(start);
            let first = piece.block * BLOCK_BYTES;
            let (from, to) = (
                first.max(offset),
                (first + piece.len * BLOCK_BYTES).min(end),
            );
            let is_whole = piece.is_written || is_injected(InjectedFault::HoleShowsOldBytes);
            let (mut from, mut rest) = (
                from,
                &bytes[(from - offset) as usize..(to - offset) as usize],
            );
            if !is_whole && !from.is_multiple_of(BLOCK_BYTES) {
                let within = (from % BLOCK_BYTES) as usize;
                let (head, after) = rest.split_at(rest.len().min(BLOCK - within));
                self.write_padded(place + from - first - within as u64, within, head)?;
                (from, rest) = (from + head.len() as u64, after);
            }
            let partial = match is_whole {
                true => 0,
                false => rest.len() % BLOCK,
            };
            let (whole, tail) = rest.split_at(rest.len() - partial);
            if !whole.is_empty() {
                self.medium.write(place + from - first, whole)?;
            }
            if !tail.is_empty() {
                self.write_padded(place + from - first + whole.len() as u64, 0, tail)?;
            }
        }
        Ok(())
    }

    /// Writes a block of zeros but for `bytes`, which begin at `within`.
    fn write_padded(&self, place: u64, within: usize, bytes: &[u8]) -> Result<()> {
        let mut block = [0; BLOCK];
        block[within..within + bytes.len()].copy_from_slice(bytes);
        Ok(self.medium.write(place, &block)?)
    }

    /// Cuts a file, or lets it grow by a hole.
    pub(super) fn resize(&self, ino: Ino, size: u64) -> Result<()> {
        if size > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        let _range = self.ranges.lock(ino, 0, u64::MAX, Mode::Exclusive);
        self.warm_extents(ino, size, u64::MAX)?;
        let before = self.state().file(ino)?.size;
        self.clear_tail(ino, before, size)?;
        self.edit(|state| {
            let mut inode = state.file(ino)?;
            if size < before {
                let from = size.div_ceil(BLOCK_BYTES);
                state.cut_out(ino, &mut inode, (from, u64::MAX))?;
            }
            inode.size = size;
            state.put_inode(ino, inode);
            Ok(())
        })
    }

    /// Sets space aside, zeroes or frees a range, by the flags of `fallocate`; whether the file's mode
    /// changed by it.
    ///
    /// # Errors
    /// `NoSpace` before anything is set aside or freed; `Unsupported` for flags that are not there.
    pub fn allocate(
        &self,
        caller: &Caller,
        ino: Ino,
        range: (u64, u64),
        mode: i32,
    ) -> Result<bool> {
        let (keeps, punches) = (libc::FALLOC_FL_KEEP_SIZE, libc::FALLOC_FL_PUNCH_HOLE);
        let zeroes = libc::FALLOC_FL_ZERO_RANGE;
        let (offset, len) = range;
        let end = offset.checked_add(len).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        if len == 0 {
            return Err(FsError::Invalid);
        }
        let keeps_size = mode & keeps != 0;
        self.warm_inode(ino)?;
        self.warm_extents(ino, offset, end)?;
        self.warm_attribute(ino, CAPABILITY)?;
        let mut has_changed_mode = false;
        match mode & !keeps {
            0 => {}
            flags if flags == punches && keeps_size => {
                return self.change(|| self.punch(caller, ino, offset, end));
            }
            flags if flags == zeroes => {
                has_changed_mode = self.change(|| self.punch(caller, ino, offset, end))?;
            }
            _ => return Err(FsError::Unsupported),
        }
        let set_aside = self.change(|| self.set_aside(caller, ino, (offset, end), keeps_size))?;
        Ok(set_aside.ok_or(FsError::NoSpace)? || has_changed_mode)
    }

    /// Whether the file's mode changed by it; `None` where the hosts lack memory and no commit was
    /// to give some back. Each try takes what memory there is, if only for a moment.
    fn set_aside(
        &self,
        caller: &Caller,
        ino: Ino,
        (offset, end): (u64, u64),
        keeps_size: bool,
    ) -> Result<Option<bool>> {
        let (is_coming, _) = self.space_to_come();
        let (_range, size) = self.lock_to_end(ino, offset, end)?;
        let grows = end > size && !keeps_size;
        if grows {
            self.clear_tail(ino, size, end)?;
        }
        let blocks = (offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES));
        let mut lacks_memory = false;
        let set_aside = self.fill_holes(ino, blocks, Purpose::SetAside, |pieces, given| {
            let reserved = self.reserve_unwritten(pieces);
            lacks_memory = matches!(reserved, Err(FsError::NoSpace));
            reserved?;
            self.edit(|state| {
                let mut inode = state.file(ino)?;
                for given in given {
                    state.attach(ino, given.block, given.extent(false))?;
                    inode.blocks += given.run.len;
                }
                if !given.is_empty() {
                    // Others may have taken the room meanwhile.
                    state.check_room(0)?;
                }
                if grows {
                    inode.size = end;
                }
                state.put_changed(caller, ino, inode)
            })
        });
        match lacks_memory && !is_coming {
            true => Ok(None),
            false => set_aside.map(Some),
        }
    }

    /// Gets memory for blocks that are not written: writes there find it, whoever takes the rest.
    fn reserve_unwritten(&self, pieces: &[Piece]) -> Result<()> {
        let mut unwritten = pieces.iter().filter(|piece| !piece.is_written);
        unwritten.try_for_each(|piece| {
            let start = self.place(piece.start.expect("holes were filled"));
            Ok(self.medium.reserve(start, piece.len * BLOCK_BYTES)?)
        })
    }

    /// Makes a range a hole; whether the file's mode changed by it.
    fn punch(&self, caller: &Caller, ino: Ino, offset: u64, end: u64) -> Result<bool> {
        let from = offset / BLOCK_BYTES * BLOCK_BYTES;
        let to = end.next_multiple_of(BLOCK_BYTES);
        let _range = self.ranges.lock(ino, from, to, Mode::Exclusive);
        self.state().file(ino)?;
        let (whole_from, whole_to) = (offset.div_ceil(BLOCK_BYTES), end / BLOCK_BYTES);
        if whole_from > whole_to {
            self.write_zeros(ino, offset, end)?;
        } else {
            self.write_zeros(ino, offset, whole_from * BLOCK_BYTES)?;
            self.write_zeros(ino, whole_to * BLOCK_BYTES, end)?;
        }
        self.edit(|state| {
            let mut inode = state.file(ino)?;
            if whole_from < whole_to {
                if state.is_parted_by(ino, whole_from, whole_to)? {
                    state.check_room(EXTENT_BYTES)?;
                }
                state.cut_out(ino, &mut inode, (whole_from, whole_to))?;
            }
            state.put_changed(caller, ino, inode)
        })
    }

    /// The first byte at or after `offset` that is data, or in a hole; the end of a file is a hole.
    ///
    /// # Errors
    /// `NoOffset` when there is none; `Invalid` while somebody may write the file.
    pub fn seek(&self, ino: Ino, offset: u64, what: Seek) -> Result<u64> {
        self.warm_inode(ino)?;
        let mut block = offset / BLOCK_BYTES;
        loop {
            // Most often the next row says it. A program that walks over a file asks for each.
            self.warm_rows_of(ino, block, u64::MAX, SEEK_ROWS)?;
            let state = self.state();
            let size = state.file(ino)?.size;
            if state.writers.contains_key(&ino) {
                // The kernel may hold bytes that it has not written back, and a size that is not known
                // here. Programs read all of a file where they are told so.
                return Err(FsError::Invalid);
            }
            if offset >= size {
                return Err(FsError::NoOffset);
            }
            let last = size.div_ceil(BLOCK_BYTES);
            for _ in 0..SEEK_ROWS {
                if block >= last {
                    return match what {
                        Seek::Hole => Ok(size),
                        Seek::Data => Err(FsError::NoOffset),
                    };
                }
                let piece = state.piece(ino, block, last)?;
                if piece.is_written == (what == Seek::Data) {
                    return Ok((block * BLOCK_BYTES).max(offset));
                }
                block += piece.len;
            }
        }
    }

    /// Copies bytes from one file to another, or to another place; returns how many, and whether the
    /// other's mode changed by it.
    ///
    /// # Errors
    /// As [`Files::read`] and [`Files::write`], before the first byte.
    pub fn copy(
        &self,
        caller: &Caller,
        (source, from): (Ino, u64),
        (target, to): (Ino, u64),
        len: u64,
    ) -> Result<(u64, bool)> {
        let how = Write {
            drops_privileges: caller.drops_privileges(),
            ..Write::default()
        };
        let mut buffer = vec![0; COPY_BYTES.min(len) as usize];
        let (mut copied, mut has_changed_mode) = (0, false);
        while copied < len {
            let wanted = (len - copied).min(COPY_BYTES) as usize;
            let part = &mut buffer[..wanted];
            let moved = self.read(source, from + copied, part).and_then(|got| {
                has_changed_mode |= self.write(caller, target, to + copied, &part[..got], how)?;
                Ok(got as u64)
            });
            match moved {
                Ok(0) => break,
                Ok(bytes) => copied += bytes,
                Err(error) if copied == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok((copied, has_changed_mode))
    }
}

/// Rows that a seek looks at before it lets others have the state; arbitrary.
const SEEK_ROWS: usize = 16;
/// Copied at a time; arbitrary, what the kernel reads at once.
const COPY_BYTES: u64 = 1 << 20;

impl State {
    /// A regular file.
    pub(super) fn file(&self, ino: Ino) -> Result<Inode> {
        let inode = self.tables.inode(ino)?;
        if inode.is_directory() {
            return Err(FsError::IsDirectory);
        }
        if !inode.is_file() {
            return Err(FsError::Invalid);
        }
        Ok(inode)
    }

    /// Names what was written: `given` in the file's holes, and what was set aside.
    fn publish(
        &mut self,
        caller: &Caller,
        ino: Ino,
        end: u64,
        how: Write,
        pieces: &[Piece],
        given: &[Given],
    ) -> Result<bool> {
        let mut inode = self.file(ino)?;
        let mode = inode.mode;
        for given in given {
            self.attach(ino, given.block, given.extent(true))?;
            inode.blocks += given.run.len;
        }
        for piece in pieces.iter().filter(|piece| !piece.is_written) {
            self.mark_written(ino, piece.block, piece.block + piece.len)?;
        }
        inode.size = inode.size.max(end);
        inode.ctime = caller.now;
        if !how.is_cached {
            inode.mtime = caller.now;
        }
        if how.drops_privileges {
            inode.mode = without_privileges(inode.mode);
        }
        self.drop_capabilities(ino)?;
        self.put_inode(ino, inode);
        Ok(inode.mode != mode)
    }

    /// Notes that the caller changed what a file has where; whether its mode changed by it.
    fn put_changed(&mut self, caller: &Caller, ino: Ino, mut inode: Inode) -> Result<bool> {
        let mode = inode.mode;
        if caller.drops_privileges() {
            inode.mode = without_privileges(mode);
        }
        (inode.mtime, inode.ctime) = (caller.now, caller.now);
        self.drop_capabilities(ino)?;
        self.put_inode(ino, inode);
        Ok(inode.mode != mode)
    }
}

/// Takes the right to run as the file's owner, and group where that counts, away.
pub(super) fn without_privileges(mode: u32) -> u32 {
    let mut mode = mode & !libc::S_ISUID;
    if mode & libc::S_IXGRP != 0 {
        mode &= !libc::S_ISGID;
    }
    mode
}
