//! Spans of time as people write them: `100us`, `1.5ms`, `2s`, `12h`.
//!
//! Every flag and setting that is a time takes one of these, with its unit, and has no unit in its name.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A span of time, in nanoseconds. Displays in the largest unit that it has one of.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Span {
    /// Nanoseconds, at most those of a century.
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

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_nanos(span.ns)
    }
}

impl From<Duration> for Span {
    /// A longer time than the longest span is that one.
    fn from(time: Duration) -> Self {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(NS_MAX);
        Self { ns: ns.min(NS_MAX) }
    }
}

/// Units in nanoseconds; of suffixes that end others the longer ones come first.
const UNITS: [(&str, u64); 7] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
];
/// A century in nanoseconds.
const NS_MAX: u64 = 36_525 * 86_400_000_000_000;

impl FromStr for Span {
    type Err = SpanError;

    fn from_str(text: &str) -> Result<Self, SpanError> {
        let text = text.trim();
        let unit = UNITS
            .into_iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, unit)));
        // Nothing is nothing in any unit; else a number alone would have to be guessed at.
        let unit = unit.or((text == "0").then_some((text, 1)));
        let (number, unit) = unit.ok_or(SpanError)?;
        let number = number.trim_end();
        let is_plain = number.chars().all(|one| one.is_ascii_digit() || one == '.');
        if !is_plain || number.is_empty() {
            return Err(SpanError);
        }
        let number: f64 = number.parse().map_err(|_| SpanError)?;
        let ns = (number * unit as f64).round();
        let is_within = (0.0..=NS_MAX as f64).contains(&ns);
        is_within.then_some(Self { ns: ns as u64 }).ok_or(SpanError)
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut larger_first = UNITS.into_iter().rev();
        // Minutes and more only where it is whole ones: 90s, not 1.5m.
        let fits = |(_, unit): &(&str, u64)| match *unit > 1_000_000_000 {
            true => self.ns > 0 && self.ns.is_multiple_of(*unit),
            false => self.ns >= *unit,
        };
        let (suffix, unit) = larger_first.find(fits).unwrap_or(("s", 1_000_000_000));
        write!(f, "{}{suffix}", self.ns as f64 / unit as f64)
    }
}

/// A text that is no span.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SpanError;

impl fmt::Display for SpanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "use a number and ns, us, ms, s, m, h or d, as in 500ms or 2s; at most a century",
        )
    }
}

impl std::error::Error for SpanError {}

/// How a flag reads a time from `least` to `most`.
///
/// # Panics
/// One of the two is no span.
pub fn within(
    least: &'static str,
    most: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    let bounds = [least, most].map(|text| text.parse::<Span>().expect("bounds are spans"));
    move |text| {
        let span: Span = text.parse().map_err(|error: SpanError| error.to_string())?;
        let is_within = (bounds[0]..=bounds[1]).contains(&span);
        let refused = || format!("from {least} to {most}");
        is_within.then(|| span.into()).ok_or_else(refused)
    }
}

/// As [`within`], of what counts in whole seconds.
pub fn whole_seconds(
    least: &'static str,
    most: &'static str,
) -> impl Fn(&str) -> Result<Duration, String> + Clone + Send + Sync + 'static {
    let within = within(least, most);
    move |text| {
        let time = within(text)?;
        let is_whole = time.subsec_nanos() == 0;
        let refused = || "whole seconds, minutes, hours or days".to_owned();
        is_whole.then_some(time).ok_or_else(refused)
    }
}

/// As [`within`], of any time: how long to wait, say.
pub fn any(text: &str) -> Result<Duration, SpanError> {
    text.parse::<Span>().map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_with_their_units() {
        for (text, ns) in [
            ("100us", 100_000),
            ("1.5 ms", 1_500_000),
            ("2s", 2_000_000_000),
            ("7ns", 7),
            ("0", 0),
            ("0s", 0),
            ("3m", 180_000_000_000),
            ("12h", 43_200_000_000_000),
            ("7d", 604_800_000_000_000),
        ] {
            assert_eq!(text.parse(), Ok(Span { ns }), "{text}");
        }
    }

    #[test]
    fn a_span_is_written_as_it_is_read() {
        for (text, again) in [
            ("1.5us", "1.5us"),
            ("1500ns", "1.5us"),
            ("0", "0s"),
            ("90s", "90s"),
            ("120s", "2m"),
            ("1.5h", "90m"),
            ("250ms", "250ms"),
            ("2.5s", "2.5s"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!(span.to_string(), again);
            assert_eq!(again.parse(), Ok(span));
        }
    }

    #[test]
    fn what_is_no_span_is_refused() {
        for text in [
            "", "us", "-1us", "1e9s", "1w", "inf", "NaN", "1.2.3us", "36526d", "100",
        ] {
            assert_eq!(text.parse::<Span>(), Err(SpanError), "{text}");
        }
    }

    #[test]
    fn a_flag_refuses_what_is_beyond_its_bounds() {
        let read = within("1ms", "60s");
        assert_eq!(read("60s"), Ok(Duration::from_secs(60)));
        assert_eq!(read("61s"), Err("from 1ms to 60s".to_owned()));
        assert_eq!(read("0"), Err("from 1ms to 60s".to_owned()));
        assert!(whole_seconds("1s", "1h")("1.5s").is_err());
        assert_eq!(whole_seconds("1s", "1h")("2s"), Ok(Duration::from_secs(2)));
    }
}
