//! The programs under test by name, and what each takes.

use super::mix::Mix;
use super::program::{Program, Sizes};
use super::{memaslap, memcached, pagerank, postgres, redis, sort};

/// A program under test.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum App {
    /// memcached, 5% SETs.
    Etc,
    /// memcached, 25% SETs of larger values.
    Sys,
    /// redis-server under redis-benchmark.
    Redis,
    /// PostgreSQL under pgbench.
    Postgres,
    /// PageRank over a generated graph.
    Pagerank,
    /// coreutils sort.
    Sort,
    /// memcached under memaslap, as the paper had it.
    Memaslap,
}

impl App {
    /// What is run unless a choice is made: all but the second opinion on one of them.
    pub const USUAL: [Self; 6] = [
        Self::Etc,
        Self::Sys,
        Self::Redis,
        Self::Postgres,
        Self::Pagerank,
        Self::Sort,
    ];

    /// As in a row.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Etc => "memcached ETC",
            Self::Sys => "memcached SYS",
            Self::Redis => "redis GET",
            Self::Postgres => "postgres",
            Self::Pagerank => "pagerank",
            Self::Sort => "sort",
            Self::Memaslap => "memcached memaslap",
        }
    }

    /// Programs it takes, and the Debian package of each.
    pub(super) fn needs(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Etc | Self::Sys => &[("memcached", "memcached")],
            Self::Redis => &[
                ("redis-server", "redis-server"),
                ("redis-benchmark", "redis-tools"),
            ],
            Self::Postgres => &[("pgbench", "postgresql")],
            Self::Pagerank => &[],
            Self::Sort => &[("sort", "coreutils")],
            Self::Memaslap => &[
                ("memcached", "memcached"),
                ("memcaslap", "libmemcached-tools"),
            ],
        }
    }

    pub(super) fn make(self, sizes: &Sizes) -> anyhow::Result<Box<dyn Program>> {
        Ok(match self {
            Self::Etc => Box::new(memcached::MemcachedMix::new(Mix::Etc, sizes)),
            Self::Sys => Box::new(memcached::MemcachedMix::new(Mix::Sys, sizes)),
            Self::Redis => Box::new(redis::Redis::new(sizes)),
            Self::Postgres => Box::new(postgres::Postgres::new(sizes)?),
            Self::Pagerank => Box::new(pagerank::Ranking::new(sizes)),
            Self::Sort => Box::new(sort::Sort::new(sizes)),
            Self::Memaslap => Box::new(memaslap::Memaslap::new(sizes)),
        })
    }
}
