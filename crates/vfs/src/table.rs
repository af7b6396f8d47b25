//! A table as it stands now: changes that are in memory over what the database has.
//!
//! Three layers: what changed since the last commit began, what that commit carries, and the
//! database's last snapshot. A reader sees the uppermost; a commit empties the middle one.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use redb::{ReadOnlyTable, ReadTransaction, ReadableTable as _};

use crate::records::Rows;
use crate::{FsError, Result};

/// Changed rows; `None`: removed.
pub type Changes<T> = BTreeMap<<T as Rows>::Key, Option<<T as Rows>::Value>>;

type Row<T> = (<T as Rows>::Key, <T as Rows>::Value);

/// Where rows are looked for, from and to.
pub type Range<'a, T> = (Bound<&'a <T as Rows>::Key>, Bound<&'a <T as Rows>::Key>);

/// One table.
pub struct Table<T: Rows> {
    active: Changes<T>,
    frozen: Arc<Changes<T>>,
    snapshot: Snapshot<T>,
    /// Of `active`, what the change that is being made put others in place of, in order.
    undo: Vec<Replaced<T>>,
}

/// A key, and what was known of its row before.
type Replaced<T> = (<T as Rows>::Key, Option<Option<<T as Rows>::Value>>);

/// One table as the database has it. May be read from the medium, and by several threads at a time.
pub struct Snapshot<T: Rows>(Arc<ReadOnlyTable<T::StoredKey, T::StoredValue>>);

impl<T: Rows> Clone for Snapshot<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: Rows> Snapshot<T> {
    /// The table in `transaction`.
    pub fn open(transaction: &ReadTransaction) -> Result<Self> {
        let table = transaction.open_table(T::TABLE).map_err(unreadable)?;
        Ok(Self(Arc::new(table)))
    }

    /// A row.
    pub fn get(&self, key: &T::Key) -> Result<Option<T::Value>> {
        let found = self.0.get(T::store_key(key)).map_err(unreadable)?;
        Ok(found.map(|value| T::load(value.value())))
    }

    /// The first row in a range.
    pub fn first(&self, range: Range<'_, T>) -> Result<Option<Row<T>>> {
        Self::row(self.range(range)?.next())
    }

    /// The last row in a range.
    pub fn last(&self, range: Range<'_, T>) -> Result<Option<Row<T>>> {
        Self::row(self.range(range)?.next_back())
    }

    fn range(&self, (from, to): Range<'_, T>) -> Result<StoredRange<T>> {
        let bounds = (from.map(T::store_key), to.map(T::store_key));
        let range = self
            .0
            .range::<<T::StoredKey as redb::Value>::SelfType<'_>>(bounds);
        range.map_err(unreadable)
    }

    fn row(
        found: Option<std::result::Result<Stored<'_, T>, redb::StorageError>>,
    ) -> Result<Option<Row<T>>> {
        let Some(found) = found.transpose().map_err(unreadable)? else {
            return Ok(None);
        };
        let (key, value) = found;
        Ok(Some((T::load_key(key.value()), T::load(value.value()))))
    }
}

/// Rows of a range as redb has them.
type StoredRange<T> = redb::Range<'static, <T as Rows>::StoredKey, <T as Rows>::StoredValue>;

/// A row as redb has it.
type Stored<'a, T> = (
    redb::AccessGuard<'a, <T as Rows>::StoredKey>,
    redb::AccessGuard<'a, <T as Rows>::StoredValue>,
);

impl<T: Rows> Table<T> {
    /// The table of a snapshot, unchanged.
    pub fn new(snapshot: Snapshot<T>) -> Self {
        Self {
            active: BTreeMap::new(),
            frozen: Arc::default(),
            snapshot,
            undo: Vec::new(),
        }
    }

    /// A row.
    pub fn get(&self, key: &T::Key) -> Result<Option<T::Value>> {
        let changed = self.active.get(key).or_else(|| self.frozen.get(key));
        match changed {
            Some(value) => Ok(value.clone()),
            None => self.snapshot.get(key),
        }
    }

    /// The first row in a range. Takes as long as there are removed rows before it, so the range
    /// ends with what the caller cares for.
    pub fn first(&self, (from, to): Range<'_, T>) -> Result<Option<Row<T>>> {
        let mut from: Bound<T::Key> = from.cloned();
        loop {
            #[cfg(test)]
            steps::count();
            let range = (from.as_ref(), to);
            if is_empty(range) {
                return Ok(None);
            }
            let active = self.active.range::<T::Key, _>(range).next();
            let frozen = self.frozen.range::<T::Key, _>(range).next();
            let stored = self.snapshot.first(range)?;
            let keys = [
                active.map(|(key, _)| key),
                frozen.map(|(key, _)| key),
                stored.as_ref().map(|(key, _)| key),
            ];
            let Some(least) = keys.into_iter().flatten().min() else {
                return Ok(None);
            };
            match changed::<T>(active, frozen, least) {
                Some(Some(value)) => return Ok(Some((least.clone(), value.clone()))),
                Some(None) => from = Bound::Excluded(least.clone()),
                None => return Ok(stored),
            }
        }
    }

