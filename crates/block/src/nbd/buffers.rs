//! Buffers of one worker thread, kept by size class for reuse.
//!
//! Invariant: a kept buffer's length is at most its class, so handing one out
//! zeroes at most what it was shorter than asked; equal sizes cost nothing. Longer ones than the
//! largest class come from the system, which has no memory behind them before they are written to.

/// A stock of buffers, bounded in bytes.
#[derive(Debug)]
pub(crate) struct Buffers {
    classes: [Vec<Vec<u8>>; CLASS_COUNT],
    kept_bytes: usize,
}

impl Buffers {
    pub(crate) fn new() -> Self {
        Self {
            classes: std::array::from_fn(|_| Vec::new()),
            kept_bytes: 0,
        }
    }

    /// A buffer of exactly `len` bytes; their values are left over from earlier use.
    pub(crate) fn take(&mut self, len: usize) -> Vec<u8> {
        if len > class_bytes(CLASS_COUNT - 1) {
            return vec![0; len];
        }
        let class = class_of(len);
        let Some(mut buffer) = self.classes[class].pop() else {
            let mut buffer = vec![0; class_bytes(class)];
            buffer.truncate(len);
            return buffer;
        };
        self.kept_bytes -= buffer.capacity();
        buffer.resize(len, 0);
        buffer
    }

    /// Takes a buffer back; it is kept while the stock has room.
    pub(crate) fn give(&mut self, buffer: Vec<u8>) {
        let capacity = buffer.capacity();
        let classes = class_bytes(0)..2 * class_bytes(CLASS_COUNT - 1);
        if !classes.contains(&capacity) || self.kept_bytes + capacity > KEPT_BYTES_MAX {
            return;
        }
        let mut class = class_of(capacity);
        if class_bytes(class) > capacity {
            class -= 1;
        }
        self.kept_bytes += capacity;
        self.classes[class].push(buffer);
    }
}

/// Index of the smallest class that holds `len` bytes.
fn class_of(len: usize) -> usize {
    let units = len.div_ceil(class_bytes(0)).max(1).next_power_of_two();
    (units.trailing_zeros() as usize).min(CLASS_COUNT - 1)
}

const fn class_bytes(class: usize) -> usize {
    cenote_volume::PAGE_BYTES << class
}

/// 4 KiB to 4 MiB: longer requests are rare, and a few of them would be the whole stock.
const CLASS_COUNT: usize = 11;

/// Most idle bytes that one worker keeps; more than 16 requests of 2 MiB, arbitrary.
const KEPT_BYTES_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_returned_buffer_is_handed_out_again() {
        let mut buffers = Buffers::new();
        let first = buffers.take(5000);
        let address = first.as_ptr();
        buffers.give(first);
        let second = buffers.take(8192);
        assert_eq!(second.as_ptr(), address);
        assert_eq!(second.len(), 8192);
    }

    #[test]
    fn the_stock_is_bounded() {
        let mut buffers = Buffers::new();
        let taken: Vec<_> = (0..20).map(|_| buffers.take(4 << 20)).collect();
        taken.into_iter().for_each(|buffer| buffers.give(buffer));
        assert_eq!(buffers.kept_bytes, KEPT_BYTES_MAX);
    }

    #[test]
    fn long_buffers_are_not_kept() {
        let mut buffers = Buffers::new();
        let taken = buffers.take(64 << 20);
        buffers.give(taken);
        assert_eq!(buffers.kept_bytes, 0);
    }

    #[test]
    fn every_length_gets_a_buffer_of_that_length() {
        let mut buffers = Buffers::new();
        for len in [0, 1, 4095, 4096, 4097, 100_000, 32 << 20] {
            let buffer = buffers.take(len);
            assert_eq!(buffer.len(), len);
            buffers.give(buffer);
        }
    }
}
