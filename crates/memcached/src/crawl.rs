//! `lru_crawler` and `stats cachedump`: the keys of a process with what is known of each, for `memcdump` and
//! scripts that look into a store.
//!
//! A dump goes from worker to worker, each of which is asked for a piece after the other, as the client
//! reads: the walk is by hash, so what is there all the time is shown once. What has ended is removed
//! unasked, so `crawl` has nothing to do; the crawler can be turned off, as scripts do that.

use std::fmt::Write as _;

use cenote_kv::engine::{Item, NEVER, Partition};
use cenote_kv::group::marks::Marks;
use cenote_kv::memory::classes::{CLASSES, class_of, item_bytes};
use cenote_kv::protocol::{Dialect, Words, encode_base64};

use super::backend::Backend;
use super::watch::write_key;

/// A piece is ended when it has so many bytes, or so many stretches of the table were looked at.
const PIECE_BYTES: usize = 32 << 10;
const STRETCHES_MAX: usize = 64;
/// Bytes of a `stats cachedump`, as in memcached.
const DUMP_BYTES_MAX: usize = 2 << 20;

const NO_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
const DISABLED: &[u8] = b"CLIENT_ERROR lru crawler disabled\r\n";
const UNKNOWN: &[u8] = b"ERROR\r\n";

/// What a client wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Command {
    Enable,
    Disable,
    /// Nothing that would have to be done here.
    Done,
    Dump(Walk),
}

/// How items are told.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Format {
    Meta,
    /// As requests.
    Get,
    /// As `stats cachedump` does.
    Class,
}

/// What a worker may tell.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Quota {
    items: u64,
    bytes: u64,
}

impl Quota {
    const ALL: Self = Self {
        items: u64::MAX,
        bytes: u64::MAX,
    };

    fn is_spent(self, told_bytes: usize) -> bool {
        self.items == 0 || told_bytes as u64 >= self.bytes
    }
}

/// A dump under way: where the next piece begins.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Walk {
    format: Format,
    /// Whose piece it is.
    pub(super) worker: usize,
    partition: usize,
    from: u64,
    /// Those whose items are told, as bits.
    classes: u64,
    /// Of each worker, and what is left of it to this one.
    quota: Quota,
    left: Quota,
}

/// The classes that are named, as bits; an error where one is none. `all` and `hash` are all.
fn classes(names: &[u8]) -> Result<u64, &'static [u8]> {
    if names == b"all" || names == b"hash" {
        return Ok(u64::MAX);
    }
    let mut classes = 0;
    let names = names.split(|byte| *byte == b',');
    for class in names.filter(|name| !name.is_empty()) {
        let class = number::<usize>(class);
        let class = class.filter(|class| (1..CLASSES).contains(class));
        classes |= 1 << class.ok_or(NO_CLASS)?;
    }
    Ok(classes)
}

fn number<T: std::str::FromStr>(word: &[u8]) -> Option<T> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

impl Command {
    /// Reads the words after `lru_crawler`; an error is its text.
    pub(super) fn parse(
        mut words: Words<'_>,
        dialect: Dialect,
        is_enabled: bool,
        may_dump: bool,
    ) -> Result<Self, &'static [u8]> {
        let name = words.next().ok_or(UNKNOWN)?;
        let argument = words.next();
        if words.next().is_some() {
            return Err(UNKNOWN);
        }
        let format = match (name, argument) {
            // As memcached answers where it runs already.
            (b"enable", None) if is_enabled => {
                return Err(b"ERROR failed to start lru crawler thread\r\n");
            }
            (b"enable", None) => return Ok(Self::Enable),
            (b"disable", None) => return Ok(Self::Disable),
            (b"sleep" | b"tocrawl", Some(word)) => {
                let bad = b"CLIENT_ERROR bad command line format\r\n";
                let number = number::<u32>(word).ok_or(&bad[..])?;
                return match number > 1_000_000 && name == b"sleep" {
                    true => Err(b"CLIENT_ERROR sleep must be one second or less\r\n"),
                    false => Ok(Self::Done),
                };
            }
            (b"crawl", Some(_)) => None,
            (b"metadump", Some(_)) => Some(Format::Meta),
            (b"mgdump", Some(_)) if dialect == Dialect::Later => Some(Format::Get),
            _ => return Err(UNKNOWN),
        };
        if !is_enabled {
            return Err(DISABLED);
        }
        if format.is_some() && !may_dump {
            return Err(b"ERROR metadump not allowed\r\n");
        }
        let classes = classes(argument.unwrap_or_default())?;
        Ok(match format {
            None => Self::Done,
            Some(format) => Self::Dump(Walk {
                format,
                worker: 0,
                partition: 0,
                from: 0,
                classes,
                quota: Quota::ALL,
                left: Quota::ALL,
            }),
        })
    }
}

