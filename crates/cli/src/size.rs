//! Sizes as people write them, parsed in this one place.
//!
//! A size is a whole number of bytes with an optional suffix: `K`, `M`, `G`, `T`
//! or `KiB`, `MiB`, `GiB`, `TiB` (any case), all powers of 1024. `MB` is refused,
//! because half of its readers take it for a power of 1000.

use std::fmt;
use std::str::FromStr;

/// A count of bytes. Displays as the largest unit that divides it.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Size(pub u64);

impl Size {
    /// The count of bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }

    /// Rounded to three digits, for tables: `1.23 GiB`.
    pub fn rounded(self) -> String {
        let (suffix, unit) = UNITS
            .into_iter()
            .rev()
            .find(|&(_, unit)| self.0 >= unit)
            .unwrap_or(("", 1));
        if unit == 1 {
            return format!("{} B", self.0);
        }
        let value = self.0 as f64 / unit as f64;
        let decimals = if value >= 100.0 {
            0
        } else if value >= 10.0 {
            1
        } else {
            2
        };
        format!("{value:.decimals$} {suffix}iB")
    }
}

const UNITS: [(&str, u64); 4] = [
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
    ("T", 1 << 40),
];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let trimmed = text.trim();
        let digits = trimmed.bytes().take_while(u8::is_ascii_digit).count();
        let (number, suffix) = trimmed.split_at(digits);
        let suffix = suffix.trim_start().to_ascii_uppercase();
        if number.is_empty() {
            return Err(SizeError::Malformed);
        }
        let number: u64 = number.parse().map_err(|_| SizeError::TooLarge)?;
        let unit = match suffix.as_str() {
            "" | "B" => 1,
            "KB" | "MB" | "GB" | "TB" => return Err(SizeError::Ambiguous),
            _ => {
                let letter = suffix.strip_suffix("IB").unwrap_or(&suffix);
                let found = UNITS.into_iter().find(|&(name, _)| name == letter);
                found.ok_or(SizeError::Malformed)?.1
            }
        };
        number
            .checked_mul(unit)
            .map(Self)
            .ok_or(SizeError::TooLarge)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = UNITS
            .into_iter()
            .rev()
            .find(|&(_, unit)| self.0 != 0 && self.0.is_multiple_of(unit));
        match whole {
            Some((suffix, unit)) => write!(f, "{}{suffix}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Why a text is no size.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SizeError {
    /// Not digits followed by a known suffix.
    Malformed,
    /// `MB` and its like.
    Ambiguous,
    /// More than 2^64 - 1 bytes.
    TooLarge,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "use a whole number and K, M, G or T, as in 512M or 2GiB",
            Self::Ambiguous => "only powers of 1024 are supported: use MiB or M in place of MB",
            Self::TooLarge => "larger than 2^64 bytes",
        })
    }
}

impl std::error::Error for SizeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_suffix_is_a_power_of_1024() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("17B", 17),
            ("1k", 1024),
            ("1 KiB", 1024),
            ("512M", 536_870_912),
            ("2GiB", 2_147_483_648),
            ("1t", 1_099_511_627_776),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_its_reason() {
        for text in ["", "M", "1.5G", "-1", "1X", "1iB", "1KiBB", "0x10"] {
            assert_eq!(text.parse::<Size>(), Err(SizeError::Malformed), "{text}");
        }
        assert_eq!("512MB".parse::<Size>(), Err(SizeError::Ambiguous));
        assert_eq!("16777216T".parse::<Size>(), Err(SizeError::TooLarge));
        assert_eq!(
            "99999999999999999999".parse::<Size>(),
            Err(SizeError::TooLarge)
        );
    }

    #[test]
    fn display_parses_back_to_the_same_bytes() {
        for bytes in [0, 1, 1023, 1024, 1536, 1 << 20, (1 << 30) + 512, u64::MAX] {
            assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }
        assert_eq!(Size(1536).to_string(), "1536");
        assert_eq!(Size(3 << 30).to_string(), "3G");
    }

    #[test]
    fn rounding_keeps_three_digits() {
        assert_eq!(Size(1000).rounded(), "1000 B");
        assert_eq!(Size(1536).rounded(), "1.50 KiB");
        assert_eq!(Size(512 << 20).rounded(), "512 MiB");
        assert_eq!(Size(12 << 40).rounded(), "12.0 TiB");
    }
}
