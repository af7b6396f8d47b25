//! Walks a linked list.

use crate::{Away, BAD_ARGUMENT, DENIED, Fault, Frame, Memory, Procedure, Verdict};

/// What to walk; also the state between steps. 24 bytes.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Walk {
    /// Of the node that is reached.
    pub node: u64,
    /// Links still to follow.
    pub hops: u32,
    /// Where in a node the next one's address is, 8 bytes. Address 0 ends the list.
    pub next_at: u32,
    /// Where in a node its value is, 8 bytes.
    pub value_at: u32,
    /// About nodes on other machines.
    pub away: Away,
}

impl Walk {
    /// As a request's argument.
    #[must_use]
    pub fn to_bytes(self) -> [u8; WALK_BYTES] {
        let mut bytes = [0; WALK_BYTES];
        bytes[..8].copy_from_slice(&self.node.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.hops.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.next_at.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.value_at.to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.away as u32).to_le_bytes());
        bytes
    }

    fn of(frame: &Frame) -> Option<Self> {
        Some(Self {
            node: frame.u64_at(0)?,
            hops: frame.u32_at(8)?,
            next_at: frame.u32_at(12)?,
            value_at: frame.u32_at(16)?,
            away: Away::from_u32(frame.u32_at(20)?)?,
        })
    }
}

/// Where a walk ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reached {
    /// The node's address.
    pub node: u64,
    /// Links not followed, because the list ended.
    pub hops_left: u32,
    /// The node's value.
    pub value: u64,
}

impl Reached {
    /// From an answer.
    #[must_use]
    pub fn of(answer: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = answer.get(at..at + 8)?;
            Some(u64::from_le_bytes(bytes.try_into().ok()?))
        };
        Some(Self {
            node: number(0)?,
            hops_left: u32::try_from(number(8)?).ok()?,
            value: number(16)?,
        })
    }
}

/// Follows the links of a list; the answer is a [`Reached`].
pub struct WalkList;

impl Procedure for WalkList {
    fn step<M: Memory + ?Sized>(memory: &mut M, frame: &mut Frame) -> Verdict {
        let Some(mut walk) = Walk::of(frame) else {
            return Verdict::Fail(BAD_ARGUMENT);
        };
        // Behind the argument: hops that were left when the list ended.
        let mut left = frame.u32_at(WALK_BYTES).unwrap_or(0);
        // A list may be a ring: others run now and then.
        let turn_end = walk.hops.saturating_sub(HOPS_A_STEP);
        while walk.hops > turn_end {
            let link = walk.node.wrapping_add(u64::from(walk.next_at));
            match frame.load_u64(memory, link) {
                Ok(0) => {
                    // Nothing is looked at twice: a second fetch would drop what the first brought.
                    left = walk.hops;
                    walk.hops = 0;
                    break;
                }
                Ok(next) => walk.node = next,
                Err(fault) => return wait(frame, walk, left, fault, link),
            }
            walk.hops -= 1;
        }
        if walk.hops == turn_end && turn_end > 0 {
            keep(frame, walk, left);
            return Verdict::Again;
        }
        let at = walk.node.wrapping_add(u64::from(walk.value_at));
        match frame.load_u64(memory, at) {
            Ok(value) => {
                frame.set_state(&[0; 24]);
                frame.put_u64(0, walk.node);
                frame.put_u64(8, u64::from(left));
                frame.put_u64(16, value);
                Verdict::Done
            }
            Err(fault) => wait(frame, walk, left, fault, at),
        }
    }
}

fn wait(frame: &mut Frame, walk: Walk, left: u32, fault: Fault, addr: u64) -> Verdict {
    if fault == Fault::Denied {
        return Verdict::Fail(DENIED);
    }
    keep(frame, walk, left);
    walk.away.verdict(addr, 8)
}

fn keep(frame: &mut Frame, walk: Walk, left: u32) {
    frame.set_state(&walk.to_bytes());
    frame.push(&left.to_le_bytes());
}

const WALK_BYTES: usize = 24;
const HOPS_A_STEP: u32 = 4096;
