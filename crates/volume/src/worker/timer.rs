//! How long requests take: one of a few is timed, so that the control thread knows what its repairs
//! cost the volume's users (`control::pace`).

use super::order::Kind;
use super::requests::{Requests, Slot};
use crate::PAGE_BYTES;
use crate::core::Core;

/// One request of so many is timed: a clock costs some 40 ns, and a page half a microsecond.
const TIMED: u32 = 16;

impl Requests {
    /// A request begins; it is timed when it is its turn.
    pub(super) fn begin_time(&mut self, core: &Core, at: usize) {
        self.started = self.started.wrapping_add(1);
        if self.started.is_multiple_of(TIMED) {
            self.slots[at].timed = Some((core.clock)());
        }
    }
}

impl Slot {
    /// Notes how long a request took that is over, if it is timed and of one page.
    pub(super) fn note_time(&mut self, core: &Core) {
        let Some(began) = self.timed.take() else {
            return;
        };
        if self.result.is_err() || self.len_bytes > PAGE_BYTES as u64 {
            return;
        }
        let took = (core.clock)().since(began);
        match self.kind {
            Kind::Read => core.measures.timings.read.note(took),
            Kind::Write => core.measures.timings.write.note(took),
            Kind::Discard | Kind::Scrub | Kind::Move | Kind::Redo => {}
        }
    }
}
