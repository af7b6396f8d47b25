//! memcached's size classes, by the numbers of which its tools ask for items. Memory here has none: a class
//! is the items whose lengths memcached would have put into it.

/// One more than the last number that a class can have.
pub const CLASSES: usize = 64;

/// The class of the longest items.
const LAST: usize = 39;
const FIRST_BYTES: u32 = 96;
const LAST_BYTES: u32 = 512 << 10;
const ALIGN_BYTES: u32 = 8;

/// The longest item of each class from 1 on, as memcached 1.6.18 counts, with its defaults: `-n 48`,
/// `-f 1.25` and pages of 1 MiB.
const CHUNK_BYTES: [u32; LAST] = {
    let mut chunks = [LAST_BYTES; LAST];
    let mut bytes = FIRST_BYTES;
    let mut index = 0;
    while index < LAST - 1 {
        bytes = bytes.next_multiple_of(ALIGN_BYTES);
        chunks[index] = bytes;
        bytes += bytes / 4;
        index += 1;
    }
    chunks
};

/// Bytes that memcached counts for an item beside key and value: its header, the key's end, the
/// cas number and the value's line end. Clients know the largest value by it.
const ITEM_OVERHEAD_BYTES: u64 = 48 + 1 + 8 + 2;
/// Bytes for client flags other than 0.
const CLIENT_FLAGS_BYTES: u64 = 4;

/// Bytes that an item counts, as memcached does.
pub fn item_bytes(key_bytes: usize, client_flags: u32, value_bytes: usize) -> u64 {
    let flags = if client_flags == 0 {
        0
    } else {
        CLIENT_FLAGS_BYTES
    };
    ITEM_OVERHEAD_BYTES + flags + key_bytes as u64 + value_bytes as u64
}

/// The class of an item of so many bytes, memcached's overhead included.
pub fn class_of(item_bytes: u64) -> usize {
    let shorter = CHUNK_BYTES[..LAST - 1].partition_point(|bytes| u64::from(*bytes) < item_bytes);
    shorter + 1
}

/// Bytes of a chunk of a class, which an item takes there: none where there is no such class.
pub fn chunk_bytes(class: usize) -> Option<u64> {
    let bytes = CHUNK_BYTES.get(class.checked_sub(1)?)?;
    Some(u64::from(*bytes))
}

/// Items of a class.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Gauge {
    /// Items.
    pub items: u64,
    /// Bytes that they take here.
    pub bytes: u64,
}

/// The items of all classes, and which of these have changed.
#[derive(Debug)]
pub struct Gauges {
    of: Box<[Gauge; CLASSES]>,
    /// As bits, since this was last asked.
    changed: u64,
}

impl Default for Gauges {
    fn default() -> Self {
        Self {
            of: Box::new([Gauge::default(); CLASSES]),
            changed: 0,
        }
    }
}

impl Gauges {
    /// An item has come.
    pub fn enter(&mut self, class: usize, bytes: u64) {
        let gauge = &mut self.of[class];
        gauge.items += 1;
        gauge.bytes += bytes;
        self.changed |= 1 << class;
    }

    /// An item has gone.
    pub fn leave(&mut self, class: usize, bytes: u64) {
        let gauge = &mut self.of[class];
        gauge.items -= 1;
        gauge.bytes -= bytes;
        self.changed |= 1 << class;
    }

    /// One class.
    pub fn of(&self, class: usize) -> Gauge {
        self.of[class]
    }

    /// Classes that have changed since this was last asked, as bits.
    pub fn take_changed(&mut self) -> u64 {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `memcached -vv` of 1.6.18 says at its start.
    const SAID: [u64; 39] = [
        96, 120, 152, 192, 240, 304, 384, 480, 600, 752, 944, 1184, 1480, 1856, 2320, 2904, 3632,
        4544, 5680, 7104, 8880, 11104, 13880, 17352, 21696, 27120, 33904, 42384, 52984, 66232,
        82792, 103_496, 129_376, 161_720, 202_152, 252_696, 315_872, 394_840, 524_288,
    ];

    #[test]
    fn classes_are_those_of_memcached() {
        for (index, bytes) in SAID.into_iter().enumerate() {
            let class = index + 1;
            assert_eq!(chunk_bytes(class), Some(bytes));
            assert_eq!((class_of(bytes), class_of(bytes - 7)), (class, class));
            assert_eq!(class_of(bytes + 1), (class + 1).min(39), "after {bytes}");
        }
        assert_eq!((class_of(0), class_of(u64::MAX)), (1, 39));
        assert_eq!((chunk_bytes(0), chunk_bytes(40)), (None, None));
    }

    #[test]
    fn what_comes_and_goes_is_counted_by_class() {
        let mut gauges = Gauges::default();
        gauges.enter(3, 50);
        gauges.enter(3, 70);
        gauges.enter(39, 9);
        assert_eq!(gauges.take_changed(), 1 << 3 | 1 << 39);
        gauges.leave(3, 50);
        assert_eq!(gauges.take_changed(), 1 << 3);
        assert_eq!(gauges.take_changed(), 0);
        let (items, bytes) = (1, 70);
        assert_eq!(gauges.of(3), Gauge { items, bytes });
        assert_eq!(gauges.of(1), Gauge::default());
    }
}
