//! How many splits a page operation sends and waits for: the four modes.
//!
//! | mode | a write is acknowledged by | a read asks for, ends with | on disagreement | needs |
//! |---|---|---|---|---|
//! | failure recovery | all k+r | k+delta, the first k | - | r >= delta |
//! | detection | k+delta | k+delta, all | an error | r >= delta |
//! | correction | k+2 delta+1 | k+delta, all | k+2 delta+1 | r >= 2 delta+1 |
//! | ec-only | k | k, k | - | - |
//!
//! Every mode sends k+r splits of a write. Counts are of a stripe with all its slabs; with fewer,
//! all that are left stand for them. Arithmetic only.
//!
//! Paper: \[hydra22\] 4.1, Table 1.

use std::fmt;
use std::str::FromStr;

use crate::Scheme;

/// What a volume expects of its hosts.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Mode {
    /// They may go. An acknowledged write survives the loss of r.
    #[default]
    FailureRecovery,
    /// Up to delta of a page's splits may be wrong: then reading it is an error.
    Detection,
    /// Up to delta of a page's splits may be wrong: reading it returns what was written.
    Correction,
    /// They stay. Parities are there against slow hosts alone.
    EcOnly,
}

/// A mode and its delta, valid for one scheme.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Resilience {
    mode: Mode,
    delta: usize,
    scheme: Scheme,
}

/// A mode that a scheme has too few parities for.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{mode} with delta {delta} needs at least {needed} more splits than data, and {scheme} has {has}: take a scheme with more, or a smaller delta"
)]
pub struct ResilienceError {
    mode: Mode,
    delta: usize,
    scheme: Scheme,
    needed: usize,
    has: usize,
}

/// Text that names no mode.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0:?} is not a mode: write failure-recovery, detection, correction or ec-only")]
pub struct ModeError(String);

impl Resilience {
    /// A mode and its delta: splits read besides k, or wrong splits to be found or put right.
    ///
    /// # Errors
    /// The scheme has too few parities, or delta is 0 where wrong splits are to be found.
    pub fn new(scheme: Scheme, mode: Mode, delta: usize) -> Result<Self, ResilienceError> {
        let delta_used = match mode {
            Mode::Detection | Mode::Correction => delta.max(1),
            Mode::FailureRecovery | Mode::EcOnly => delta,
        };
        let needed = match mode {
            Mode::FailureRecovery | Mode::Detection => delta_used,
            Mode::Correction => delta_used.saturating_mul(2).saturating_add(1),
            Mode::EcOnly => 0,
        };
        if needed > scheme.r() || delta_used != delta {
            return Err(ResilienceError {
                mode,
                delta,
                scheme,
                needed,
                has: scheme.r(),
            });
        }
        Ok(Self {
            mode,
            delta,
            scheme,
        })
    }

    /// Failure recovery, with one split more than needed read where the scheme has one.
    #[must_use]
    pub fn of(scheme: Scheme) -> Self {
        Self {
            mode: Mode::FailureRecovery,
            delta: scheme.r().min(1),
            scheme,
        }
    }

    /// What becomes of a mode in a stripe, which may have fewer parities than it needs while they are
    /// being made, and more while they are given up.
    pub(crate) fn in_stripe(mode: Mode, delta: usize, stripe: Scheme) -> Self {
        Self {
            mode,
            delta,
            scheme: stripe,
        }
    }

    /// The scheme that it is valid for.
    #[must_use]
    pub fn scheme(self) -> Scheme {
        self.scheme
    }

    /// The mode.
    #[must_use]
    pub fn mode(self) -> Mode {
        self.mode
    }

    /// Splits read besides k, or wrong splits to be found or put right.
    #[must_use]
    pub fn delta(self) -> usize {
        self.delta
    }

