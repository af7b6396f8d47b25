//! Deliberately broken behaviour, chosen at run time: a test that misses one of these tests nothing.

use super::message::Message;
use super::net::Net;
use crate::Generation;
use crate::windows::WindowTable;

/// Which guarantees are broken.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InjectedFaults {
    /// Bytes that were under way when their window was revoked land in the one that has its place
    /// now. The verb's status still tells the truth.
    pub lands_after_revoke: bool,
    /// Verbs that carry an old generation act on the window that has its place now.
    pub accepts_old_generations: bool,
    /// Messages of one connection may overtake each other.
    pub loses_order: bool,
    /// Every verb that is answered ends well.
    pub errors_count_as_acknowledged: bool,
}

impl InjectedFaults {
    /// The generation that a verb is held against.
    #[inline]
    pub(super) fn generation(self, table: &WindowTable, message: &Message) -> Generation {
        let takes_any =
            self.accepts_old_generations || (self.lands_after_revoke && message.is_change());
        if !takes_any {
            return message.generation;
        }
        table
            .standing(message.window)
            .map_or(message.generation, |(_, descriptor)| descriptor.generation)
    }
}

impl Net {
    /// Breaks guarantees from here on.
    pub fn inject(&self, injected: InjectedFaults) {
        self.lock().injected = injected;
    }
}
