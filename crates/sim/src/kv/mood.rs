//! What one simulation is like: each draws a character, so that seeds differ in more than details.

use cenote_measure::random::Random;

use super::Options;

/// What goes wrong more often than the rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Focus {
    /// Everything alike.
    Mixed,
    /// Processes that live are taken for dead, and go on.
    Deposed,
    /// Processes die one after the other, while what they had is recovered.
    Recovery,
    /// Processes come back, and take over what was recovered.
    Moves,
    /// Processes leave as planned, and others take over what they have.
    Leaving,
    /// Partitions go to others though nobody leaves, for owners to be spread.
    Spreading,
}

impl Focus {
    /// Each, by the name that people use.
    pub const ALL: [(&str, Self); 6] = [
        ("mixed", Self::Mixed),
        ("deposed", Self::Deposed),
        ("recovery", Self::Recovery),
        ("moves", Self::Moves),
        ("leaving", Self::Leaving),
        ("spreading", Self::Spreading),
    ];

    /// Shares of: deaths, wrong suspicions, broken links, slow links, stalls, processes that leave,
    /// processes that come.
    pub(super) fn shares(self) -> [u64; 7] {
        match self {
            Self::Mixed => [3, 1, 2, 1, 1, 1, 3],
            Self::Deposed => [1, 5, 1, 1, 1, 1, 4],
            Self::Recovery => [5, 1, 2, 3, 1, 1, 5],
            Self::Moves => [2, 1, 2, 3, 1, 1, 6],
            Self::Leaving => [1, 1, 2, 3, 1, 6, 8],
            Self::Spreading => [2, 1, 2, 3, 1, 1, 8],
        }
    }
}

/// Drawn once, from the seed.
#[derive(Clone, Debug)]
pub(super) struct Mood {
    pub(super) focus: Focus,
    /// Nodes that there are beside those of the group.
    pub(super) spares: u64,
    /// Items make room for others.
    pub(super) evicts: bool,
    /// Items expire, and are touched.
    pub(super) is_mortal: bool,
    /// Everything is flushed now and then.
    pub(super) flushes: bool,
    /// Values that are recovered or moved are not in order with operations.
    pub(super) values_apart: bool,
    /// There is a pause without faults half-way.
    pub(super) pauses: bool,
    /// Percent of new views that trouble follows at once.
    pub(super) unsettling: u64,
    /// Percent of the chances to hand a partition over that are taken.
    pub(super) spreads: u64,
    /// Percent of a client's steps after which it does nothing for long.
    pub(super) dozes: u64,
    /// Percent of a client's steps in which it gives up what it waits for.
    pub(super) gives_up: u64,
    /// Percent of clients that keep to whoever served them last.
    pub(super) faithful: u64,
    /// Keys, so few that operations meet.
    pub(super) keys: u64,
    /// The longest value.
    pub(super) value_bytes: u64,
}

impl Mood {
    pub(super) fn draw(random: &mut Random, options: &Options) -> Self {
        let evicts = random.percent(25);
        let region_bytes = options.units * cenote_kv::group::message::UNIT_BYTES;
        // Now and then so much that it does not fit.
        let share = if evicts || random.percent(15) { 3 } else { 7 };
        let (_, drawn) = *random.pick(&Focus::ALL);
        let focus = options.focus.unwrap_or(drawn);
        Self {
            focus,
            spreads: match focus {
                Focus::Spreading => 50,
                _ => *random.pick(&[0, 0, 10]),
            },
            spares: random.below(3),
            evicts,
            is_mortal: random.percent(30),
            flushes: random.percent(20),
            values_apart: random.percent(50),
            pauses: random.percent(20),
            unsettling: *random.pick(&[0, 30, 80]),
            dozes: *random.pick(&[0, 2, 8]),
            gives_up: *random.pick(&[0, 1, 4]),
            faithful: *random.pick(&[0, 40, 80]),
            keys: 2 * options.k as u64 + 1,
            value_bytes: (region_bytes / share).min(16_000),
        }
    }
}
