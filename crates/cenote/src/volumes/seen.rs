//! How the volumes of a folder are, as their files and their owners say.
//!
//! A volume of which something cannot be read is shown with the reason: it hides no other one.

use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::chain;
use cenote_volume::Left;
use serde_json::Value;

use super::{Question, Spec, Volumes, read_spec};
use crate::ask::side_by_side;

/// A volume, as it was found.
#[derive(Debug)]
pub struct Seen {
    /// Its name.
    pub name: String,
    /// What it is; `None` where its file cannot be read.
    pub spec: Option<Spec>,
    /// Whether a process owns it.
    pub in_use: bool,
    /// What its owner says; `None` where it has none, or that is silent.
    pub status: Option<Value>,
    /// Why something of this is not known.
    pub error: Option<String>,
}

impl Volumes {
    /// Every volume, by name. All owners are asked at the same time, and each may take `limit`.
    ///
    /// # Errors
    /// The folder of volumes cannot be read.
    pub fn statuses(&self, limit: Duration) -> Result<Vec<Seen>> {
        let seen = side_by_side(&self.names()?, |name| self.status_of(name, limit));
        Ok(seen.into_iter().flatten().collect())
    }

    /// What hosts keep of a volume for its next owner; nothing of one that is in use.
    ///
    /// # Errors
    /// As [`Volumes::left`].
    pub fn left_by(&self, seen: &Seen) -> Result<Option<Left>> {
        match seen.in_use {
            true => Ok(None),
            false => self.left(&seen.name),
        }
    }

    /// `None` of one that another command has deleted.
    fn status_of(&self, name: &str, limit: Duration) -> Option<Seen> {
        let spec = self
            .folder(name)
            .and_then(|folder| read_spec(&folder, name))
            .transpose()?;
        let is_owned = self.is_owned(name);
        let in_use = matches!(is_owned, Ok(true));
        let status = is_owned.and_then(|is_owned| {
            let ask = || self.ask_within(name, Question::Status, limit);
            is_owned.then(ask).transpose()
        });
        let errors = [spec.as_ref().err(), status.as_ref().err()];
        let error = errors.into_iter().flatten().next().map(chain);
        Some(Seen {
            name: name.to_owned(),
            spec: spec.ok(),
            in_use,
            status: status.ok().flatten(),
            error,
        })
    }
}

impl Seen {
    /// As it was created with; a dash where that is not known.
    pub fn size_and_scheme(&self) -> [String; 2] {
        match &self.spec {
            Some(spec) => [spec.size.clone(), spec.scheme.clone()],
            None => ["-", "-"].map(str::to_owned),
        }
    }
}
