//! One fill, as the filler is asked for it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cenote_fabric::{PeerId, Region};
use cenote_pool::control::{FILL_BYTES_MAX, K_MAX, R_MAX, Source};

/// The numbers of a fill, which must fit together.
#[derive(Clone, Debug)]
pub(crate) struct Fill {
    /// The split to compute.
    pub split: u8,
    /// Data splits.
    pub k: u8,
    /// Parity splits.
    pub r: u8,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range.
    pub len_bytes: u64,
    /// Where `k` others are, or more to compare with each other.
    pub sources: Vec<Source>,
}

impl Fill {
    /// Whether the numbers fit each other and a target of `target_bytes`.
    pub(crate) fn is_sound(&self, target_bytes: u64) -> bool {
        let splits = self.k.saturating_add(self.r);
        let end = self.offset.checked_add(self.len_bytes);
        let fits = |bytes: u64| end.is_some_and(|end| end <= bytes);
        let mut seen = 1_u64 << (self.split & 63);
        let distinct = self.sources.iter().all(|source| {
            let bit = 1_u64 << (source.split & 63);
            let is_new = seen & bit == 0;
            seen |= bit;
            is_new && source.split < splits && fits(source.window.len_bytes)
        });
        (1..=K_MAX).contains(&self.k)
            && self.r <= R_MAX
            && self.split < splits
            && (1..=FILL_BYTES_MAX).contains(&self.len_bytes)
            && fits(target_bytes)
            && self.sources.len() >= usize::from(self.k)
            && distinct
    }
}

/// A fill on its way through the filler.
pub(crate) struct Job {
    /// The session that asked.
    pub peer: PeerId,
    /// Its client.
    pub client: u128,
    /// What the target is a slab of.
    pub volume: u128,
    /// Which of its requests.
    pub request: u64,
    /// What to do; sound.
    pub fill: Fill,
    /// Where the bytes go.
    pub target: Arc<Region>,
    /// Cleared when the asking session ends: nobody waits for the answer then.
    pub wanted: Arc<AtomicBool>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::control::Window;

    fn fill() -> Fill {
        let window = Window {
            id: 1,
            generation: 2,
            len_bytes: 1 << 20,
            rights: 1,
        };
        let source = |split| Source {
            split,
            address: "shm:/s".into(),
            window,
        };
        let sources = [0, 1, 2, 4].map(source).to_vec();
        Fill {
            split: 3,
            k: 4,
            r: 2,
            offset: 4096,
            len_bytes: (1 << 20) - 4096,
            sources,
        }
    }

    #[test]
    fn numbers_that_contradict_each_other_are_refused() {
        let sound = |change: fn(&mut Fill)| {
            let mut fill = fill();
            change(&mut fill);
            fill.is_sound(1 << 20)
        };
        assert!(sound(|_| ()));
        assert!(!sound(|f| f.split = 6), "a split that the code lacks");
        assert!(!sound(|f| f.split = 2), "the target among the sources");
        assert!(!sound(|f| f.sources[1].split = 0), "a source twice");
        assert!(
            !sound(|f| f.sources[1].split = 6),
            "a source that the code lacks"
        );
        assert!(
            !sound(|f| f.sources[1].split = 67),
            "no alias of split 3 by its low bits"
        );
        assert!(
            !sound(|f| f.sources[0].window.len_bytes -= 1),
            "past a source's end"
        );
        assert!(!sound(|f| f.offset += 1), "past the target's end");
        assert!(!sound(|f| f.offset = u64::MAX), "an end that wraps");
        assert!(!sound(|f| f.len_bytes = 0), "nothing");
        assert!(sound(|f| f.k = 3), "one more than k, to compare");
        assert!(!sound(|f| f.k = 5), "fewer sources than k");
        assert!(!sound(|f| {
            f.k = 0;
            f.sources.clear();
        }));
        assert!(!sound(|f| f.r = 9), "more parities than there are");
        assert!(!fill().is_sound(1 << 19));
    }
}