    /// Splits that must have arrived before a write is acknowledged.
    #[must_use]
    pub fn write_acks(self) -> usize {
        let k = self.scheme.k();
        match self.mode {
            Mode::FailureRecovery => self.scheme.members(),
            Mode::Detection => k + self.delta,
            Mode::Correction => k + 2 * self.delta + 1,
            Mode::EcOnly => k,
        }
    }

    /// Splits that a read asks for at first.
    #[must_use]
    pub fn read_splits(self) -> usize {
        match self.mode {
            Mode::EcOnly => self.scheme.k(),
            _ => self.scheme.k() + self.delta,
        }
    }

    /// Of those, how many it waits for.
    #[must_use]
    pub fn read_waits(self) -> usize {
        match self.mode {
            Mode::FailureRecovery | Mode::EcOnly => self.scheme.k(),
            Mode::Detection | Mode::Correction => self.scheme.k() + self.delta,
        }
    }

    /// Splits that it takes to put a wrong one right, at most.
    #[must_use]
    pub fn correction_splits(self) -> usize {
        (self.scheme.k() + 2 * self.delta + 1).min(self.scheme.members())
    }

    /// Whether splits are compared with each other when they are read.
    #[must_use]
    pub fn compares(self) -> bool {
        matches!(self.mode, Mode::Detection | Mode::Correction)
    }
}

impl fmt::Display for Resilience {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {} delta {}", self.scheme, self.mode, self.delta)
    }
}

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text {
            "failure-recovery" => Ok(Self::FailureRecovery),
            "detection" => Ok(Self::Detection),
            "correction" => Ok(Self::Correction),
            "ec-only" => Ok(Self::EcOnly),
            _ => Err(ModeError(text.to_owned())),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::FailureRecovery => "failure-recovery",
            Self::Detection => "detection",
            Self::Correction => "correction",
            Self::EcOnly => "ec-only",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(text: &str) -> Scheme {
        text.parse().expect("a valid scheme")
    }

    /// Acknowledgements, splits asked for, splits waited for: Table 1 of the paper with k = 8.
    #[test]
    fn counts_are_those_of_the_papers_table() {
        let counts = |text: &str, mode, delta| {
            let it = Resilience::new(scheme(text), mode, delta).expect("enough parities");
            (it.write_acks(), it.read_splits(), it.read_waits())
        };
        assert_eq!(counts("rs:8+2", Mode::FailureRecovery, 1), (10, 9, 8));
        assert_eq!(counts("rs:8+2", Mode::FailureRecovery, 0), (10, 8, 8));
        assert_eq!(counts("rs:8+2", Mode::Detection, 1), (9, 9, 9));
        assert_eq!(counts("rs:8+3", Mode::Correction, 1), (11, 9, 9));
        assert_eq!(counts("rs:8+2", Mode::EcOnly, 1), (8, 8, 8));
        assert_eq!(counts("mirror:2", Mode::EcOnly, 0), (1, 1, 1));
        assert_eq!(counts("mirror:3", Mode::Detection, 1), (2, 2, 2));
        assert_eq!(counts("plain", Mode::FailureRecovery, 0), (1, 1, 1));
    }

    #[test]
    fn a_mode_without_the_parities_for_it_is_refused() {
        for (text, mode, delta) in [
            ("plain", Mode::Detection, 1),
            ("rs:8+2", Mode::Correction, 1),
            ("rs:8+2", Mode::Detection, 3),
            ("rs:8+2", Mode::FailureRecovery, 3),
            ("rs:8+2", Mode::Detection, 0),
            ("rs:8+3", Mode::Correction, usize::MAX),
        ] {
            let refused = Resilience::new(scheme(text), mode, delta);
            assert!(refused.is_err(), "{text} {mode} {delta}");
        }
    }

    #[test]
    fn names_round_trip() {
        for name in ["failure-recovery", "detection", "correction", "ec-only"] {
            assert_eq!(name.parse::<Mode>().unwrap().to_string(), name);
        }
        assert!("ec".parse::<Mode>().is_err());
    }
}
