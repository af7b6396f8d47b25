//! The placement that a user asks for, as text and as a value.

use std::fmt;
use std::str::FromStr;

use super::Policy;

/// How the hosts of a volume's stripes are chosen.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Placement {
    /// By one policy over all hosts.
    Policy(Policy),
    /// Inside groups of k+r and this many more.
    CodingSets {
        /// l.
        spare: usize,
    },
}

/// Most hosts that a group has beyond k+r: at more the odds of loss are those of random hosts.
const SPARE_MAX: usize = 64;

/// l where none is given: the paper's.
const SPARE: usize = 2;

/// A text that names no placement.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "{0:?} is no placement: coding-sets, coding-sets:L with L up to {SPARE_MAX}, least-loaded, two-choices, single or random"
)]
pub struct PlacementError(String);

impl Placement {
    /// Over all hosts: what is on one host alone is spread as its paper does, and the members of a
    /// stripe go where there is most room.
    #[must_use]
    pub fn over_all_hosts(r: usize) -> Self {
        Self::Policy(match r {
            0 => Policy::TwoChoices,
            _ => Policy::LeastLoaded,
        })
    }

    /// What protects a volume best where nothing was asked for. With two groups or more it is
    /// `CodingSets`. With fewer hosts every choice of k+r meets every other in more than r hosts
    /// anyway, and a single group would leave the rest of the hosts without work.
    #[must_use]
    pub fn usual(k: usize, r: usize, hosts: usize) -> Self {
        let two_groups = 2 * (k + r + SPARE);
        if r > 0 && hosts >= two_groups {
            Self::CodingSets { spare: SPARE }
        } else {
            Self::over_all_hosts(r)
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CodingSets { spare } => write!(f, "coding-sets:{spare}"),
            Self::Policy(Policy::LeastLoaded) => f.write_str("least-loaded"),
            Self::Policy(Policy::TwoChoices) => f.write_str("two-choices"),
            Self::Policy(Policy::Single) => f.write_str("single"),
            Self::Policy(Policy::Random) => f.write_str("random"),
        }
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, PlacementError> {
        let refused = || PlacementError(text.to_owned());
        Ok(match text {
            "coding-sets" => Self::CodingSets { spare: SPARE },
            "least-loaded" => Self::Policy(Policy::LeastLoaded),
            "two-choices" => Self::Policy(Policy::TwoChoices),
            "single" => Self::Policy(Policy::Single),
            "random" => Self::Policy(Policy::Random),
            _ => {
                let spare = text.strip_prefix("coding-sets:").ok_or_else(refused)?;
                let spare: usize = spare.parse().map_err(|_| refused())?;
                if spare > SPARE_MAX {
                    return Err(refused());
                }
                Self::CodingSets { spare }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_value_are_the_same() {
        for text in [
            "coding-sets:0",
            "coding-sets:4",
            "least-loaded",
            "two-choices",
            "single",
            "random",
        ] {
            assert_eq!(text.parse::<Placement>().unwrap().to_string(), text);
        }
        let usual: Placement = "coding-sets".parse().unwrap();
        assert_eq!(usual, Placement::CodingSets { spare: 2 });
        for text in [
            "",
            "coding-sets:",
            "coding-sets:65",
            "coding-sets:-1",
            "best",
        ] {
            let error = text.parse::<Placement>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn groups_are_usual_from_two_of_them_on() {
        let usual = |k, r, hosts| Placement::usual(k, r, hosts).to_string();
        assert_eq!(usual(8, 2, 24), "coding-sets:2");
        assert_eq!(usual(8, 2, 23), "least-loaded");
        assert_eq!(usual(1, 1, 8), "coding-sets:2");
        assert_eq!(usual(1, 0, 1000), "two-choices");
    }
}
