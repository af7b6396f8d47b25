//! How long requests take: one of a few is timed, so that the control thread knows what its repairs
//! cost the volume's users (`control::pace`).

use super::Worker;
use super::requests::Kind;
use crate::PAGE_BYTES;

/// One request of so many is timed: a clock costs some 40 ns, and a page half a microsecond.
const TIMED: u32 = 16;

impl Worker {
    /// A request begins; it is timed when it is its turn.
    pub(super) fn begin_time(&mut self, at: usize) {
        self.requests.started = self.requests.started.wrapping_add(1);
        if self.requests.started.is_multiple_of(TIMED) {
            self.requests[at].timed = Some((self.core.clock)());
        }
    }

    /// Notes how long a request took that is over, if it is timed and of one page.
    pub(super) fn note_time(&mut self, at: usize) {
        let slot = &mut self.requests[at];
        let Some(began) = slot.timed.take() else {
            return;
        };
        if slot.result.is_err() || slot.len_bytes > PAGE_BYTES as u64 {
            return;
        }
        let took = (self.core.clock)().since(began);
        match slot.kind {
            Kind::Read => self.core.measures.timings.read.note(took),
            Kind::Write => self.core.measures.timings.write.note(took),
            Kind::Discard | Kind::Scrub | Kind::Move | Kind::Redo => {}
        }
    }
}
