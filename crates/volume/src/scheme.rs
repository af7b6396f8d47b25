//! How a page is spread over hosts: `plain`, `mirror:N` or `rs:K+R`.
//!
//! All three are the same thing with other numbers: a page is cut in `k` data splits,
//! `r` more are added, and split `i` lives in member `i` of its stripe. Plain is (1, 0),
//! N copies are (1, N-1).

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use cenote_codec::{Code, DATA_MAX, PARITY_MAX};

use crate::PAGE_BYTES;

/// A redundancy scheme; valid by construction.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Scheme {
    k: usize,
    r: usize,
}

/// Text that names no scheme.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{text:?} is not a scheme: write plain, mirror:N (2 to 9 copies) or rs:K+R (K a power of two up to 32, R from 1 to 8)"
)]
pub struct SchemeError {
    text: String,
}

impl Scheme {
    /// One copy, no resilience.
    pub const PLAIN: Self = Self { k: 1, r: 0 };

    /// Data splits per page.
    #[must_use]
    pub fn k(self) -> usize {
        self.k
    }

    /// Splits that may be lost.
    #[must_use]
    pub fn r(self) -> usize {
        self.r
    }

    /// Members of a stripe.
    #[must_use]
    pub fn members(self) -> usize {
        self.k + self.r
    }

    /// Bytes of a page in one slab.
    #[must_use]
    pub fn split_bytes(self) -> usize {
        PAGE_BYTES / self.k
    }
}

/// How pages are cut, which a stripe's life does not change. How many parities it has may.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cut {
    // Of k, which is a power of two: operations carry a byte.
    log2: u8,
}

/// The cut with the most data splits.
const LOG2_MAX: usize = DATA_MAX.ilog2() as usize;

impl Cut {
    pub fn of(scheme: Scheme) -> Self {
        let log2 = u8::try_from(scheme.k().ilog2()).expect("below 64");
        Self { log2 }
    }

    /// The cut with 2^`log2` data splits.
    pub fn of_log2(log2: u8) -> Self {
        Self { log2 }
    }

    pub fn log2(self) -> u8 {
        self.log2
    }

    /// Data splits per page.
    #[inline]
    pub fn k(self) -> usize {
        1 << self.log2
    }

    /// Bytes of a page in one slab.
    #[inline]
    pub fn split_bytes(self) -> usize {
        PAGE_BYTES >> self.log2
    }

    /// The scheme with so many parities, or further copies.
    pub fn with_parities(self, r: usize) -> Scheme {
        Scheme { k: self.k(), r }
    }

    /// Most splits of a page.
    pub fn splits_max(self) -> usize {
        self.k() + PARITY_MAX
    }
}

/// The codes of every cut with any number of parities; copies need none. One is made when it is first
/// asked for, so whoever makes stripes of another shape asks before anybody codes pages of theirs.
#[derive(Debug)]
pub struct Codes {
    by_cut: [[OnceLock<Code>; PARITY_MAX + 1]; LOG2_MAX + 1],
}

impl Codes {
    pub fn new() -> Self {
        let by_cut = [const { [const { OnceLock::new() }; PARITY_MAX + 1] }; LOG2_MAX + 1];
        Self { by_cut }
    }

    /// The code of a cut with `r` parities; `None`: pages are copied.
    pub fn with(&self, cut: Cut, r: usize) -> Option<&Code> {
        let make = || Code::new(cut.k(), r).expect("a scheme's numbers are in the codec's range");
        (cut.k() > 1).then(|| self.by_cut[usize::from(cut.log2)][r].get_or_init(make))
    }
}

impl FromStr for Scheme {
    type Err = SchemeError;

    fn from_str(text: &str) -> Result<Self, SchemeError> {
        let wrong = || SchemeError {
            text: text.to_owned(),
        };
        if text == "plain" {
            return Ok(Self::PLAIN);
        }
        if let Some(copies) = text.strip_prefix("mirror:") {
            let copies: usize = copies.parse().map_err(|_| wrong())?;
            return if (2..=9).contains(&copies) {
                Ok(Self {
                    k: 1,
                    r: copies - 1,
                })
            } else {
                Err(wrong())
            };
        }
        let (k, r) = text
            .strip_prefix("rs:")
            .and_then(|rest| rest.split_once('+'))
            .ok_or_else(wrong)?;
        let k: usize = k.parse().map_err(|_| wrong())?;
        let r: usize = r.parse().map_err(|_| wrong())?;
        if k.is_power_of_two() && (2..=32).contains(&k) && (1..=8).contains(&r) {
            Ok(Self { k, r })
        } else {
            Err(wrong())
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.k, self.r) {
            (1, 0) => out.write_str("plain"),
            (1, r) => write!(out, "mirror:{}", r + 1),
            (k, r) => write!(out, "rs:{k}+{r}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in [
            "plain", "mirror:2", "mirror:9", "rs:2+1", "rs:8+2", "rs:32+8",
        ] {
            assert_eq!(name.parse::<Scheme>().unwrap().to_string(), name);
        }
    }

    #[test]
    fn refuses_what_cannot_be_laid_out() {
        for name in [
            "",
            "plane",
            "mirror:1",
            "mirror:10",
            "rs:3+2",
            "rs:64+2",
            "rs:8+0",
            "rs:8+9",
            "rs:8",
            "rs:1+1",
        ] {
            assert!(name.parse::<Scheme>().is_err(), "{name}");
        }
    }
}
