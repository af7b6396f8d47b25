//! Which keys of a device may name a new window.
//!
//! A device hands out a key again once its window is gone, at the latest when its 8 bits of tag
//! have gone round, and then a client that still holds the old window would reach the new one.
//! So a key is used again only when every client that may hold it is gone. Pure.

use std::collections::HashMap;

/// Keys of windows that are gone.
#[derive(Debug, Default)]
pub(super) struct Keys {
    /// Key to the number of the first peer that cannot have it.
    retired: HashMap<u32, u64>,
    /// Number of the oldest peer that is connected; all numbers below are gone for good.
    oldest_peer: u64,
    /// Number that the next peer will get.
    next_peer: u64,
}

impl Keys {
    /// The peers have changed.
    pub(super) fn note_peers(&mut self, oldest_peer: u64, next_peer: u64) {
        self.next_peer = next_peer;
        if oldest_peer != self.oldest_peer {
            self.oldest_peer = oldest_peer;
            self.retired.retain(|_, until| *until > oldest_peer);
        }
    }

    /// A window is gone, and every peer of now may hold its key.
    pub(super) fn retire(&mut self, key: u32) {
        if self.oldest_peer < self.next_peer {
            self.retired.insert(key, self.next_peer);
        }
    }

    /// Whether nobody can hold the key any more.
    pub(super) fn is_free(&self, key: u32) -> bool {
        !self.retired.contains_key(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_waits_for_the_last_client_that_may_hold_it() {
        let mut keys = Keys::default();
        keys.note_peers(5, 8);
        keys.retire(0x1234_56ff);
        assert!(!keys.is_free(0x1234_56ff));
        assert!(keys.is_free(0x1234_5600));
        keys.note_peers(7, 9);
        assert!(!keys.is_free(0x1234_56ff), "peer 7 was there");
        keys.note_peers(8, 9);
        assert!(keys.is_free(0x1234_56ff));
    }

    #[test]
    fn without_peers_no_key_is_held() {
        let mut keys = Keys::default();
        keys.note_peers(3, 3);
        keys.retire(1);
        assert!(keys.is_free(1));
    }
}
