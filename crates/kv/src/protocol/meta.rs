//! Meta commands: `mg`, `ms`, `md`, `ma` and `me`, and their flags.
//!
//! All four share one set of flags, as in memcached: a flag that a command has no use for is
//! accepted, and its number must be one. Which fault is told where a line has two is memcached's
//! choice, too.

use super::error::Error;
use super::exptime::Exptime;
use super::key::{KEY_BYTES_MAX, MetaKey};
use super::limits::Dialect;
use super::numbers::{signed, unsigned, unsigned_low};
use super::request::{Direction, Request, StoreMode};
use super::words::{Line, Words};

/// Words of a meta command at most, its name and key included.
const META_WORDS_MAX: usize = 19;
/// Longest opaque token, its `O` included.
const OPAQUE_BYTES_MAX: usize = 32;

/// One flag of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MetaFlag<'a> {
    /// Which.
    pub letter: u8,
    /// What stands behind it.
    pub token: &'a [u8],
}

/// The flags of a request, in their order: the order of what is answered to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetaFlags<'a>(Words<'a>);

impl<'a> Iterator for MetaFlags<'a> {
    type Item = MetaFlag<'a>;

    fn next(&mut self) -> Option<MetaFlag<'a>> {
        let (letter, token) = self.0.next()?.split_first()?;
        Some(MetaFlag {
            letter: *letter,
            token,
        })
    }
}

/// `mg`: show an item, or facts about it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetaGet<'a> {
    /// Which.
    pub key: MetaKey<'a>,
    /// All flags, for the answer.
    pub flags: MetaFlags<'a>,
    /// `q`: a miss is not answered.
    pub is_quiet: bool,
    /// `v`.
    pub wants_value: bool,
    /// `u`: this does not count as a use of the item.
    pub leaves_no_trace: bool,
    /// `N`: a miss makes an empty item with this expiry time, and wins.
    pub vivify: Option<Exptime>,
    /// `R`: with less time left than this the client wins.
    pub recache: Option<Exptime>,
    /// `T`: the item's new expiry time. Of an item that `N` makes the later one of both counts.
    pub touch: Option<Exptime>,
}

/// `ms`: store an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetaSet<'a> {
    /// Which.
    pub key: MetaKey<'a>,
    /// All flags, for the answer.
    pub flags: MetaFlags<'a>,
    /// `M`; `Cas` where it would be `Set` or `Replace` and `C` is there.
    pub mode: StoreMode,
    /// `q`: success is not answered.
    pub is_quiet: bool,
    /// `F`.
    pub client_flags: u32,
    /// `T`.
    pub exptime: Exptime,
    /// `C`, or 0. With 0 only the mode `Cas` compares.
    pub cas: u64,
    /// `I` in the mode `Cas`: a smaller cas number stores as well, and the item is stale.
    pub invalidates: bool,
    /// `N`: append and prepend make the item on a miss, with this expiry time. Not in 1.6.18.
    pub vivify: Option<Exptime>,
    /// The value.
    pub value: &'a [u8],
}

/// `md`: delete an item, or mark it stale.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetaDelete<'a> {
    /// Which.
    pub key: MetaKey<'a>,
    /// All flags, for the answer.
    pub flags: MetaFlags<'a>,
    /// `q`: success is not answered.
    pub is_quiet: bool,
    /// `C`: the cas number that the item must have, 0 included.
    pub cas: Option<u64>,
    /// `I`: the item stays, stale and with a new cas number; the next client may win it.
    pub invalidates: bool,
    /// `T`: its new expiry time, with `I`.
    pub touch: Option<Exptime>,
    /// `x`: the item stays, without value and client flags. Not in 1.6.18.
    pub removes_value: bool,
}

/// `ma`: count an item up or down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MetaArithmetic<'a> {
    /// Which.
    pub key: MetaKey<'a>,
    /// All flags, for the answer.
    pub flags: MetaFlags<'a>,
    /// `q`: success is not answered, unless it made the item.
    pub is_quiet: bool,
    /// `v`.
    pub wants_value: bool,
    /// `M`.
    pub direction: Direction,
    /// `D`, or 1.
    pub delta: u64,
    /// `J`, or 0: the value that `N` makes.
    pub initial: u64,
    /// `N`: a miss makes the item with this expiry time.
    pub vivify: Option<Exptime>,
    /// `T`: the item's new expiry time. Of an item that `N` makes the later one of both counts.
    pub touch: Option<Exptime>,
    /// `C`: the cas number that the item must have; 0 is any.
    pub cas: u64,
}

