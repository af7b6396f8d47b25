//! Spans of time as people write them, for networks: `100us`, `1.5 ms`.

use std::fmt;
use std::str::FromStr;

/// A span of time, in nanoseconds. Displays in microseconds.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Span {
    /// Nanoseconds, at most those of a day.
    ns: u64,
}

impl Span {
    /// Nanoseconds.
    pub const fn ns(self) -> u64 {
        self.ns
    }

    /// Microseconds.
    pub fn us(self) -> f64 {
        self.ns as f64 / 1e3
    }
}

/// Units in nanoseconds; the longer suffixes first, since `s` ends all of them.
const UNITS: [(&str, f64); 4] = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
/// A day in nanoseconds.
const SPAN_NS_MAX: f64 = 86_400e9;

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let text = text.trim();
        let unit = UNITS
            .into_iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
        // Without a unit: microseconds, in which latencies are shown.
        let (number, unit) = unit.unwrap_or((text, 1e3));
        let number = number.trim_end();
        let is_plain = number.chars().all(|one| one.is_ascii_digit() || one == '.');
        if !is_plain || number.is_empty() {
            return Err(SpanError);
        }
        let number: f64 = number.parse().map_err(|_| SpanError)?;
        let ns = (number * unit).round();
        let is_within = (0.0..=SPAN_NS_MAX).contains(&ns);
        is_within.then_some(Self { ns: ns as u64 }).ok_or(SpanError)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}us", self.us())
    }
}

/// A text that is no span.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpanError;

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("write a number and ns, us, ms or s, as in 100us or 1.5ms; a day at most")
    }
}

impl std::error::Error for SpanError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units() {
        for (text, ns) in [
            ("100us", 100_000),
            ("100", 100_000),
            ("1.5 ms", 1_500_000),
            ("2s", 2_000_000_000),
            ("7ns", 7),
            ("0", 0),
        ] {
            assert_eq!(text.parse(), Ok(Span { ns }), "{text}");
        }
        assert_eq!(Span { ns: 1500 }.to_string(), "1.5us");
        assert_eq!(Span { ns: 1500 }.to_string().parse(), Ok(Span { ns: 1500 }));
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in [
            "", "us", "-1us", "1e9s", "1h", "inf", "NaN", "1.2.3us", "86401s",
        ] {
            assert_eq!(text.parse::<Span>(), Err(SpanError), "{text}");
        }
    }
}
