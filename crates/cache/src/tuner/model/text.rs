//! A model as text, byte for byte as `docs/formats/cache-model.md` says.
//!
//! Whatever the text is, reading it takes memory in proportion to it and to [`TABLES_MAX`] grids.

use std::fmt::Write as _;
use std::str::{FromStr, SplitAsciiWhitespace};

use super::{Key, Model, Transport};
use crate::tuner::{Measurement, Spacing, Table};
use crate::{Configuration, Space, Writes};

/// First word of a file.
const MAGIC: &str = "cenote-cache-model";
/// The version that is written.
const VERSION: u32 = 2;
/// The oldest that is read: its tables are of reads.
const VERSION_OLDEST: u32 = 1;
/// Most tables of a file: arbitrary, far above what is measured.
const TABLES_MAX: usize = 256;
/// Most combinations of levels in a table: the paper's space has 1800.
const POINTS_MAX: usize = 1 << 17;
/// Longest distance: a second.
const DISTANCE_NS_MAX: u64 = 1_000_000_000;
/// Largest record: a region.
const RECORD_BYTES_MAX: u32 = 1 << 30;

impl Model {
    /// The text of a model's file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let space = self.space();
        let (c, s, b, q) = (space.c_max(), space.s_max(), space.b_max(), space.q_max());
        let mut text = format!(
            "{MAGIC} {VERSION}\nspace c={c} s={s} b={b} q={q} levels={}\n",
            self.spacing().name()
        );
        for (key, table) in self.tables() {
            let Key {
                transport,
                distance_ns,
                record_bytes,
                writes,
            } = key;
            let writes = writes.percent();
            writeln!(
                text,
                "table transport={transport} distance_ns={distance_ns} record_bytes={record_bytes} writes={writes}"
            )
            .expect("a string takes it");
            for (Configuration { c, s, b, q }, measured) in table.iter() {
                let Measurement {
                    throughput_per_second,
                    mean_us,
                    p50_us,
                    p99_us,
                } = measured;
                writeln!(
                    text,
                    "{c} {s} {b} {q} {throughput_per_second} {mean_us} {p50_us} {p99_us}"
                )
                .expect("a string takes it");
            }
        }
        text.push_str("end\n");
        text
    }
}

impl FromStr for Model {
    type Err = ModelError;

    fn from_str(text: &str) -> Result<Self, ModelError> {
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            let read = reader.take(line.split_ascii_whitespace());
            read.map_err(|kind| ModelError {
                line: index + 1,
                kind,
            })?;
        }
        let line = text.lines().count() + 1;
        reader.finish().map_err(|kind| ModelError { line, kind })
    }
}

/// What was read so far.
#[derive(Default)]
struct Reader {
    /// Once the first line was read.
    version: Option<u32>,
    model: Option<Model>,
    table: Option<(Key, Table)>,
    ended: bool,
}

impl Reader {
    fn take(&mut self, mut words: SplitAsciiWhitespace<'_>) -> Result<(), Kind> {
        let Some(first) = words.next() else {
            return Ok(());
        };
        if self.version.is_none() {
            return self.take_magic(first, words);
        }
        if first.starts_with('#') {
            return Ok(());
        }
        if self.ended {
            return Err(Kind::AfterEnd);
        }
        match (first, &mut self.model) {
            ("space", None) => self.model = Some(space(words)?),
            (_, None) => return Err(Kind::NoSpace),
            ("space", Some(_)) => return Err(Kind::SecondSpace),
            ("table", Some(_)) => self.take_table(words)?,
            ("end", Some(_)) => {
                self.close_table();
                nothing_after(words)?;
                self.ended = true;
            }
            (_, Some(_)) => self.take_row(first, words)?,
        }
        Ok(())
    }

    fn take_magic(&mut self, first: &str, mut words: SplitAsciiWhitespace<'_>) -> Result<(), Kind> {
        if first != MAGIC {
            return Err(Kind::NoModel);
        }
        match words.next().map(str::parse::<u32>) {
            Some(Ok(version @ VERSION_OLDEST..=VERSION)) => {
                nothing_after(words)?;
                self.version = Some(version);
                Ok(())
            }
            Some(Ok(version)) => Err(Kind::Version(version)),
            _ => Err(Kind::NoModel),
        }
    }

    fn take_table(&mut self, mut words: SplitAsciiWhitespace<'_>) -> Result<(), Kind> {
        self.close_table();
        let model = self.model.as_ref().ok_or(Kind::NoSpace)?;
        let transport: Transport = named(&mut words, "transport")?;
        let distance_ns = named(&mut words, "distance_ns")?;
        let record_bytes = named(&mut words, "record_bytes")?;
        let writes = match self.version {
            Some(VERSION_OLDEST) => Some(Writes::NONE),
            _ => Writes::new(named(&mut words, "writes")?),
        };
        nothing_after(words)?;
        if distance_ns > DISTANCE_NS_MAX {
            return Err(Kind::Range("distance_ns"));
        }
        if !(1..=RECORD_BYTES_MAX).contains(&record_bytes) {
            return Err(Kind::Range("record_bytes"));
        }
        let key = Key {
            transport,
            distance_ns,
            record_bytes,
            writes: writes.ok_or(Kind::Range("writes"))?,
        };
        if model.table(key).is_some() {
            return Err(Kind::SecondTable);
        }
        if model.tables.len() == TABLES_MAX {
            return Err(Kind::Tables);
        }
        self.table = Some((key, Table::new(model.grid(record_bytes))));
        Ok(())
    }

