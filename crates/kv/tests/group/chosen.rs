//! Keys that somebody has chosen so that their hashes fall together: who joins is told them all the same.

use super::*;

const KEY_BYTES: usize = 250;
/// More than one message could have.
const KEY_COUNT: usize = 5000;

fn roomy() -> Shape {
    Shape {
        region_bytes: 64 * UNIT_BYTES,
        ..SHAPE
    }
}

/// Keys whose hashes have the same top bits.
fn keys_sharing(bits: u32, hash: impl Fn(&[u8]) -> u64) -> impl Iterator<Item = Vec<u8>> {
    let mut key = vec![b'k'; KEY_BYTES];
    (0_u64..).filter_map(move |number| {
        let digits = format!("{number:016x}");
        key[KEY_BYTES - digits.len()..].copy_from_slice(digits.as_bytes());
        (hash(&key) >> (u64::BITS - bits) == 0).then(|| key.clone())
    })
}

impl Group {
    /// Stores keys in the first partition; says which were taken.
    fn store_all(&mut self, keys: impl Iterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
        let mut taken = Vec::new();
        for key in keys {
            let change = Change::Put {
                client_flags: 0,
                expiry: 0,
                marks: Marks::NONE,
                value: &[b"v"],
            };
            let owner = self.member(0).owner(0).expect("it is the owner");
            match owner.propose(owner.hash_of(&key), &key, change) {
                Ok(_) => taken.push(key),
                Err(refusal) => assert_eq!(refusal, Refusal::NoSpace),
            }
            self.settle();
        }
        taken
    }

    /// The owner dies, a parity takes over, and another process is told all: no message of these is longer
    /// than a link takes, as [`Group::settle`] sees.
    fn move_to_another(&mut self, keys: &[Vec<u8>]) {
        self.lose_the_first();
        self.wait(LEASE_IS_OVER_NS);
        self.start(4);
        for node in [2, 2, 4, 2] {
            let view = self.proposal(node);
            self.adopt(&view);
        }
        for key in keys {
            assert_eq!(self.read(4, 0, key).as_deref(), Some(&b"v"[..]));
        }
        self.audit();
    }
}

#[test]
fn keys_chosen_by_the_public_hash_do_not_fall_together() {
    let mut group = Group::of(roomy());
    let public = cenote_codec::xxh3;
    let keys = keys_sharing(12, public).take(KEY_COUNT);
    let taken = group.store_all(keys);
    assert_eq!(taken.len(), KEY_COUNT, "none is refused");
    group.move_to_another(&taken);
}

#[test]
fn keys_chosen_by_the_secret_are_bounded_and_sent_in_pieces() {
    let mut group = Group::of(roomy());
    let hasher = group.shape.hasher;
    // Of a table that has few others even these fall together.
    let keys = keys_sharing(10, move |key| hasher.hash(key)).take(KEY_COUNT);
    let taken = group.store_all(keys);
    assert!(
        (1000..KEY_COUNT).contains(&taken.len()),
        "{} were taken",
        taken.len()
    );
    let other = group.store_all([b"other".to_vec()].into_iter());
    assert_eq!(other.len(), 1, "keys elsewhere are taken");
    let all: Vec<_> = taken.into_iter().chain(other).collect();
    group.move_to_another(&all);
}
