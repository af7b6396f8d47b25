//! Leases: keys that are put with one go when nobody has renewed it for its time, since whoever held it is
//! dead, or cut off. Whoever holds one renews it by itself, so that nothing renews it for a process that hangs.

use std::io::{BufRead, BufReader, Read};
use std::time::Duration;

use serde_json::json;

use super::message::{self, LeaseState, Streamed};
use super::{CALL_LIMIT, Etcd};
use crate::store::{EtcdError, LeaseId};

/// Longest line of an answer to a renewal.
const LINE_BYTES_MAX: u64 = 64 << 10;

impl Etcd {
    /// Takes a lease that lasts `ttl`, in whole seconds, beyond its last renewal.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError> {
        let ttl_s = ttl.as_secs().max(1);
        let request = json!({ "TTL": ttl_s.to_string() });
        let granted: LeaseState = self.call("lease/grant", &request)?;
        match granted.id {
            0 => Err(EtcdError::Malformed("a lease without a number".into())),
            id => Ok(LeaseId(id)),
        }
    }

    /// Renews a lease. False: it is gone, with every key that was put with it.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn renew(&self, lease: LeaseId) -> Result<bool, EtcdError> {
        let request = json!({ "ID": lease.0.to_string() });
        // The answer is a stream of which the first line counts.
        let (state, _) = self.insist(|| {
            self.each_endpoint("lease/keepalive", &request, CALL_LIMIT, |response| {
                let mut line = Vec::new();
                BufReader::new(response.into_body().into_reader().take(LINE_BYTES_MAX))
                    .read_until(b'\n', &mut line)
                    .map_err(|error| self.unreachable(error.to_string(), false))?;
                message::parse::<Streamed<LeaseState>>(&line)
            })
        })?;
        match (state.result, state.error) {
            (Some(state), None) => Ok(state.ttl_s > 0),
            (_, error) => Err(EtcdError::Malformed(format!("a renewal: {error:?}"))),
        }
    }

    /// Ends a lease at once, with every key that was put with it.
    ///
    /// # Errors
    /// See [`EtcdError`]; it then ends by itself.
    pub fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        let request = json!({ "ID": lease.0.to_string() });
        self.call::<message::Headed>("lease/revoke", &request)
            .map(drop)
    }
}
