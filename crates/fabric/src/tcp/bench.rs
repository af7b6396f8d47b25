//! What the connections of one agent share: the windows, lists that are used again, and the way to
//! the host's control thread. Lives on the agent's thread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;

use super::agent::AgentEvent;
use super::gather::Gather;
use super::wire::Request;
use crate::windows::{WindowGuard, WindowTable};
use crate::{Generation, Rights, Status, WindowId};

/// Length of the ranges that stand in for the memory of a window that is out of reach.
pub(super) const SCRATCH_BYTES: usize = 64 * 1024;

/// Most windows that one system call uses.
const GUARDS: usize = 256;

/// See the module.
pub(super) struct Bench<'t> {
    table: &'t WindowTable,
    /// Windows in use by the system call that is being prepared.
    pub(super) guards: Vec<WindowGuard<'t>>,
    pub(super) list: Gather,
    pub(super) scratch: Box<[u8]>,
    outbox: SyncSender<AgentEvent>,
    system_calls: &'t AtomicU64,
    /// An event was put in the outbox since the control thread was last woken.
    pub(super) has_news: bool,
}

impl<'t> Bench<'t> {
    pub(super) fn new(
        table: &'t WindowTable,
        outbox: SyncSender<AgentEvent>,
        system_calls: &'t AtomicU64,
    ) -> Self {
        Self {
            table,
            guards: Vec::with_capacity(GUARDS),
            list: Gather::new(),
            scratch: vec![0; SCRATCH_BYTES].into(),
            outbox,
            system_calls,
            has_news: false,
        }
    }

    /// Hands an event to the control thread; false when its queue is full.
    pub(super) fn tell(&mut self, event: AgentEvent) -> bool {
        let told = self.outbox.try_send(event).is_ok();
        self.has_news |= told;
        told
    }

    pub(super) fn count_system_call(&self) {
        self.system_calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Lets a verb into its window.
    pub(super) fn enter(&self, request: &Request, need: Rights) -> Result<WindowGuard<'t>, Status> {
        let (id, generation) = (WindowId(request.window), Generation(request.generation));
        self.table.enter(
            id,
            generation,
            need,
            request.offset,
            u64::from(request.len_bytes),
        )
    }
}
