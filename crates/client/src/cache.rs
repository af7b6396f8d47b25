//! A remote cache: bytes at addresses in the memory of several machines, kept whole by its manager.
//!
//! ```no_run
//! # fn main() -> Result<(), cenote::cache::Error> {
//! let cache = cenote::cache::Options::default().open_in("/srv/well", "c0")?;
//! cache.write_at(b"hello", 4096)?;
//! let mut back = [0; 5];
//! cache.read_at(&mut back, 4096)?;
//! # Ok(())
//! # }
//! ```

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_cache::client::Error as RequestError;
use cenote_cache::service::question::{Answer, Question};
use cenote_cache::service::{self, CallError, OpenError};
use cenote_fabric::{Address, ClusterKey, Time, Waker, WireProtection};

use crate::cluster::Cluster;
use crate::driver::{Connection, Driver, Over, Pending};

/// How a cache is opened.
#[derive(Clone, Debug)]
pub struct Options {
    name: String,
    patience: Duration,
    timeout: Duration,
}

/// A connection to a cache, for any thread. Requests that overlap and are under way at the same time take
/// effect in any order. It has a thread of its own, which keeps the cache's lease.
pub struct Cache {
    driver: Driver<Link>,
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    key: ClusterKey,
    timeout: Duration,
    region_bytes: u64,
}

/// What is asked of a cache.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// So many bytes at an offset.
    Read {
        /// Where.
        offset: u64,
        /// At most [`REQUEST_BYTES_MAX`].
        len_bytes: usize,
    },
    /// Stores bytes at an offset.
    Write {
        /// Where.
        offset: u64,
        /// At most [`REQUEST_BYTES_MAX`].
        bytes: Vec<u8>,
    },
}

/// The bytes of a read, none of a write.
pub type End = Result<Vec<u8>, Error>;

/// Longest request; longer calls are made of several.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Requests of a long call that are under way at a time.
const WINDOW: usize = 16;
/// News of regions that nobody asked for: a program may never ask.
const NEWS_MAX: usize = 1 << 16;

/// How a cache is.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Status {
    /// Bytes that it holds.
    pub size_bytes: u64,
    /// Copies of each region.
    pub copies: usize,
    /// Whether every region has all its copies, on hosts that stay, and can be written.
    pub is_whole: bool,
    /// Its hosts.
    pub hosts: usize,
    /// Regions that lost their bytes at some time.
    pub regions_lost: usize,
}

/// A region that came back from a checkpoint after its bytes were lost.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FellBack {
    /// Its number.
    pub region: u32,
    /// When its bytes were as they are now, in milliseconds since 1970.
    pub taken_ms: u64,
}

/// Why a cache was not opened, or bytes not read or written.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address, the folder, the key or a length makes no sense.
    #[error("{0}")]
    Options(String),
    /// No manager of the cache answers. Trying again is sensible, once it runs.
    #[error("{0}")]
    NoManager(String),
    /// The range passes the cache's end.
    #[error("out of range: the cache has {size_bytes} bytes")]
    OutOfRange {
        /// Its size.
        size_bytes: u64,
    },
    /// A region was out of reach for too long. A write may have happened in part; try again.
    #[error("{0}")]
    Unavailable(String),
    /// The manager or a host refuses. Trying again is no use.
    #[error("{0}")]
    Refused(String),
    /// The cache was deleted, or its time is over.
    #[error("the cache is gone")]
    Gone,
}

impl Error {
    /// Whether the same may succeed later.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::NoManager(_) | Self::Unavailable(_))
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            name: format!("process-{}", std::process::id()),
            patience: Duration::from_secs(30),
            timeout: Duration::from_secs(10),
        }
    }
}

