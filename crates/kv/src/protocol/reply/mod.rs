//! Replies, appended to what a connection is to send.
//!
//! Each function writes one whole reply, or nothing where the request wants none; only `VALUE`s and
//! `STAT`s come one by one and are ended by [`end`].

use std::io::Write;

use super::error::Error;

mod meta;

pub use meta::{
    Counted, Debugged, MetaStatus, Shown, meta_arithmetic, meta_arithmetic_miss, meta_debug,
    meta_debug_miss, meta_delete, meta_get, meta_get_miss, meta_set,
};

/// A reply that is always the same.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answer {
    /// It is stored.
    Stored,
    /// A condition was not met.
    NotStored,
    /// The cas number is another.
    Exists,
    /// There is no such item.
    NotFound,
    /// It is deleted.
    Deleted,
    /// It has its new expiry time.
    Touched,
    /// Done.
    Ok,
    /// Statistics are at 0.
    Reset,
    /// The answer to `mn`.
    MetaNoop,
}

impl Answer {
    /// Its line, without the end.
    pub fn line(self) -> &'static str {
        match self {
            Self::Stored => "STORED",
            Self::NotStored => "NOT_STORED",
            Self::Exists => "EXISTS",
            Self::NotFound => "NOT_FOUND",
            Self::Deleted => "DELETED",
            Self::Touched => "TOUCHED",
            Self::Ok => "OK",
            Self::Reset => "RESET",
            Self::MetaNoop => "MN",
        }
    }
}

/// A constant reply.
pub fn answer(out: &mut Vec<u8>, answer: Answer) {
    line(out, answer.line());
}

/// An error.
pub fn error(out: &mut Vec<u8>, error: Error) {
    write!(out, "{error}\r\n").expect("memory takes all that is written");
}

/// The new number of `incr` or `decr`.
pub fn number(out: &mut Vec<u8>, value: u64) {
    decimal(out, value);
    line_end(out);
}

/// The answer to `version`.
pub fn version(out: &mut Vec<u8>, version: &str) {
    out.extend_from_slice(b"VERSION ");
    line(out, version);
}

/// The line before the value of one item of a retrieval; `cas` where it is asked for. The value and
/// a line end follow.
pub fn value_line(
    out: &mut Vec<u8>,
    key: &[u8],
    client_flags: u32,
    value_bytes: u32,
    cas: Option<u64>,
) {
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    decimal(out, u64::from(client_flags));
    out.push(b' ');
    decimal(out, u64::from(value_bytes));
    if let Some(cas) = cas {
        out.push(b' ');
        decimal(out, cas);
    }
    line_end(out);
}

/// One statistic. A name or value with a line end in it would garble the stream: none has one.
pub fn stat(out: &mut Vec<u8>, name: &str, value: &str) {
    out.extend_from_slice(b"STAT ");
    out.extend_from_slice(name.as_bytes());
    out.push(b' ');
    line(out, value);
}

/// The end of a retrieval, or of statistics.
pub fn end(out: &mut Vec<u8>) {
    line(out, "END");
}

fn line(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    line_end(out);
}

fn line_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// A number, and no line end.
pub(crate) fn decimal(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests;
