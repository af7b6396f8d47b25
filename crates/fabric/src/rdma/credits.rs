//! How many messages a client may send: of the places that the host has for them, the client knows
//! some by its credits. Pure.
//!
//! A place is free, said, used, and free again, so a client never has more credits than there are
//! places. One that uses more than it has lies, and keeps the host's thread busy for as long as it
//! likes: places are free again at once, and the device hands a message over without being asked.

use crate::{Error, Result};

/// The places of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Credits {
    /// Places that the client was told of and has not used.
    said: u32,
    /// Places that are free, and the client does not know.
    unsaid: u32,
}

impl Credits {
    /// Another place is free.
    pub(super) fn offer(&mut self) {
        self.unsaid += 1;
    }

    /// How many credits the client gets now, if they are worth a word.
    pub(super) fn say(&mut self) -> Option<u32> {
        if self.unsaid < SAID_TOGETHER {
            return None;
        }
        let count = std::mem::take(&mut self.unsaid);
        self.said += count;
        Some(count)
    }

    /// A message came.
    ///
    /// # Errors
    /// `Protocol`: the client had no credit for it.
    pub(super) fn spend(&mut self) -> Result<()> {
        let left = self.said.checked_sub(1);
        self.said = left.ok_or(Error::Protocol("a message without a credit"))?;
        Ok(())
    }
}

/// Places that are told of at a time; the last few untold ones stop nobody.
const SAID_TOGETHER: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn with_places(count: u32) -> Credits {
        let mut credits = Credits::default();
        for _ in 0..count {
            credits.offer();
        }
        credits
    }

    #[test]
    fn a_client_gets_as_many_messages_through_as_it_was_told() {
        let mut credits = with_places(32);
        assert_eq!(credits.say(), Some(32));
        for _ in 0..32 {
            credits.spend().unwrap();
            credits.offer();
        }
        // The places are free again, but the client cannot know that yet.
        assert!(matches!(credits.spend(), Err(Error::Protocol(_))));
        assert_eq!(credits.say(), Some(32));
        credits.spend().unwrap();
    }

    #[test]
    fn a_place_that_was_not_told_of_takes_no_message() {
        let mut credits = with_places(32);
        assert!(matches!(credits.spend(), Err(Error::Protocol(_))));
    }

    #[test]
    fn places_are_told_of_once_and_not_singly() {
        let mut credits = with_places(7);
        assert_eq!(credits.say(), None);
        credits.offer();
        assert_eq!(credits.say(), Some(8));
        assert_eq!(credits.say(), None);
    }
}