impl Options {
    /// What `cenote cache status` calls this client: the process's number, unless said otherwise.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// How long a request waits for a region that is out of reach; 30 s unless said otherwise.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// How long opening it, and a question to the manager, may take; 10 s unless said otherwise.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Opens the cache of this name of a cluster's folder, on the machine of its manager.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_in(&self, folder: impl AsRef<Path>, name: &str) -> Result<Cache, Error> {
        self.managed_in(folder.as_ref(), name)?.open()
    }

    fn managed_in(&self, folder: &Path, name: &str) -> Result<Managed, Error> {
        if name.is_empty() || name.contains('/') || name.starts_with('.') {
            return Err(Error::Options(format!("{name:?} is no name of a cache")));
        }
        let cluster = Cluster::load(&folder.join("cluster.toml"));
        let cluster = cluster.map_err(|error| Error::Options(error.to_string()))?;
        let folder = std::path::absolute(folder).map_err(|e| Error::Options(e.to_string()))?;
        let socket = folder.join("caches").join(name).join("socket");
        if !socket.exists() {
            let what = format!("no manager of {name} in {}", folder.display());
            return Err(Error::NoManager(what));
        }
        Ok(Managed {
            addresses: vec![Address::Shm(socket)],
            key: cluster.key,
            options: self.with(cluster.page_traffic),
        })
    }

    /// Opens a cache by addresses of its manager, such as `tcp:10.0.0.7:7200`, and the cluster's key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_at(&self, addresses: &[&str], key_file: impl AsRef<Path>) -> Result<Cache, Error> {
        let parsed = addresses.iter().map(|address| {
            let refused = |error| Error::Options(format!("{address}: {error}"));
            address.parse::<Address>().map_err(refused)
        });
        let addresses = parsed.collect::<Result<Vec<_>, _>>()?;
        if addresses.is_empty() {
            return Err(Error::Options("no address of a manager".to_owned()));
        }
        let key = ClusterKey::load(key_file.as_ref());
        let managed = Managed {
            addresses,
            key: key.map_err(|error| Error::Options(error.to_string()))?,
            options: self.with(WireProtection::default()),
        };
        managed.open()
    }

    fn with(&self, page_traffic: WireProtection) -> service::Options {
        service::Options {
            name: self.name.clone(),
            patience: self.patience,
            timeout: self.timeout,
            page_traffic,
        }
    }
}

/// A cache's manager, and how the cache is opened.
struct Managed {
    addresses: Vec<Address>,
    key: ClusterKey,
    options: service::Options,
}

impl Managed {
    fn open(self) -> Result<Cache, Error> {
        let Self {
            addresses,
            key,
            options,
        } = self;
        let timeout = options.timeout;
        let shared = Arc::new(Shared::default());
        let (to, of, with) = (addresses.clone(), shared.clone(), key.clone());
        let open = move || -> Result<_, OpenError> {
            let cache = service::Cache::open(to, &with, &options)?;
            Ok(Link::new(cache, of))
        };
        let driver = Driver::start("cenote cache", open);
        let driver = driver.map_err(|error| Error::Refused(error.to_string()))?;
        let driver = driver.map_err(|error| match error {
            OpenError::NoManager(_) => Error::NoManager(error.to_string()),
            other => Error::Refused(other.to_string()),
        })?;
        Ok(Cache {
            region_bytes: shared.region_bytes.load(Ordering::Acquire),
            driver,
            shared,
            addresses,
            key,
            timeout,
        })
    }
}

impl Cache {
    /// Bytes of the cache, as far as its manager told.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.shared.size_bytes.load(Ordering::Acquire)
    }

    /// Bytes of a region: losses are told by region.
    #[must_use]
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Whether the cache was deleted, or its time is over, as far as its manager told.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.shared.is_gone.load(Ordering::Acquire)
    }

    /// Regions whose bytes were lost since this was asked last: they hold zeros, or what a checkpoint has,
    /// and what was written from then on.
    #[must_use]
    pub fn take_lost(&self) -> Vec<u32> {
        locked(&self.shared.lost).drain(..).collect()
    }

    /// Regions that came back from a checkpoint since this was asked last, and of when their bytes
    /// are.
    #[must_use]
    pub fn take_fallen_back(&self) -> Vec<FellBack> {
        locked(&self.shared.fallen).drain(..).collect()
    }

    /// Asks for many things at a time. Longer requests than [`REQUEST_BYTES_MAX`] end with an error.
    #[must_use]
    pub fn begin(&self, requests: Vec<Request>) -> Pending<End> {
        self.driver.begin(requests)
    }

    /// Fills `buffer` from `offset` on.
    ///
    /// # Errors
    /// The first that failed; the buffer may have been written to.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        let mut at = offset;
        for window in buffer.chunks_mut(WINDOW * REQUEST_BYTES_MAX) {
            let reads = window.chunks(REQUEST_BYTES_MAX).scan(at, |at, part| {
                let (offset, len_bytes) = (*at, part.len());
                *at = at.saturating_add(len_bytes as u64);
                Some(Request::Read { offset, len_bytes })
            });
            let pending = self.begin(reads.collect());
            let parts = window.chunks_mut(REQUEST_BYTES_MAX);
            for (part, end) in parts.zip(pending.ends()?) {
                part.copy_from_slice(&end?);
            }
            at = at.saturating_add(window.len() as u64);
        }
        Ok(())
    }

    /// Stores `bytes` from `offset` on, and returns when every copy has them.
    ///
    /// # Errors
    /// The first that failed; a part may be stored.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Error> {
        let mut at = offset;
        for window in bytes.chunks(WINDOW * REQUEST_BYTES_MAX) {
            let writes = window.chunks(REQUEST_BYTES_MAX).scan(at, |at, part| {
                let (offset, bytes) = (*at, part.to_vec());
                *at = at.saturating_add(part.len() as u64);
                Some(Request::Write { offset, bytes })
            });
            let pending = self.begin(writes.collect());
            for end in pending.ends()? {
                end?;
            }
            at = at.saturating_add(window.len() as u64);
        }
        Ok(())
    }

    /// Asks the manager how the cache is.
    ///
    /// # Errors
    /// [`Error`].
    pub fn status(&self) -> Result<Status, Error> {
        let answer = service::ask(
            self.addresses.clone(),
            &self.key,
            &Question::Status,
            self.timeout,
        );
        match answer {
            Ok(Answer::Status(status)) => Ok(Status {
                size_bytes: status.size_bytes,
                copies: status.copies,
                is_whole: status.whole,
                hosts: status.hosts.len(),
                regions_lost: status.losses.len(),
            }),
            Ok(_) => Err(Error::Refused("an answer to another question".to_owned())),
            Err(error) => Err(explain(&error, 0)),
        }
    }
}

