//! Commits: what carries the changes of requests to the database, and how that comes back after its
//! medium failed.
//!
//! Order of a commit: sync the data, make the metadata durable, give the memory of freed blocks
//! back, give the blocks again. One that failed stays pending: whether it is durable is not known,
//! and it leaves the same when it is carried out again. After an error of its medium a database is
//! of no use (see `area::Opening`); it is opened again by the next commit, so once a second, until
//! that succeeds, and requests that change something fail meanwhile. So nothing that was
//! acknowledged is lost: what was fsynced is in the database, the rest is in memory still.

use std::ops::Bound;
use std::sync::atomic::Ordering;

use super::{Files, State};
use crate::area::lock;
use crate::database::{Batch, Database};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::medium::BLOCK_BYTES;
use crate::records::{Ino, ROOT};
use crate::space::Run;
use crate::{FsError, Result};

/// A commit under way, or one that failed.
#[derive(Clone)]
pub(super) struct Pending {
    batch: Batch,
    /// Blocks that are free once it is durable.
    freed: Vec<Run>,
    /// The last change in it.
    sequence: u64,
}

/// Changed rows after which a request commits by itself; arbitrary, some 20 MiB of memory.
const CHANGED_MAX: usize = 64 << 10;
/// How often a request that lacks space is tried again; arbitrary, others may take what came back.
const RETRIES_MAX: usize = 3;
/// Of the pages of the metadata's area that have memory, the part that a batch has as rows at
/// most: each may have a page copied that is free only once the commit has ended.
const BATCH_SHARE: u64 = 16;
/// Of the bytes of those pages, the part that a batch has at most: long rows take twice theirs.
const BATCH_BYTES_SHARE: u64 = 32;
/// Of those pages, the part that is not worth a commit of its own to get them back earlier.
const RECLAIM_SHARE: u64 = 64;
/// Bytes of changed rows after which a request commits by itself in any case; arbitrary: an
/// attribute alone may have 64 KiB.
const CHANGED_BYTES_MAX: u64 = 32 << 20;
/// Refused discards after which the rest waits for the next commit; arbitrary: each is a line of
/// the log.
const REFUSALS_MAX: usize = 4;

impl Files {
    /// Makes all changes until now durable.
    ///
    /// # Errors
    /// `Io`: which of them are durable is known once a later commit succeeds, or to the next mount.
    pub fn commit(&self) -> Result<()> {
        let wanted = self.state().sequence;
        self.commit_until(wanted)?;
        self.give_back_held();
        Ok(())
    }

    /// Commits at least the changes up to `wanted`; one commit serves all who wait for it.
    fn commit_until(&self, wanted: u64) -> Result<()> {
        let mut database = lock(&self.database);
        self.bring_up_to(&mut database, wanted)
    }

    fn bring_up_to(&self, database: &mut Database, wanted: u64) -> Result<()> {
        let has_failed = database.opening().has_failed();
        if has_failed {
            self.reopen(database)?;
        }
        let failed = self.state().pending.clone();
        if let Some(pending) = failed {
            self.carry_out(database, &pending)?;
        }
        if has_failed {
            self.purge_forgotten(database)?;
        }
        let next = self.state().next_commit(wanted);
        match next {
            Some(pending) => self.carry_out(database, &pending),
            None => Ok(()),
        }
    }

