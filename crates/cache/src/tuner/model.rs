//! What was measured, of one space, by transport, distance and size of records.
//!
//! A model is a text file (`docs/formats/cache-model.md`). A survey that is not done yet leaves a model, too, from
//! which it goes on.

mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

pub use text::ModelError;

use super::{Grid, MARGIN, Spacing, Surface, Table};
use crate::{LatencyOf, Space, Writes};

/// What carries requests.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Transport {
    /// The simulated network of [`crate::simulation`].
    Sim,
    /// Memory that client and server share.
    Shm,
    /// TCP.
    Tcp,
    /// RDMA.
    Rdma,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Sim, Self::Shm, Self::Tcp, Self::Rdma];

    /// How it is written.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sim => "sim",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Rdma => "rdma",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = UnknownTransport;

    fn from_str(text: &str) -> Result<Self, UnknownTransport> {
        let found = Self::ALL.into_iter().find(|one| one.name() == text);
        found.ok_or(UnknownTransport)
    }
}

/// A text that names no [`Transport`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("one of sim, shm, tcp and rdma")]
pub struct UnknownTransport;

/// What a table is for.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Key {
    /// What carried requests.
    pub transport: Transport,
    /// Time of a bit from client to server in nanoseconds, one way, as far as it was not measured.
    pub distance_ns: u64,
    /// Bytes of a record, at least 1.
    pub record_bytes: u32,
    /// How many requests wrote.
    pub writes: Writes,
}

/// Tables of one space.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    space: Space,
    spacing: Spacing,
    tables: BTreeMap<Key, Table>,
}

impl Model {
    /// A model without tables.
    #[must_use]
    pub fn new(space: Space, spacing: Spacing) -> Self {
        Self {
            space,
            spacing,
            tables: BTreeMap::new(),
        }
    }

    /// The space of all its tables.
    #[must_use]
    pub fn space(&self) -> Space {
        self.space
    }

    /// Which configurations are measured.
    #[must_use]
    pub fn spacing(&self) -> Spacing {
        self.spacing
    }

    /// What a table of this model for records of `record_bytes` may hold.
    #[must_use]
    pub fn grid(&self, record_bytes: u32) -> Grid {
        Grid::new(self.space.for_record(record_bytes), self.spacing)
    }

    /// The table for `key`, if something was measured.
    #[must_use]
    pub fn table(&self, key: Key) -> Option<&Table> {
        self.tables.get(&key)
    }

    /// All tables.
    pub fn tables(&self) -> impl Iterator<Item = (Key, &Table)> {
        self.tables.iter().map(|(key, table)| (*key, table))
    }

    /// Puts a table in, for the one that is there.
    ///
    /// # Panics
    /// The table is of another grid than [`Model::grid`] says.
    pub fn insert(&mut self, key: Key, table: Table) {
        assert_eq!(*table.grid(), self.grid(key.record_bytes));
        self.tables.insert(key, table);
    }

    /// The part that was measured with as many writes.
    #[must_use]
    pub fn of_writes(&self, writes: Writes) -> Mix<'_> {
        Mix {
            model: self,
            writes,
        }
    }

    /// [`Mix::surface`] of reads alone.
    ///
    /// # Errors
    /// As [`Mix::surface`].
    pub fn surface(
        &self,
        transport: Transport,
        distance_ns: u64,
        record_bytes: u32,
        latency_of: LatencyOf,
    ) -> Result<Surface, NoTable> {
        self.of_writes(Writes::NONE)
            .surface(transport, distance_ns, record_bytes, latency_of)
    }
}

/// The tables of a model that were measured with one share of writes.
#[derive(Clone, Copy, Debug)]
pub struct Mix<'a> {
    model: &'a Model,
    writes: Writes,
}

impl<'a> Mix<'a> {
    /// What is predicted for records of `record_bytes` at most `distance_ns` away. Taken from tables
    /// at the least distance that is not shorter. Between two sizes of records, the worse of both counts; below the
    /// smallest, that one.
    ///
    /// # Errors
    /// Nothing was measured that far away, with records that large, or with as many writes.
    pub fn surface(
        &self,
        transport: Transport,
        distance_ns: u64,
        record_bytes: u32,
        latency_of: LatencyOf,
    ) -> Result<Surface, NoTable> {
        let tables = self.by_record(transport, distance_ns)?;
        let Some((_, above)) = tables.range(record_bytes..).next() else {
            let largest = tables.keys().next_back();
            return Err(NoTable::Record {
                largest_bytes: largest.copied().unwrap_or(0),
            });
        };
        let below = tables.range(..=record_bytes).next_back();
        let below = below.map_or(above, |(_, table)| table);
        Ok(Surface::new(above, below, latency_of, MARGIN))
    }

    /// The tables at the least distance that is not shorter than `distance_ns`, by bytes of a record; at
    /// least one.
    ///
    /// # Errors
    /// Nothing was measured that far away, or with as many writes.
    pub fn by_record(
        &self,
        transport: Transport,
        distance_ns: u64,
    ) -> Result<BTreeMap<u32, &'a Table>, NoTable> {
        let measured = || {
            let tables = self.model.tables();
            tables.filter(|(key, _)| key.transport == transport)
        };
        if measured().next().is_none() {
            return Err(NoTable::Transport(transport));
        }
        let of_transport = || measured().filter(|(key, _)| key.writes == self.writes);
        let distances = || of_transport().map(|(key, _)| key.distance_ns);
        let farthest_ns = distances().max().ok_or(NoTable::Writes(self.writes))?;
        let nearest = distances().filter(|found| *found >= distance_ns).min();
        let nearest = nearest.ok_or(NoTable::Distance { farthest_ns })?;
        let there = of_transport().filter(|(key, _)| key.distance_ns == nearest);
        Ok(there
            .map(|(key, table)| (key.record_bytes, table))
            .collect())
    }
}

/// A model that says nothing about what was asked.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NoTable {
    /// Nothing was measured over it.
    #[error("the model has nothing for {0}")]
    Transport(Transport),
    /// Everything was measured with another share of writes.
    #[error("the model has nothing for {0} of writes")]
    Writes(Writes),
    /// Everything was measured nearer.
    #[error("the model ends at a distance of {farthest_ns} ns")]
    Distance {
        /// The longest distance that was measured.
        farthest_ns: u64,
    },
    /// Everything was measured with smaller records.
    #[error("the model ends at records of {largest_bytes} bytes")]
    Record {
        /// The largest records that were measured.
        largest_bytes: u32,
    },
}

#[cfg(test)]
mod tests;
