//! A store that another process serves, or several that have copies of the same objects.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::Failure;
use cenote_fabric::{Address, ClientId, ClusterKey, Error, connector};
use cenote_store::client::{Client, ClientError, Command, Outcome};
use cenote_store::copies::{Copies, CopiesError, CopyError, named_twice};
use cenote_store::{Condition, Refusal, Version};

use super::shown::{shown as shown_key, unmet};
use crate::ask::random_u128;

/// How long it may take to connect, and to answer.
const LIMIT: Duration = Duration::from_secs(10);

/// Connections to it, or to them.
pub struct Remote {
    /// Addresses, in the order in which changes go.
    shown: Vec<String>,
    link: Link,
}

enum Link {
    One(Box<Client>),
    Row(Copies),
}

impl Remote {
    /// Connects to stores with copies, or to one that may be without.
    ///
    /// # Errors
    /// One cannot be reached, or has another key; one is named twice.
    pub fn connect(addresses: &[&str], key: &Path, has_copies: bool) -> Result<Self> {
        if let Some(address) = named_twice(addresses) {
            let what = format!("store {address}: given twice");
            let remedy = "give each store once; the first may be the last as well";
            return Err(Failure::usage(what, remedy).into());
        }
        let parsed = addresses.iter().map(|address| {
            address.parse().map_err(|error| {
                Failure::usage(format!("store: {error}"), "use tcp:HOST:PORT or shm:PATH")
            })
        });
        let parsed = parsed.collect::<Result<Vec<Address>, Failure>>()?;
        let key = ClusterKey::load(key).context("--key")?;
        let shown: Vec<String> = addresses.iter().map(|one| format!("store {one}")).collect();
        let mut clients = Vec::new();
        for (address, shown) in parsed.iter().zip(&shown) {
            let id = ClientId(random_u128()?);
            let client = Client::connect(&connector(key.clone()), address, id, LIMIT);
            clients.push(client.map_err(|error| unconnected(shown, error))?);
        }
        let link = match has_copies {
            true => match Copies::new(clients, LIMIT) {
                Ok(copies) => Link::Row(copies),
                Err(error) => {
                    let shown = shown[error.store].clone();
                    return Err(anyhow::Error::new(error.error).context(shown));
                }
            },
            false => Link::One(Box::new(clients.remove(0))),
        };
        Ok(Self { shown, link })
    }

    /// What a client's error means to a user.
    fn explain(
        &self,
        store: usize,
        key: &[u8],
        condition: Condition,
        error: ClientError,
    ) -> anyhow::Error {
        let shown = &self.shown[store];
        let key = shown_key(key);
        let what = |why: &str| format!("{shown}: {key}: {why}");
        match error {
            ClientError::Refused(Refusal::Full) => {
                let remedy = "delete objects, or serve a larger store: cenote store create";
                Failure::new(what("the store is full"), remedy).into()
            }
            ClientError::Refused(Refusal::Condition(found)) => {
                let remedy = "get --json shows its version; nothing was changed";
                Failure::new(what(&unmet(condition, found)), remedy).into()
            }
            ClientError::Size { .. } | ClientError::Refused(Refusal::Key | Refusal::Value) => {
                Failure::usage(what(&error.to_string()), "cenote store put --help").into()
            }
            ClientError::Refused(Refusal::Incomplete) => {
                let remedy = "try again; this client was slower than serve --patience allows";
                let why = "the value was not complete in time, and is not stored";
                Failure::new(what(why), remedy).into()
            }
            ClientError::Lost(_) => {
                let remedy =
                    "see the store's log; a change may have been made: get --json shows it";
                Failure::new(what(&error.to_string()), remedy).into()
            }
            error => anyhow::Error::new(error).context(shown.clone()),
        }
    }

    fn explain_copy(&self, key: &[u8], condition: Condition, error: CopiesError) -> anyhow::Error {
        let shown = &self.shown[error.store];
        let named = shown_key(key);
        match error.error {
            CopyError::Client(client) => self.explain(error.store, key, condition, client),
            CopyError::Foreign => Failure::new(
                format!("{shown}: {named}: was put into this store only"),
                "use this address only, or serve another store for copies",
            )
            .into(),
            other => Failure::new(
                format!("{shown}: {named}: {other}"),
                "cenote store copy --help",
            )
            .into(),
        }
    }

    /// Stores an object, durably; its version.
    pub fn put(&mut self, key: &[u8], value: Vec<u8>, condition: Condition) -> Result<u64> {
        let said = match &mut self.link {
            Link::One(client) => {
                let command = Command::Put {
                    key: key.to_vec(),
                    value,
                    condition,
                    is_durable: true,
                };
                return done(client.call(command, LIMIT))
                    .map_err(|error| self.explain(0, key, condition, error));
            }
            Link::Row(copies) => copies.put(key, &value, condition),
        };
        said.map_err(|error| self.explain_copy(key, condition, error))
    }

    /// Deletes one; the version that says so.
    pub fn delete(&mut self, key: &[u8], condition: Condition) -> Result<u64> {
        let said = match &mut self.link {
            Link::One(client) => {
                let command = Command::Delete {
                    key: key.to_vec(),
                    condition,
                };
                return done(client.call(command, LIMIT))
                    .map_err(|error| self.explain(0, key, condition, error));
            }
            Link::Row(copies) => copies.delete(key, condition),
        };
        said.map_err(|error| self.explain_copy(key, condition, error))
    }

    /// The newest version of an object.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Version>> {
        let said = match &mut self.link {
            Link::One(client) => {
                let command = Command::Get { key: key.to_vec() };
                return match client.call(command, LIMIT) {
                    Ok(Outcome::Value { sequence, value }) => Ok(Some(Version { sequence, value })),
                    Ok(_) => Ok(None),
                    Err(error) => Err(self.explain(0, key, Condition::Always, error)),
                };
            }
            Link::Row(copies) => copies.get(key),
        };
        said.map_err(|error| self.explain_copy(key, Condition::Always, error))
    }

    /// All keys that begin with `prefix`, in order.
    pub fn keys(&mut self, prefix: &[u8]) -> Result<Vec<Vec<u8>>> {
        match &mut self.link {
            Link::One(client) => client
                .keys(prefix, LIMIT)
                .map_err(|error| self.explain(0, prefix, Condition::Always, error)),
            Link::Row(copies) => copies
                .keys(prefix)
                .map_err(|error| self.explain_copy(prefix, Condition::Always, error)),
        }
    }

    /// Brings what the first of several stores has to the others; how many objects it has.
    pub fn bring(&mut self) -> Result<u64> {
        let said = match &mut self.link {
            Link::One(_) => Ok(0),
            Link::Row(copies) => copies.bring(),
        };
        said.map_err(|error| self.explain_copy(b"an object", Condition::Always, error))
    }
}

/// A store that cannot be connected to. The address is in its name already.
fn unconnected(shown: &str, error: Error) -> anyhow::Error {
    let is_absent = error.is_nobody_there();
    match error {
        Error::Os { source, .. } if is_absent => {
            let what = format!("{shown}: cannot connect: {source}");
            let remedy = "start its server: cenote store serve DIR --listen ADDRESS --key FILE";
            Failure::new(what, remedy).into()
        }
        error => anyhow::Error::new(error).context(shown.to_owned()),
    }
}

/// The version that a change made.
fn done(said: Result<Outcome, ClientError>) -> Result<u64, ClientError> {
    match said? {
        Outcome::Done { sequence } => Ok(sequence),
        _ => Err(ClientError::Protocol),
    }
}
