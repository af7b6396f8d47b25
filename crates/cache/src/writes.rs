//! How many of a cache's requests write.

use std::fmt;
use std::str::FromStr;

/// Share of requests that write, in percent; the others read.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Writes(u8);

impl Writes {
    /// All requests read.
    pub const NONE: Self = Self(0);
    /// All requests write.
    pub const ALL: Self = Self(100);

    /// `None` if it is more than 100.
    #[must_use]
    pub fn new(percent: u8) -> Option<Self> {
        (percent <= 100).then_some(Self(percent))
    }

    /// From 0 to 100.
    #[must_use]
    pub fn percent(self) -> u8 {
        self.0
    }

    /// Whether the request that drew `number`, any 64-bit number at even odds, writes.
    #[must_use]
    pub fn has(self, number: u64) -> bool {
        number % 100 < u64::from(self.0)
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

impl FromStr for Writes {
    type Err = NoShare;

    /// `5%` or `5`.
    fn from_str(text: &str) -> Result<Self, NoShare> {
        let number = text.strip_suffix('%').unwrap_or(text);
        let is_plain = number.bytes().all(|byte| byte.is_ascii_digit());
        let percent = number.parse().ok().filter(|_| is_plain);
        percent.and_then(Self::new).ok_or(NoShare)
    }
}

/// A text that is no [`Writes`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a share of the requests, from 0% to 100%")]
pub struct NoShare;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_whole_percentage() {
        assert_eq!("5%".parse(), Ok(Writes(5)));
        assert_eq!("100".parse(), Ok(Writes::ALL));
        for text in ["", "%", "101%", "-1%", "+5%", "5%%", "0.5%", "300"] {
            assert_eq!(text.parse::<Writes>(), Err(NoShare), "{text:?}");
        }
    }

    #[test]
    fn that_share_of_numbers_writes() {
        let mut random = cenote_pool::random::Random::new(1);
        let writes = Writes(5);
        let drawn = (0..100_000).filter(|_| writes.has(random.number())).count();
        assert!((4500..5500).contains(&drawn), "{drawn}");
        assert!(!Writes::NONE.has(0) && Writes::ALL.has(99));
    }
}
