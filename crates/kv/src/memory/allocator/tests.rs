use std::collections::{HashMap, VecDeque};

use proptest::prelude::*;

use super::*;

/// Small enough that space runs out.
const REGION_BYTES: u64 = 1024;

/// One flag for each unit: whether it is used.
#[derive(Clone)]
struct Bitmap(Vec<bool>);

impl Bitmap {
    fn new() -> Self {
        Self(vec![false; (REGION_BYTES / ALIGN_BYTES) as usize])
    }

    fn pieces(&self) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for (unit, used) in self.0.iter().enumerate() {
            match pieces.last_mut() {
                Some(piece) if piece.is_free != *used => piece.bytes += ALIGN_BYTES,
                _ => pieces.push(Piece {
                    address: unit as u64 * ALIGN_BYTES,
                    bytes: ALIGN_BYTES,
                    is_free: !used,
                }),
            }
        }
        pieces
    }

    /// The first of the shortest runs that are long enough, if its begin is below the limit by as much and
    /// has nothing of what is kept.
    fn allocate(&mut self, bytes: u64, limit: u64, kept: &Range<u64>) -> Option<u64> {
        let bytes = bytes.max(1).div_ceil(ALIGN_BYTES) * ALIGN_BYTES;
        let pieces = self.pieces().into_iter();
        let fitting = pieces.filter(|piece| {
            let place = piece.address..piece.address + bytes;
            let is_kept = place.clone().any(|byte| kept.contains(&byte));
            piece.is_free && piece.bytes >= bytes && place.end <= limit && !is_kept
        });
        let address = fitting.min_by_key(|piece| piece.bytes)?.address;
        self.mark(address, bytes, true);
        Some(address)
    }

    /// Whether all of a range was the other way round.
    fn mark(&mut self, address: u64, bytes: u64, used: bool) -> bool {
        let first = (address / ALIGN_BYTES) as usize;
        let count = bytes.max(1).div_ceil(ALIGN_BYTES) as usize;
        let Some(units) = self.0.get_mut(first..first + count) else {
            return false;
        };
        let is_other = units.iter().all(|unit| *unit != used);
        if is_other {
            units.fill(used);
        }
        is_other
    }
}

fn check(allocator: &Allocator, bitmap: &Bitmap) {
    let pieces: Vec<Piece> = allocator.pieces().collect();
    assert_eq!(pieces, bitmap.pieces());
    let free = bitmap.0.iter().filter(|used| !**used).count() as u64 * ALIGN_BYTES;
    assert_eq!(allocator.free_bytes(), free);
    let lengths: BTreeSet<(u64, u64)> =
        allocator.by_address.iter().map(|(a, b)| (*b, *a)).collect();
    assert_eq!(lengths, allocator.by_length);
}

#[test]
fn free_bytes_of_a_range_are_those_of_the_pieces_within() {
    let mut allocator = Allocator::new(160);
    for (address, bytes) in [(32, 32), (96, 16)] {
        allocator.carve(address, bytes).unwrap();
    }
    // Free are 0..32, 64..96 and 112..160.
    for (range, free) in [
        (0..160, 112),
        (16..80, 32),
        (40..60, 0),
        (16..32, 16),
        (120..128, 8),
        (96..160, 48),
        (144..300, 16),
    ] {
        assert_eq!(allocator.free_bytes_of(&range), free, "{range:?}");
    }
}

#[test]
fn the_shortest_piece_that_fits_is_taken_and_of_these_the_lowest() {
    let mut allocator = Allocator::new(REGION_BYTES + 15);
    let all: Vec<u64> = (0..6).map(|_| allocator.allocate(64).unwrap()).collect();
    assert_eq!(all, [0, 64, 128, 192, 256, 320]);
    allocator.free(0, 64).unwrap();
    allocator.free(128, 64).unwrap();
    allocator.free(256, 33).unwrap();
    assert_eq!(allocator.allocate(40), Some(256));
    assert_eq!(allocator.allocate(49), Some(0));
    assert_eq!(allocator.allocate(0), Some(128));
    assert_eq!(allocator.allocate(REGION_BYTES), None);
    assert_eq!(allocator.allocate(u64::MAX), None);
}

