//! Watching a prefix: every change after a revision, in order, none twice.
//!
//! The thread asks again from the revision after the last one it passed on, whenever the stream
//! breaks and every [`ROUND`] besides, so that an endpoint which went silent is left. Where etcd
//! has compacted that revision away, or is another store than it was (it has another number, or its
//! revision went back), the whole prefix is read again and told as one [`Change::Reset`].

use std::hash::{BuildHasher as _, RandomState};
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use cenote_memcached::threads;
use serde_json::json;

use super::super::backoff::Backoff;
use super::message::{self, Streamed, Watched};
use super::{ANSWER_BYTES_MAX, Etcd, entry, range_of};
use crate::store::{Entry, EtcdError, Listing};

/// How long one stream lasts.
const ROUND: Duration = Duration::from_secs(5);
/// Changes that wait for the reader; a full queue holds the stream back.
const QUEUE: usize = 1024;
/// Pause after a failure, up to twice as long after each further one, up to the most.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// What has changed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// All there is now, in place of whatever was known.
    Reset(Listing),
    /// A key was set.
    Put(Entry),
    /// A key is gone.
    Deleted {
        /// The key.
        key: String,
        /// Revision of the store at which it went.
        revision: i64,
    },
}

/// The stream of changes; dropping it ends the thread within one round.
#[derive(Debug)]
pub struct Watch {
    changes: Receiver<Change>,
    stop: Arc<AtomicBool>,
    is_to_restart: Arc<AtomicBool>,
}

impl Watch {
    /// Watches the keys that start with `prefix`: changes above `after`, or with `None` first a
    /// [`Change::Reset`] of what is there now. `wake` is called whenever changes can be taken.
    ///
    /// # Panics
    /// The system has no thread to give.
    pub fn start(
        etcd: &Etcd,
        prefix: &str,
        after: Option<i64>,
        wake: impl Fn() + Send + 'static,
    ) -> Self {
        let (sender, changes) = mpsc::sync_channel(QUEUE);
        let stop = Arc::new(AtomicBool::new(false));
        let is_to_restart = Arc::new(AtomicBool::new(false));
        let watcher = Watcher {
            etcd: etcd.clone(),
            prefix: prefix.to_owned(),
            cluster: None,
            next: after.map(following),
            sender,
            stop: Arc::clone(&stop),
            is_to_restart: Arc::clone(&is_to_restart),
            wake,
        };
        threads::spawn("etcd-watch", move || watcher.run()).expect("a thread can be started");
        Self {
            changes,
            stop,
            is_to_restart,
        }
    }

    /// Has the whole prefix read again, within one round: something does not fit what was told.
    pub fn restart(&self) {
        self.is_to_restart.store(true, Ordering::SeqCst);
    }

    /// The next change, if there is one now.
    pub fn poll(&self) -> Option<Change> {
        // The thread ends only after this end, so an error means that there is none.
        self.changes.try_recv().ok()
    }

