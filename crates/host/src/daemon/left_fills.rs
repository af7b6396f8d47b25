//! Fills that ended sessions left to the filler, and owners that wait for their end: a fill in hand
//! writes on, over what the client's next session has there.

use std::collections::BTreeMap;

use cenote_fabric::PeerId;

/// Most owners that wait. One more is answered at once. Arbitrary.
const WAITING_MAX: usize = 256;

/// What a client asked in its next session.
#[derive(Clone, Copy, Debug)]
pub struct Owning {
    pub peer: PeerId,
    pub client: u128,
    pub request: u64,
    pub volume: u128,
    pub epoch: u64,
}

/// See the module's text.
#[derive(Default)]
pub struct LeftFills {
    /// How many each client left.
    under_way: BTreeMap<u128, usize>,
    waiting: Vec<Owning>,
}

impl LeftFills {
    /// A session ended with so many of its fills under way.
    pub fn leave(&mut self, client: u128, fills: usize) {
        if fills > 0 {
            *self.under_way.entry(client).or_default() += fills;
        }
    }

    /// Whether a client has to wait.
    pub fn wait(&mut self, owning: Owning) -> bool {
        let waits = self.under_way.contains_key(&owning.client) && self.waiting.len() < WAITING_MAX;
        if waits {
            self.waiting.push(owning);
        }
        waits
    }

    /// One of them ended. What waited for the last one of its client goes on.
    pub fn end(&mut self, client: u128) -> Vec<Owning> {
        let Some(left) = self.under_way.get_mut(&client) else {
            return Vec::new();
        };
        *left -= 1;
        if *left > 0 {
            return Vec::new();
        }
        self.under_way.remove(&client);
        let goes_on = |owning: &mut Owning| owning.client == client;
        self.waiting.extract_if(.., goes_on).collect()
    }
}