impl std::fmt::Debug for Cache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Cache");
        shown
            .field("size_bytes", &self.size_bytes())
            .finish_non_exhaustive()
    }
}

impl From<Over> for Error {
    fn from(over: Over) -> Self {
        Self::Refused(over.to_string())
    }
}

/// What the thread tells the others.
#[derive(Default)]
struct Shared {
    size_bytes: AtomicU64,
    region_bytes: AtomicU64,
    is_gone: AtomicBool,
    lost: Mutex<VecDeque<u32>>,
    fallen: Mutex<VecDeque<FellBack>>,
}

fn locked<T>(news: &Mutex<VecDeque<T>>) -> MutexGuard<'_, VecDeque<T>> {
    news.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the newest.
fn keep<T>(news: &Mutex<VecDeque<T>>, one: T) {
    let mut news = locked(news);
    if news.len() == NEWS_MAX {
        news.pop_front();
    }
    news.push_back(one);
}

/// The handle, on its thread.
struct Link {
    cache: service::Cache,
    shared: Arc<Shared>,
    ended: Vec<cenote_cache::client::Ended>,
    refused: Vec<(u64, End)>,
    /// What the handle has no room for at the moment.
    waiting: VecDeque<(u64, Held)>,
}

/// A request whose bytes are shared with the handle.
#[derive(Clone)]
enum Held {
    Read { offset: u64, len_bytes: usize },
    Write { offset: u64, bytes: Bytes },
}

impl Link {
    fn new(cache: service::Cache, shared: Arc<Shared>) -> Self {
        shared
            .region_bytes
            .store(cache.region_bytes(), Ordering::Release);
        let mut link = Self {
            cache,
            shared,
            ended: Vec::new(),
            refused: Vec::new(),
            waiting: VecDeque::new(),
        };
        link.tell();
        link
    }

    fn tell(&mut self) {
        let size_bytes = self.cache.len_bytes();
        self.shared.size_bytes.store(size_bytes, Ordering::Release);
        let is_gone = self.cache.is_gone();
        self.shared.is_gone.store(is_gone, Ordering::Release);
        while let Some(lost) = self.cache.take_lost() {
            keep(&self.shared.lost, lost.region);
        }
        while let Some(fallen) = self.cache.take_fallen_back() {
            let cenote_cache::client::FellBack { region, taken_ms } = fallen;
            keep(&self.shared.fallen, FellBack { region, taken_ms });
        }
    }