impl Walk {
    /// Reads the words after `stats cachedump`, for so many workers; an error is its text.
    pub(super) fn of_class(mut words: Words<'_>, workers: usize) -> Result<Self, &'static [u8]> {
        let mut next = || number::<u32>(words.next()?);
        let (Some(class), Some(items)) = (next(), next()) else {
            return Err(b"CLIENT_ERROR bad command line format\r\n");
        };
        if class as usize >= CLASSES {
            return Err(b"CLIENT_ERROR Illegal slab id\r\n");
        }
        let quota = Quota {
            items: match items {
                0 => u64::MAX,
                items => items.into(),
            },
            bytes: (DUMP_BYTES_MAX / workers) as u64,
        };
        Ok(Self {
            format: Format::Class,
            worker: 0,
            partition: 0,
            from: 0,
            classes: 1 << class,
            quota,
            left: quota,
        })
    }

    /// Whether all pieces have come, of so many workers.
    pub(super) fn is_over(&self, workers: usize) -> bool {
        self.classes == 0 || self.worker == workers
    }

    /// What ends the reply.
    pub(super) fn end(&self) -> &'static [u8] {
        match self.format {
            Format::Meta | Format::Class => b"END\r\n",
            Format::Get => b"EN\r\n",
        }
    }

    /// The text by which the next piece is asked for: a client's has fewer words.
    pub(super) fn text(&self) -> String {
        let format = match self.format {
            Format::Meta => "metadump",
            Format::Get => "mgdump",
            Format::Class => "cachedump",
        };
        let (classes, Quota { items, bytes }) = (self.classes, self.left);
        let (partition, from) = (self.partition, self.from);
        format!("lru_crawler {format} {classes} {partition} {from} {items} {bytes}\r\n")
    }

    fn of_text(mut words: Words<'_>) -> Option<Self> {
        let format = match words.next()? {
            b"metadump" => Format::Meta,
            b"mgdump" => Format::Get,
            b"cachedump" => Format::Class,
            _ => return None,
        };
        let (classes, partition, from) = (
            number(words.next()?)?,
            number(words.next()?)?,
            number(words.next()?)?,
        );
        let left = Quota {
            items: number(words.next()?)?,
            bytes: number(words.next()?)?,
        };
        Some(Self {
            format,
            worker: 0,
            partition,
            from,
            classes,
            quota: left,
            left,
        })
    }

    /// Takes a worker's answer: a line that says where it goes on, unless that was all, and the piece,
    /// which is returned.
    pub(super) fn take<'a>(&mut self, answer: &'a [u8]) -> &'a [u8] {
        let end = answer.iter().position(|byte| *byte == b'\n');
        let (line, piece) = answer.split_at(end.map_or(0, |end| end + 1));
        let mut words = Words::new(line.trim_ascii_end());
        let mut next = || Some((number(words.next()?)?, number(words.next()?)?));
        match next() {
            Some((partition, from)) => {
                (self.partition, self.from) = (partition, from);
                let lines = piece.iter().filter(|byte| **byte == b'\n').count();
                self.left.items = self.left.items.saturating_sub(lines as u64);
                self.left.bytes = self.left.bytes.saturating_sub(piece.len() as u64);
            }
            None => {
                (self.worker, self.partition, self.from) = (self.worker + 1, 0, 0);
                self.left = self.quota;
            }
        }
        piece
    }

    /// Writes a worker's answer to a text's words.
    pub(super) fn answer<B: Backend>(words: Words<'_>, backend: &mut B, out: &mut Vec<u8>) {
        let next = Self::of_text(words).and_then(|walk| walk.write(backend, out));
        let line = next.map_or(String::new(), |(partition, from)| {
            format!("{partition} {from}")
        });
        out.splice(0..0, line.into_bytes().into_iter().chain([b'\n']));
    }

    /// Writes a piece; says where the next one begins.
    fn write<B: Backend>(self, backend: &mut B, out: &mut Vec<u8>) -> Option<(usize, u64)> {
        let mut stretches = 0;
        let mut line = String::new();
        let mut left = self.left;
        let class = self.classes.trailing_zeros() as usize;
        if self.format == Format::Class && backend.class(class).here.items == 0 {
            return None;
        }
        for index in self.partition..backend.partition_count() {
            if !backend.is_here(index) {
                continue;
            }
            let partition = backend.partition(index);
            let mut next = Some(if index == self.partition {
                self.from
            } else {
                0
            });
            while let Some(from) = next {
                if left.is_spent(out.len()) {
                    return None;
                }
                if out.len() >= PIECE_BYTES || stretches == STRETCHES_MAX {
                    return Some((index, from));
                }
                stretches += 1;
                next = partition.walk(from, &mut |key, item| {
                    let is_wanted = self.classes >> item.class(key.len()) & 1 != 0;
                    if !is_wanted || left.is_spent(out.len()) {
                        return;
                    }
                    left.items -= 1;
                    match self.format {
                        Format::Meta => {
                            line.clear();
                            write_meta(&mut line, key, item);
                            out.extend_from_slice(line.as_bytes());
                        }
                        Format::Get => write_get(out, key, item),
                        Format::Class => write_of_class(out, key, item),
                    }
                });
            }
        }
        None
    }
}