    fn carry_out(&self, database: &Database, pending: &Pending) -> Result<()> {
        let synced = match is_injected(InjectedFault::MetadataBeforeData) {
            true => Ok(()),
            false => self.medium.sync().map_err(FsError::from),
        };
        let applied = synced.and_then(|()| database.apply(&pending.batch));
        let Ok(snapshots) = applied else {
            database.opening().fail();
            tracing::error!("metadata cannot be committed; nothing is changed until it can");
            return Err(FsError::Io);
        };
        {
            let mut state = self.state();
            state.row_bytes[0] = snapshots.row_bytes;
            state.row_bytes[1] = 0;
            state.tables.thaw(snapshots);
            state.durable = pending.sequence;
            state.pending = None;
            // While the state is locked: whoever looks sees both or neither.
            self.settled.fetch_add(1, Ordering::Relaxed);
        }
        if pending.batch.changed() > self.reclaim_min() {
            self.reclaim(database);
        }
        self.give_back(&pending.freed);
        let mut state = self.state();
        state.space.settle(&pending.freed);
        self.settled.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Rows of a commit that replaces so few pages that they may wait for the next one.
    fn reclaim_min(&self) -> usize {
        (self.state().room_bytes / BLOCK_BYTES / RECLAIM_SHARE) as usize
    }

    /// Frees the pages that the last commit replaced, which redb would do at the end of the next one:
    /// that would need room for its own copies besides.
    fn reclaim(&self, database: &Database) {
        if database.reclaim().is_err() {
            // What was to be committed is. The next commit opens the database again.
            database.opening().fail();
        }
    }

    /// Opens the database again after its medium failed.
    fn reopen(&self, database: &mut Database) -> Result<()> {
        let opened = Database::open(&self.medium, &self.label)?;
        let snapshots = opened.snapshots()?;
        {
            let mut state = self.state();
            state.row_bytes[0] = snapshots.row_bytes;
            state.tables.reread(snapshots);
            state.opening = opened.opening().clone();
        }
        *database = opened;
        self.reclaim(database);
        tracing::info!("metadata is read and written again");
        Ok(())
    }

    /// Deletes files without a name that the kernel forgot while nothing could be changed.
    fn purge_forgotten(&self, database: &Database) -> Result<()> {
        let is_forgotten = |state: &State, ino: &Ino| !state.lookups.contains_key(ino);
        let mut after = ROOT;
        while let Some(last) = self.purge_batch(after, is_forgotten)? {
            let next = self.state().next_commit(u64::MAX);
            if let Some(pending) = next {
                self.carry_out(database, &pending)?;
            }
            after = last;
        }
        Ok(())
    }

    /// Deletes those files without a name after `after` of which `may_go` is true, as many as one
    /// commit may take; the last that was looked at, if there may be more.
    fn purge_batch(
        &self,
        after: Ino,
        may_go: impl Fn(&State, &Ino) -> bool,
    ) -> Result<Option<Ino>> {
        self.edit(|state| {
            // Never from the first row again: removed ones are stepped over one by one.
            let mut at = after;
            loop {
                let rest = (Bound::Excluded(&at), Bound::Unbounded);
                let Some((ino, ())) = state.tables.orphans.first(rest)? else {
                    return Ok(None);
                };
                if may_go(state, &ino) {
                    state.purge(ino)?;
                }
                at = ino;
                if state.is_batch_full() {
                    return Ok(Some(at));
                }
            }
        })
    }

    /// Makes what was changed of one file durable, data and metadata.
    ///
    /// # Errors
    /// As [`Files::commit`].
    pub fn fsync(&self, ino: Ino) -> Result<()> {
        let wanted = {
            let state = self.state();
            state.tables.inode(ino)?;
            state.sequence
        };
        // Bytes that were overwritten in place changed no table.
        self.medium.sync()?;
        self.commit_until(wanted)
    }

    /// Deletes files without a name, which nobody can reach any more, and commits.
    ///
    /// # Errors
    /// As [`Files::commit`].
    pub fn close(&self) -> Result<()> {
        // With a database that failed nothing could be deleted.
        self.commit()?;
        let mut after = ROOT;
        while let Some(last) = self.purge_batch(after, |_, _| true)? {
            self.commit()?;
            after = last;
        }
        self.commit()
    }

    /// Gives the memory of blocks back that no file has.
    pub(super) fn give_back(&self, runs: &[Run]) {
        for run in runs {
            if let Err(error) = self.discard(*run) {
                // They are free all the same; later commits try again.
                tracing::warn!(%error, blocks = run.len, "give memory of freed blocks back");
                self.state().space.hold(*run);
            }
        }
    }

    /// Gives memory back that was refused before, of blocks that are free still; until some is refused
    /// again. One block may be why a run is refused, so it is halved then.
    fn give_back_held(&self) {
        // No commit gives blocks back meanwhile.
        let _database = lock(&self.database);
        let mut refused = 0;
        while refused < REFUSALS_MAX {
            let taken = self.state().space.take_held();
            let Some(run) = taken else { return };
            let discarded = self.discard(run);
            let mut state = self.state();
            state.space.settle(&[run]);
            if discarded.is_err() {
                // The one block that is why.
                refused += if run.len == 1 { REFUSALS_MAX } else { 1 };
                let half = run.len / 2;
                let halves = [(run.start, half), (run.start + half, run.len - half)];
                let halves = halves.map(|(start, len)| Run { start, len });
                let halves = halves.into_iter().filter(|half| half.len > 0);
                halves.for_each(|half| state.space.hold(half));
            }
            drop(state);
            self.settled.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn discard(&self, run: Run) -> Result<()> {
        let offset = self.place(run.start);
        Ok(self.medium.discard(offset, run.len * BLOCK_BYTES)?)
    }

    /// Changes the state in one go: all of what `run` does, or nothing of it if it fails.
    pub(super) fn edit<T>(&self, run: impl FnOnce(&mut State) -> Result<T>) -> Result<T> {
        let mut state = self.state();
        state.writable()?;
        let (row_bytes, rows_to_come) = (state.row_bytes[2], state.rows_to_come);
        let outcome = run(&mut state);
        match outcome {
            Ok(_) => {
                state.tables.keep();
                state.space.keep();
            }
            Err(_) => {
                state.tables.roll_back();
                state.space.roll_back();
                state.row_bytes[2] = row_bytes;
                state.rows_to_come = rows_to_come;
            }
        }
        outcome
    }

    /// Runs a request that changes something by one [`edit`](Self::edit), as [`Files::change`].
    pub(super) fn alter<T>(&self, run: impl Fn(&mut State) -> Result<T>) -> Result<T> {
        self.change(|| self.edit(&run))
    }

    /// Runs a request that changes something; again after a commit where space that was freed may be
    /// what it lacks, and where such space has come back since it began.
    pub(super) fn change<T>(&self, run: impl Fn() -> Result<T>) -> Result<T> {
        let mut settled = self.settled.load(Ordering::Relaxed);
        let mut outcome = run();
        for _ in 0..RETRIES_MAX {
            if !matches!(outcome, Err(FsError::NoSpace)) {
                break;
            }
            // First: what others had meanwhile is seen below.
            let has_room = self.make_room();
            let (is_coming, now) = self.space_to_come();
            if has_room {
                // Tried again.
            } else if is_coming {
                self.commit()?;
            } else if now == settled {
                break;
            }
            settled = now;
            outcome = run();
        }
        if outcome.is_ok() && self.state().is_batch_full() {
            // Whoever changes much waits for it.
            if let Err(error) = self.commit() {
                tracing::debug!(%error, "told by the next request");
            }
        }
        outcome
    }

    /// Whether a commit may give space back, and how often that has happened.
    pub(super) fn space_to_come(&self) -> (bool, u64) {
        let state = self.state();
        // Rows of a commit under way take room twice until it has ended.
        let is_committing = state.row_bytes[1] > 0;
        let is_coming =
            is_committing || state.space.waiting_blocks() > 0 || state.tables.changed() > 0;
        (is_coming, self.settled.load(Ordering::Relaxed))
    }
}

impl State {
    /// Checks that changes can still be committed.
    fn writable(&self) -> Result<()> {
        match self.opening.has_failed() {
            true => Err(FsError::Io),
            false => Ok(()),
        }
    }

    /// Whether no more should be changed before a commit.
    fn is_batch_full(&self) -> bool {
        let pages = (self.room_bytes / BLOCK_BYTES / BATCH_SHARE) as usize;
        let bytes_max = CHANGED_BYTES_MAX.min(self.room_bytes / BATCH_BYTES_SHARE);
        self.tables.changed() > CHANGED_MAX.min(pages) || self.row_bytes[2] > bytes_max
    }

    /// Takes all changes for a commit, if one up to `wanted` is needed.
    fn next_commit(&mut self, wanted: u64) -> Option<Pending> {
        let (has_freed, has_changed) = (self.space.has_freed(), self.tables.changed() > 0);
        let is_done = self.durable >= wanted && !has_freed;
        if is_done || !(has_changed || has_freed) {
            return None;
        }
        self.row_bytes[1] = std::mem::take(&mut self.row_bytes[2]);
        let pending = Pending {
            batch: self.tables.freeze(),
            freed: self.space.take_freed(),
            sequence: self.sequence,
        };
        self.pending = Some(pending.clone());
        Some(pending)
    }
}

#[cfg(test)]
mod tests {
    use crate::files::{Caller, NewInode, Write};
    use crate::medium::MediumError;
    use crate::medium::faulty::{Access, Faulty};
    use crate::medium::model::{ModelMedium, Survival};
    use crate::records::ROOT;
    use crate::table::steps;

    use super::*;

    #[test]
    fn a_mount_deletes_files_without_a_name_in_time_linear_in_their_number() {
        const FILES: u64 = 3000;
        let medium = std::sync::Arc::new(ModelMedium::new(64 << 20));
        let caller = Caller::default();
        let files = Files::open(medium.clone(), caller).expect("a file system");
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        for _ in 0..FILES {
            files.make(&caller, ROOT, b"f", new).expect("a file");
            files.unlink(&caller, ROOT, b"f").expect("a deletion");
        }
        files.commit().expect("a commit");
        let after = std::sync::Arc::new(medium.crash(Survival::All));
        steps::take();
        let again = Files::open(after, caller).expect("a file system");
        let steps = steps::take();
        assert!(steps < 10 * FILES, "{steps} rows were looked at");
        assert_eq!(again.state().tables.changed(), 0);
        let all = (Bound::Unbounded, Bound::Unbounded);
        let left = again.state().tables.orphans.first(all);
        assert_eq!(left, Ok(None));
    }

    #[test]
    fn memory_that_was_refused_goes_back_with_later_commits_but_for_the_block_that_is_why() {
        const BLOCKS: u64 = 256;
        let medium = std::sync::Arc::new(Faulty::new(16 << 20));
        let caller = Caller::default();
        let files = Files::open(medium.clone(), caller).expect("a file system");
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        let (ino, _) = files.make(&caller, ROOT, b"f", new).expect("a file");
        files.commit().expect("a commit");
        let before = medium.inner.held_bytes();
        let bytes = vec![7; (BLOCKS * BLOCK_BYTES) as usize];
        let written = files.write(&caller, ino, 0, &bytes, Write::default());
        written.expect("a write");
        let bad = files.place(
            files
                .state()
                .piece(ino, 40, 41)
                .expect("a piece")
                .start
                .expect("a block"),
        );
        medium.refuse(move |access| match access {
            Access::Discard(offset, len) => (offset..offset + len)
                .contains(&bad)
                .then_some(MediumError::Io),
            _ => None,
        });
        files.unlink(&caller, ROOT, b"f").expect("a deletion");
        files.forget(ino, 1).expect("nobody has it");
        let held = || medium.inner.held_bytes().saturating_sub(before) / BLOCK_BYTES;
        files.commit().expect("a commit");
        // Each halves it some times.
        for _ in 0..BLOCKS.ilog2() {
            files.commit().expect("nothing to commit");
        }
        // The block, and what the database has written since.
        assert!(held() < BLOCKS / 4, "{}", held());
        assert!(files.state().space.take_held().is_some());
        let free = files.usage().free_blocks;
        assert_eq!(free, files.usage().total_blocks);
    }

    #[test]
    fn a_request_is_tried_again_when_space_came_back_while_it_ran() {
        let medium = std::sync::Arc::new(ModelMedium::new(16 << 20));
        let caller = Caller::default();
        let files = Files::open(medium, caller).expect("a file system");
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        for (settles, outcome) in [
            (0, Err(FsError::NoSpace)),
            (2, Ok(())),
            (10, Err(FsError::NoSpace)),
        ] {
            let tries = std::cell::Cell::new(0);
            let tried = files.change(|| {
                tries.set(tries.get() + 1);
                if tries.get() > settles {
                    return if settles == 0 {
                        Err(FsError::NoSpace)
                    } else {
                        Ok(())
                    };
                }
                // As another thread might, after this one was refused.
                let name = format!("{settles}-{}", tries.get());
                files.make(&caller, ROOT, name.as_bytes(), new)?;
                files.commit()?;
                Err(FsError::NoSpace)
            });
            assert_eq!(tried, outcome, "{settles}");
        }
    }
}