/// What flags say, whichever command they are for.
#[derive(Default)]
struct Values {
    has_base64_key: bool,
    is_quiet: bool,
    wants_value: bool,
    leaves_no_trace: bool,
    invalidates: bool,
    removes_value: bool,
    has_long_opaque: bool,
    vivify: Option<Exptime>,
    recache: Option<Exptime>,
    touch: Option<Exptime>,
    client_flags: u32,
    cas: Option<u64>,
    mode: Option<u8>,
    delta: Option<u64>,
    initial: Option<u64>,
}

impl Values {
    /// Reads the flags of a line from word `start`. A flag that is double or unknown ends it; of
    /// other faults the last one is told, and `F` has no words of its own.
    fn new(line: &Line<'_>, start: usize, dialect: Dialect) -> Result<Self, Error> {
        let mut values = Self::default();
        let mut seen = [false; 127];
        let mut fault = None;
        for word in line.from(start) {
            let (letter, token) = (word[0], &word[1..]);
            match seen.get_mut(usize::from(letter)) {
                Some(seen) if !*seen => *seen = true,
                _ => return Err(Error::DuplicateFlag),
            }
            match values.flag(letter, token, line, dialect) {
                Ok(()) => {}
                Err(Error::InvalidFlag) => return Err(Error::InvalidFlag),
                Err(Error::BadFormat) => fault = fault.or(Some(Error::BadFormat)),
                Err(error) => fault = Some(error),
            }
        }
        fault.map_or(Ok(values), Err)
    }

    fn flag(
        &mut self,
        letter: u8,
        token: &[u8],
        line: &Line<'_>,
        dialect: Dialect,
    ) -> Result<(), Error> {
        let time = || signed(token).map(Exptime).ok_or(Error::BadToken);
        let number = |error| unsigned(token).ok_or(error);
        match letter {
            b'b' => {
                self.has_base64_key = true;
                MetaKey::new(line.word(1), true).ok_or(Error::BadBase64)?;
            }
            b'N' => self.vivify = Some(time()?),
            b'T' => self.touch = Some(time()?),
            b'R' => self.recache = Some(time()?),
            b'C' => self.cas = Some(number(Error::BadToken)?),
            b'J' => self.initial = Some(number(Error::BadInitial)?),
            b'D' => self.delta = Some(number(Error::BadDelta)?),
            b'F' => self.client_flags = unsigned_low(token).ok_or(Error::BadFormat)?,
            b'M' => match token {
                [mode] => self.mode = Some(*mode),
                _ => return Err(Error::ModeLength),
            },
            b'O' => self.has_long_opaque = token.len() >= OPAQUE_BYTES_MAX,
            b'q' => self.is_quiet = true,
            b'v' => self.wants_value = true,
            b'u' => self.leaves_no_trace = true,
            b'I' => self.invalidates = true,
            b'k' | b's' | b't' | b'c' | b'f' | b'l' | b'h' | b'P' | b'L' => {}
            b'x' if dialect == Dialect::Later => self.removes_value = true,
            _ => return Err(Error::InvalidFlag),
        }
        Ok(())
    }

    fn opaque(&self) -> Result<(), Error> {
        if self.has_long_opaque {
            return Err(Error::OpaqueLength);
        }
        Ok(())
    }

    /// The key, which [`Values::new`] has decoded once.
    fn key<'a>(&self, line: &Line<'a>) -> Result<MetaKey<'a>, Error> {
        MetaKey::new(line.word(1), self.has_base64_key).ok_or(Error::BadBase64)
    }
}

/// What all but `me` check first: that there is a key, how long it is, and how many words there are.
fn check(line: &Line<'_>, too_many: Error) -> Result<(), Error> {
    if line.count() < 2 {
        return Err(Error::Unknown);
    }
    if line.word(1).len() > KEY_BYTES_MAX {
        return Err(Error::BadFormat);
    }
    if line.count() > META_WORDS_MAX {
        return Err(too_many);
    }
    Ok(())
}

