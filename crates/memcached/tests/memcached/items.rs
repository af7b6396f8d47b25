//! A partition in a map: what the engine is compared with memcached over. Its cas numbers are those
//! that memcached would give.

use std::collections::HashMap;

use cenote_kv::engine::{Item, NEVER, Newest, Partition};
use cenote_kv::group::owner::{Change, Refusal};
use cenote_kv::group::replica::Xid;

#[derive(Debug, Default)]
pub struct Items {
    places: HashMap<Box<[u8]>, usize>,
    entries: Vec<Entry>,
    unused: Vec<usize>,
    /// The last operation's number.
    xid: Xid,
    /// The last cas number, which only what makes an item counts up.
    cas: u64,
    now: u64,
    /// Items with a cas number up to this are gone at the time.
    flush: Option<(u64, u32)>,
}

#[derive(Debug)]
struct Entry {
    item: Item,
    value: Vec<u8>,
}

/// An item that was looked up.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    item: Item,
    place: usize,
}

impl Items {
    /// An empty partition; the first item has the cas number after `last_cas`.
    pub fn new(last_cas: u64, now: u64) -> Self {
        Self {
            cas: last_cas,
            now,
            ..Self::default()
        }
    }

    /// The last cas number.
    pub fn last_cas(&self) -> u64 {
        self.cas
    }

    fn is_gone(&self, item: &Item) -> bool {
        let is_flushed = |(cas, at): (u64, u32)| item.cas <= cas && u64::from(at) <= self.now;
        let has_passed = item.expiry != NEVER && u64::from(item.expiry) <= self.now;
        has_passed || self.flush.is_some_and(is_flushed)
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(place) = self.places.remove(key) {
            self.entries[place].value = Vec::new();
            self.unused.push(place);
        }
    }

    fn put(&mut self, key: &[u8], item: Item, value: Vec<u8>) {
        let entry = Entry { item, value };
        if let Some(place) = self.places.get(key) {
            self.entries[*place] = entry;
            return;
        }
        let place = match self.unused.pop() {
            Some(place) => {
                self.entries[place] = entry;
                place
            }
            None => {
                self.entries.push(entry);
                self.entries.len() - 1
            }
        };
        self.places.insert(key.into(), place);
    }
}

impl Partition for Items {
    type Found = Found;

    fn item(found: &Found) -> Item {
        found.item
    }

    fn hash_of(&self, _key: &[u8]) -> u64 {
        0
    }

    fn newest(&self, hash: u64, key: &[u8]) -> Newest<Found> {
        Newest {
            found: self.committed(hash, key),
            pending: None,
        }
    }

    fn committed(&self, _hash: u64, key: &[u8]) -> Option<Found> {
        let place = *self.places.get(key)?;
        let item = self.entries[place].item;
        (!self.is_gone(&item)).then_some(Found { item, place })
    }

    fn value<R>(&self, found: &Found, with: impl FnOnce(&[&[u8]]) -> R) -> Result<R, Refusal> {
        Ok(with(&[&self.entries[found.place].value]))
    }

    fn note_use(&mut self, found: &Found) {
        let now = u32::try_from(self.now).unwrap_or(u32::MAX);
        let item = &mut self.entries[found.place].item;
        item.was_hit = true;
        item.last_use = now;
    }

    fn next_cas(&self) -> u64 {
        self.cas + 1
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn propose(&mut self, hash: u64, key: &[u8], change: Change<'_>) -> Result<Xid, Refusal> {
        match change {
            Change::Put {
                client_flags,
                expiry,
                marks,
                value,
            } => {
                self.cas += 1;
                let value = value.concat();
                let item = Item {
                    client_flags,
                    expiry,
                    cas: self.cas,
                    marks,
                    value_bytes: u32::try_from(value.len()).map_err(|_| Refusal::NoSpace)?,
                    last_use: u32::try_from(self.now).unwrap_or(u32::MAX),
                    was_hit: false,
                };
                self.put(key, item, value);
            }
            Change::Alter {
                expiry,
                marks,
                renews_cas,
            } => {
                let found = self
                    .committed(hash, key)
                    .expect("is only asked for what is there");
                if renews_cas {
                    self.cas += 1;
                }
                let item = &mut self.entries[found.place].item;
                item.expiry = expiry;
                item.marks = marks;
                if renews_cas {
                    item.cas = self.cas;
                }
            }
            Change::Remove => self.remove(key),
            Change::Flush { at } => {
                self.cas += 1;
                self.flush = Some((self.cas, at));
                if u64::from(at) <= self.now {
                    self.places.clear();
                    self.entries.clear();
                    self.unused.clear();
                    self.flush = None;
                }
            }
        }
        self.xid += 1;
        Ok(self.xid)
    }

    fn committed_xid(&self) -> Xid {
        self.xid
    }
}
