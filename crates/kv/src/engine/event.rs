//! What a request did to an item, for who watches.

/// One thing that was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// How it ended, in memcached's words.
    pub status: &'static str,
    /// Bytes of the value; 0 where there is none.
    pub size: usize,
}

/// What was done.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EventKind {
    /// It was looked up.
    Fetch {
        /// A client has asked for it; otherwise a store has looked for what it replaces.
        is_asked: bool,
    },
    /// It was to be stored.
    Store {
        /// Memcached's name of the command.
        command: &'static str,
        /// Seconds that it has; 0: it does not end.
        ttl: u64,
    },
    /// It was to be deleted.
    Delete,
}
