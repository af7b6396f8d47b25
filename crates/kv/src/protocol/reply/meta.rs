//! Replies to meta commands: a code, and what the flags of the request asked for, in their order.

use super::{decimal, line, line_end};
use crate::protocol::exptime::Exptime;
use crate::protocol::key::encode_base64;
use crate::protocol::limits::Dialect;
use crate::protocol::meta::{MetaArithmetic, MetaDelete, MetaFlags, MetaGet, MetaSet};

/// How a meta command that stores or deletes ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum MetaStatus {
    /// As it should.
    Done,
    /// A condition was not met.
    NotStored,
    /// The cas number is another.
    Exists,
    /// There is no such item.
    NotFound,
}

impl MetaStatus {
    fn code(self) -> &'static [u8] {
        match self {
            Self::Done => b"HD",
            Self::NotStored => b"NS",
            Self::Exists => b"EX",
            Self::NotFound => b"NF",
        }
    }
}

/// What `mg` may be asked about an item: its state before the request counted as a use of it.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// Its key's bytes.
    pub key: &'a [u8],
    /// Whether it was stored under a key in base64, and is shown so.
    pub is_key_base64: bool,
    /// Length of its value.
    pub value_bytes: u32,
    /// Its client flags.
    pub client_flags: u32,
    /// Its cas number.
    pub cas: u64,
    /// Seconds that were left before the request; none if it did not end, or was not there.
    pub seconds_left: Option<u64>,
    /// Now, in seconds since 1970: new expiry times are shown from their flags on.
    pub now: u64,
    /// Whether `N` has made it.
    pub is_new: bool,
    /// Seconds since it was used.
    pub seconds_idle: u64,
    /// Whether it has been fetched before.
    pub was_hit: bool,
    /// The client won the right to store it again.
    pub has_won: bool,
    /// It is stale.
    pub is_stale: bool,
    /// Another client has won before.
    pub was_won: bool,
}

/// What `me` shows of an item.
#[derive(Clone, Copy, Debug)]
pub struct Debugged<'a> {
    /// Its key's bytes.
    pub key: &'a [u8],
    /// Whether it was stored under a key in base64, and is shown so.
    pub is_key_base64: bool,
    /// Seconds since it ended, so below 0 while it is there; -1 if it does not end.
    pub seconds_past_end: i64,
    /// Seconds since it was used.
    pub seconds_idle: u64,
    /// Its cas number.
    pub cas: u64,
    /// Whether it has been fetched.
    pub was_hit: bool,
    /// Number of its size class.
    pub class: usize,
    /// Bytes that it takes.
    pub bytes: u64,
}

/// A number that `ma` has made.
#[derive(Clone, Copy, Debug)]
pub struct Counted<'a> {
    /// The number, without padding.
    pub number: u64,
    /// The item's cas number, afterwards.
    pub cas: u64,
    /// Seconds that were left before the request; none if it did not end, or was not there.
    pub seconds_left: Option<u64>,
    /// Now, in seconds since 1970: new expiry times are shown from their flags on.
    pub now: u64,
    /// Whether the item was made by this request.
    pub is_new: bool,
    /// The key's bytes.
    pub key: &'a [u8],
}

/// An item that `mg` found or made. Where the request wants it, the value and a line end follow.
pub fn meta_get(out: &mut Vec<u8>, request: &MetaGet<'_>, item: &Shown<'_>) {
    status(
        out,
        request.wants_value.then_some(item.value_bytes as usize),
    );
    let mut left = item.seconds_left;
    for flag in request.flags {
        match flag.letter {
            b's' => fact(out, b's', u64::from(item.value_bytes)),
            b'T' => left = left_of(request.touch, item.now),
            b'N' if item.is_new => left = left_of(request.vivify, item.now),
            b't' => seconds_left(out, left),
            b'c' => fact(out, b'c', item.cas),
            b'f' => fact(out, b'f', u64::from(item.client_flags)),
            b'l' => fact(out, b'l', item.seconds_idle),
            b'h' => fact(out, b'h', u64::from(item.was_hit)),
            b'O' => opaque(out, flag.token),
            b'k' => key(out, item.key, item.is_key_base64),
            _ => {}
        }
    }
    for (is_so, text) in [
        (item.was_won, b" Z"),
        (item.is_stale, b" X"),
        (item.has_won, b" W"),
    ] {
        if is_so {
            out.extend_from_slice(text);
        }
    }
    line_end(out);
}

/// That `mg` found nothing.
pub fn meta_get_miss(out: &mut Vec<u8>, request: &MetaGet<'_>, key_bytes: &[u8]) {
    if request.is_quiet {
        return;
    }
    out.extend_from_slice(b"EN");
    reflect(out, request.flags, key_bytes, request.key.is_base64());
    line_end(out);
}