    /// The next change; `None` when there was none for so long.
    pub fn wait(&self, limit: Duration) -> Option<Change> {
        self.changes.recv_timeout(limit).ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Watcher<W> {
    etcd: Etcd,
    prefix: String,
    /// The store that it was last.
    cluster: Option<u64>,
    /// First revision that was not passed on; `None`: the prefix is to be read whole.
    next: Option<i64>,
    sender: SyncSender<Change>,
    stop: Arc<AtomicBool>,
    is_to_restart: Arc<AtomicBool>,
    wake: W,
}

/// How a stream ended.
enum End {
    /// By its time, or broken off; go on from where it was.
    Over,
    /// The reader is gone.
    Unwanted,
    /// What was asked for is compacted away, or of another store: all is to be read again.
    Outdated,
}

impl<W: Fn()> Watcher<W> {
    fn run(mut self) {
        let mut backoff = Backoff::new(PAUSE, PAUSE_MAX, RandomState::new().hash_one(()));
        while !self.stop.load(Ordering::SeqCst) {
            match self.round() {
                Ok(End::Over) => backoff.reset(),
                Ok(End::Unwanted) => return,
                Ok(End::Outdated) => self.next = None,
                Err(error) => {
                    tracing::warn!(prefix = self.prefix, %error, "watch");
                    std::thread::sleep(backoff.pause());
                }
            }
        }
    }

    fn round(&mut self) -> Result<End, EtcdError> {
        if self.is_to_restart.swap(false, Ordering::SeqCst) {
            self.next = None;
        }
        let next = match self.next {
            Some(next) => next,
            None => {
                let listing = self.etcd.list(&self.prefix)?;
                let next = following(listing.revision);
                self.cluster = Some(listing.cluster);
                if !self.pass_on(Change::Reset(listing)) {
                    return Ok(End::Unwanted);
                }
                self.next = Some(next);
                next
            }
        };
        let mut create = range_of(&self.prefix);
        create["start_revision"] = json!(next.to_string());
        let request = json!({ "create_request": create });
        let etcd = self.etcd.clone();
        let (body, token) = etcd.each_endpoint("watch", &request, ROUND, |response| {
            Ok(response.into_body().into_reader())
        })?;
        let mut lines = BufReader::new(body);
        loop {
            let mut line = Vec::new();
            let read = lines
                .by_ref()
                .take(ANSWER_BYTES_MAX)
                .read_until(b'\n', &mut line);
            // Cut off in the middle: what was not whole is sent again.
            if read.is_err() || line.last() != Some(&b'\n') {
                return Ok(End::Over);
            }
            let message: Streamed<Watched> = message::parse(&line)?;
            let Some(watched) = message.result else {
                let error = message.error.unwrap_or_default();
                return Err(EtcdError::Malformed(format!("a watch: {error}")));
            };
            let is_canceled = watched.canceled;
            let taken = self.take(watched);
            if is_canceled && taken.is_err() {
                // etcd answers a watch whose token it has forgotten with success, and then cancels it
                // as one without permission.
                etcd.forget_token(token.as_deref());
            }
            if let Some(end) = taken? {
                return Ok(end);
            }
        }
    }

    fn take(&mut self, watched: Watched) -> Result<Option<End>, EtcdError> {
        if watched.compact_revision > 0 {
            return Ok(Some(End::Outdated));
        }
        let header = &watched.header;
        let is_known = *self.cluster.get_or_insert(header.cluster_id) == header.cluster_id;
        let is_behind = self
            .next
            .is_some_and(|next| following(header.revision) < next);
        // etcd sends a change a moment before its revision counts: a stream that begins just then is
        // told the revision before. A store that was put back to a backup looks the same, and to take
        // that one for the former loses changes: so all is read again in both cases.
        if !is_known || is_behind {
            tracing::warn!(
                prefix = self.prefix,
                "etcd may be another store than it was"
            );
            return Ok(Some(End::Outdated));
        }
        if watched.canceled {
            let message = watched.cancel_reason;
            return Err(EtcdError::Refused { code: 0, message });
        }
        for event in watched.events {
            let entry = entry(event.kv)?;
            // Not the header's revision: a watch that catches up is told that of the store.
            let revision = entry.mod_revision;
            let change = match event.kind.as_str() {
                "DELETE" => Change::Deleted {
                    key: entry.key,
                    revision,
                },
                _ => Change::Put(entry),
            };
            if !self.pass_on(change) {
                return Ok(Some(End::Unwanted));
            }
            self.next = Some(following(revision));
        }
        tracing::trace!(revision = watched.header.revision, watched.created, "watch");
        Ok(self.stop.load(Ordering::SeqCst).then_some(End::Unwanted))
    }

    fn pass_on(&self, change: Change) -> bool {
        let wanted = self.sender.send(change).is_ok();
        (self.wake)();
        wanted
    }
}

/// The revision after this one. Whoever answers in etcd's place may say any number.
fn following(revision: i64) -> i64 {
    revision.saturating_add(1)
}
