//! A part of a bundle: what it is, or why there is nothing.

use std::time::{Duration, Instant};

use anyhow::Result;
use cenote_cli::failure::chain;
use serde::Serialize;
use serde_json::Value;

/// What a part is.
#[derive(Debug)]
pub enum Content {
    Text(String),
    /// Of a command that may have ended with another code than 0 and still said something.
    Answer {
        text: String,
        said: String,
        code: Option<i32>,
    },
    Json(Value),
}

/// One part.
#[derive(Debug)]
pub struct Part {
    pub name: String,
    pub took: Duration,
    pub content: Result<Content, String>,
}

/// What the manifest says of it.
#[derive(Debug, Serialize)]
pub struct Line {
    pub name: String,
    pub took_ms: u64,
    pub bytes: usize,
    /// Why it is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// How the command ended that it is the answer of.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// What that said on standard error.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub said: String,
}

impl Part {
    /// What `make` makes, and how long that took.
    pub fn made(name: &str, make: impl FnOnce() -> Result<Content>) -> Self {
        let began = Instant::now();
        let content = make().map_err(|error| chain(&error));
        Self {
            name: name.to_owned(),
            took: began.elapsed(),
            content,
        }
    }
}
