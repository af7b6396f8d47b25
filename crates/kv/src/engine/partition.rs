//! What the engine needs of the partition that a key is in.
//!
//! Whether a change is replicated, and how, the engine does not know: a proposal gets an [`Xid`], and
//! what depends on it is told once [`Partition::committed_xid`] has reached it. The partition of a
//! server is its [`Owner`]; tests have one of their own.

use crate::group::marks::Marks;
use crate::group::owner::{self, Change, Gone, Owner, Refusal};
use crate::group::replica::Xid;
use crate::memory::classes::{class_of, item_bytes};
use crate::memory::table::Entry;
use crate::protocol::exptime::{Expiry, Exptime};

/// The state of an item, without key and value.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Item {
    /// Its client flags.
    pub client_flags: u32,
    /// When it ends, seconds since 1970; [`NEVER`] if it does not.
    pub expiry: u32,
    /// Its cas number.
    pub cas: u64,
    /// What else is known of it.
    pub marks: Marks,
    /// Length of its value.
    pub value_bytes: u32,
    /// When it was stored or used, seconds since 1970.
    pub last_use: u32,
    /// It has been fetched since it was stored.
    pub was_hit: bool,
}

impl Item {
    /// Its class, with a key of so many bytes.
    pub fn class(&self, key_bytes: usize) -> usize {
        let bytes = item_bytes(key_bytes, self.client_flags, self.value_bytes as usize);
        class_of(bytes)
    }
}

/// The expiry of an item that does not end.
pub const NEVER: u32 = 0;

/// What a key stands for.
#[derive(Clone, Copy, Debug)]
pub struct Newest<F> {
    /// Its item; nothing if there is none, or none any more at the partition's time.
    pub found: Option<F>,
    /// The operation that has to be committed before anybody may be told of this.
    pub pending: Option<Xid>,
}

/// One partition, at its owner.
pub trait Partition {
    /// An item that was looked up. Holds until the next proposal for its key, an
    /// [`Change::Alter`] excepted.
    type Found: Copy;

    /// The hash of a key, which all else is asked with.
    fn hash_of(&self, key: &[u8]) -> u64;
    /// The state of what was looked up.
    fn item(found: &Self::Found) -> Item;
    /// The newest state of a key, operations that are not committed included.
    fn newest(&self, hash: u64, key: &[u8]) -> Newest<Self::Found>;
    /// The committed state of a key.
    fn committed(&self, hash: u64, key: &[u8]) -> Option<Self::Found>;
    /// Why a key's item is not there, as far as that can be told.
    fn gone(&self, _hash: u64, _key: &[u8]) -> Option<Gone> {
        None
    }
    /// Calls `with` with the value's bytes, in one or more parts.
    ///
    /// # Errors
    /// Where some of them are not recovered yet.
    fn value<R>(&self, found: &Self::Found, with: impl FnOnce(&[&[u8]]) -> R)
    -> Result<R, Refusal>;
    /// What has made room for others since this was last asked; `keeps`: whether that is kept from now on.
    fn take_evicted(&mut self, _keeps: bool) -> Vec<(Vec<u8>, Item)> {
        Vec::new()
    }
    /// Notes that an item was fetched.
    fn note_use(&mut self, found: &Self::Found);
    /// Shows the committed items from a hash on, as many as are at hand; says where to go on. One that cannot
    /// shows none.
    fn walk(&self, _from: u64, _with: &mut dyn FnMut(&[u8], &Item)) -> Option<u64> {
        None
    }
    /// The cas number of what the next operation makes.
    fn next_cas(&self) -> u64;
    /// The partition's time once what is under way is committed, seconds since 1970.
    fn now(&self) -> u64;
    /// Proposes a change.
    ///
    /// # Errors
    /// [`Refusal`]; nothing has happened then, but items may have been evicted.
    fn propose(&mut self, hash: u64, key: &[u8], change: Change<'_>) -> Result<Xid, Refusal>;
    /// The last operation that is committed.
    fn committed_xid(&self) -> Xid;
}

/// A time as items have it, at `now`. One that has passed is now.
pub(super) fn stored_expiry(expiry: Expiry, now: u64) -> u32 {
    match expiry {
        Expiry::Never => NEVER,
        Expiry::Passed => u32::try_from(now).unwrap_or(u32::MAX).max(1),
        // 2106 and later is the last second that can be told.
        Expiry::At(at) => u32::try_from(at).unwrap_or(u32::MAX),
    }
}

/// The time that goes with a flag of a request, as items have it.
pub(super) fn expiry_of_flag(exptime: Option<Exptime>, now: u64) -> u32 {
    stored_expiry(exptime.expect("its flag is there").expiry(now), now)
}

/// Seconds that an item has left; nothing if it does not end.
pub(super) fn seconds_left(expiry: u32, now: u64) -> Option<u64> {
    (expiry != NEVER).then(|| u64::from(expiry).saturating_sub(now))
}

fn item_of(entry: &Entry) -> Item {
    Item {
        client_flags: entry.client_flags,
        expiry: entry.expiry,
        cas: entry.cas,
        marks: Marks::from_bits(entry.marks).expect("a proposal has put them there"),
        value_bytes: entry.value_bytes,
        last_use: entry.last_use,
        was_hit: entry.was_hit,
    }
}

impl Partition for Owner {
    type Found = owner::Found;

    fn hash_of(&self, key: &[u8]) -> u64 {
        Self::hash_of(self, key)
    }

    fn item(found: &owner::Found) -> Item {
        item_of(&found.entry)
    }

    fn walk(&self, from: u64, with: &mut dyn FnMut(&[u8], &Item)) -> Option<u64> {
        let replica = self.replica();
        let stretch = replica.table().stretch(from);
        for (_, key, entry) in stretch.items {
            if replica.is_live(&entry) {
                with(key, &item_of(&entry));
            }
        }
        stretch.next
    }

    fn newest(&self, hash: u64, key: &[u8]) -> Newest<owner::Found> {
        let owner::Newest { found, pending } = self.newest(hash, key);
        Newest { found, pending }
    }

    fn committed(&self, hash: u64, key: &[u8]) -> Option<owner::Found> {
        self.committed(hash, key)
    }

    fn gone(&self, hash: u64, key: &[u8]) -> Option<Gone> {
        self.gone(hash, key)
    }

    fn take_evicted(&mut self, keeps: bool) -> Vec<(Vec<u8>, Item)> {
        let evicted = self.take_evicted(keeps).into_iter();
        evicted.map(|(key, entry)| (key, item_of(&entry))).collect()
    }

    fn value<R>(
        &self,
        found: &owner::Found,
        with: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, Refusal> {
        self.value(found, with)
    }

    fn note_use(&mut self, found: &owner::Found) {
        self.note_use(found);
    }

    fn next_cas(&self) -> u64 {
        self.next_cas()
    }

    fn now(&self) -> u64 {
        u64::from(self.proposed_now())
    }

    fn propose(&mut self, hash: u64, key: &[u8], change: Change<'_>) -> Result<Xid, Refusal> {
        self.propose(hash, key, change)
    }

    fn committed_xid(&self) -> Xid {
        self.committed_xid()
    }
}
