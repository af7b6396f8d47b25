//! How a repair gives way to writes that meet its chunk: what is fenced next, and for how long.
//!
//! A write that meets a fenced chunk goes through its gate at once and makes it void (`fence::Gate`). Then
//! less is fenced at a time: half, and half again, until a chunk is so small that it is filled within the time
//! that a write may wait. From there on writes wait, twice as long each time: a repair ends whatever is
//! written. Each chunk that nobody went through takes one step back.
//!
//! Invariant: a chunk is part of the slab only once its gate was closed before any write went through.

use std::time::Duration;

use crate::control::pace::Step;

/// Slab bytes of a chunk after one was void, before it is halved.
const BACKED_OFF_BYTES: u64 = 128 << 10;
/// Chunks that are void before writes are to wait for one.
const FREE: u32 = 3;
/// How long they wait for the first that they are to wait for: several times what it takes.
const PATIENCE: Duration = Duration::from_micros(500);
/// From here on patience is long enough for any target: as long as a fill may take.
const MOST: u32 = FREE + 14;

const _: () = assert!(PATIENCE.as_micros() << (MOST - FREE) > 8_000_000);

/// What the latest chunks of one repair came to.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Backoff {
    /// How many were void, less those that were not.
    void: u32,
}

impl Backoff {
    /// What the next chunk is to be, where it could be `step`.
    pub fn of(self, step: Step) -> Step {
        match self.void {
            0 => step,
            void => Step {
                fill_bytes: step.fill_bytes.min(BACKED_OFF_BYTES) >> void.min(FREE),
                fills: 1,
                ..step
            },
        }
    }

    /// How long writes wait for it.
    pub fn patience(self) -> Duration {
        match self.void.checked_sub(FREE) {
            None => Duration::ZERO,
            Some(more) => PATIENCE * (1 << more),
        }
    }

    /// A chunk has ended.
    pub fn note(&mut self, is_void: bool) {
        self.void = match is_void {
            true => (self.void + 1).min(MOST),
            false => self.void.saturating_sub(1),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step {
        fill_bytes: 1 << 20,
        fills: 8,
        chunks: 4,
    };

    #[test]
    fn chunks_that_are_void_get_smaller_and_then_writes_wait_for_them() {
        let mut backoff = Backoff::default();
        assert_eq!(
            (backoff.of(STEP), backoff.patience()),
            (STEP, Duration::ZERO)
        );
        for kib in [64, 32, 16] {
            assert_eq!(
                backoff.patience(),
                Duration::ZERO,
                "writes wait for nothing"
            );
            backoff.note(true);
            let step = backoff.of(STEP);
            assert_eq!((step.fill_bytes, step.fills), (kib << 10, 1));
        }
        assert_eq!(backoff.patience(), PATIENCE);
        backoff.note(true);
        assert_eq!(backoff.patience(), PATIENCE * 2);
        assert_eq!(backoff.of(STEP).fill_bytes, 16 << 10, "no smaller");
    }

    #[test]
    fn chunks_that_are_not_take_it_back_step_by_step() {
        let mut backoff = Backoff::default();
        (0..100).for_each(|_| backoff.note(true));
        assert!(
            backoff.patience() > Duration::from_secs(8),
            "any target is done by then"
        );
        (0..MOST).for_each(|_| backoff.note(false));
        assert_eq!(
            (backoff.of(STEP), backoff.patience()),
            (STEP, Duration::ZERO)
        );
        backoff.note(false);
        assert_eq!(backoff.of(STEP), STEP);
    }

    #[test]
    fn what_is_small_already_is_halved_from_there() {
        let mut backoff = Backoff::default();
        backoff.note(true);
        let small = Step {
            fill_bytes: 32 << 10,
            ..STEP
        };
        assert_eq!(backoff.of(small).fill_bytes, 16 << 10);
    }
}
