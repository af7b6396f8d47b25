//! The server's cores that answer: any takes any request, in the order of arrival.

use std::collections::VecDeque;

/// What waits for a core.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// Space for a version of a key.
    Space {
        /// The key.
        key: u32,
    },
    /// A value that came in the call.
    Value {
        /// Its key.
        key: u32,
    },
    /// A client says by a message that a value is there.
    Told {
        /// Whose value.
        version: u32,
    },
    /// The card says so.
    Noticed {
        /// Whose value.
        version: u32,
    },
    /// Where the newest version is that may be read.
    Place {
        /// Of this key.
        key: u32,
    },
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Cores {
    idle: usize,
    waiting: VecDeque<(u32, Work)>,
    busy_ps: u64,
}

impl Cores {
    /// So many, all idle.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            idle: count,
            waiting: VecDeque::new(),
            busy_ps: 0,
        }
    }

    /// A client's work arrives.
    pub fn arrive(&mut self, client: u32, work: Work) {
        self.waiting.push_back((client, work));
    }

    /// Work that a core begins now, if there is some and a core is idle.
    pub fn begin(&mut self) -> Option<(u32, Work)> {
        if self.idle == 0 {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.idle -= 1;
        Some(next)
    }

    /// A core is idle again after so long.
    pub fn end(&mut self, took_ps: u64) {
        self.idle += 1;
        self.busy_ps += took_ps;
    }

    /// Time of all cores together that was spent working.
    #[must_use]
    pub fn busy_ps(&self) -> u64 {
        self.busy_ps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_waits_for_a_core_in_order() {
        let mut cores = Cores::new(1);
        cores.arrive(7, Work::Space { key: 1 });
        cores.arrive(8, Work::Place { key: 2 });
        assert_eq!(cores.begin(), Some((7, Work::Space { key: 1 })));
        assert_eq!(cores.begin(), None, "no core");
        cores.end(10);
        assert_eq!(cores.begin(), Some((8, Work::Place { key: 2 })));
        cores.end(5);
        assert_eq!((cores.begin(), cores.busy_ps()), (None, 15));
    }
}