/// `mg`.
pub(super) fn get<'a>(line: &Line<'a>, dialect: Dialect) -> Result<Request<'a>, Error> {
    check(line, Error::TooManyFlagsGet)?;
    let values = Values::new(line, 2, dialect)?;
    values.opaque()?;
    Ok(Request::MetaGet(MetaGet {
        key: values.key(line)?,
        flags: MetaFlags(line.all_from(2)),
        is_quiet: values.is_quiet,
        wants_value: values.wants_value,
        leaves_no_trace: values.leaves_no_trace,
        vivify: values.vivify,
        recache: values.recache,
        touch: values.touch,
    }))
}

/// `ms`, without its value, and how long that is; or an error and how many bytes to pass over.
pub(super) fn set<'a>(
    line: &Line<'a>,
    dialect: Dialect,
) -> Result<(MetaSet<'a>, usize), (Error, u64)> {
    let whole = |error| (error, 0);
    if line.count() == 2 {
        return Err(whole(Error::BadFormat));
    }
    check(line, Error::TooManyFlags).map_err(whole)?;
    let length = super::classic::value_bytes(line.word(2)).ok_or(whole(Error::BadFormat))?;
    let skipping = |error| (error, length as u64 + 2);
    let values = Values::new(line, 3, dialect).map_err(skipping)?;
    let mode = match values.mode {
        None | Some(b'S') => StoreMode::Set,
        Some(b'E') => StoreMode::Add,
        Some(b'A') => StoreMode::Append,
        Some(b'P') => StoreMode::Prepend,
        Some(b'R') => StoreMode::Replace,
        Some(_) => return Err(skipping(Error::ModeSet)),
    };
    let mode = match (mode, values.cas) {
        (StoreMode::Set | StoreMode::Replace, Some(_)) => StoreMode::Cas,
        _ => mode,
    };
    values.opaque().map_err(skipping)?;
    let set = MetaSet {
        key: values.key(line).map_err(skipping)?,
        flags: MetaFlags(line.all_from(3)),
        mode,
        is_quiet: values.is_quiet,
        client_flags: values.client_flags,
        exptime: values.touch.unwrap_or_default(),
        cas: values.cas.unwrap_or(0),
        invalidates: values.invalidates && mode == StoreMode::Cas,
        vivify: values.vivify.filter(|_| dialect == Dialect::Later),
        value: &[],
    };
    Ok((set, length))
}

/// `md`.
pub(super) fn delete<'a>(line: &Line<'a>, dialect: Dialect) -> Result<Request<'a>, Error> {
    check(line, Error::TooManyFlags)?;
    let values = Values::new(line, 2, dialect).map_err(|_| Error::FaultyFlag)?;
    values.opaque()?;
    Ok(Request::MetaDelete(MetaDelete {
        key: values.key(line)?,
        flags: MetaFlags(line.all_from(2)),
        is_quiet: values.is_quiet,
        cas: values.cas,
        invalidates: values.invalidates,
        touch: values.touch,
        removes_value: values.removes_value,
    }))
}

/// `ma`.
pub(super) fn arithmetic<'a>(line: &Line<'a>, dialect: Dialect) -> Result<Request<'a>, Error> {
    check(line, Error::TooManyFlags)?;
    let values = Values::new(line, 2, dialect).map_err(|_| Error::FaultyFlag)?;
    let direction = match values.mode {
        None | Some(b'I' | b'+') => Direction::Up,
        Some(b'D' | b'-') => Direction::Down,
        Some(_) => return Err(Error::ModeArithmetic),
    };
    values.opaque()?;
    Ok(Request::MetaArithmetic(MetaArithmetic {
        key: values.key(line)?,
        flags: MetaFlags(line.all_from(2)),
        is_quiet: values.is_quiet,
        wants_value: values.wants_value,
        direction,
        delta: values.delta.unwrap_or(1),
        initial: values.initial.unwrap_or(0),
        vivify: values.vivify,
        touch: values.touch,
        cas: values.cas.unwrap_or(0),
    }))
}

/// `me`, which looks at no other flag than a `b` right after the key.
pub(super) fn debug<'a>(line: &Line<'a>) -> Result<Request<'a>, Error> {
    if line.count() < 2 || line.word(1).len() > KEY_BYTES_MAX {
        return Err(Error::BadFormat);
    }
    MetaKey::new(line.word(1), line.word(2) == b"b")
        .map(Request::MetaDebug)
        .ok_or(Error::BadFormat)
}
