//! Rows that a request is about to look at, read into the database's cache with no lock: so that
//! nobody waits for the medium while the state is locked.
//!
//! What has changed since the last commit is in memory anyway. What the cache loses again before the
//! request looks, it reads again, under the lock.

use std::ops::Bound;

use super::Files;
use crate::Result;
use crate::medium::BLOCK_BYTES;
use crate::records::Ino;

/// Rows read ahead at most; arbitrary, a few hundred pages at worst.
const ROWS_MAX: usize = 4096;

impl Files {
    /// The inodes of a directory and of what has a name in it.
    pub(super) fn warm(&self, parent: Ino, name: &[u8]) -> Result<()> {
        let (entries, inodes) = {
            let state = self.state();
            (
                state.tables.entries.snapshot(),
                state.tables.inodes.snapshot(),
            )
        };
        inodes.get(&parent)?;
        if let Some(entry) = entries.get(&(parent, name.into()))? {
            inodes.get(&entry.ino)?;
        }
        Ok(())
    }

    pub(super) fn warm_inode(&self, ino: Ino) -> Result<()> {
        let inodes = self.state().tables.inodes.snapshot();
        inodes.get(&ino).map(drop)
    }

    /// Where a file has its bytes `from .. to`.
    pub(super) fn warm_extents(&self, ino: Ino, from: u64, to: u64) -> Result<()> {
        let (from, to) = (from / BLOCK_BYTES, to.div_ceil(BLOCK_BYTES));
        self.warm_rows_of(ino, from, to, ROWS_MAX)
    }

    /// Where a file has its blocks `from .. to`, as far as `count` rows tell.
    pub(super) fn warm_rows_of(&self, ino: Ino, from: u64, to: u64, count: usize) -> Result<()> {
        let extents = self.state().tables.extents.snapshot();
        let until = (Bound::Included(&(ino, 0)), Bound::Included(&(ino, from)));
        // One that begins before may reach into the range.
        extents.last(until)?;
        let range = (Bound::Excluded(&(ino, from)), Bound::Included(&(ino, to)));
        match from < to {
            true => extents.some(range, count, |_, _| Ok(())),
            false => Ok(()),
        }
    }

    /// Names after `after` in a directory, and their inodes.
    pub(super) fn warm_entries(&self, directory: Ino, after: &[u8], count: usize) -> Result<()> {
        let (entries, inodes) = {
            let state = self.state();
            (
                state.tables.entries.snapshot(),
                state.tables.inodes.snapshot(),
            )
        };
        inodes.get(&directory)?;
        let (from, to) = ((directory, after.into()), (directory + 1, Box::default()));
        let rest = (Bound::Excluded(&from), Bound::Excluded(&to));
        entries.some(rest, count.min(ROWS_MAX), |_, entry| {
            inodes.get(&entry.ino).map(drop)
        })
    }

    pub(super) fn warm_attribute(&self, ino: Ino, name: &[u8]) -> Result<()> {
        let attributes = self.state().tables.attributes.snapshot();
        attributes.get(&(ino, name.into())).map(drop)
    }

    pub(super) fn warm_attributes(&self, ino: Ino) -> Result<()> {
        let attributes = self.state().tables.attributes.snapshot();
        let (from, to) = ((ino, Box::default()), (ino + 1, Box::default()));
        let all = (Bound::Included(&from), Bound::Excluded(&to));
        attributes.some(all, ROWS_MAX, |_, _| Ok(()))
    }

    pub(super) fn warm_target(&self, ino: Ino) -> Result<()> {
        let targets = self.state().tables.targets.snapshot();
        targets.get(&ino).map(drop)
    }

    /// All that an inode has, before it is deleted.
    pub(super) fn warm_all(&self, ino: Ino) -> Result<()> {
        self.warm_inode(ino)?;
        self.warm_extents(ino, 0, u64::MAX)?;
        self.warm_attributes(ino)?;
        self.warm_target(ino)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::files::{Caller, NewInode, Seek, Write};
    use crate::medium::BLOCK_BYTES;
    use crate::medium::model::ModelMedium;
    use crate::table::steps;
    use crate::{Files, FsError, ROOT};

    #[test]
    fn a_walk_over_the_extents_of_a_file_looks_at_rows_linear_in_their_number() {
        const EXTENTS: u64 = 500;
        let caller = Caller::default();
        let medium = Arc::new(ModelMedium::new(16 << 20));
        let files = Files::open(medium, caller).expect("a file system");
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        let (ino, _) = files.make(&caller, ROOT, b"f", new).expect("a file");
        for extent in 0..EXTENTS {
            let at = (2 * extent + 1) * BLOCK_BYTES;
            let written = files.write(&caller, ino, at, &[7; 4096], Write::default());
            written.expect("a write");
        }
        files.commit().expect("a commit");
        steps::take();
        let (mut at, mut found) = (0, 0);
        while let Ok(data) = files.seek(ino, at, Seek::Data) {
            at = files.seek(ino, data, Seek::Hole).expect("the end is one");
            assert_eq!(
                (data, at),
                ((2 * found + 1) * BLOCK_BYTES, data + BLOCK_BYTES)
            );
            found += 1;
        }
        assert_eq!(found, EXTENTS);
        assert_eq!(files.seek(ino, at, Seek::Data), Err(FsError::NoOffset));
        let steps = steps::take();
        assert!(steps < 50 * EXTENTS, "{steps} rows were looked at");
    }
}
