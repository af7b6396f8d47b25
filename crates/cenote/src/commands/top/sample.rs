//! What hosts and volumes say, once.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_pool::control::HostStatus;
use serde_json::Value;

use crate::ask;
use crate::failure::chain;
use crate::place::Loaded;
use crate::process::Identity;
use crate::volumes::{self, Question};

/// Asks.
pub struct Sampler {
    loaded: Loaded,
    timeout: Duration,
}

/// All hosts of the cluster file, in its order.
pub type Hosts = Vec<Host>;

/// A host, as it was found.
#[derive(Clone, Debug)]
pub struct Host {
    /// As in the cluster file.
    pub name: String,
    /// As in the cluster file.
    pub address: String,
    /// What it said, or why it said nothing.
    pub found: Found,
}

/// What came of asking a host.
#[derive(Clone, Debug)]
pub enum Found {
    /// It answers.
    Up(Box<HostStatus>),
    /// Its process runs on this machine and does not answer.
    Silent(String),
    /// Its process on this machine has ended.
    Ended(String),
    /// No answer, and it is no process of this machine's cluster folder.
    Unreachable(String),
}

/// All volumes of the cluster folder, by name.
#[derive(Clone, Debug)]
pub struct Volumes {
    /// When they were asked.
    pub at: Instant,
    /// Them.
    pub volumes: Vec<Volume>,
}

/// A volume, as it was found.
#[derive(Clone, Debug)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// As its file says.
    pub size: String,
    /// As its file says.
    pub scheme: String,
    /// What its owner says, or why that is nothing; `None` when nobody owns it.
    pub status: Option<Result<Value, String>>,
}

impl Sampler {
    /// Of one cluster.
    pub fn new(loaded: Loaded, timeout: Duration) -> Self {
        Self { loaded, timeout }
    }

    /// The cluster's file, for the title.
    pub fn cluster(&self) -> String {
        self.loaded.file.display().to_string()
    }

    /// Asks every host.
    ///
    /// # Errors
    /// This machine's own files make no sense; hosts that do not answer are no error.
    pub fn hosts(&self) -> Result<Hosts> {
        let entries = &self.loaded.cluster.hosts;
        let answers = ask::all(entries, &self.loaded.key, self.timeout);
        let found = entries.iter().zip(answers).map(|(entry, answer)| {
            let found = match answer {
                Ok(status) => Found::Up(Box::new(status)),
                Err(error) => self.missing(&entry.name, chain(&error))?,
            };
            Ok(Host {
                name: entry.name.clone(),
                address: entry.address.clone(),
                found,
            })
        });
        found.collect()
    }

    fn missing(&self, name: &str, why: String) -> Result<Found> {
        let folder = self.loaded.dir.host(name)?;
        let noted = folder.map(|folder| Identity::load(&folder)).transpose()?;
        let noted = noted.flatten();
        Ok(match noted {
            None => Found::Unreachable(why),
            Some(identity) if identity.open()?.is_some() => Found::Silent(why),
            Some(_) => Found::Ended(why),
        })
    }

    /// Asks every volume's owner.
    ///
    /// # Errors
    /// The folder of volumes cannot be read; owners that do not answer are no error.
    pub fn volumes(&self) -> Result<Volumes> {
        let folder = volumes::Volumes::new(&self.loaded.dir);
        let at = Instant::now();
        let found = folder.list()?.into_iter().map(|(name, spec)| {
            let status = folder.is_owned(&name)?.then(|| {
                let answer = folder.ask_within(&name, Question::Status, self.timeout);
                answer.map_err(|error| chain(&error))
            });
            Ok(Volume {
                name,
                size: spec.size,
                scheme: spec.scheme,
                status,
            })
        });
        let volumes = found.collect::<Result<Vec<_>>>()?;
        Ok(Volumes { at, volumes })
    }
}