    fn take_row(&mut self, c: &str, mut words: SplitAsciiWhitespace<'_>) -> Result<(), Kind> {
        let (_, table) = self.table.as_mut().ok_or(Kind::NoTable)?;
        let configuration = Configuration {
            c: c.parse().map_err(|_| Kind::Malformed("a row"))?,
            s: next(&mut words, "s")?,
            b: next(&mut words, "b")?,
            q: next(&mut words, "q")?,
        };
        let throughput = next(&mut words, "a throughput")?;
        let mean = next(&mut words, "a mean latency")?;
        let p50 = next(&mut words, "a p50 latency")?;
        let p99 = next(&mut words, "a p99 latency")?;
        nothing_after(words)?;
        let measurement =
            Measurement::new(throughput, mean, p50, p99).ok_or(Kind::Range("a measurement"))?;
        match table.insert(configuration, measurement) {
            Ok(None) => Ok(()),
            Ok(Some(_)) => Err(Kind::SecondRow),
            Err(_) => Err(Kind::NotOnGrid),
        }
    }

    fn close_table(&mut self) {
        if let (Some((key, table)), Some(model)) = (self.table.take(), &mut self.model) {
            model.insert(key, table);
        }
    }

    fn finish(self) -> Result<Model, Kind> {
        match self.model {
            _ if self.version.is_none() => Err(Kind::NoModel),
            Some(model) if self.ended => Ok(model),
            _ => Err(Kind::NoEnd),
        }
    }
}

/// The line `space`.
fn space(mut words: SplitAsciiWhitespace<'_>) -> Result<Model, Kind> {
    let c = named(&mut words, "c")?;
    let s = named(&mut words, "s")?;
    let b = named(&mut words, "b")?;
    let q = named(&mut words, "q")?;
    let levels: String = named(&mut words, "levels")?;
    nothing_after(words)?;
    let spacing = Spacing::ALL.into_iter().find(|one| one.name() == levels);
    let spacing = spacing.ok_or(Kind::Malformed("levels"))?;
    let space = Space::new(c, s, b, q).map_err(|_| Kind::Range("space"))?;
    let model = Model::new(space, spacing);
    // The smallest records have the longest batches.
    match model.grid(1).len() <= POINTS_MAX {
        true => Ok(model),
        false => Err(Kind::Range("space")),
    }
}

/// The value of the next word, which is `name=value`.
fn named<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>, name: &'static str) -> Result<T, Kind> {
    let word = words.next().ok_or(Kind::Malformed(name))?;
    let value = word
        .strip_prefix(name)
        .and_then(|rest| rest.strip_prefix('='));
    let value = value.ok_or(Kind::Malformed(name))?;
    value.parse().map_err(|_| Kind::Malformed(name))
}

fn next<T: FromStr>(words: &mut SplitAsciiWhitespace<'_>, name: &'static str) -> Result<T, Kind> {
    let word = words.next().ok_or(Kind::Malformed(name))?;
    word.parse().map_err(|_| Kind::Malformed(name))
}

fn nothing_after(mut words: SplitAsciiWhitespace<'_>) -> Result<(), Kind> {
    match words.next() {
        None => Ok(()),
        Some(_) => Err(Kind::Malformed("the end of the line")),
    }
}

/// A text that is no model: the line, and what is wrong with it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("line {line}: {kind}")]
pub struct ModelError {
    /// Counted from 1.
    pub line: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
enum Kind {
    #[error("not a model of a cache: it begins with \"{MAGIC} {VERSION}\"")]
    NoModel,
    #[error("version {0} of the format; this program reads {VERSION_OLDEST} to {VERSION}")]
    Version(u32),
    #[error("expected {0}")]
    Malformed(&'static str),
    #[error("{0} is out of range")]
    Range(&'static str),
    #[error("the line \"space\" comes first")]
    NoSpace,
    #[error("a second line \"space\"")]
    SecondSpace,
    #[error("a row before any table")]
    NoTable,
    #[error("a second table for the same")]
    SecondTable,
    #[error("more than {TABLES_MAX} tables")]
    Tables,
    #[error("a second row for this configuration")]
    SecondRow,
    #[error("not a configuration that this model measures")]
    NotOnGrid,
    #[error("something after the line \"end\"")]
    AfterEnd,
    #[error("the file is cut off: there is no line \"end\"")]
    NoEnd,
}
