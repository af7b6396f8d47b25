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

    /// Makes registrations until one has a key that nobody can hold; `None`: it was over before.
    /// Those before it are kept until then, so that the device does not give the same ones again:
    /// some give out first what they got back last.
    ///
    /// # Errors
    /// Those of `make`.
    pub(super) fn draw<T, E>(
        &self,
        mut make: impl FnMut() -> Result<T, E>,
        key_of: impl Fn(&T) -> u32,
        mut is_over: impl FnMut() -> bool,
    ) -> Result<Option<T>, E> {
        let mut passed = Vec::new();
        loop {
            let made = make()?;
            if self.is_free(key_of(&made)) {
                return Ok(Some(made));
            }
            if is_over() {
                return Ok(None);
            }
            passed.push(made);
        }
    }

    /// Whether nobody can hold the key any more.
    fn is_free(&self, key: u32) -> bool {
        !self.retired.contains_key(&key)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

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
    fn a_device_that_gives_out_what_it_got_back_last_has_a_key_for_each_renewal() {
        struct Drawn<'a>(u32, &'a RefCell<Vec<u32>>);
        impl Drop for Drawn<'_> {
            fn drop(&mut self) {
                self.1.borrow_mut().push(self.0);
            }
        }
        let stack = RefCell::new((0..1000).collect::<Vec<u32>>());
        let make = || {
            let key = stack.borrow_mut().pop().ok_or("no key is left")?;
            Ok::<_, &str>(Drawn(key, &stack))
        };
        let mut keys = Keys::default();
        keys.note_peers(0, 1);
        for _ in 0..100 {
            let drawn = keys.draw(make, |drawn| drawn.0, || false).unwrap();
            keys.retire(drawn.expect("a key that nobody holds").0);
        }
        assert_eq!(keys.retired.len(), 100, "each key once");
        let mut tries = 0;
        let is_over = || {
            tries += 1;
            tries == 10
        };
        let drawn = keys.draw(make, |drawn| drawn.0, is_over).unwrap();
        assert!(drawn.is_none(), "it takes 101 tries");
        assert_eq!(stack.borrow().len(), 1000, "what was passed over is back");
    }

    #[test]
    fn without_peers_no_key_is_held() {
        let mut keys = Keys::default();
        keys.note_peers(3, 3);
        keys.retire(1);
        assert!(keys.is_free(1));
    }
}
