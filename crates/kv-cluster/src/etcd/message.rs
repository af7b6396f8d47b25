//! The gateway's JSON: numbers of 64 bits are strings, and what is zero or empty is left out.
//!
//! Fields that are not used here are not read, and unknown ones are let pass: newer servers have more.

use std::fmt::Display;
use std::str::FromStr;

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};

use crate::store::EtcdError;

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Header {
    #[serde(deserialize_with = "unsigned")]
    pub cluster_id: u64,
    #[serde(deserialize_with = "number")]
    pub revision: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Headed {
    pub header: Header,
}

#[derive(Debug, Deserialize)]
pub(super) struct Pair {
    pub key: String,
    #[serde(default)]
    pub value: String,
    #[serde(default, deserialize_with = "number")]
    pub mod_revision: i64,
    #[serde(default, deserialize_with = "number")]
    pub lease: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Range {
    #[serde(default)]
    pub header: Header,
    #[serde(default)]
    pub kvs: Vec<Pair>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Txn {
    pub header: Header,
    #[serde(default)]
    pub succeeded: bool,
    #[serde(default)]
    pub responses: Vec<TxnResponse>,
}

#[derive(Debug, Deserialize)]
pub(super) struct TxnResponse {
    pub response_range: Option<Range>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Token {
    pub token: String,
}

/// Answer to a grant; inside [`Streamed`] to a keep-alive.
#[derive(Debug, Deserialize)]
pub(super) struct LeaseState {
    #[serde(rename = "ID", default, deserialize_with = "number")]
    pub id: i64,
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub ttl_s: i64,
}

/// One line of an answer that is a stream.
#[derive(Debug, Deserialize)]
pub(super) struct Streamed<T> {
    pub result: Option<T>,
    pub error: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Watched {
    #[serde(default)]
    pub header: Header,
    #[serde(default)]
    pub created: bool,
    #[serde(default)]
    pub canceled: bool,
    #[serde(default, deserialize_with = "number")]
    pub compact_revision: i64,
    #[serde(default)]
    pub cancel_reason: String,
    #[serde(default)]
    pub events: Vec<Event>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Event {
    /// `DELETE`, or nothing for a put.
    #[serde(rename = "type", default)]
    pub kind: String,
    pub kv: Pair,
}

pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, EtcdError> {
    serde_json::from_slice(bytes).map_err(|error| EtcdError::Malformed(error.to_string()))
}

/// Code and words of an answer that is an error. A call has them at its top, a stream in an object.
pub(super) fn refusal(bytes: &[u8]) -> Option<(i64, String)> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Answer {
        Stream { error: Refusal },
        Call(Refusal),
    }
    #[derive(Deserialize)]
    struct Refusal {
        #[serde(default, alias = "grpc_code")]
        code: i64,
        #[serde(default)]
        message: String,
        #[serde(default)]
        error: String,
    }
    let answer: Answer = serde_json::from_slice(bytes).ok()?;
    let (Answer::Stream { error: refusal } | Answer::Call(refusal)) = answer;
    let words = if refusal.message.is_empty() {
        refusal.error
    } else {
        refusal.message
    };
    Some((refusal.code, words))
}

/// A number as a string, or as itself.
fn number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    any_number(deserializer)
}

fn unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    any_number(deserializer)
}

fn any_number<'de, D, N>(deserializer: D) -> Result<N, D::Error>
where
    D: Deserializer<'de>,
    N: Deserialize<'de> + FromStr<Err: Display>,
{
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number<N> {
        Plain(N),
        Text(String),
    }
    match Number::deserialize(deserializer)? {
        Number::Plain(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(D::Error::custom),
    }
}
