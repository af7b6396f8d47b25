//! What the procedures do, as plain client code: one read of the cache for each step.
//!
//! For comparison, and as the measure of what procedures answer. `read` copies bytes from an
//! address of the cache; whatever it does over a network is not this module's business.

use cenote_proc_sdk::procedures::{Aggregate, FANOUT, NODE_BYTES, Reached, Search, Select, Walk};

/// Follows a linked list.
///
/// # Errors
/// What `read` says.
pub fn walk<E>(
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    walk: Walk,
) -> Result<Reached, E> {
    let mut number = |addr: u64| {
        let mut bytes = [0; 8];
        read(addr, &mut bytes).map(|()| u64::from_le_bytes(bytes))
    };
    let (mut node, mut hops) = (walk.node, walk.hops);
    while hops > 0 {
        match number(node.wrapping_add(u64::from(walk.next_at)))? {
            0 => break,
            next => node = next,
        }
        hops -= 1;
    }
    let value = number(node.wrapping_add(u64::from(walk.value_at)))?;
    Ok(Reached {
        node,
        hops_left: hops,
        value,
    })
}

/// Looks a key up in a B+-tree. A tree that is none has no value.
///
/// # Errors
/// What `read` says.
pub fn lookup<E>(
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    search: Search,
) -> Result<Option<u64>, E> {
    let (mut addr, mut below) = (search.node, search.below);
    loop {
        let mut node = [0; NODE_BYTES];
        read(addr, &mut node)?;
        let level = u32::from(u16::from_le_bytes([node[2], node[3]]));
        let count = usize::from(u16::from_le_bytes([node[0], node[1]]));
        if level >= below || count > FANOUT {
            return Ok(None);
        }
        let number = |at: usize| u64::from_le_bytes(node[at..at + 8].try_into().expect("8 bytes"));
        let pairs = (0..count).map(|pair| (number(16 + pair * 16), number(24 + pair * 16)));
        match pairs.take_while(|(key, _)| *key <= search.key).last() {
            Some((_, child)) if level > 0 => (addr, below) = (child, level),
            Some((key, value)) if key == search.key => return Ok(Some(value)),
            _ => return Ok(None),
        }
    }
}

/// Reads a range, filters its records and aggregates those that match; `each` gets them.
///
/// # Errors
/// What `read` says.
pub fn filter<E>(
    mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
    select: Select,
    mut each: impl FnMut(&[u8]),
) -> Result<Aggregate, E> {
    let mut aggregate = Aggregate::new();
    let record = select.record as usize;
    let mut buffer = vec![0; (64 << 10) / record * record];
    let mut addr = select.from;
    while addr < select.to {
        let rest = usize::try_from(select.to - addr).unwrap_or(usize::MAX);
        let part = rest.min(buffer.len());
        let block = &mut buffer[..part];
        read(addr, block)?;
        for bytes in block.chunks_exact(record) {
            let number = |at: u32| {
                let at = at as usize;
                u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
            };
            let field = number(select.field_at);
            if (select.low..select.high).contains(&field) {
                aggregate.add(number(select.sum_at));
                each(bytes);
            }
        }
        addr += block.len() as u64;
    }
    Ok(aggregate)
}
