//! Connections to memcached, by a client library that others use as well.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use memcache::{ConnectionManager, MemcacheError, Pool, Url};

use crate::swapping::memcached::Memcached;

/// One connection.
pub(super) struct Client(memcache::Client);

impl Client {
    /// Opens a connection of its own.
    pub(super) fn open(server: &Memcached) -> anyhow::Result<Self> {
        let path = server.socket().display();
        let url = Url::parse(&format!("memcache+unix://{path}?protocol=ascii"))?;
        // The client opens the URL's path as it stands there, escapes and all.
        if Path::new(url.path()) != server.socket() {
            bail!("a path for memcached's socket without special characters, not {path}");
        }
        let pool = Pool::builder()
            .max_size(1)
            .connection_timeout(CONNECT_TIMEOUT)
            // A connection that breaks ends the run; it is neither probed before each operation,
            // which would be a second round trip in the time of the first, nor replaced.
            .test_on_check_out(false)
            .max_lifetime(None)
            .idle_timeout(None)
            .build(ConnectionManager::new(url))
            .context("connect to memcached")?;
        let client = memcache::Client::with_pool(pool)?;
        client.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        client.set_write_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(Self(client))
    }

    /// Returns once memcached has stored `value`.
    pub(super) fn set(&self, key: usize, value: &[u8]) -> Result<(), MemcacheError> {
        self.0.set(&name(key), value, NEVER_EXPIRES)
    }

    /// `None` when memcached does not have the key.
    pub(super) fn get(&self, key: usize) -> Result<Option<Vec<u8>>, MemcacheError> {
        self.0.get(&name(key))
    }
}

fn name(key: usize) -> String {
    format!("key:{key:08}")
}

/// A page that is lost is an error at once; this only bounds a machine that stands still.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const NEVER_EXPIRES: u32 = 0;
