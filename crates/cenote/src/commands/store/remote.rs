//! A store that another process serves.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_fabric::{Address, ClientId, ClusterKey, connector};
use cenote_store::client::{Client, ClientError, Command, Outcome};
use cenote_store::{Condition, Refusal, Version};

use crate::ask::random_u128;
use crate::failure::Failure;

/// How long it may take to connect, and to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// A connection to it.
pub struct Remote {
    shown: String,
    client: Client,
}

impl Remote {
    /// # Errors
    /// It cannot be reached, or has another key.
    pub fn connect(address: &str, key: &Path) -> Result<Self> {
        let shown = format!("store {address}");
        let key = ClusterKey::load(key).context("--key")?;
        let address: Address = address.parse().with_context(|| shown.clone())?;
        let id = ClientId(random_u128()?);
        let client = Client::connect(&connector(key), &address, id, LIMIT);
        let client = client.with_context(|| shown.clone())?;
        Ok(Self { shown, client })
    }

    fn call(&mut self, key: &str, command: Command) -> Result<Outcome> {
        let shown = &self.shown;
        self.client.call(command, LIMIT).map_err(|error| {
            let what = |why: &str| format!("{shown}: {key}: {why}");
            match error {
                ClientError::Refused(Refusal::Full) => {
                    let remedy = "delete some, or serve a larger one: cenote store create";
                    Failure::new(what("there is no room left"), remedy).into()
                }
                ClientError::Refused(Refusal::Condition(found)) => {
                    let found = match found {
                        Some(version) => format!("its version is {version}"),
                        None => "there is no such object".to_owned(),
                    };
                    let remedy = "get --json says its version; nothing was changed";
                    Failure::new(what(&found), remedy).into()
                }
                ClientError::Size { .. } | ClientError::Refused(Refusal::Key | Refusal::Value) => {
                    Failure::usage(what(&error.to_string()), "cenote store put --help").into()
                }
                error => anyhow::Error::new(error).context(shown.clone()),
            }
        })
    }

    /// Stores an object, durably; its version.
    pub fn put(&mut self, key: &str, value: Vec<u8>, condition: Condition) -> Result<u64> {
        let command = Command::Put {
            key: key.as_bytes().to_vec(),
            value,
            condition,
            is_durable: true,
        };
        self.change(key, command)
    }

    /// Deletes one; the version that says so.
    pub fn delete(&mut self, key: &str, condition: Condition) -> Result<u64> {
        let key_bytes = key.as_bytes().to_vec();
        let command = Command::Delete {
            key: key_bytes,
            condition,
        };
        self.change(key, command)
    }

    fn change(&mut self, key: &str, command: Command) -> Result<u64> {
        match self.call(key, command)? {
            Outcome::Done { sequence } => Ok(sequence),
            other => anyhow::bail!("{}: an answer to something else: {other:?}", self.shown),
        }
    }

    /// The newest version of an object.
    pub fn get(&mut self, key: &str) -> Result<Option<Version>> {
        let command = Command::Get {
            key: key.as_bytes().to_vec(),
        };
        match self.call(key, command)? {
            Outcome::Value { sequence, value } => Ok(Some(Version { sequence, value })),
            _ => Ok(None),
        }
    }

    /// All keys that begin with `prefix`, in order.
    pub fn keys(&mut self, prefix: &str) -> Result<Vec<String>> {
        let mut keys = Vec::new();
        for shard in 0..self.client.shard_count() {
            let mut slot = Some(0);
            while let Some(from) = slot {
                let (some, next) = self
                    .client
                    .list(shard, from, prefix.as_bytes(), LIMIT)
                    .with_context(|| self.shown.clone())?;
                keys.extend(
                    some.iter()
                        .map(|key| String::from_utf8_lossy(key).into_owned()),
                );
                slot = next;
            }
        }
        keys.sort();
        keys.dedup();
        Ok(keys)
    }
}
