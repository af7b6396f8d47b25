//! Late binding: a read asks for more splits than it needs and takes those that come first.
//!
//! When enough are there, the landings of the others are revoked, and only then is anything decoded:
//! nothing alters a page whose read has ended (H2). The caller has its buffer back at once; the
//! operation's place is taken until its last verb has ended, and so is what the directory said of
//! the hosts it went to: one that fails late is marked as if it had failed early. No epoch is held.
//!
//! Hosts that owe a late answer are asked last: one that has stopped does not take all places.
//! Where verbs complete when they are posted nothing can be late, and no more is read than needed.
//!
//! Paper: \[hydra22\] 4.1.2 (late binding), 4.1.4 (deregistering).

use super::state::Page;
use crate::worker::data_path::DataPath;
use crate::worker::verbs::bits;

/// The members to read of `readable`: random ones where some are to spare, else those that need
/// the least decoding. At least k are readable.
#[inline]
pub(super) fn choose(page: &mut Page, path: &mut DataPath, readable: u64) -> u64 {
    let k = page.cut().k() as u32;
    let resilience = page.resilience();
    if path.binds_late(resilience) {
        return draw(page, path, readable, resilience.read_splits() as u32);
    }
    if k == 1 {
        // Another for each page, so that copies share the reads.
        let skip = page.number % u64::from(readable.count_ones());
        return lowest(drop_lowest(readable, skip as u32));
    }
    // Every data split that is there, then parities.
    keep_lowest(readable, k)
}

/// `count` of `readable`, or all: any of those whose hosts owe nothing late, if they are enough.
fn draw(page: &mut Page, path: &mut DataPath, readable: u64, count: u32) -> u64 {
    let mut chosen = readable;
    if path.views.lingering() > 0 {
        let calm = readable & !owing(page, path, readable);
        if calm.count_ones() >= count {
            chosen = calm;
        }
    }
    while chosen.count_ones() > count {
        let skip = path.random.below(chosen.count_ones());
        chosen ^= lowest(drop_lowest(chosen, skip));
    }
    if page.cut().k() == 1 {
        let skip = path.random.below(chosen.count_ones());
        page.verbs.primary = drop_lowest(chosen, skip).trailing_zeros() as u8;
    }
    chosen
}

/// The members among `splits` whose hosts owe an answer that nobody waits for.
fn owing(page: &Page, path: &DataPath, splits: u64) -> u64 {
    let Some(stripe) = page.stripe(&path.views) else {
        return 0;
    };
    bits(splits).fold(0, |owing, split| {
        let member = stripe.members[split].as_ref();
        let owes = member.is_some_and(|member| path.late.owes(member.session));
        owing | u64::from(owes) << split
    })
}

/// `mask` without its `count` lowest bits.
fn drop_lowest(mask: u64, count: u32) -> u64 {
    (0..count).fold(mask, |mask, _| mask & mask.wrapping_sub(1))
}

/// The `count` lowest bits of `mask`.
fn keep_lowest(mask: u64, count: u32) -> u64 {
    mask ^ drop_lowest(mask, count.min(mask.count_ones()))
}

/// The lowest bit of `mask`.
fn lowest(mask: u64) -> u64 {
    mask & mask.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_dropped_and_kept_from_the_lowest() {
        assert_eq!(drop_lowest(0b1011_0100, 2), 0b1010_0000);
        assert_eq!(keep_lowest(0b1011_0100, 2), 0b0001_0100);
        assert_eq!(keep_lowest(0b11, 5), 0b11);
        assert_eq!(drop_lowest(0b11, 5), 0);
    }
}
