//! A part of a machine's memory on the command line: a size, or a percentage.

use std::fmt;
use std::str::FromStr;

use cenote_cli::size::{Size, SizeError};

/// So many bytes, or so many of each thousand.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Share {
    Size(Size),
    PerMille(u16),
}

impl From<Share> for cenote_host::Share {
    fn from(share: Share) -> Self {
        match share {
            Share::Size(size) => Self::Bytes(size.bytes()),
            Share::PerMille(share) => Self::PerMille(share),
        }
    }
}

impl FromStr for Share {
    type Err = ShareError;

    fn from_str(text: &str) -> Result<Self, ShareError> {
        let Some(percent) = text.trim().strip_suffix('%') else {
            return text.parse().map(Self::Size).map_err(ShareError::Size);
        };
        let (whole, tenth) = percent.split_once('.').unwrap_or((percent, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !is_number(whole) || !is_number(tenth) || tenth.len() > 1 {
            return Err(ShareError::Percent);
        }
        let number = format!("{whole}{tenth}").parse();
        match number {
            Ok(share @ 1..=999) => Ok(Self::PerMille(share)),
            _ => Err(ShareError::Percent),
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(size) => size.fmt(f),
            Self::PerMille(share) if share % 10 == 0 => write!(f, "{}%", share / 10),
            Self::PerMille(share) => write!(f, "{}.{}%", share / 10, share % 10),
        }
    }
}

/// Why a text is no share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ShareError {
    /// Not above 0% and below 100%, or finer than a tenth.
    Percent,
    /// Not a size either.
    Size(SizeError),
}

impl fmt::Display for ShareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent => f.write_str("use 0.1% to 99.9%, or a size as in 8G"),
            Self::Size(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ShareError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_sizes_are_read_and_written_alike() {
        for (text, share) in [
            ("25%", Share::PerMille(250)),
            ("12.5%", Share::PerMille(125)),
            ("0.1%", Share::PerMille(1)),
            ("99.9%", Share::PerMille(999)),
            ("8G", Share::Size(Size(8 << 30))),
            ("0", Share::Size(Size(0))),
        ] {
            assert_eq!(text.parse(), Ok(share), "{text}");
            assert_eq!(share.to_string(), text);
        }
    }

    #[test]
    fn what_is_no_share_is_refused() {
        for text in [
            "0%", "100%", "12.55%", "%", ".5%", "5.%", "-1%", "1e1%", "9999999%",
        ] {
            assert_eq!(text.parse::<Share>(), Err(ShareError::Percent), "{text}");
        }
        assert_eq!(
            "8GB".parse::<Share>(),
            Err(ShareError::Size(SizeError::Ambiguous))
        );
    }
}
