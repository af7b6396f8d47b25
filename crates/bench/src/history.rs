//! Histories of a key-value store: what many clients asked and were answered, and when.
//!
//! Each client asks one thing at a time about one of a few keys; times are of one monotonic clock. A
//! request whose answer never came may have taken effect at any later time, or never: it has no
//! end. Whether the whole is linearizable is judged by another program (`tests/porcupine`), from the
//! JSON lines that [`write_json`] leaves.
//!
//! Values are numbers of which every write has one of its own, so that a value names its write.
//! Keys begin with a prefix that no store has seen: at first none of them is there.
//! Elsewhere: one client's requests and answers (`client`).

mod client;

use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::beside::beside;
use client::Client;

/// What to do.
#[derive(Clone, Debug)]
pub struct Options {
    /// Nodes, any of which answers for all keys; a client turns to the next when one goes.
    pub addresses: Vec<SocketAddr>,
    /// How many ask at a time.
    pub clients: usize,
    /// Keys; few, so that they meet.
    pub keys: usize,
    /// How long at least.
    pub time: Duration,
    /// How many requests at least, however slow the machine is.
    pub at_least: usize,
    /// Requests of all clients per second, about: a checker has to understand them all.
    pub rate: u32,
    /// Seed of what is asked.
    pub seed: u64,
}

impl Options {
    /// A load that is checked in seconds.
    #[must_use]
    pub fn new(addresses: Vec<SocketAddr>) -> Self {
        Self {
            addresses,
            clients: 12,
            keys: 5,
            time: Duration::from_secs(5),
            at_least: 1000,
            rate: 1000,
            seed: 1,
        }
    }
}

/// What was asked.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// The value.
    Get,
    /// The value and its number for [`Ask::Cas`].
    Gets,
    /// Store.
    Set,
    /// Store if it is not there.
    Add,
    /// Store if it is still the one with this number.
    Cas,
    /// Add to the value.
    Incr,
    /// Remove.
    Delete,
}

/// What was answered.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// A value, as it is (GET) or became (INCR).
    Value,
    /// No such key, to a GET.
    Miss,
    /// It is stored.
    Stored,
    /// It is there already, to an ADD.
    NotStored,
    /// It is another one by now, to a CAS.
    Exists,
    /// No such key, to what needs one.
    NotFound,
    /// It is removed.
    Deleted,
    /// None came, or an error that says nothing about what was done.
    Unknown,
}

/// A request and its answer. The JSON line has exactly these keys, in this order.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Operation {
    /// Who asked.
    pub client: usize,
    /// About what.
    pub key: String,
    /// What.
    pub ask: Ask,
    /// The value to store, or what to add.
    pub argument: Option<u64>,
    /// The number that a CAS was given, or a GETS returned.
    pub unique: Option<u64>,
    /// What came back.
    pub answer: Answer,
    /// The value that came back.
    pub value: Option<u64>,
    /// When it was sent, in ns of this history's clock.
    pub call_ns: u64,
    /// When the answer was there; none of [`Answer::Unknown`].
    pub return_ns: Option<u64>,
}

/// Asks for as long and as often as it was told to, and for as long as `lead` takes; all operations,
/// by the time of asking.
///
/// # Errors
/// A store that none of the addresses reaches, an answer that is none, an error of `lead`.
pub fn record(options: &Options, lead: impl FnOnce() -> Result<()>) -> Result<Vec<Operation>> {
    ensure!(
        options.clients > 0 && options.keys > 0 && options.rate > 0,
        "a history has clients, keys and requests: {options:?}"
    );
    ensure!(!options.addresses.is_empty(), "no address to ask at");
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let prefix = format!("h{}-", since.context("a clock after 1970")?.as_nanos());
    let began = Instant::now();
    let client =
        |number, is_led: &AtomicBool| Client::new(options, number, &prefix, began, is_led).run();
    let (led, parts) = beside(0..options.clients, client, lead);
    led?;
    let mut operations = Vec::new();
    for part in parts {
        operations.extend(part?);
    }
    operations.sort_by_key(|one| one.call_ns);
    Ok(operations)
}

/// One line for each operation.
///
/// # Errors
/// Those of the writer.
pub fn write_json(out: &mut impl Write, operations: &[Operation]) -> io::Result<()> {
    for operation in operations {
        serde_json::to_writer(&mut *out, operation)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}
