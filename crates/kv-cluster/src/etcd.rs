//! A client of etcd, version 3, by the JSON gateway that every etcd server has.
//!
//! Calls block, so they are made by control threads, never by a worker. Each goes to the endpoint
//! that answered last, and to the others in turn when that one is silent; answers and times are
//! bounded. Every call may be repeated without harm, which is what happens when the connection
//! breaks before the answer: see [`Etcd::swap`].
//! Threads: [`Watch`] has one.

mod lease;
mod message;
mod server;
mod tls;
mod watch;

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::store::{Entry, EtcdError, LeaseId, Listing, Store, Swap};
pub use server::{EtcdServer, ServerError};
pub use tls::Tls;
pub use watch::{Change, Watch};

/// How long an endpoint may take to accept a connection. Linux repeats a request to connect that was
/// lost after a second: there is time for that one to be answered.
const CONNECT_LIMIT: Duration = Duration::from_millis(1_500);
/// How long an endpoint may take for one call.
const CALL_LIMIT: Duration = Duration::from_secs(3);
/// Longest answer; etcd itself takes no value above 1.5 MiB by default.
const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// etcd's own numbers (of gRPC) of errors that another member, or a later time, may not give.
const UNAVAILABLE: [i64; 2] = [4, 14];
/// All of gRPC's: with another one, or none, it is somebody else who speaks JSON.
const REFUSALS: RangeInclusive<i64> = 1..=16;
/// What is to be made is there already.
const FAILED_PRECONDITION: i64 = 9;
/// The token is not known or no longer.
const UNAUTHENTICATED: i64 = 16;
/// So much of what is not etcd's is told.
const SAID_CHARS_MAX: usize = 200;

/// Name and password at etcd.
#[derive(Clone)]
pub struct Credentials {
    /// The user.
    pub name: String,
    /// Never printed.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({})", self.name)
    }
}

/// The client; clones share connections.
#[derive(Clone, Debug)]
pub struct Etcd {
    agent: ureq::Agent,
    /// How long a call is made again while endpoints are silent.
    patience: Duration,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    endpoints: Vec<String>,
    /// Index of the endpoint that answered last.
    preferred: AtomicUsize,
    credentials: Option<Credentials>,
    token: Mutex<Option<String>>,
}

impl Etcd {
    /// A client of the cluster with these endpoints, separated by commas. Nothing is sent yet.
    ///
    /// # Errors
    /// `Endpoint`.
    pub fn new(endpoints: &str, credentials: Option<Credentials>) -> Result<Self, EtcdError> {
        Self::with(endpoints, credentials, None)
    }

