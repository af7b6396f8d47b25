//! What a volume expects of its hosts, as the command line says it and a volume's file keeps it.

use std::ffi::OsString;

use anyhow::Result;
use cenote_cli::failure::Failure;
use cenote_volume::{Mode, Resilience, Scheme};

/// `--mode` and `--delta`.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Expected {
    /// Resilience mode: failure-recovery (tolerates lost hosts), detection (also reports wrong
    /// splits as errors), correction (also corrects them), ec-only (assumes that hosts stay up,
    /// though slow) [default: failure-recovery]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<Mode>,
    /// Splits to read beyond the K needed; the first K to arrive are used. With detection and
    /// correction also the number of wrong splits in a page that can be detected or corrected. Over
    /// shared memory no split is late, and failure-recovery always reads K [default: 1 with rs:K+R,
    /// and with detection and correction; else 0]
    #[arg(long, value_name = "N")]
    pub delta: Option<usize>,
}

impl Expected {
    /// Whether anything of it was said.
    #[must_use]
    pub fn is_given(&self) -> bool {
        self.mode.is_some() || self.delta.is_some()
    }

    /// The flags that say the same to another process.
    #[must_use]
    pub fn arguments(&self) -> Vec<OsString> {
        let mode = self
            .mode
            .map(|mode| ["--mode".into(), mode.to_string().into()]);
        let delta = self
            .delta
            .map(|delta| ["--delta".into(), delta.to_string().into()]);
        mode.into_iter().chain(delta).flatten().collect()
    }

    /// For a volume of this scheme.
    ///
    /// # Errors
    /// It has too few parities for it.
    pub fn of(&self, scheme: &str) -> Result<Resilience> {
        let scheme: Scheme = scheme.parse()?;
        let mode = self.mode.unwrap_or_default();
        let usual = usual_delta(scheme, mode);
        let resilience = Resilience::new(scheme, mode, self.delta.unwrap_or(usual));
        Ok(resilience
            .map_err(|error| Failure::usage(format!("--mode: {error}"), "--scheme rs:8+3"))?)
    }
}

/// The delta of a volume that is not told one: the paper's, 1. A copy more of each page would double
/// what mirrors read, and EC-only waits for the K that it asks for. Decision 22.
#[must_use]
pub fn usual_delta(scheme: Scheme, mode: Mode) -> usize {
    match mode {
        Mode::Detection | Mode::Correction => 1,
        Mode::FailureRecovery => usize::from(scheme.k() > 1 && scheme.r() > 0),
        Mode::EcOnly => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::Spec;
    use cenote_cli::size::Size;

    #[test]
    fn what_is_said_is_kept_and_said_again() {
        let said = Expected {
            mode: Some(Mode::Correction),
            delta: None,
        };
        let resilience = said.of("rs:8+3").unwrap();
        assert_eq!(
            (resilience.mode(), resilience.delta()),
            (Mode::Correction, 1)
        );
        let mut spec = Spec::new(Size(4096), "rs:8+3").unwrap();
        spec.expect(resilience);
        assert_eq!(spec.resilience().unwrap(), resilience);
        for (scheme, delta) in [("rs:8+2", 1), ("rs:2+1", 1), ("mirror:2", 0), ("plain", 0)] {
            let usual = Expected::default().of(scheme).unwrap();
            let expected = (Mode::FailureRecovery, delta);
            assert_eq!((usual.mode(), usual.delta()), expected, "{scheme}");
        }
        assert_eq!(said.arguments(), ["--mode", "correction"]);
        assert!(said.of("rs:8+2").is_err(), "too few parities");
        spec.scheme = "rs:8+2".to_owned();
        assert!(spec.resilience().is_err());
    }
}
