//! Looks a key up in a B+-tree.
//!
//! A node is [`NODE_BYTES`]: entries `u16`, level `u16` (0 in a leaf), 4 bytes unused, the next
//! leaf `u64`, then up to [`FANOUT`] pairs of `u64` in ascending order: key and value in a leaf,
//! smallest key and address of a child above.

use crate::{Away, BAD_ARGUMENT, BAD_DATA, DENIED, Fault, Frame, Memory, Procedure, Verdict};

/// Bytes of a node.
pub const NODE_BYTES: usize = 512;
/// Pairs in a node at most.
pub const FANOUT: usize = (NODE_BYTES - HEADER_BYTES) / PAIR_BYTES;

/// What to look up; also the state between steps.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Search {
    /// Address of the root, then of the node that is next.
    pub node: u64,
    /// What is looked for.
    pub key: u64,
    /// About nodes on other machines.
    pub away: Away,
    /// A node's level is below this. Levels fall on the way, so that a ring of nodes ends too.
    pub below: u32,
}

impl Search {
    /// As a request's argument.
    #[must_use]
    pub fn to_bytes(self) -> [u8; SEARCH_BYTES] {
        let mut bytes = [0; SEARCH_BYTES];
        bytes[..8].copy_from_slice(&self.node.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.key.to_le_bytes());
        bytes[16..20].copy_from_slice(&(self.away as u32).to_le_bytes());
        bytes[20..].copy_from_slice(&self.below.to_le_bytes());
        bytes
    }

    fn of(frame: &Frame) -> Option<Self> {
        Some(Self {
            node: frame.u64_at(0)?,
            key: frame.u64_at(8)?,
            away: Away::from_u32(frame.u32_at(16)?)?,
            below: frame.u32_at(20)?,
        })
    }
}

/// Finds the value of a key: the answer is its 8 bytes, or nothing.
pub struct Lookup;

impl Procedure for Lookup {
    fn step<M: Memory + ?Sized>(memory: &mut M, frame: &mut Frame) -> Verdict {
        let Some(mut search) = Search::of(frame) else {
            return Verdict::Fail(BAD_ARGUMENT);
        };
        let mut node = [0; NODE_BYTES];
        loop {
            match frame.load(memory, search.node, &mut node) {
                Ok(()) => {}
                Err(Fault::Denied) => return Verdict::Fail(DENIED),
                Err(Fault::Elsewhere) => {
                    frame.set_state(&search.to_bytes());
                    let size = u32::try_from(NODE_BYTES).unwrap_or(u32::MAX);
                    return search.away.verdict(search.node, size);
                }
            }
            let count = usize::from(u16::from_le_bytes([node[0], node[1]]));
            let level = u32::from(u16::from_le_bytes([node[2], node[3]]));
            if count > FANOUT || level >= search.below {
                return Verdict::Fail(BAD_DATA);
            }
            let pairs = &node[HEADER_BYTES..HEADER_BYTES + count * PAIR_BYTES];
            let found = last_at_most(pairs, search.key);
            match found {
                Some((_, child)) if level > 0 => {
                    search.node = child;
                    search.below = level;
                }
                Some((key, value)) if key == search.key => {
                    frame.set_state(&value.to_le_bytes());
                    return Verdict::Done;
                }
                _ => {
                    frame.set_state(&[]);
                    return Verdict::Done;
                }
            }
        }
    }
}

/// The last pair whose key is not above `key`.
fn last_at_most(pairs: &[u8], key: u64) -> Option<(u64, u64)> {
    let number = |at: usize| {
        let bytes = pairs.get(at..at + 8);
        bytes.map_or(0, |b| {
            b.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
        })
    };
    let (mut low, mut high) = (0, pairs.len() / PAIR_BYTES);
    while low < high {
        let middle = usize::midpoint(low, high);
        if number(middle * PAIR_BYTES) <= key {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    let at = low.checked_sub(1)? * PAIR_BYTES;
    Some((number(at), number(at + 8)))
}

const SEARCH_BYTES: usize = 24;
const HEADER_BYTES: usize = 16;
const PAIR_BYTES: usize = 16;
