//! The metadata's tables in redb: read by snapshots, changed by one batch at a time.
//!
//! A batch is applied whole or not at all, and is durable when [`Database::apply`] returns. After
//! an error of the medium it takes no more, and is to be opened again.

use std::sync::{Arc, Mutex};

use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::area::{Area, Opening};
use crate::label::Label;
use crate::medium::Medium;
use crate::records::{Attributes, Entries, Extents, Ino, Inode, Inodes, Orphans, Rows, Targets};
use crate::table::{Changes, Snapshot, Table, unreadable};
use crate::{FsError, Result};

/// The database.
pub struct Database {
    redb: redb::Database,
    opening: Opening,
}

/// Every table as it is now.
pub struct Tables {
    /// Inodes by number.
    pub inodes: Table<Inodes>,
    /// Names by directory.
    pub entries: Table<Entries>,
    /// Extents by file and block.
    pub extents: Table<Extents>,
    /// Extended attributes by inode and name.
    pub attributes: Table<Attributes>,
    /// Targets of symbolic links.
    pub targets: Table<Targets>,
    /// Inodes without a name.
    pub orphans: Table<Orphans>,
}

/// Every table as one commit left it.
#[derive(Clone)]
pub struct Snapshots {
    pub inodes: Snapshot<Inodes>,
    pub entries: Snapshot<Entries>,
    pub extents: Snapshot<Extents>,
    pub attributes: Snapshot<Attributes>,
    pub targets: Snapshot<Targets>,
    pub orphans: Snapshot<Orphans>,
    /// Bytes of all rows.
    pub row_bytes: u64,
}

/// What one commit changes.
#[derive(Clone)]
pub struct Batch {
    pub inodes: Arc<Changes<Inodes>>,
    pub entries: Arc<Changes<Entries>>,
    pub extents: Arc<Changes<Extents>>,
    pub attributes: Arc<Changes<Attributes>>,
    pub targets: Arc<Changes<Targets>>,
    pub orphans: Arc<Changes<Orphans>>,
}

/// Memory for what was read of the database; arbitrary, some 100,000 files' metadata.
const CACHE_BYTES: usize = 64 << 20;
/// Numbers about the whole, by name.
const TOTALS: TableDefinition<'static, &str, u64> = TableDefinition::new("totals-1");
const ROW_BYTES: &str = "row-bytes";

fn cache_bytes() -> usize {
    #[cfg(test)]
    if cache::is_off() {
        return 0;
    }
    CACHE_BYTES
}

impl Database {
    /// Opens what is in the label's area, or makes it.
    ///
    /// # Errors
    /// `Io` when it cannot be read, or is damaged.
    pub fn open(medium: &Arc<dyn Medium>, label: &Arc<Mutex<Label>>) -> Result<Self> {
        let opening = Opening::default();
        let area = Area::new(Arc::clone(medium), Arc::clone(label), opening.clone());
        let mut builder = redb::Builder::new();
        builder.set_cache_size(cache_bytes());
        // Else redb trusts every page, and may panic over one that is damaged. What it reads later
        // is what it verified here: the area sees to that.
        builder.set_check_integrity_on_open(true);
        let redb = builder.create_with_backend(area).map_err(unreadable)?;
        let database = Self { redb, opening };
        database.make_tables()?;
        Ok(database)
    }

    /// Whether it can be used still.
    pub fn opening(&self) -> &Opening {
        &self.opening
    }

    fn make_tables(&self) -> Result<()> {
        let reading = self.redb.begin_read().map_err(unreadable)?;
        if reading.open_table(TOTALS).is_ok() {
            return Ok(());
        }
        let writing = self.redb.begin_write().map_err(unreadable)?;
        writing.open_table(Inodes::TABLE).map_err(unreadable)?;
        writing.open_table(Entries::TABLE).map_err(unreadable)?;
        writing.open_table(Extents::TABLE).map_err(unreadable)?;
        writing.open_table(Attributes::TABLE).map_err(unreadable)?;
        writing.open_table(Targets::TABLE).map_err(unreadable)?;
        writing.open_table(Orphans::TABLE).map_err(unreadable)?;
        writing.open_table(TOTALS).map_err(unreadable)?;
        writing.commit().map_err(unreadable)
    }