    /// The last row in a range; as [`Table::first`].
    pub fn last(&self, (from, to): Range<'_, T>) -> Result<Option<Row<T>>> {
        let mut to: Bound<T::Key> = to.cloned();
        loop {
            let range = (from, to.as_ref());
            if is_empty(range) {
                return Ok(None);
            }
            let active = self.active.range::<T::Key, _>(range).next_back();
            let frozen = self.frozen.range::<T::Key, _>(range).next_back();
            let stored = self.snapshot.last(range)?;
            let keys = [
                active.map(|(key, _)| key),
                frozen.map(|(key, _)| key),
                stored.as_ref().map(|(key, _)| key),
            ];
            let Some(most) = keys.into_iter().flatten().max() else {
                return Ok(None);
            };
            match changed::<T>(active, frozen, most) {
                Some(Some(value)) => return Ok(Some((most.clone(), value.clone()))),
                Some(None) => to = Bound::Excluded(most.clone()),
                None => return Ok(stored),
            }
        }
    }

    /// The greatest key that has a row.
    pub fn greatest(&self) -> Result<Option<T::Key>> {
        let last = self.last((Bound::Unbounded, Bound::Unbounded))?;
        Ok(last.map(|(key, _)| key))
    }

    /// Adds or replaces a row; returns the bytes that it takes until the next commit.
    pub fn put(&mut self, key: T::Key, value: T::Value) -> u64 {
        let bytes = T::row_bytes(&key, &value);
        let before = self.active.insert(key.clone(), Some(value));
        self.undo.push((key, before));
        bytes
    }

    /// Takes a row away.
    pub fn remove(&mut self, key: &T::Key) {
        let before = self.active.insert(key.clone(), None);
        self.undo.push((key.clone(), before));
    }

    /// Makes what was changed stay.
    pub fn keep(&mut self) {
        self.undo.clear();
    }

    /// Undoes what was changed since the last [`Self::keep`].
    pub fn roll_back(&mut self) {
        while let Some((key, before)) = self.undo.pop() {
            match before {
                Some(row) => self.active.insert(key, row),
                None => self.active.remove(&key),
            };
        }
    }

    /// Takes another snapshot of the same rows; changes stay above it.
    pub fn reread(&mut self, snapshot: Snapshot<T>) {
        self.snapshot = snapshot;
    }

    /// Rows that changed since the last commit began.
    pub fn changed(&self) -> usize {
        self.active.len()
    }

    /// The database's last snapshot.
    pub fn snapshot(&self) -> Snapshot<T> {
        self.snapshot.clone()
    }

    /// Hands out what changed, for a commit.
    ///
    /// # Panics
    /// If an earlier commit has not ended.
    pub fn freeze(&mut self) -> Arc<Changes<T>> {
        assert!(self.frozen.is_empty(), "one commit at a time");
        self.frozen = Arc::new(std::mem::take(&mut self.active));
        Arc::clone(&self.frozen)
    }

    /// Takes what the database has after the commit.
    pub fn thaw(&mut self, snapshot: Snapshot<T>) {
        self.snapshot = snapshot;
        self.frozen = Arc::default();
    }
}

impl<T: Rows> Snapshot<T> {
    /// Up to `count` rows of a range in order, until `each` fails.
    pub fn some(
        &self,
        range: Range<'_, T>,
        count: usize,
        mut each: impl FnMut(T::Key, T::Value) -> Result<()>,
    ) -> Result<()> {
        for row in self.range(range)?.take(count) {
            #[cfg(test)]
            steps::count();
            let (key, value) = row.map_err(unreadable)?;
            each(T::load_key(key.value()), T::load(value.value()))?;
        }
        Ok(())
    }

    /// Every row in order, until `each` fails.
    pub fn each(&self, mut each: impl FnMut(T::Key, T::Value) -> Result<()>) -> Result<()> {
        for row in self.0.iter().map_err(unreadable)? {
            let (key, value) = row.map_err(unreadable)?;
            each(T::load_key(key.value()), T::load(value.value()))?;
        }
        Ok(())
    }
}

/// A changed row of the upper layers.
type Found<'a, T> = Option<(&'a <T as Rows>::Key, &'a Option<<T as Rows>::Value>)>;

/// What the uppermost layer that has `key` says of it.
fn changed<'a, T: Rows>(
    active: Found<'a, T>,
    frozen: Found<'a, T>,
    key: &T::Key,
) -> Option<&'a Option<T::Value>> {
    let mut layers = [active, frozen].into_iter().flatten();
    layers.find(|(at, _)| *at == key).map(|(_, row)| row)
}

/// Whether no key can be in a range; maps refuse to look there.
fn is_empty<K: Ord>(range: (Bound<&K>, Bound<&K>)) -> bool {
    match range {
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
        _ => false,
    }
}

/// What the database cannot read is told once, where it is met.
pub fn unreadable(error: impl Into<redb::Error>) -> FsError {
    let error = error.into();
    tracing::error!(%error, "read or write metadata");
    FsError::Io
}

/// How many rows [`Table::first`] and [`Snapshot::some`] looked at in this thread.
#[cfg(test)]
pub mod steps {
    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn count() {
        STEPS.set(STEPS.get() + 1);
    }

    /// Hands out what was counted, and begins again.
    pub fn take() -> u64 {
        STEPS.take()
    }
}
