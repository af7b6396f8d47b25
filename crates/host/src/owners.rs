//! Which client holds which window: told by the control thread, asked by procedures.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use cenote_pool::control::Window;

/// Which client holds which window, and for which volume: what the control thread has granted. A
/// life of a window has one owner, so an entry that is a little old is refused by its generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners(Arc<RwLock<HashMap<u32, Lent>>>);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Lent {
    generation: u64,
    client: u128,
    volume: u128,
}

impl Owners {
    /// The window is this client's from here on.
    pub(crate) fn grant(&self, window: &Window, client: u128, volume: u128) {
        let mut owners = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let lent = Lent {
            generation: window.generation,
            client,
            volume,
        };
        owners.insert(window.id, lent);
    }

    /// The window is nobody's.
    pub(crate) fn forget(&self, window: u32) {
        let mut owners = self.0.write().unwrap_or_else(PoisonError::into_inner);
        owners.remove(&window);
    }

    /// Whether a client holds a window, for that volume.
    pub(crate) fn holds(&self, client: u128, window: u32, generation: u64, volume: u128) -> bool {
        let owners = self.0.read().unwrap_or_else(PoisonError::into_inner);
        owners.get(&window).is_some_and(|lent| {
            lent.generation == generation && (lent.client, lent.volume) == (client, volume)
        })
    }

    /// Whether anything is lent to a client for a volume.
    pub(crate) fn lent(&self, client: u128, volume: u128) -> bool {
        let owners = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let mut all = owners.values();
        all.any(|lent| lent.client == client && lent.volume == volume)
    }
}
