//! Who stands in the table.

use super::Mix;

/// A store that is loaded, and works when it is told to.
pub trait Contender {
    /// For people.
    fn name(&self) -> String;

    /// Works for some seconds; each answer is checked.
    ///
    /// # Errors
    /// It went away, or an answer is wrong.
    fn run(&mut self, mix: Mix, seconds: u64, seed: u64) -> anyhow::Result<Rate>;
}

/// Millions of operations per second.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Of the clock.
    pub clock: f64,
    /// Of the processor time of who works; hosts of a cache and the kernel's own threads are not
    /// counted.
    pub processor: f64,
}
