//! Requests on their way to who owns their partition, and answers on their way back.
//!
//! A request here is the text of one memcached request for one key, an answer the text of its
//! reply, without the `END` of a retrieval. Many travel at once.

/// Whose request it is: comes back with the answer as it was.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Ticket {
    /// Who asks.
    pub asker: Asker,
    /// Which of its clients.
    pub client: u32,
    /// Which life of that client's place.
    pub generation: u32,
    /// Which of the client's replies.
    pub slot: u64,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Asker {
    /// A worker of this process.
    Worker(usize),
    /// Another node.
    Node(u32),
}

/// Texts with their tickets.
#[derive(Debug, Default)]
pub struct Batch {
    entries: Vec<(Ticket, usize)>,
    bytes: Vec<u8>,
}

impl Batch {
    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds a text.
    pub fn push(&mut self, ticket: Ticket, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.entries.push((ticket, text.len()));
    }

    /// All of it, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Ticket, &[u8])> {
        let mut rest = &self.bytes[..];
        self.entries.iter().map(move |(ticket, length)| {
            let (text, tail) = rest.split_at(*length);
            rest = tail;
            (*ticket, text)
        })
    }

    /// Empties it, and keeps its memory unless that is much.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.bytes.clear();
        self.bytes.shrink_to(64 << 10);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_in_order() {
        let ticket = |slot| Ticket {
            asker: Asker::Worker(0),
            client: 1,
            generation: 2,
            slot,
        };
        let mut batch = Batch::default();
        assert!(batch.is_empty());
        for (slot, text) in [(5, &b"get a\r\n"[..]), (6, b""), (7, b"mn")] {
            batch.push(ticket(slot), text);
        }
        let all: Vec<_> = batch.iter().map(|(at, text)| (at.slot, text)).collect();
        assert_eq!(all, [(5, &b"get a\r\n"[..]), (6, b""), (7, b"mn")]);
        batch.clear();
        assert_eq!(batch.iter().count(), 0);
    }
}
