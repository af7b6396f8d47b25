//! Reading directories.

use std::ops::Bound;

use super::Files;
use crate::records::{Ino, Inode};
use crate::{FsError, Result};

/// A name, and what it stands for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DirectoryEntry {
    /// The name.
    pub name: Box<[u8]>,
    /// The inode.
    pub ino: Ino,
    /// Its attributes.
    pub inode: Inode,
}

impl Files {
    /// Up to `count` entries after the name `after`, in the order of their bytes.
    ///
    /// # Errors
    /// `NotDirectory`, `Io`.
    pub fn list(
        &self,
        directory: Ino,
        after: Option<&[u8]>,
        count: usize,
    ) -> Result<Vec<DirectoryEntry>> {
        self.warm_entries(directory, after.unwrap_or_default(), count)?;
        let state = self.state();
        if !state.tables.inode(directory)?.is_directory() {
            return Err(FsError::NotDirectory);
        }
        let mut listed: Vec<DirectoryEntry> = Vec::new();
        let mut at = (directory, after.unwrap_or_default().into());
        let end = (directory + 1, Box::default());
        while listed.len() < count {
            // No name is empty.
            let rest = (Bound::Excluded(&at), Bound::Excluded(&end));
            let Some(((_, name), entry)) = state.tables.entries.first(rest)? else {
                break;
            };
            at = (directory, name.clone());
            listed.push(DirectoryEntry {
                name,
                ino: entry.ino,
                inode: state.tables.inode(entry.ino)?,
            });
        }
        Ok(listed)
    }

    /// Notes that the kernel was told of an inode by a listing.
    pub fn remember(&self, ino: Ino) {
        self.state().remember(ino);
    }
}
