//! What a command line asks for: the commands without flags, and which are the meta commands.
//!
//! The order of the checks is memcached's, since it decides which error a line with two faults
//! gets, and whether `noreply` hides it.

use super::error::Error;
use super::exptime::Exptime;
use super::key::{KEY_BYTES_MAX, MetaKey};
use super::limits::Limits;
use super::meta::{self, MetaSet};
use super::numbers::{signed, unsigned, unsigned_low};
use super::parse::{CloseReason, Refusal};
use super::request::{Direction, Request, Retrieval, Store, StoreMode, Tuning};
use super::words::{Line, Words};

/// Longest value whose length memcached takes at all.
const VALUE_BYTES_MAX: i32 = i32::MAX - 2;

/// What a line says.
pub(super) enum Outcome<'a> {
    /// A whole request.
    Whole(Request<'a>),
    /// A request whose value follows in so many bytes.
    Value(Pending<'a>, usize),
    /// An error.
    Refused(Refusal<'a>),
    /// Nothing that the connection could go on after.
    Close(CloseReason),
}

/// A request that lacks its value.
pub(super) enum Pending<'a> {
    Store(Store<'a>),
    Meta(MetaSet<'a>),
}

impl<'a> Outcome<'a> {
    /// An error that `noreply` hides.
    fn refused(error: Error, noreply: bool) -> Self {
        Self::Refused(Refusal {
            is_silent: noreply,
            ..Refusal::new(error)
        })
    }
}

impl<'a> From<Result<Request<'a>, Error>> for Outcome<'a> {
    fn from(result: Result<Request<'a>, Error>) -> Self {
        match result {
            Ok(request) => Self::Whole(request),
            Err(error) => Self::Refused(Refusal::new(error)),
        }
    }
}

/// Reads one line, without its end.
pub(super) fn command<'a>(text: &'a [u8], limits: &Limits) -> Outcome<'a> {
    let line = Line::new(text);
    let words = line.count();
    match line.word(0) {
        b"get" | b"bget" => retrieval(&line, false, false),
        b"gets" => retrieval(&line, true, false),
        b"gat" => retrieval(&line, false, true),
        b"gats" => retrieval(&line, true, true),
        b"set" => store(&line, StoreMode::Set, limits),
        b"add" => store(&line, StoreMode::Add, limits),
        b"replace" => store(&line, StoreMode::Replace, limits),
        b"append" => store(&line, StoreMode::Append, limits),
        b"prepend" => store(&line, StoreMode::Prepend, limits),
        b"cas" => store(&line, StoreMode::Cas, limits),
        b"delete" if (2..=4).contains(&words) => delete(&line),
        b"incr" if (3..=4).contains(&words) => arithmetic(&line, Direction::Up),
        b"decr" if (3..=4).contains(&words) => arithmetic(&line, Direction::Down),
        b"touch" if (3..=4).contains(&words) => touch(&line),
        b"flush_all" if words <= 3 => flush_all(&line),
        b"verbosity" if (2..=3).contains(&words) => verbosity(&line),
        b"stats" => Outcome::Whole(Request::Stats(line.all_from(1))),
        b"lru_crawler" => Outcome::Whole(Request::Crawler(line.all_from(1))),
        b"cache_memlimit" if (2..=3).contains(&words) => tune(&line, Tuning::MemoryLimit),
        b"watch" => Outcome::Whole(Request::Watch(line.all_from(1))),
        b"slabs" => tune(&line, Tuning::Slabs),
        b"lru" => tune(&line, Tuning::Lru),
        b"debugtime" => tune(&line, Tuning::Time),
        b"version" => Outcome::Whole(Request::Version),
        b"quit" => Outcome::Whole(Request::Quit),
        b"shutdown" => Outcome::refused(Error::NoShutdown, false),
        b"mg" => meta::get(&line, limits.dialect).into(),
        b"ms" => meta_set(&line, limits),
        b"md" => meta::delete(&line, limits.dialect).into(),
        b"ma" => meta::arithmetic(&line, limits.dialect).into(),
        b"me" => meta::debug(&line).into(),
        b"mn" => Outcome::Whole(Request::MetaNoop),
        // With another number of words.
        b"delete" | b"incr" | b"decr" | b"touch" | b"flush_all" | b"verbosity" => {
            Outcome::refused(Error::Unknown, false)
        }
        _ if is_http(&line) => Outcome::Close(CloseReason::Http),
        _ => Outcome::refused(Error::Unknown, false),
    }
}

fn tune<'a>(line: &Line<'a>, tuning: Tuning) -> Outcome<'a> {
    Outcome::Whole(Request::Tune {
        tuning,
        words: line.all_from(1),
        noreply: line.ends_with_noreply(),
    })
}

/// Whether the last word is a version of HTTP, by which memcached knows it.
fn is_http(line: &Line<'_>) -> bool {
    let last = line.count().saturating_sub(1);
    line.word(last).starts_with(b"HTTP/")
}

fn retrieval<'a>(line: &Line<'a>, with_cas: bool, touches: bool) -> Outcome<'a> {
    if line.count() < 2 {
        return Outcome::refused(Error::Unknown, false);
    }
    let touch = if touches {
        match signed(line.word(1)) {
            Some(exptime) => Some(Exptime(exptime)),
            None => return Outcome::refused(Error::InvalidExptime, false),
        }
    } else {
        None
    };
    let keys: Words<'a> = line.all_from(if touches { 2 } else { 1 });
    if keys.into_iter().any(|key| key.len() > KEY_BYTES_MAX) {
        return Outcome::refused(Error::BadFormat, false);
    }
    Outcome::Whole(Request::Get(Retrieval {
        keys,
        with_cas,
        touch,
    }))
}

