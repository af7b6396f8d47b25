//! What the manager of a cache is asked, and answers: JSON each way.

use serde::{Deserialize, Serialize};

use crate::configuration::Configuration;

/// What it is asked.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Question {
    /// How the cache is.
    Status,
    /// Another size. What is cut off is lost.
    Resize {
        /// In regions.
        regions: u32,
    },
    /// Another configuration, for clients that come from now on.
    Configure(Parameters),
    /// Another end of the cache.
    Renew {
        /// From now on; none: it has no end but by being deleted.
        seconds: Option<u64>,
    },
    /// The machine of a host is taken back.
    Notice {
        /// Its name.
        host: String,
        /// When it goes, from now on; none: nobody said.
        seconds: Option<u64>,
    },
    /// The host stays.
    Withdraw {
        /// Its name.
        host: String,
    },
    /// Copy every region to the cache's checkpoint. Its status says how far that is.
    Checkpoint,
    /// Give all memory back, and end.
    Delete,
}

impl Question {
    /// Whether it may be asked twice: it changes nothing.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        *self == Self::Status
    }
}

/// A configuration as JSON has it.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Parameters {
    /// Client threads.
    pub c: u32,
    /// Server threads.
    pub s: u32,
    /// Requests in a message.
    pub b: u32,
    /// Messages under way.
    pub q: u32,
}

impl From<Configuration> for Parameters {
    fn from(Configuration { c, s, b, q }: Configuration) -> Self {
        Self { c, s, b, q }
    }
}

impl From<Parameters> for Configuration {
    fn from(Parameters { c, s, b, q }: Parameters) -> Self {
        Self { c, s, b, q }
    }
}

/// What it answers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// It is done, or has begun.
    Done,
    /// How the cache is.
    Status(Box<Status>),
    /// It stands, and is done once the disk has it; why that is not yet.
    Pending(String),
    /// Why not: nothing was done.
    Error(String),
}

/// How a cache is.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Status {
    /// Its identity, in hex.
    pub id: String,
    /// Where its manager is to be found, this machine's socket first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<String>,
    /// Counts its managers.
    pub epoch: u64,
    /// Bytes that it holds.
    pub size_bytes: u64,
    /// Bytes of a region.
    pub region_bytes: u64,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Copies of each region.
    pub copies: usize,
    /// How it is accessed.
    pub configuration: Option<Parameters>,
    /// Whether every region has all its copies, on hosts that stay, and can be written.
    pub whole: bool,
    /// Whether it is being deleted.
    pub ending: bool,
    /// Seconds of Unix time at which it ends, unless it is renewed.
    pub ends_at: Option<u64>,
    /// Clients that have joined.
    pub clients: usize,
    /// How many regions are how.
    pub regions: Regions,
    /// Regions that are not at rest.
    pub moves: Vec<Move>,
    /// Regions that lost their bytes at some time.
    pub losses: Vec<Loss>,
    /// Its hosts.
    pub hosts: Vec<Host>,
    /// What became of the last checkpoint that this manager was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Checkpoint>,
    /// Why the journal cannot be written, while it cannot.
    pub journal_error: Option<String>,
    /// Machines that were got for it, where it has a catalogue.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub machines: Vec<Machine>,
    /// What all of them cost together, in the catalogue's currency.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price_per_hour: Option<f64>,
    /// What is wrong with where its hosts come from.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub troubles: Vec<Trouble>,
}

/// A machine, or an order for one.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Machine {
    /// The order's name, without the cache's.
    pub order: String,
    /// What its provider calls it; none: it was not got yet, or nobody knows.
    pub id: Option<String>,
    /// Its type in the catalogue.
    pub machine: String,
    /// Who has it.
    pub provider: String,
    /// Whether its owner may want it back.
    pub spot: bool,
    /// What it cost when it was ordered.
    pub price_per_hour: f64,
    /// ordered, starting, used, leaving, silent or releasing.
    pub state: String,
}

/// Something that is wrong.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Trouble {
    /// With what: a provider, a machine, a file.
    pub with: String,
    /// What it is.
    pub what: String,
}

/// How many regions are how.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Regions {
    /// Not cut off.
    pub total: usize,
    /// Read and written.
    pub open: usize,
    /// Read; writes wait.
    pub frozen: usize,
    /// Without memory; requests wait.
    pub absent: usize,
}

/// A region that is not at rest.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Move {
    /// Which.
    pub region: u32,
    /// How far it is: placing, ready, draining, fencing, filling or switching.
    pub stage: String,
    /// The hosts that have it.
    pub from: Vec<String>,
}

/// A region that lost its bytes.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Loss {
    /// Which.
    pub region: u32,
    /// How many times.
    pub losses: u32,
    /// When its bytes were as they came back from a checkpoint, in milliseconds since 1970; none: it came back empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back_to_ms: Option<u64>,
}

/// The checkpoint of a cache.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Checkpoint {
    /// It is being made.
    Running,
    /// It is made, and lost regions come back from it.
    Made {
        /// Regions in it.
        regions: u32,
        /// Bytes of its file.
        len_bytes: u64,
        /// The longest that writes of a region were held, in milliseconds.
        longest_hold_ms: u64,
    },
    /// There is none, or the one before.
    Failed(String),
}

/// A host.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Where it listens.
    pub address: String,
    /// What fails together with it.
    pub domain: String,
    /// Whether the manager has a connection to it.
    pub up: bool,
    /// Copies of regions there.
    pub regions: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_read_as_they_are_written() {
        for (question, text) in [
            (Question::Status, r#"{"ask":"status"}"#),
            (
                Question::Resize { regions: 3 },
                r#"{"ask":"resize","regions":3}"#,
            ),
            (
                Question::Renew { seconds: None },
                r#"{"ask":"renew","seconds":null}"#,
            ),
            (Question::Checkpoint, r#"{"ask":"checkpoint"}"#),
            (Question::Delete, r#"{"ask":"delete"}"#),
        ] {
            assert_eq!(serde_json::to_string(&question).unwrap(), text);
            assert_eq!(serde_json::from_str::<Question>(text).unwrap(), question);
        }
        assert!(serde_json::from_str::<Question>(r#"{"ask":"dance"}"#).is_err());
    }
}
