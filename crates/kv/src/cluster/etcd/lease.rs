//! A lease at etcd, kept alive by a thread of its own.
//!
//! Keys that are put with it go when nobody has kept it alive for its time: when this process is
//! dead, or cut off. Dropping it stops the keeping; only [`Lease::revoke`] ends it at once.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use serde_json::json;

use super::message::{self, LeaseState, Streamed};
use super::{CALL_LIMIT, Etcd, EtcdError};

/// Longest line of an answer to a keep-alive.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// The lease.
#[derive(Debug)]
pub struct Lease {
    id: i64,
    etcd: Etcd,
    lost: Arc<AtomicBool>,
    /// Its end tells the thread to stop.
    _keeping: Sender<()>,
}

impl Lease {
    /// Takes a lease that lasts `ttl` beyond its last keep-alive, and keeps it; `on_lost` is
    /// called, by its thread, when etcd says that it is gone.
    ///
    /// # Errors
    /// See [`EtcdError`].
    ///
    /// # Panics
    /// The system has no thread to give.
    pub fn take(
        etcd: &Etcd,
        ttl: Duration,
        on_lost: impl FnOnce() + Send + 'static,
    ) -> Result<Self, EtcdError> {
        let ttl_s = ttl.as_secs().max(1);
        let request = json!({ "TTL": ttl_s.to_string() });
        let granted: LeaseState = etcd.call("lease/grant", &request)?;
        if granted.id == 0 {
            return Err(EtcdError::Malformed("a lease without a number".into()));
        }
        let (keeping, stop) = mpsc::channel();
        let lost = Arc::new(AtomicBool::new(false));
        let (flag, client, id) = (Arc::clone(&lost), etcd.clone(), granted.id);
        let pause = Duration::from_secs(ttl_s) / 3;
        std::thread::Builder::new()
            .name("etcd-lease".to_owned())
            .spawn(move || {
                while stop.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                    match keep(&client, id) {
                        Ok(true) => {}
                        Ok(false) => {
                            flag.store(true, Ordering::SeqCst);
                            return on_lost();
                        }
                        // etcd counts no lease down while it has no leader; so neither do we.
                        Err(error) => tracing::warn!(%error, "keep the lease"),
                    }
                }
            })
            .expect("a thread can be started");
        Ok(Self {
            id: granted.id,
            etcd: etcd.clone(),
            lost,
            _keeping: keeping,
        })
    }

    /// Its number at etcd.
    #[must_use]
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Whether etcd has said that it is gone, with every key that was put with it.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::SeqCst)
    }

    /// Ends it at once, with every key that was put with it.
    ///
    /// # Errors
    /// See [`EtcdError`]; it then ends by itself.
    pub fn revoke(self) -> Result<(), EtcdError> {
        let request = json!({ "ID": self.id.to_string() });
        self.etcd
            .call::<message::Headed>("lease/revoke", &request)
            .map(drop)
    }
}

/// One keep-alive; whether the lease still stands.
fn keep(etcd: &Etcd, id: i64) -> Result<bool, EtcdError> {
    let request = json!({ "ID": id.to_string() });
    // The answer is a stream of which the first line counts.
    let line = etcd.each_endpoint("lease/keepalive", &request, CALL_LIMIT, |response| {
        let mut line = Vec::new();
        BufReader::new(response.into_body().into_reader().take(LINE_BYTES_MAX))
            .read_until(b'\n', &mut line)
            .map_err(|error| error.to_string())?;
        Ok(line)
    })?;
    let state: Streamed<LeaseState> = message::parse(&line)?;
    match (state.result, state.error) {
        (Some(state), None) => Ok(state.ttl_s > 0),
        (_, error) => Err(EtcdError::Malformed(format!("a keep-alive: {error:?}"))),
    }
}