/// Length of a value, if memcached takes it.
pub(super) fn value_bytes(word: &[u8]) -> Option<usize> {
    let length = signed(word).filter(|length| *length <= VALUE_BYTES_MAX)?;
    usize::try_from(length).ok()
}

fn store<'a>(line: &Line<'a>, mode: StoreMode, limits: &Limits) -> Outcome<'a> {
    let words = if mode == StoreMode::Cas { 6 } else { 5 };
    if line.count() != words && line.count() != words + 1 {
        return Outcome::refused(Error::Unknown, false);
    }
    let noreply = line.ends_with_noreply();
    let Some((store, length)) = store_header(line, mode, noreply) else {
        return Outcome::refused(Error::BadFormat, noreply);
    };
    if !limits.fits(store.key.len(), store.client_flags, length) {
        // What a set would have replaced is older than what the client wants to be there.
        let forget = MetaKey::new(store.key, false).filter(|_| mode == StoreMode::Set);
        return Outcome::Refused(Refusal {
            is_silent: noreply,
            forget,
            skips: length as u64 + 2,
            ..Refusal::new(Error::TooLarge)
        });
    }
    Outcome::Value(Pending::Store(store), length)
}

fn store_header<'a>(line: &Line<'a>, mode: StoreMode, noreply: bool) -> Option<(Store<'a>, usize)> {
    let key = short_key(line)?;
    let store = Store {
        mode,
        key,
        client_flags: unsigned_low(line.word(2))?,
        exptime: Exptime(signed(line.word(3))?),
        cas: match mode {
            StoreMode::Cas => unsigned(line.word(5))?,
            _ => 0,
        },
        value: &[],
        noreply,
    };
    Some((store, value_bytes(line.word(4))?))
}

fn meta_set<'a>(line: &Line<'a>, limits: &Limits) -> Outcome<'a> {
    match meta::set(line, limits.dialect) {
        Err((error, skips)) => Outcome::Refused(Refusal {
            skips,
            ..Refusal::new(error)
        }),
        Ok((set, length)) => {
            let mut scratch = [0; KEY_BYTES_MAX];
            let key_bytes = set.key.bytes(&mut scratch).len();
            if limits.fits(key_bytes, set.client_flags, length) {
                return Outcome::Value(Pending::Meta(set), length);
            }
            Outcome::Refused(Refusal {
                forget: Some(set.key),
                skips: length as u64 + 2,
                ..Refusal::new(Error::TooLarge)
            })
        }
    }
}

/// The key of a line, if it is not too long.
fn short_key<'a>(line: &Line<'a>) -> Option<&'a [u8]> {
    Some(line.word(1)).filter(|key| key.len() <= KEY_BYTES_MAX)
}

fn delete<'a>(line: &Line<'a>) -> Outcome<'a> {
    let words = line.count();
    let mut noreply = false;
    if words > 2 {
        // Once a delete could take a time, and 0 still can stand there.
        let has_zero = line.word(2) == b"0";
        noreply = line.ends_with_noreply();
        let is_valid = match words {
            3 => has_zero || noreply,
            _ => has_zero && noreply,
        };
        if !is_valid {
            return Outcome::refused(Error::BadDelete, noreply);
        }
    }
    match short_key(line) {
        Some(key) => Outcome::Whole(Request::Delete { key, noreply }),
        None => Outcome::refused(Error::BadFormat, noreply),
    }
}

fn arithmetic<'a>(line: &Line<'a>, direction: Direction) -> Outcome<'a> {
    let noreply = line.ends_with_noreply();
    let Some(key) = short_key(line) else {
        return Outcome::refused(Error::BadFormat, noreply);
    };
    let Some(delta) = unsigned(line.word(2)) else {
        return Outcome::refused(Error::InvalidDelta, noreply);
    };
    Outcome::Whole(Request::Arithmetic {
        key,
        direction,
        delta,
        noreply,
    })
}

fn touch<'a>(line: &Line<'a>) -> Outcome<'a> {
    let noreply = line.ends_with_noreply();
    let Some(key) = short_key(line) else {
        return Outcome::refused(Error::BadFormat, noreply);
    };
    let Some(exptime) = signed(line.word(2)) else {
        return Outcome::refused(Error::InvalidExptime, noreply);
    };
    Outcome::Whole(Request::Touch {
        key,
        exptime: Exptime(exptime),
        noreply,
    })
}

fn flush_all<'a>(line: &Line<'a>) -> Outcome<'a> {
    let noreply = line.ends_with_noreply();
    let has_time = line.count() != 1 + usize::from(noreply);
    let exptime = if has_time {
        signed(line.word(1))
    } else {
        Some(0)
    };
    match exptime {
        Some(exptime) => Outcome::Whole(Request::FlushAll {
            exptime: Exptime(exptime),
            noreply,
        }),
        None => Outcome::refused(Error::InvalidExptime, noreply),
    }
}

fn verbosity<'a>(line: &Line<'a>) -> Outcome<'a> {
    let noreply = line.ends_with_noreply();
    match unsigned_low(line.word(1)) {
        Some(level) => Outcome::Whole(Request::Verbosity { level, noreply }),
        None => Outcome::refused(Error::BadFormat, noreply),
    }
}