    /// Whether the handle had room for it.
    fn submit(&mut self, token: u64, request: &Held) -> bool {
        let submitted = match request.clone() {
            Held::Read { len_bytes, .. } if len_bytes > REQUEST_BYTES_MAX => Err(too_long()),
            Held::Write { bytes, .. } if bytes.len() > REQUEST_BYTES_MAX => Err(too_long()),
            Held::Read { offset, len_bytes } => {
                let buffer = BytesMut::zeroed(len_bytes);
                self.asked(|cache| cache.submit_read(offset, buffer, token))
            }
            Held::Write { offset, bytes } => {
                self.asked(|cache| cache.submit_write(offset, bytes, token))
            }
        };
        match submitted {
            Ok(has_room) => has_room,
            Err(error) => {
                self.refused.push((token, Err(error)));
                true
            }
        }
    }

    fn asked(
        &mut self,
        ask: impl FnOnce(&mut service::Cache) -> Result<(), CallError>,
    ) -> Result<bool, Error> {
        match ask(&mut self.cache) {
            Ok(()) => Ok(true),
            Err(CallError::Request(RequestError::Full)) => Ok(false),
            Err(error) => Err(explain(&error, self.cache.len_bytes())),
        }
    }
}

impl Connection for Link {
    type Request = Request;
    type End = End;

    fn begin(&mut self, request: Request, token: u64, _: Time) {
        let request = match request {
            Request::Read { offset, len_bytes } => Held::Read { offset, len_bytes },
            Request::Write { offset, bytes } => {
                let bytes = Bytes::from(bytes);
                Held::Write { offset, bytes }
            }
        };
        // What waits is first: requests begin in the order in which they were asked for.
        if !self.waiting.is_empty() || !self.submit(token, &request) {
            self.waiting.push_back((token, request));
        }
    }

    fn poll(&mut self, ended: &mut Vec<(u64, End)>) {
        self.cache.poll(&mut self.ended);
        let size_bytes = self.cache.len_bytes();
        ended.extend(self.ended.drain(..).map(|end| {
            let bytes = end.result.map(|()| end.buffer.into());
            let bytes = bytes.map_err(|error| explain(&error.into(), size_bytes));
            (end.token, bytes)
        }));
        while let Some((token, request)) = self.waiting.pop_front() {
            if !self.submit(token, &request) {
                self.waiting.push_front((token, request));
                break;
            }
        }
        ended.append(&mut self.refused);
        self.tell();
    }

    fn wait(&mut self, timeout: Duration) {
        // It refuses when the process is out of memory: without a rest this would be a busy loop.
        if self.cache.wait(timeout).is_err() {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.tell();
    }

    fn waker(&self) -> Waker {
        self.cache.waker()
    }
}

fn too_long() -> Error {
    Error::Options(format!(
        "a request of more than {REQUEST_BYTES_MAX} bytes: make it in parts"
    ))
}

fn explain(error: &CallError, size_bytes: u64) -> Error {
    match error {
        CallError::Gone => Error::Gone,
        CallError::Request(RequestError::OutOfRange { .. }) => Error::OutOfRange { size_bytes },
        CallError::Silent(_) | CallError::Ended | CallError::NoManager => {
            Error::NoManager(error.to_string())
        }
        CallError::Request(request) if request.is_retryable() => {
            Error::Unavailable(error.to_string())
        }
        other => Error::Refused(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn of_news_that_nobody_asks_for_the_newest_are_kept() {
        let news = Mutex::default();
        for number in 0..=NEWS_MAX {
            keep(&news, number);
        }
        assert!(locked(&news).iter().copied().eq(1..=NEWS_MAX));
    }

    #[test]
    fn a_cache_of_a_folder_is_opened_with_the_page_traffic_of_its_cluster_file() {
        let folder = std::env::temp_dir().join(format!("cenote-client-{}", std::process::id()));
        let cache = folder.join("caches/c0");
        std::fs::create_dir_all(&cache).unwrap();
        std::fs::write(cache.join("socket"), "").unwrap();
        let key = folder.join("cluster.key");
        std::fs::write(&key, "37".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        let opened_with = |line: &str| {
            let cluster = format!(
                "key = \"cluster.key\"\n{line}\n[[host]]\nname = \"h0\"\n\
                 address = \"tcp:127.0.0.1:1\"\ndomain = \"d0\"\n"
            );
            std::fs::write(folder.join("cluster.toml"), cluster).unwrap();
            let managed = Options::default().managed_in(&folder, "c0");
            managed.map(|managed| managed.options.page_traffic)
        };
        let (plain, usual) = (opened_with("page_traffic = \"plain\""), opened_with(""));
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(plain, Ok(WireProtection::Plain));
        assert_eq!(usual, Ok(WireProtection::default()));
    }
}
