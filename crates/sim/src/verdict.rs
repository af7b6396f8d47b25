//! Whether an injected fault is found: only what a checker reports counts.
//!
//! A run that panics has met an assertion, and says nothing of what the simulator sees. A run that
//! is refused has simulated nothing. And what is found has to be the mistake's doing: the same run
//! without it breaks no promise.

use std::ops::RangeInclusive;

use crate::report::caught;

/// What became of a run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// Every promise was kept.
    Kept,
    /// A checker saw this one broken.
    Broken(String),
    /// The code panicked, and said this.
    Panicked(String),
}

impl Verdict {
    /// Of a run that catches its panics itself.
    #[must_use]
    pub fn new(violation: Option<String>, has_panicked: bool) -> Self {
        match violation {
            None => Self::Kept,
            Some(what) if has_panicked => Self::Panicked(what),
            Some(what) => Self::Broken(what),
        }
    }

    /// Of a run that gives the first promise that was broken.
    pub fn of(run: impl FnOnce() -> Option<String>) -> Self {
        match caught(run) {
            Ok(violation) => Self::new(violation, false),
            Err(panic) => Self::Panicked(panic),
        }
    }
}

/// Looks for a mistake in runs of these seeds, until a checker sees it, and says in which and what.
///
/// # Errors
/// No checker saw it; or the same run without it breaks a promise, too.
pub fn search(
    seeds: impl IntoIterator<Item = u64>,
    mut faulty: impl FnMut(u64) -> Verdict,
    sound: impl FnOnce(u64) -> Verdict,
) -> Result<(u64, String), String> {
    let mut panics = Vec::new();
    for seed in seeds {
        match faulty(seed) {
            Verdict::Kept => {}
            Verdict::Panicked(what) => panics.push(format!("seed {seed}: {what}")),
            Verdict::Broken(what) => {
                return match sound(seed) {
                    Verdict::Kept => Ok((seed, what)),
                    other => Err(format!("seed {seed} without the mistake: {other:?}")),
                };
            }
        }
    }
    Err(format!("no checker saw it; panics: {panics:?}"))
}

/// Looks for each of these mistakes in its own runs of these seeds, and says which no checker sees.
///
/// `run` has the world that leads to the first mistake, and makes the second one.
pub fn missed<F: Copy>(
    mistakes: &[(&str, F)],
    seeds: RangeInclusive<u64>,
    run: impl Fn(u64, F, Option<F>) -> Verdict,
) -> Vec<String> {
    let mut missed = Vec::new();
    for &(name, mistake) in mistakes {
        let faulty = |seed| run(seed, mistake, Some(mistake));
        let sound = |seed| run(seed, mistake, None);
        match search(seeds.clone(), faulty, sound) {
            Ok((seed, how)) => println!("{name}: seed {seed}: {how}"),
            Err(why) => missed.push(format!("{name}: {why}")),
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(_: u64) -> Verdict {
        Verdict::Kept
    }

    #[test]
    fn a_mistake_is_found_by_a_checker_and_where_it_is_not_made_nothing_is() {
        let faulty = |seed| match seed {
            3 => Verdict::of(|| Some("a lost page".to_owned())),
            _ => Verdict::of(|| None),
        };
        let found = search(1..=6, faulty, kept);
        assert_eq!(found, Ok((3, "a lost page".to_owned())));
        let broken = |_| Verdict::Broken("as well".to_owned());
        assert!(search(1..=6, faulty, broken).is_err());
        assert!(search(1..=2, faulty, kept).is_err());
    }

    #[test]
    fn a_panic_is_no_find_and_is_told() {
        let faulty = |seed: u64| match seed {
            1 => Verdict::of(|| panic!("no slab {seed}")),
            _ => Verdict::new(Some("it panics: here".to_owned()), true),
        };
        let missed = search(1..=2, faulty, kept).unwrap_err();
        assert!(missed.contains("no slab 1") && missed.contains("it panics: here"));
    }
}