#[test]
fn what_cannot_be_marked_changes_nothing() {
    let mut allocator = Allocator::new(REGION_BYTES);
    allocator.carve(64, 64).unwrap();
    let before = allocator.clone();
    for (address, bytes, expected) in [
        (64, 16, RangeError::Used),
        (48, 32, RangeError::Used),
        (112, 32, RangeError::Used),
        (0, 1024, RangeError::Used),
        (8, 16, RangeError::Outside),
        (1008, 17, RangeError::Outside),
        (u64::MAX - 15, 16, RangeError::Outside),
        (0, u64::MAX, RangeError::Outside),
    ] {
        assert_eq!(allocator.carve(address, bytes), Err(expected), "{address}");
    }
    for (address, bytes) in [(0, 16), (48, 32), (112, 32), (128, 16), (0, 1024)] {
        assert_eq!(allocator.free(address, bytes), Err(RangeError::Free));
    }
    assert_eq!(allocator, before);
}

/// A value that replaces another: what a SET does to space.
#[derive(Clone, Debug)]
struct Op {
    key: u8,
    address: u64,
    bytes: u64,
}

/// One process' idea of which key is where.
#[derive(Default)]
struct Places(HashMap<u8, (u64, u64)>);

impl Places {
    /// Puts the key's new place, and gives the old one's space back.
    fn apply(&mut self, op: &Op, allocator: &mut Allocator) {
        if let Some((address, bytes)) = self.0.insert(op.key, (op.address, op.bytes)) {
            allocator.free(address, bytes).expect("it was the key's");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_what_a_bitmap_does(
        operations in prop::collection::vec((0..5u8, 0..REGION_BYTES / 12, 0..300u64), 1..200),
        kept in (0..REGION_BYTES, 0..REGION_BYTES),
    ) {
        let mut allocator = Allocator::new(REGION_BYTES);
        let mut bitmap = Bitmap::new();
        let kept = kept.0.min(kept.1)..kept.0.max(kept.1);
        for (kind, unit, bytes) in operations {
            let address = unit * ALIGN_BYTES;
            match kind {
                0 => {
                    let expected = bitmap.allocate(bytes, REGION_BYTES, &NOTHING);
                    prop_assert_eq!(allocator.allocate(bytes), expected);
                }
                3 => {
                    let expected = bitmap.allocate(bytes, address, &NOTHING);
                    let allocated = allocator.allocate_below(bytes, address, &NOTHING);
                    prop_assert_eq!(allocated, expected);
                }
                4 => {
                    let expected = bitmap.allocate(bytes, address, &kept);
                    let allocated = allocator.allocate_below(bytes, address, &kept);
                    prop_assert_eq!(allocated, expected);
                }
                1 => {
                    let is_carved = allocator.carve(address, bytes).is_ok();
                    prop_assert_eq!(is_carved, bitmap.mark(address, bytes, true));
                }
                _ => {
                    let is_freed = allocator.free(address, bytes).is_ok();
                    prop_assert_eq!(is_freed, bitmap.mark(address, bytes, false));
                }
            }
            check(&allocator, &bitmap);
        }
    }

    #[test]
    fn parities_that_follow_late_come_to_the_same_layout(
        steps in prop::collection::vec((0..4u8, 0..8u8, 0..200u64), 1..300),
    ) {
        // One data process, and two parities that apply in the order of issue, later or much later.
        let mut data = (Allocator::new(REGION_BYTES), Places::default());
        let mut parities = [(); 2].map(|()| (Allocator::new(REGION_BYTES), Places::default()));
        let mut issued: Vec<Op> = Vec::new();
        let mut applied = [0; 2];
        let mut open: VecDeque<Op> = VecDeque::new();
        let follow = |parity: &mut (Allocator, Places), op: &Op| {
            parity.0.carve(op.address, op.bytes).expect("free for this operation");
            parity.1.apply(op, &mut parity.0);
        };
        for (kind, key, bytes) in steps {
            match kind {
                // Space is taken when an operation is issued, and given back when it is done.
                0 | 1 => if let Some(address) = data.0.allocate(bytes) {
                    let op = Op { key, address, bytes };
                    issued.push(op.clone());
                    open.push_back(op);
                },
                2 => if let Some(op) = open.pop_front() {
                    data.1.apply(&op, &mut data.0);
                },
                _ => {
                    let parity = usize::from(key % 2);
                    // A parity has an operation to apply once it is stable.
                    if applied[parity] < issued.len() - open.len() {
                        follow(&mut parities[parity], &issued[applied[parity]]);
                        applied[parity] += 1;
                    }
                }
            }
        }
        for op in open {
            data.1.apply(&op, &mut data.0);
        }
        for (parity, applied) in parities.iter_mut().zip(applied) {
            for op in &issued[applied..] {
                follow(parity, op);
            }
            prop_assert_eq!(&parity.0, &data.0);
        }
    }
}
