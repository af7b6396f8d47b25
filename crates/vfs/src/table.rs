//! A table as it stands now: changes that are in memory over what the database has.
//!
//! Three layers: what changed since the last commit began, what that commit carries, and the
//! database's last snapshot. A reader sees the uppermost; a commit empties the middle one.

use std::cmp::Ordering;
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
    pub fn first(&self, range: Range<'_, T>) -> Result<Option<Row<T>>> {
        if is_empty(range) {
            return Ok(None);
        }
        uppermost::<T>(
            self.active.range::<T::Key, _>(range),
            self.frozen.range::<T::Key, _>(range),
            self.snapshot.range(range)?,
            T::Key::cmp,
        )
    }

    /// The last row in a range; as [`Table::first`].
    pub fn last(&self, range: Range<'_, T>) -> Result<Option<Row<T>>> {
        if is_empty(range) {
            return Ok(None);
        }
        uppermost::<T>(
            self.active.range::<T::Key, _>(range).rev(),
            self.frozen.range::<T::Key, _>(range).rev(),
            self.snapshot.range(range)?.rev(),
            |one, other| other.cmp(one),
        )
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
        // A row that no other layer has leaves nothing behind, which walks would step over.
        let before = match self.active.get(key) {
            Some(Some(_)) if self.is_below(key) == Ok(false) => self.active.remove(key),
            _ => self.active.insert(key.clone(), None),
        };
        self.undo.push((key.clone(), before));
    }

    /// Whether there is a row without what changed since the last commit began.
    fn is_below(&self, key: &T::Key) -> Result<bool> {
        match self.frozen.get(key) {
            Some(row) => Ok(row.is_some()),
            None => self.snapshot.get(key).map(|row| row.is_some()),
        }
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

/// A changed row.
type Change<'a, T> = (&'a <T as Rows>::Key, &'a Option<<T as Rows>::Value>);

/// The row that comes first by `order`, of layers that have theirs in that order.
fn uppermost<'a, T: Rows>(
    active: impl Iterator<Item = Change<'a, T>>,
    frozen: impl Iterator<Item = Change<'a, T>>,
    mut stored: impl Iterator<Item = std::result::Result<Stored<'static, T>, redb::StorageError>>,
    order: fn(&T::Key, &T::Key) -> Ordering,
) -> Result<Option<Row<T>>>
where
    T::Key: 'a,
    T::Value: 'a,
{
    let (mut active, mut frozen) = (active.peekable(), frozen.peekable());
    let mut row = Snapshot::<T>::row(stored.next())?;
    loop {
        #[cfg(test)]
        steps::count();
        let keys = [
            active.peek().map(|(key, _)| *key),
            frozen.peek().map(|(key, _)| *key),
            row.as_ref().map(|(key, _)| key),
        ];
        let first = keys.into_iter().flatten();
        let Some(first) = first.min_by(|one, other| order(one, other)) else {
            return Ok(None);
        };
        let is_first = keys.map(|key| key == Some(first));
        let changed = [
            is_first[0].then(|| active.next()).flatten(),
            is_first[1].then(|| frozen.next()).flatten(),
        ];
        match changed.into_iter().flatten().next() {
            None => return Ok(row),
            Some((key, Some(value))) => return Ok(Some((key.clone(), value.clone()))),
            Some((_, None)) if is_first[2] => row = Snapshot::<T>::row(stored.next())?,
            Some((_, None)) => {}
        }
    }
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

/// How many rows [`Table::first`], [`Table::last`] and [`Snapshot::some`] looked at in this thread.
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

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;
    use redb::{Database, ReadableDatabase as _};

    use super::*;
    use crate::records::Orphans;

    type Rest = BTreeMap<u64, Option<()>>;

    /// A table that has rows in its snapshot, in a commit under way, and changed since; and its
    /// database.
    fn layered(stored: &[u64], frozen: Rest, active: Rest) -> (Table<Orphans>, Database) {
        let database = Database::builder().create_with_backend(InMemoryBackend::new());
        let database = database.expect("a database in memory");
        let transaction = database.begin_write().expect("a transaction");
        {
            let mut table = transaction.open_table(Orphans::TABLE).expect("a table");
            for key in stored {
                table.insert(key, ()).expect("a row");
            }
        }
        transaction.commit().expect("a commit");
        let transaction = database.begin_read().expect("a transaction");
        let mut table = Table::new(Snapshot::open(&transaction).expect("a snapshot"));
        table.frozen = Arc::new(frozen);
        table.active = active;
        (table, database)
    }

    /// The rows in a range, from both ends.
    fn walked(table: &Table<Orphans>, from: u64, to: u64) -> [Vec<u64>; 2] {
        let (mut up, mut down) = (Vec::new(), Vec::new());
        let (mut low, mut high) = (Bound::Included(from), Bound::Included(to));
        while let Some((key, ())) = table
            .first((low.as_ref(), Bound::Included(&to)))
            .expect("rows")
        {
            up.push(key);
            low = Bound::Excluded(key);
        }
        while let Some((key, ())) = table
            .last((Bound::Included(&from), high.as_ref()))
            .expect("rows")
        {
            down.insert(0, key);
            high = Bound::Excluded(key);
        }
        [up, down]
    }

    #[test]
    fn both_ends_of_a_range_are_what_the_uppermost_layers_say() {
        // Each key is in its own way in the three layers: of its three digits to the base of 3, 0
        // is nothing, 1 a row and 2 one that was removed.
        let digit = |key: u64, place: u32| key / 3_u64.pow(place) % 3;
        let change = |place| {
            let keys = (0..27).filter(move |key| digit(*key, place) > 0);
            keys.map(|key| (key, (digit(key, place) == 1).then_some(())))
                .collect()
        };
        let stored: Vec<u64> = (0..27).filter(|key| digit(*key, 2) == 1).collect();
        let (table, _database) = layered(&stored, change(1), change(0));
        let is_there = |key: &u64| {
            let digits = [digit(*key, 0), digit(*key, 1), digit(*key, 2)];
            digits.into_iter().find(|digit| *digit > 0) == Some(1)
        };
        for from in 0..27 {
            for to in 0..27 {
                let rows: Vec<u64> = (from..=to).filter(is_there).collect();
                assert_eq!(
                    walked(&table, from, to),
                    [rows.clone(), rows],
                    "{from} to {to}"
                );
            }
        }
    }

    #[test]
    fn a_row_that_comes_and_goes_between_commits_leaves_nothing_unless_another_layer_has_it() {
        let frozen = [(2, Some(())), (3, None)].into_iter().collect();
        let (mut table, _database) = layered(&[1, 3], frozen, BTreeMap::new());
        for key in 1..=4 {
            table.put(key, ());
            table.remove(&key);
        }
        let left: Vec<u64> = table.active.keys().copied().collect();
        assert_eq!(left, [1, 2]);
        assert!(walked(&table, 0, 9).concat().is_empty());
        table.roll_back();
        assert_eq!(table.active, Rest::new());
        assert_eq!(walked(&table, 0, 9)[0], [1, 2]);
    }
}
