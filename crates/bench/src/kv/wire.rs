//! GET and SET as bytes, in memcached's text protocol and in Redis's.
//!
//! Only what the load needs: one key at a time, replies in the order of requests. A reply is parsed
//! where it lies; nothing is copied. Bytes that are no reply are an error that names them.

use anyhow::{Context as _, Result, bail};

/// What a server speaks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Protocol {
    /// memcached's text protocol.
    Memcached,
    /// Redis's RESP2.
    Redis,
}

/// What a server answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Reply<'a> {
    /// To a GET.
    Value(&'a [u8]),
    /// To a GET of what is not there.
    Miss,
    /// To a SET.
    Stored,
    /// An error, in the server's words.
    Refused(&'a str),
}

/// What the front of a buffer is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Parsed<'a> {
    /// A reply, and how many bytes it takes.
    Whole(Reply<'a>, usize),
    /// Not all of it has come.
    Part,
}

/// Longest line of a reply; both servers' own errors are shorter.
const LINE_BYTES_MAX: usize = 2048;

impl Protocol {
    /// Appends a GET.
    pub(crate) fn push_get(self, key: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Memcached => {
                out.extend_from_slice(b"get ");
                out.extend_from_slice(key);
                out.extend_from_slice(b"\r\n");
            }
            Self::Redis => {
                out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
                push_bulk(key, out);
            }
        }
    }

    /// Appends a SET of a value of `value_bytes`, which `push_value` appends.
    pub(crate) fn push_set(
        self,
        key: &[u8],
        value_bytes: usize,
        out: &mut Vec<u8>,
        push_value: impl FnOnce(&mut Vec<u8>),
    ) {
        match self {
            Self::Memcached => {
                out.extend_from_slice(b"set ");
                out.extend_from_slice(key);
                out.extend_from_slice(b" 0 0 ");
            }
            Self::Redis => {
                out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
                push_bulk(key, out);
                out.push(b'$');
            }
        }
        push_number(value_bytes, out);
        out.extend_from_slice(b"\r\n");
        push_value(out);
        out.extend_from_slice(b"\r\n");
    }

    /// The reply at the front of `bytes`.
    ///
    /// # Errors
    /// Bytes that are no reply.
    pub(crate) fn parse(self, bytes: &[u8]) -> Result<Parsed<'_>> {
        let Some(end) = bytes
            .iter()
            .take(LINE_BYTES_MAX)
            .position(|byte| *byte == b'\n')
        else {
            if bytes.len() >= LINE_BYTES_MAX {
                bail!("a reply's line has no end: {}", shown(bytes));
            }
            return Ok(Parsed::Part);
        };
        let line = bytes[..end].strip_suffix(b"\r").unwrap_or(&bytes[..end]);
        match self {
            Self::Memcached => memcached(bytes, line, end + 1),
            Self::Redis => redis(bytes, line, end + 1),
        }
        .with_context(|| format!("read a reply that begins {}", shown(line)))
    }
}

fn memcached<'a>(bytes: &'a [u8], line: &'a [u8], start: usize) -> Result<Parsed<'a>> {
    let reply = match line {
        b"STORED" => Reply::Stored,
        b"END" => Reply::Miss,
        _ if line.starts_with(b"VALUE ") => {
            let length = line.rsplit(|byte| *byte == b' ').next();
            return value(bytes, start, number(length)?, b"\r\nEND\r\n");
        }
        _ => Reply::Refused(refusal(
            line,
            &["ERROR", "CLIENT_ERROR ", "SERVER_ERROR ", "NOT_STORED"],
        )?),
    };
    Ok(Parsed::Whole(reply, start))
}

fn redis<'a>(bytes: &'a [u8], line: &'a [u8], start: usize) -> Result<Parsed<'a>> {
    let reply = match line {
        b"+OK" => Reply::Stored,
        b"$-1" => Reply::Miss,
        [b'$', length @ ..] => return value(bytes, start, number(Some(length))?, b"\r\n"),
        _ => Reply::Refused(refusal(line, &["-"])?),
    };
    Ok(Parsed::Whole(reply, start))
}

fn value<'a>(bytes: &'a [u8], start: usize, length: usize, tail: &[u8]) -> Result<Parsed<'a>> {
    let end = start + length;
    let whole = end + tail.len();
    if bytes.len() < whole {
        return Ok(Parsed::Part);
    }
    if &bytes[end..whole] != tail {
        bail!("a value ends with {}", shown(&bytes[end..whole]));
    }
    Ok(Parsed::Whole(Reply::Value(&bytes[start..end]), whole))
}

