//! Crashes of a store at every write-back and every fence, with any of the unfenced units surviving.
//!
//! A workload of puts, durable puts, deletions, reads and cleaning runs on a model of a medium, under one of
//! the schemes. Then: what was read or acknowledged as durable is there or a newer version is, a value is one
//! that a client wrote whole, no sequence comes twice, what was gone stays gone, and nothing counts
//! as damage. Reads under schemes whose readers do not ask the server promise no more than that a
//! value is whole.

mod life;
pub mod network;
mod oracle;

use cenote_measure::random::Random;
use cenote_store::schemes::{Durable, Scheme};
use cenote_store::{ModelMedium, Pool, PoolConfig, Secret, StoreError};
use serde::Serialize;

use life::{Ended, Life, name};
use oracle::Oracle;

const POOL_BYTES: usize = 40 << 10;
const KEYS: u64 = 5;
const STEPS: u32 = 20;
const SECRET: Secret = Secret::new([7; 16]);
const CONFIG: PoolConfig = PoolConfig {
    entry_count: 16,
    seed: 42,
};
/// Units of persistent memory and of a disk.
const UNITS: [usize; 2] = [8, 512];

/// What came of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Crashes {
    /// The scheme.
    pub scheme: String,
    /// Workloads.
    pub rounds: u64,
    /// Crashes, one at each boundary of each workload.
    pub boundaries: u64,
    /// Each with its seed.
    pub violations: Vec<String>,
}

/// Runs so many workloads from `seed` on, each with a crash at each of its boundaries, up to the first that
/// breaks a promise; `on_round` hears of each.
#[must_use]
pub fn crashes(
    scheme: &dyn Scheme,
    seed: u64,
    rounds: u64,
    on_round: &mut dyn FnMut(u64),
) -> Crashes {
    let mut crashes = Crashes {
        scheme: scheme.name().to_owned(),
        ..Crashes::default()
    };
    for seed in (seed..).take(usize::try_from(rounds).unwrap_or(usize::MAX)) {
        for unit in UNITS {
            let told = |at: Option<u64>, wrong| match at {
                Some(at) => format!("seed {seed}, units of {unit}, boundary {at}: {wrong}"),
                None => format!("seed {seed}, units of {unit}: {wrong}"),
            };
            let boundaries = match run(scheme, seed, unit, None) {
                Ok(boundaries) => boundaries,
                Err(wrong) => {
                    crashes.violations.push(told(None, wrong));
                    return crashes;
                }
            };
            for at in 0..boundaries {
                crashes.boundaries += 1;
                if let Err(wrong) = run(scheme, seed, unit, Some(at)) {
                    crashes.violations.push(told(Some(at), wrong));
                    return crashes;
                }
            }
        }
        crashes.rounds += 1;
        on_round(crashes.rounds);
    }
    crashes
}

/// Runs a workload over several lives. The first crashes at boundary `crash_at`; how many boundaries
/// it had.
fn run(scheme: &dyn Scheme, seed: u64, unit: usize, crash_at: Option<u64>) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let mut chance = Random::new(seed ^ crash_at.unwrap_or(u64::MAX) << 32);
    let mut oracle = Oracle::default();
    let made = Pool::create(ModelMedium::new(POOL_BYTES, unit), CONFIG);
    let mut medium = ModelMedium::clone(made.map_err(|error| error.to_string())?.medium());
    let mut boundaries = 0;
    let mut next_value = 0;
    for life in 0..3 {
        oracle.begin_life();
        medium.crash_at(match life {
            0 => crash_at,
            // Later lives end somewhere, perhaps in their recovery.
            1 => Some(chance.below(40)),
            _ => None,
        });
        let before = medium.clone();
        // Also by programs that know of no secret, before others and after them.
        let secret = (!seed.is_multiple_of(3) || life == 1).then_some(SECRET);
        let after = match Pool::open_with(medium, secret) {
            Err(StoreError::Io(_)) => before,
            Err(error) => return Err(format!("life {life}: {error}")),
            Ok((_, found)) if found.is_damaged() => {
                return Err(format!("life {life}: a crash counts as damage: {found:?}"));
            }
            Ok((pool, _)) => {
                let mut one = Life::new(pool, &mut oracle, scheme, next_value);
                let told = |wrong| format!("life {life}: {wrong}");
                let mut ended = Ended::Through;
                for _ in 0..STEPS {
                    ended = one.step(&mut random).map_err(told)?;
                    if ended == Ended::Crashed {
                        break;
                    }
                }
                next_value = one.next_value;
                let medium = ModelMedium::clone(one.pool.medium());
                if ended == Ended::Through {
                    one.end().map_err(told)?;
                }
                medium
            }
        };
        if life == 0 {
            boundaries = after.boundaries();
        }
        medium = after.crashed(|| chance.below(2) == 0);
    }
    oracle.begin_life();
    let (mut pool, found) =
        Pool::open_with(medium, Some(SECRET)).map_err(|error| error.to_string())?;
    if found.is_damaged() {
        return Err(format!("a crash counts as damage: {found:?}"));
    }
    for key in 0..KEYS {
        let said = pool.get(&name(key)).map_err(|error| error.to_string())?;
        let said = said.map(|one| (one.sequence, one.value));
        oracle.check(key, said, scheme.durable() != Durable::Never)?;
    }
    Ok(boundaries)
}

#[cfg(test)]
mod tests;
