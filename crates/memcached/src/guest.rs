//! The client that may go on though unread answers have used up their memory: one at a time, of a
//! source that holds less than an even share. So sources that read go on beside those that do not.
//!
//! It stays until it has read its answers, and is served one request only while others could be the
//! guest: one that asks and reads all the time would stay for ever.
//!
//! Pure.

use std::collections::BTreeMap;

use cenote_fabric::strangers::Source;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Guest {
    /// Its place.
    place: Option<usize>,
    /// It has been served since it was admitted.
    is_served: bool,
    /// What each source's clients hold of answers, where that is not nothing.
    sources: BTreeMap<Source, usize>,
    /// All of that.
    held: usize,
}

impl Guest {
    pub(super) fn is_at(&self, place: usize) -> bool {
        self.place == Some(place)
    }

    /// What a client of a source holds changes.
    pub(super) fn change(&mut self, source: Source, from: usize, to: usize) {
        if from == to {
            return;
        }
        self.held = self.held - from + to;
        let own = self.sources.entry(source).or_default();
        *own = *own - from + to;
        if *own == 0 {
            self.sources.remove(&source);
        }
    }

    /// The guest is to be served a request. Whether that is the first one.
    pub(super) fn serve(&mut self) -> bool {
        !std::mem::replace(&mut self.is_served, true)
    }

    pub(super) fn is_there(&self) -> bool {
        self.place.is_some()
    }

    /// Whether a client of a source could be the guest while nobody is.
    pub(super) fn may_be_of(&self, source: Source) -> bool {
        match self.sources.get(&source) {
            None => true,
            Some(own) => own * self.sources.len() < self.held,
        }
    }

    /// Makes the client at a place the guest, if there is none and its source may have it.
    pub(super) fn admit(&mut self, place: usize, source: Source) -> bool {
        let is_admitted = self.place.is_none() && self.may_be_of(source);
        if is_admitted {
            self.place = Some(place);
            self.is_served = false;
        }
        is_admitted
    }

    /// The client at a place is the guest no more, if it was.
    pub(super) fn leave(&mut self, place: usize) {
        self.place = self.place.filter(|guest| *guest != place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time_is_the_guest_of_a_source_that_holds_little() {
        let [many, one, other] = [1, 2, 3].map(Source::User);
        let mut guest = Guest::default();
        guest.change(many, 0, 60);
        guest.change(many, 0, 40);
        guest.change(one, 0, 20);
        assert!(!guest.admit(1, many), "it holds most");
        assert!(guest.admit(2, one) && guest.is_at(2));
        assert!(!guest.admit(3, other), "there is one");
        guest.leave(1);
        assert!(guest.is_at(2));
        assert!(guest.serve() && !guest.serve(), "it has one request");
        guest.leave(2);
        assert!(guest.admit(3, other) && guest.serve());
        guest.leave(3);
        // All of two that hold the same.
        guest.change(many, 60, 20);
        guest.change(many, 40, 0);
        assert!(!guest.admit(1, many) && !guest.admit(2, one));
        guest.change(many, 20, 0);
        guest.change(one, 20, 0);
        assert!(guest.sources.is_empty() && guest.held == 0);
    }
}