/// How `ms` ended; `cas` is the number of what was stored, otherwise 0.
pub fn meta_set(
    out: &mut Vec<u8>,
    request: &MetaSet<'_>,
    key_bytes: &[u8],
    status: MetaStatus,
    cas: u64,
    dialect: Dialect,
) {
    if request.is_quiet && status == MetaStatus::Done {
        return;
    }
    out.extend_from_slice(status.code());
    for flag in request.flags {
        match flag.letter {
            b'O' => opaque(out, flag.token),
            b'k' => key(out, key_bytes, request.key.is_base64()),
            b'c' => fact(out, b'c', cas),
            b's' if dialect == Dialect::Later => fact(out, b's', request.value.len() as u64),
            _ => {}
        }
    }
    line_end(out);
}

/// How `md` ended.
pub fn meta_delete(
    out: &mut Vec<u8>,
    request: &MetaDelete<'_>,
    key_bytes: &[u8],
    status: MetaStatus,
    dialect: Dialect,
) {
    if request.is_quiet && is_hidden(status, dialect) {
        return;
    }
    out.extend_from_slice(status.code());
    reflect(out, request.flags, key_bytes, request.key.is_base64());
    line_end(out);
}

/// A number that `ma` has made.
pub fn meta_arithmetic(out: &mut Vec<u8>, request: &MetaArithmetic<'_>, counted: &Counted<'_>) {
    if request.is_quiet && !counted.is_new {
        return;
    }
    let digits = counted.number.checked_ilog10().unwrap_or(0) + 1;
    status(out, request.wants_value.then_some(digits as usize));
    let mut left = counted.seconds_left;
    for flag in request.flags {
        match flag.letter {
            b'T' => left = left_of(request.touch, counted.now),
            b'N' if counted.is_new => left = left_of(request.vivify, counted.now),
            b't' => seconds_left(out, left),
            b'c' => fact(out, b'c', counted.cas),
            b'O' => opaque(out, flag.token),
            b'k' => key(out, counted.key, request.key.is_base64()),
            _ => {}
        }
    }
    line_end(out);
    if request.wants_value {
        decimal(out, counted.number);
        line_end(out);
    }
}

/// That `ma` made no number.
pub fn meta_arithmetic_miss(
    out: &mut Vec<u8>,
    request: &MetaArithmetic<'_>,
    key_bytes: &[u8],
    status: MetaStatus,
    dialect: Dialect,
) {
    if request.is_quiet && dialect == Dialect::Later && status == MetaStatus::NotFound {
        return;
    }
    out.extend_from_slice(status.code());
    reflect(out, request.flags, key_bytes, request.key.is_base64());
    line_end(out);
}

/// What `me` shows of an item.
pub fn meta_debug(out: &mut Vec<u8>, item: &Debugged<'_>) {
    out.extend_from_slice(b"ME ");
    key_text(out, item.key, item.is_key_base64);
    let text = format!(
        " exp={} la={} cas={} fetch={} cls={} size={}",
        item.seconds_past_end,
        item.seconds_idle,
        item.cas,
        if item.was_hit { "yes" } else { "no" },
        item.class,
        item.bytes
    );
    line(out, &text);
}

/// That `me` found nothing.
pub fn meta_debug_miss(out: &mut Vec<u8>) {
    line(out, "EN");
}

/// Whether a quiet request is not answered.
fn is_hidden(status: MetaStatus, dialect: Dialect) -> bool {
    match status {
        MetaStatus::Done => true,
        MetaStatus::NotFound => dialect == Dialect::Later,
        MetaStatus::NotStored | MetaStatus::Exists => false,
    }
}

fn status(out: &mut Vec<u8>, value_bytes: Option<usize>) {
    match value_bytes {
        Some(length) => {
            out.extend_from_slice(b"VA ");
            decimal(out, length as u64);
        }
        None => out.extend_from_slice(b"HD"),
    }
}

/// Key and opaque, which every reply carries that is asked to.
fn reflect(out: &mut Vec<u8>, flags: MetaFlags<'_>, key_bytes: &[u8], is_base64: bool) {
    for flag in flags {
        match flag.letter {
            b'O' => opaque(out, flag.token),
            b'k' => key(out, key_bytes, is_base64),
            _ => {}
        }
    }
}

fn opaque(out: &mut Vec<u8>, token: &[u8]) {
    out.extend_from_slice(b" O");
    out.extend_from_slice(token);
}

fn key(out: &mut Vec<u8>, bytes: &[u8], is_base64: bool) {
    out.extend_from_slice(b" k");
    key_text(out, bytes, is_base64);
    if is_base64 {
        out.extend_from_slice(b" b");
    }
}

fn key_text(out: &mut Vec<u8>, bytes: &[u8], is_base64: bool) {
    if is_base64 {
        encode_base64(out, bytes);
    } else {
        out.extend_from_slice(bytes);
    }
}

fn left_of(exptime: Option<Exptime>, now: u64) -> Option<u64> {
    exptime.and_then(|exptime| exptime.expiry(now).seconds_left(now))
}

fn seconds_left(out: &mut Vec<u8>, seconds: Option<u64>) {
    match seconds {
        Some(seconds) => fact(out, b't', seconds),
        None => out.extend_from_slice(b" t-1"),
    }
}

fn fact(out: &mut Vec<u8>, letter: u8, number: u64) {
    out.extend_from_slice(&[b' ', letter]);
    decimal(out, number);
}