fn refusal<'a>(line: &'a [u8], starts: &[&str]) -> Result<&'a str> {
    let text = std::str::from_utf8(line).context("it is no text")?;
    if !starts.iter().any(|start| text.starts_with(start)) {
        bail!("no such reply is known");
    }
    Ok(text)
}

fn number(digits: Option<&[u8]>) -> Result<usize> {
    let text = std::str::from_utf8(digits.unwrap_or_default()).context("a length is digits")?;
    let length: usize = text
        .parse()
        .with_context(|| format!("a length of {text:?}"))?;
    if length > LENGTH_MAX {
        bail!("a value of {length} bytes, of which none was stored");
    }
    Ok(length)
}

/// What is longer is a confused server, for which no memory is taken.
const LENGTH_MAX: usize = 16 << 20;

fn push_bulk(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'$');
    push_number(bytes.len(), out);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn push_number(number: usize, out: &mut Vec<u8>) {
    use std::io::Write as _;
    write!(out, "{number}").expect("a Vec takes what is written");
}

fn shown(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes[..bytes.len().min(80)].escape_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_as_the_protocols_have_them() {
        let mut out = Vec::new();
        let push = |out: &mut Vec<u8>| out.extend_from_slice(b"abc");
        Protocol::Memcached.push_get(b"user1", &mut out);
        Protocol::Memcached.push_set(b"user1", 3, &mut out, push);
        assert_eq!(out, b"get user1\r\nset user1 0 0 3\r\nabc\r\n");
        out.clear();
        Protocol::Redis.push_get(b"user1", &mut out);
        Protocol::Redis.push_set(b"user1", 3, &mut out, push);
        assert_eq!(
            out,
            b"*2\r\n$3\r\nGET\r\n$5\r\nuser1\r\n*3\r\n$3\r\nSET\r\n$5\r\nuser1\r\n$3\r\nabc\r\n"
        );
    }

    /// Each reply with bytes of the next one behind it, and each of its prefixes.
    #[test]
    fn a_reply_is_found_whole_and_every_part_of_it_is_a_part() {
        let memcached: [(&[u8], Reply<'_>); 5] = [
            (
                b"VALUE user1 0 4\r\na\r\nb\r\nEND\r\n",
                Reply::Value(b"a\r\nb"),
            ),
            (b"END\r\n", Reply::Miss),
            (b"STORED\r\n", Reply::Stored),
            (
                b"SERVER_ERROR out of memory\r\n",
                Reply::Refused("SERVER_ERROR out of memory"),
            ),
            (b"ERROR\r\n", Reply::Refused("ERROR")),
        ];
        let redis: [(&[u8], Reply<'_>); 4] = [
            (b"$4\r\na\r\nb\r\n", Reply::Value(b"a\r\nb")),
            (b"$-1\r\n", Reply::Miss),
            (b"+OK\r\n", Reply::Stored),
            (b"-OOM no\r\n", Reply::Refused("-OOM no")),
        ];
        let of = |protocol, replies: &[(&'static [u8], Reply<'static>)]| {
            for (bytes, reply) in replies {
                let mut more = bytes.to_vec();
                more.extend_from_slice(b"VALUE");
                let parsed = Protocol::parse(protocol, &more).unwrap();
                assert_eq!(parsed, Parsed::Whole(*reply, bytes.len()));
                for end in 0..bytes.len() {
                    let part = Protocol::parse(protocol, &bytes[..end]).unwrap();
                    assert_eq!(part, Parsed::Part, "{end} bytes of {bytes:?}");
                }
            }
        };
        of(Protocol::Memcached, &memcached);
        of(Protocol::Redis, &redis);
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for bytes in [
            &b"HELLO\r\n"[..],
            b"VALUE user1 0 x\r\n",
            b"VALUE user1 0 1\r\nabEND\r\n\r\n",
            b"VALUE user1 0 99999999999\r\n",
            b"\xff\xff\r\n",
            &[b'a'; LINE_BYTES_MAX],
        ] {
            assert!(Protocol::Memcached.parse(bytes).is_err(), "{bytes:?}");
        }
        for bytes in [&b":1\r\n"[..], b"$x\r\n", b"$1\r\nabc"] {
            assert!(Protocol::Redis.parse(bytes).is_err(), "{bytes:?}");
        }
    }
}