    /// The tables as the last commit left them.
    pub fn snapshots(&self) -> Result<Snapshots> {
        let reading = self.redb.begin_read().map_err(unreadable)?;
        let totals = reading.open_table(TOTALS).map_err(unreadable)?;
        let row_bytes = totals.get(ROW_BYTES).map_err(unreadable)?;
        Ok(Snapshots {
            inodes: Snapshot::open(&reading)?,
            entries: Snapshot::open(&reading)?,
            extents: Snapshot::open(&reading)?,
            attributes: Snapshot::open(&reading)?,
            targets: Snapshot::open(&reading)?,
            orphans: Snapshot::open(&reading)?,
            row_bytes: row_bytes.map_or(0, |bytes| bytes.value()),
        })
    }

    /// Makes a batch durable. One that was applied before leaves the same again.
    ///
    /// # Errors
    /// `Io`: it may be durable, or not.
    pub fn apply(&self, batch: &Batch) -> Result<Snapshots> {
        let writing = self.redb.begin_write().map_err(unreadable)?;
        let mut change = Change::default();
        change.apply::<Inodes>(&writing, &batch.inodes)?;
        change.apply::<Entries>(&writing, &batch.entries)?;
        change.apply::<Extents>(&writing, &batch.extents)?;
        change.apply::<Attributes>(&writing, &batch.attributes)?;
        change.apply::<Targets>(&writing, &batch.targets)?;
        change.apply::<Orphans>(&writing, &batch.orphans)?;
        {
            let mut totals = writing.open_table(TOTALS).map_err(unreadable)?;
            let before = totals.get(ROW_BYTES).map_err(unreadable)?;
            let before = before.map_or(0, |bytes| bytes.value());
            let after = before.saturating_add(change.added);
            let after = after.saturating_sub(change.removed);
            totals.insert(ROW_BYTES, after).map_err(unreadable)?;
        }
        writing.commit().map_err(unreadable)?;
        self.snapshots()
    }

    /// A commit that changes nothing: redb frees the pages that a commit replaced in the one after
    /// it, once no snapshot is left that has them.
    ///
    /// # Errors
    /// `Io`.
    pub fn reclaim(&self) -> Result<()> {
        let writing = self.redb.begin_write().map_err(unreadable)?;
        {
            let mut totals = writing.open_table(TOTALS).map_err(unreadable)?;
            let same = totals.get(ROW_BYTES).map_err(unreadable)?;
            let same = same.map_or(0, |bytes| bytes.value());
            totals.insert(ROW_BYTES, same).map_err(unreadable)?;
        }
        writing.commit().map_err(unreadable)
    }
}

impl Batch {
    /// Rows in it.
    pub fn changed(&self) -> usize {
        self.inodes.len()
            + self.entries.len()
            + self.extents.len()
            + self.attributes.len()
            + self.targets.len()
            + self.orphans.len()
    }
}

/// Bytes of rows that a batch adds and removes.
#[derive(Default)]
struct Change {
    added: u64,
    removed: u64,
}

impl Change {
    fn apply<T: Rows>(
        &mut self,
        writing: &redb::WriteTransaction,
        changes: &Changes<T>,
    ) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let mut table = writing.open_table(T::TABLE).map_err(unreadable)?;
        for (key, value) in changes {
            let stored = T::store_key(key);
            let before = match value {
                Some(value) => {
                    self.added += T::row_bytes(key, value);
                    table.insert(stored, T::store(value)).map_err(unreadable)?
                }
                None => table.remove(stored).map_err(unreadable)?,
            };
            if let Some(before) = before {
                self.removed += T::row_bytes(key, &T::load(before.value()));
            }
        }
        Ok(())
    }
}

