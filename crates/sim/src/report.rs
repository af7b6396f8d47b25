//! What a simulator of a cache, of a coding group or of whole nodes found, and how it runs.
//!
//! The simulator of clusters has a report of its own: it ends with an error where options do not
//! fit together, and shows how far it is.

use std::collections::VecDeque;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::Serialize;

use crate::verdict::Verdict;

/// What a simulation found.
#[derive(Clone, Debug, Default, Eq, PartialEq, Serialize)]
pub struct Report<T> {
    /// As asked for.
    pub seed: u64,
    /// What was done.
    #[serde(flatten)]
    pub tally: T,
    /// The first promise that was broken.
    pub violation: Option<String>,
    /// Whether it ended in a panic, which is what `violation` says then.
    #[serde(skip)]
    pub has_panicked: bool,
    /// The last things that happened before it.
    pub log: VecDeque<String>,
}

impl<T: Default> Report<T> {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            ..Self::default()
        }
    }

    /// What a simulation reports, whose panics are promises that it broke.
    pub(crate) fn of(seed: u64, simulate: impl FnOnce() -> Self) -> Self {
        caught(simulate).unwrap_or_else(|panic| Self {
            violation: Some(panic),
            has_panicked: true,
            ..Self::new(seed)
        })
    }
}

impl<T> Report<T> {
    /// Logs a line, in place of the oldest where there are so many.
    pub(crate) fn note(&mut self, line: String, lines_max: usize) {
        if self.log.len() == lines_max {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    pub(crate) fn violate(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.violation.is_some()
    }

    /// What it says of a mistake that may have been made.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        Verdict::new(self.violation.clone(), self.has_panicked)
    }

    /// The report of a simulation that kept every promise.
    ///
    /// # Panics
    /// It did not; `how` says how to repeat it.
    #[must_use]
    pub fn kept(mut self, how: impl Display) -> Self {
        if let Some(violation) = &self.violation {
            let log = self.log.make_contiguous().join("\n");
            panic!(
                "{log}\nseed {}: {violation}\nto repeat it: {how}",
                self.seed
            );
        }
        self
    }
}

/// A mistake that the code makes in this thread, until this is dropped: an assertion may end the
/// simulation as well.
#[cfg(feature = "injected-faults")]
pub(crate) struct Injection<F>(fn(Option<F>));

#[cfg(feature = "injected-faults")]
impl<F> Injection<F> {
    /// `inject` is the one of the mistake's crate.
    pub(crate) fn new(inject: fn(Option<F>), mistake: Option<F>) -> Self {
        inject(mistake);
        Self(inject)
    }
}

#[cfg(feature = "injected-faults")]
impl<F> Drop for Injection<F> {
    fn drop(&mut self) {
        self.0(None);
    }
}

/// What a simulation gives.
///
/// # Errors
/// It panics, and says this.
pub(crate) fn caught<R>(simulate: impl FnOnce() -> R) -> Result<R, String> {
    catch_unwind(AssertUnwindSafe(simulate)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        format!("it panics: {}", text.unwrap_or(""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_says_is_told() {
        assert_eq!(caught(|| 7), Ok(7));
        assert_eq!(
            caught(|| panic!("as is")),
            Err::<(), _>("it panics: as is".to_owned())
        );
        let said = caught(|| panic!("page {}", 3));
        assert_eq!(said, Err::<(), _>("it panics: page 3".to_owned()));
    }
}