    /// The same, of a cluster that may speak TLS.
    ///
    /// # Errors
    /// `Endpoint`, `NoAuthority`, `Certificate`.
    pub fn with(
        endpoints: &str,
        credentials: Option<Credentials>,
        tls: Option<&Tls>,
    ) -> Result<Self, EtcdError> {
        let endpoints: Vec<String> = endpoints
            .split(',')
            .map(|endpoint| endpoint.trim().trim_end_matches('/').to_owned())
            .collect();
        for endpoint in &endpoints {
            let secure = endpoint.strip_prefix("https://");
            let rest = secure.or_else(|| endpoint.strip_prefix("http://"));
            if rest.is_none_or(|rest| rest.is_empty() || rest.contains(['/', '?', '#', ' '])) {
                return Err(EtcdError::Endpoint(endpoint.clone()));
            }
            if secure.is_some() && tls.is_none() {
                return Err(EtcdError::NoAuthority(endpoint.clone()));
            }
            // Whoever asks for TLS is not to show a password, or take a view, without it.
            if secure.is_none() && tls.is_some() {
                return Err(EtcdError::Endpoint(format!("{endpoint} with --etcd-ca")));
            }
        }
        let tls = tls.map(Tls::load).transpose()?.unwrap_or_default();
        // The store is in the cluster's own network; a proxy for the world outside cannot reach it.
        let agent = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECT_LIMIT))
            .timeout_global(Some(CALL_LIMIT))
            .http_status_as_error(false)
            .tls_config(tls)
            .proxy(None)
            .build()
            .into();
        Ok(Self {
            agent,
            patience: Duration::ZERO,
            shared: Arc::new(Shared {
                endpoints,
                preferred: AtomicUsize::new(0),
                credentials,
                token: Mutex::new(None),
            }),
        })
    }

    /// The same, for who has nothing to do without an answer: its calls are made again for so long
    /// while the endpoints are silent, as they are when their disk has much to do. Where nobody
    /// listens that is said at once.
    #[must_use]
    pub fn patient(&self, patience: Duration) -> Self {
        Self {
            patience,
            ..self.clone()
        }
    }

    /// The endpoints as they are given to [`Etcd::new`].
    #[must_use]
    pub fn endpoints(&self) -> String {
        self.shared.endpoints.join(",")
    }

    /// One key; `None` when it is not there.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn read(&self, key: &str) -> Result<Option<Entry>, EtcdError> {
        let answer: message::Range = self.call("kv/range", &json!({ "key": coded(key) }))?;
        answer.kvs.into_iter().next().map(entry).transpose()
    }

    /// All keys that start with `prefix`, at one moment.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn list(&self, prefix: &str) -> Result<Listing, EtcdError> {
        let answer: message::Range = self.call("kv/range", &range_of(prefix))?;
        Ok(Listing {
            cluster: answer.header.cluster_id,
            revision: answer.header.revision,
            entries: answer
                .kvs
                .into_iter()
                .map(entry)
                .collect::<Result<_, _>>()?,
        })
    }

    /// Sets a key, whatever it was; with a lease it goes when the lease does. The revision.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn put(&self, key: &str, value: &[u8], lease: Option<LeaseId>) -> Result<i64, EtcdError> {
        let answer: message::Headed = self.call("kv/put", &put_of(key, value, lease))?;
        Ok(answer.header.revision)
    }

    /// Deletes a key; that it is not there is no error.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn delete(&self, key: &str) -> Result<(), EtcdError> {
        let key = json!({ "key": coded(key) });
        self.call::<message::Headed>("kv/deleterange", &key)
            .map(drop)
    }

    /// Sets a key if its last change was at `expected` (0: if it is not there).
    ///
    /// A connection that breaks leaves open whether the change was made, so it is asked for again;
    /// a key that then holds this very value counts as done. Where two may want to write the same
    /// value and only one shall, the value must name its writer.
    ///
    /// # Errors
    /// See [`EtcdError`]; after `Unreachable` the change may or may not stand.
    pub fn swap(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Swap, EtcdError> {
        self.swap_by(key, expected, value, &put_of(key, value, lease), &[])
    }

    /// [`Etcd::swap`] of a key that stays with the lease that it has.
    ///
    /// # Errors
    /// As [`Etcd::swap`].
    pub fn swap_value(&self, key: &str, expected: i64, value: &[u8]) -> Result<Swap, EtcdError> {
        let put = json!({
            "key": coded(key), "value": BASE64.encode(value), "ignore_lease": true,
        });
        self.swap_by(key, expected, value, &put, &[])
    }

    fn swap_by(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        put: &Value,
        others: &[(String, i64)],
    ) -> Result<Swap, EtcdError> {
        let is_at = |key: &str, revision: i64| {
            json!({
                "key": coded(key), "target": "MOD", "result": "EQUAL",
                "mod_revision": revision.to_string(),
            })
        };
        let others = others.iter().map(|(key, revision)| is_at(key, *revision));
        let compare: Vec<Value> = std::iter::once(is_at(key, expected))
            .chain(others)
            .collect();
        let request = json!({
            "compare": compare,
            "success": [{ "request_put": put }],
            "failure": [{ "request_range": { "key": coded(key) } }],
        });
        let answer: message::Txn = self.call("kv/txn", &request)?;
        if answer.succeeded {
            return Ok(Swap::Done(answer.header.revision));
        }
        let found = answer.responses.into_iter().next();
        let found = found.and_then(|response| response.response_range);
        let found = found.ok_or_else(|| EtcdError::Malformed("a txn without its range".into()))?;
        let current = found.kvs.into_iter().next().map(entry).transpose()?;
        Ok(match current {
            Some(entry) if entry.value == value => Swap::Done(entry.mod_revision),
            other => Swap::Changed(other),
        })
    }

    /// Has etcd ask for a name and a password from now on, and makes this the user that may do everything.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn enable_credentials(&self, credentials: &Credentials) -> Result<(), EtcdError> {
        let Credentials { name, password } = credentials;
        for (method, request) in [
            (
                "auth/user/add",
                json!({ "name": name, "password": password }),
            ),
            ("auth/role/add", json!({ "name": "root" })),
            ("auth/user/grant", json!({ "user": name, "role": "root" })),
            ("auth/enable", json!({})),
        ] {
            let mut is_again = false;
            self.insist(|| match self.call_once::<Value>(method, &request) {
                // It was done the time before, and the answer was late.
                Err(EtcdError::Refused { code, .. }) if is_again && code == FAILED_PRECONDITION => {
                    Ok(Value::Null)
                }
                said => {
                    is_again = true;
                    said
                }
            })?;
        }
        Ok(())
    }

    /// Forgets all but the last state of each key at `revision`; of use to administrators.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub fn compact(&self, revision: i64) -> Result<(), EtcdError> {
        let request = json!({ "revision": revision.to_string(), "physical": true });
        self.call::<message::Headed>("kv/compaction", &request)
            .map(drop)
    }

    /// One call, at one endpoint after the other.
    fn call<T: DeserializeOwned>(&self, method: &str, request: &Value) -> Result<T, EtcdError> {
        self.insist(|| self.call_once(method, request))
    }

    /// Makes a call until somebody has answered, for as long as the client is patient.
    fn insist<T>(&self, mut call: impl FnMut() -> Result<T, EtcdError>) -> Result<T, EtcdError> {
        let deadline = Instant::now() + self.patience;
        loop {
            match call() {
                Err(error) if error.is_silence() && Instant::now() < deadline => {
                    // One that says that it cannot yet says so at once.
                    std::thread::sleep(Duration::from_millis(50));
                }
                said => return said,
            }
        }
    }

    fn call_once<T: DeserializeOwned>(
        &self,
        method: &str,
        request: &Value,
    ) -> Result<T, EtcdError> {
        let (answer, _) = self.each_endpoint(method, request, CALL_LIMIT, |mut response| {
            let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
            let bytes = body.read_to_vec();
            message::parse(&bytes.map_err(|error| self.unreachable(error.to_string(), false))?)
        })?;
        Ok(answer)
    }

    /// Sends a request to one endpoint after the other until one answers in a way that counts, and
    /// has `read` take what it says within `limit`. Returns with it the token that was shown. An
    /// answer that is none of etcd's is its endpoint's alone: a proxy's before an etcd that is down.
    fn each_endpoint<T>(
        &self,
        method: &str,
        request: &Value,
        limit: Duration,
        read: impl Fn(ureq::http::Response<ureq::Body>) -> Result<T, EtcdError>,
    ) -> Result<(T, Option<String>), EtcdError> {
        let count = self.shared.endpoints.len();
        let first = self.shared.preferred.load(Ordering::Relaxed);
        let mut last = self.unreachable(String::new(), false);
        for turn in 0..count {
            let index = (first + turn) % count;
            match self.at_endpoint(index, method, request, limit, &read) {
                Ok(answer) => {
                    self.shared.preferred.store(index, Ordering::Relaxed);
                    return Ok(answer);
                }
                Err(refused @ EtcdError::Refused { .. }) => return Err(refused),
                // Who may answer later counts for more than who is no etcd.
                Err(error) if last.is_silence() && !error.is_silence() => {}
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn at_endpoint<T>(
        &self,
        index: usize,
        method: &str,
        request: &Value,
        limit: Duration,
        read: &impl Fn(ureq::http::Response<ureq::Body>) -> Result<T, EtcdError>,
    ) -> Result<(T, Option<String>), EtcdError> {
        // A second time with a new token, since etcd forgets tokens.
        for fresh in [false, true] {
            let token = self.token(index, fresh)?;
            let response = self.post(index, method, request, token.as_deref(), limit)?;
            if response.status().is_success() {
                return Ok((read(response)?, token));
            }
            match self.refusal(response) {
                EtcdError::Refused { code, message } if !fresh && is_of_token(code, &message) => {}
                error => return Err(error),
            }
        }
        unreachable!("the second round returns")
    }

    fn post(
        &self,
        index: usize,
        method: &str,
        request: &Value,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, EtcdError> {
        let url = format!("{}/v3/{method}", self.shared.endpoints[index]);
        let mut post = self
            .agent
            .post(&url)
            .content_type("application/json")
            .config()
            .timeout_global(None)
            .timeout_send_body(Some(CALL_LIMIT))
            .timeout_recv_response(Some(CALL_LIMIT))
            .timeout_recv_body(Some(limit))
            .build();
        if let Some(token) = token {
            post = post.header("Authorization", token);
        }
        post.send(request.to_string().as_bytes()).map_err(|error| {
            let is_silent = matches!(error, ureq::Error::Timeout(_));
            self.unreachable(error.to_string(), is_silent)
        })
    }

    /// What an answer that is no success means.
    fn refusal(&self, mut response: ureq::http::Response<ureq::Body>) -> EtcdError {
        let status = response.status();
        let body = response.body_mut().with_config().limit(64 << 10);
        let Ok(bytes) = body.read_to_vec() else {
            return self.unreachable(format!("HTTP status {status}"), false);
        };
        match message::refusal(&bytes) {
            Some((code, message)) if UNAVAILABLE.contains(&code) => self.unreachable(message, true),
            Some((code, message)) if REFUSALS.contains(&code) => {
                EtcdError::Refused { code, message }
            }
            _ => EtcdError::Http {
                status: status.to_string(),
                said: beginning(&bytes),
            },
        }
    }

    /// The token to show, where there are credentials.
    fn token(&self, index: usize, fresh: bool) -> Result<Option<String>, EtcdError> {
        let Some(credentials) = &self.shared.credentials else {
            return Ok(None);
        };
        let known = self.held_token().clone();
        if known.is_some() && !fresh {
            return Ok(known);
        }
        let request = json!({ "name": credentials.name, "password": credentials.password });
        let mut response = self.post(index, "auth/authenticate", &request, None, CALL_LIMIT)?;
        if !response.status().is_success() {
            return Err(self.refusal(response));
        }
        let body = response.body_mut().with_config().limit(ANSWER_BYTES_MAX);
        let bytes = body
            .read_to_vec()
            .map_err(|error| self.unreachable(error.to_string(), false))?;
        let token = message::parse::<message::Token>(&bytes)?.token;
        *self.held_token() = Some(token.clone());
        Ok(Some(token))
    }

    /// Has the next call ask for a new token, unless the one that was shown has been replaced.
    fn forget_token(&self, shown: Option<&str>) {
        let mut held = self.held_token();
        if held.as_deref() == shown {
            *held = None;
        }
    }

    fn held_token(&self) -> MutexGuard<'_, Option<String>> {
        let held = self.shared.token.lock();
        held.unwrap_or_else(PoisonError::into_inner)
    }

    fn unreachable(&self, last: String, is_silent: bool) -> EtcdError {
        EtcdError::Unreachable {
            endpoints: self.endpoints(),
            last,
            is_silent,
        }
    }
}

impl Store for Etcd {
    fn read(&self, key: &str) -> Result<Option<Entry>, EtcdError> {
        Self::read(self, key)
    }

    fn swap(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        lease: Option<LeaseId>,
    ) -> Result<Swap, EtcdError> {
        Self::swap(self, key, expected, value, lease)
    }

    fn swap_with(
        &self,
        key: &str,
        expected: i64,
        value: &[u8],
        others: &[(String, i64)],
    ) -> Result<Swap, EtcdError> {
        self.swap_by(key, expected, value, &put_of(key, value, None), others)
    }

    fn list(&self, prefix: &str) -> Result<Listing, EtcdError> {
        Self::list(self, prefix)
    }

    fn grant(&self, ttl: Duration) -> Result<LeaseId, EtcdError> {
        Self::grant(self, ttl)
    }

    fn renew(&self, lease: LeaseId) -> Result<bool, EtcdError> {
        Self::renew(self, lease)
    }

    fn revoke(&self, lease: LeaseId) -> Result<(), EtcdError> {
        Self::revoke(self, lease)
    }
}

/// Whether etcd refuses a token, and not what was asked for. A signed token (jwt) is of one revision of
/// the users and roles. That it is an older one has no code of its own, and two texts: "auth: revision
/// in header is old" until etcd 3.4, "revision of auth store is old" since.
fn is_of_token(code: i64, message: &str) -> bool {
    code == UNAUTHENTICATED || (message.contains("revision") && message.contains("is old"))
}

fn coded(text: &str) -> String {
    BASE64.encode(text)
}

/// The request for a prefix: from it to the first key that no longer starts with it.
fn range_of(prefix: &str) -> Value {
    let mut end = prefix.as_bytes().to_vec();
    // UTF-8 has no byte 255, so the last byte always has a successor.
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end.push(0),
    }
    let from = if prefix.is_empty() { "\0" } else { prefix };
    json!({ "key": coded(from), "range_end": BASE64.encode(end) })
}

fn put_of(key: &str, value: &[u8], lease: Option<LeaseId>) -> Value {
    let lease = lease.map_or(0, |lease| lease.0);
    json!({ "key": coded(key), "value": BASE64.encode(value), "lease": lease.to_string() })
}

/// The first words of a stranger, on one line.
fn beginning(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let shown = |one: char| if one.is_control() { ' ' } else { one };
    let text: String = text.trim().chars().map(shown).collect();
    text.chars().take(SAID_CHARS_MAX).collect()
}

fn entry(pair: message::Pair) -> Result<Entry, EtcdError> {
    let decode = |text: &str| {
        BASE64
            .decode(text)
            .map_err(|error| EtcdError::Malformed(error.to_string()))
    };
    let key = String::from_utf8(decode(&pair.key)?)
        .map_err(|_| EtcdError::Malformed("a key that is not UTF-8".into()))?;
    Ok(Entry {
        key,
        value: decode(&pair.value)?,
        mod_revision: pair.mod_revision,
        lease: (pair.lease != 0).then_some(LeaseId(pair.lease)),
    })
}

#[cfg(test)]
mod tests;