impl Tables {
    /// The tables of a commit.
    pub fn new(snapshots: Snapshots) -> Self {
        Self {
            inodes: Table::new(snapshots.inodes),
            entries: Table::new(snapshots.entries),
            extents: Table::new(snapshots.extents),
            attributes: Table::new(snapshots.attributes),
            targets: Table::new(snapshots.targets),
            orphans: Table::new(snapshots.orphans),
        }
    }

    /// Rows that changed since the last commit began.
    pub fn changed(&self) -> usize {
        self.inodes.changed()
            + self.entries.changed()
            + self.extents.changed()
            + self.attributes.changed()
            + self.targets.changed()
            + self.orphans.changed()
    }

    /// Hands out all that changed.
    pub fn freeze(&mut self) -> Batch {
        Batch {
            inodes: self.inodes.freeze(),
            entries: self.entries.freeze(),
            extents: self.extents.freeze(),
            attributes: self.attributes.freeze(),
            targets: self.targets.freeze(),
            orphans: self.orphans.freeze(),
        }
    }

    /// Makes what was changed since the last call, or the last [`Self::roll_back`], stay.
    pub fn keep(&mut self) {
        self.inodes.keep();
        self.entries.keep();
        self.extents.keep();
        self.attributes.keep();
        self.targets.keep();
        self.orphans.keep();
    }

    /// Undoes what was changed since the last [`Self::keep`].
    pub fn roll_back(&mut self) {
        self.inodes.roll_back();
        self.entries.roll_back();
        self.extents.roll_back();
        self.attributes.roll_back();
        self.targets.roll_back();
        self.orphans.roll_back();
    }

    /// Takes what the database has now that it is open again; changes stay above it.
    pub fn reread(&mut self, snapshots: Snapshots) {
        self.inodes.reread(snapshots.inodes);
        self.entries.reread(snapshots.entries);
        self.extents.reread(snapshots.extents);
        self.attributes.reread(snapshots.attributes);
        self.targets.reread(snapshots.targets);
        self.orphans.reread(snapshots.orphans);
    }

    /// Takes what a commit left.
    pub fn thaw(&mut self, snapshots: Snapshots) {
        self.inodes.thaw(snapshots.inodes);
        self.entries.thaw(snapshots.entries);
        self.extents.thaw(snapshots.extents);
        self.attributes.thaw(snapshots.attributes);
        self.targets.thaw(snapshots.targets);
        self.orphans.thaw(snapshots.orphans);
    }

    /// An inode.
    ///
    /// # Errors
    /// `NotFound`; `Io` for one that no request leads to.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let inode = self.inodes.get(&ino)?.ok_or(FsError::NotFound)?;
        match inode.is_sound() {
            true => Ok(inode),
            false => Err(damaged(ino, "its inode")),
        }
    }

    /// The greatest number of an inode of which a table has something.
    ///
    /// # Errors
    /// `Io`.
    pub fn last_named(&self) -> Result<Ino> {
        let last = [
            self.inodes.greatest()?,
            self.entries.greatest()?.map(|(directory, _)| directory),
            self.extents.greatest()?.map(|(ino, _)| ino),
            self.attributes.greatest()?.map(|(ino, _)| ino),
            self.targets.greatest()?,
            self.orphans.greatest()?,
        ];
        Ok(last.into_iter().flatten().max().unwrap_or(0))
    }
}

/// Says once, where it is met, what of an inode no request leads to.
pub fn damaged(ino: Ino, what: &str) -> FsError {
    tracing::error!(ino, what, "metadata contradicts itself");
    FsError::Io
}

/// Whether databases that this thread opens read everything from the medium.
#[cfg(test)]
pub mod cache {
    use std::cell::Cell;

    thread_local! {
        static IS_OFF: Cell<bool> = const { Cell::new(false) };
    }

    pub fn turn_off() {
        IS_OFF.set(true);
    }

    pub(super) fn is_off() -> bool {
        IS_OFF.get()
    }
}