fn write_meta(line: &mut String, key: &[u8], item: &Item) {
    line.push_str("key=");
    write_key(line, key);
    let expiry = match item.expiry {
        NEVER => -1,
        expiry => i64::from(expiry),
    };
    let fetched = if item.was_hit { "yes" } else { "no" };
    let bytes = item_bytes(key.len(), item.client_flags, item.value_bytes as usize);
    let (last_use, cas, class) = (item.last_use, item.cas, class_of(bytes));
    writeln!(
        line,
        " exp={expiry} la={last_use} cas={cas} fetch={fetched} cls={class} size={bytes}"
    )
    .expect("a string takes all");
}

fn write_get(out: &mut Vec<u8>, key: &[u8], item: &Item) {
    out.extend_from_slice(b"mg ");
    if item.marks.has(Marks::KEY_BASE64) {
        encode_base64(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    out.extend_from_slice(b"\r\n");
}

fn write_of_class(out: &mut Vec<u8>, key: &[u8], item: &Item) {
    out.extend_from_slice(b"ITEM ");
    out.extend_from_slice(key);
    let facts = format!(" [{} b; {} s]\r\n", item.value_bytes, item.expiry);
    out.extend_from_slice(facts.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_dump_goes_on_is_said_and_understood() {
        let dump = |text: &str| {
            let words = Words::new(text.as_bytes());
            Command::parse(words, Dialect::Later, true, true)
        };
        let Ok(Command::Dump(mut walk)) = dump("mgdump 7,1") else {
            panic!("is a dump");
        };
        assert_eq!(walk.take(b"3 18446744073709551615\nmg a\r\n"), b"mg a\r\n");
        let text = walk.text();
        let words = Words::new(
            text.trim_end()
                .strip_prefix("lru_crawler ")
                .unwrap()
                .as_bytes(),
        );
        assert_eq!(
            Walk::of_text(words).map(|read| read.text()),
            Some(text.clone())
        );
        assert!(dump(std::str::from_utf8(words.rest()).unwrap()).is_err());
        assert_eq!(walk.take(b"\nmg b\r\n"), b"mg b\r\n");
        assert!((walk.worker, walk.partition, walk.from) == (1, 0, 0) && walk.is_over(1));
        assert!(matches!(dump("metadump 2,1,"), Ok(Command::Dump(walk)) if walk.classes == 0b110));
        assert!(matches!(dump("metadump 2"), Ok(Command::Dump(walk)) if walk.classes == 1 << 2));
        let is_known = Command::parse(Words::new(b"mgdump all"), Dialect::V1_6_18, true, true);
        assert_eq!(is_known, Err(UNKNOWN));
    }
    #[test]
    fn a_dump_of_a_class_ends_each_worker_with_its_quota() {
        let of_class = |text: &'static str| Walk::of_class(Words::new(text.as_bytes()), 2);
        let mut walk = of_class("1 3").unwrap();
        assert_eq!(walk.text(), "lru_crawler cachedump 2 0 0 3 1048576\r\n");
        walk.take(b"0 5\nITEM a [1 b; 0 s]\r\nITEM b [1 b; 0 s]\r\n");
        assert_eq!(walk.text(), "lru_crawler cachedump 2 0 5 1 1048538\r\n");
        walk.take(b"\nITEM c [1 b; 0 s]\r\n");
        assert_eq!(walk.text(), "lru_crawler cachedump 2 0 0 3 1048576\r\n");
        assert_eq!(of_class("63 0").unwrap().left.items, u64::MAX);
        for (text, error) in [
            ("", "bad command line format"),
            ("1", "bad command line format"),
            ("x 1", "bad command line format"),
            ("1 -1", "bad command line format"),
            ("64 0", "Illegal slab id"),
            ("4000000000 0", "Illegal slab id"),
        ] {
            let expected = format!("CLIENT_ERROR {error}\r\n");
            assert_eq!(of_class(text).unwrap_err(), expected.as_bytes(), "{text}");
        }
    }
}
