//! Meta commands, but `ma`.

use super::classic::New;
use super::partition::{Item, Partition, expiry_of_flag, seconds_left};
use super::{EventKind, Reply, Sight, Work};
use crate::group::marks::Marks;
use crate::group::owner::{Change, Refusal};
use crate::memory::classes::{class_of, item_bytes};
use crate::protocol::reply::{self, Debugged, MetaStatus, Shown};
use crate::protocol::{MetaDelete, MetaGet, MetaSet};

/// What an `mg` makes of an item.
struct Won {
    expiry: u32,
    has_won: bool,
}

impl<P: Partition, R: Reply> Work<'_, P, R> {
    pub(super) fn meta_get(&mut self, get: &MetaGet<'_>, sight: Sight) -> Result<(), Refusal> {
        let may_change = get.vivify.is_some() || get.touch.is_some() || get.recache.is_some();
        let mut found = if may_change {
            self.find()
        } else {
            self.look(sight)
        };
        // An item that is stale is won by who sees it first.
        if found.is_some_and(|found| P::item(&found).marks.has(Marks::STALE)) {
            found = self.find();
        }
        match found {
            Some(found) => {
                if let Err(refusal) = self.meta_get_hit(get, &found) {
                    return self.out_of_memory(refusal, false);
                }
                let touches = get.touch.is_some();
                self.count_meta_get(touches, true);
                let class = self.class(&P::item(&found));
                if touches {
                    class.touch_hits.count();
                } else {
                    class.get_hits.count();
                }
            }
            None if get.vivify.is_some() => {
                if let Err(refusal) = self.vivify(get) {
                    return self.out_of_memory(refusal, false);
                }
                self.count_meta_get(false, true);
            }
            None => {
                reply::meta_get_miss(self.out.text(), get, self.key);
                self.count_meta_get(false, false);
            }
        }
        Ok(())
    }

    fn count_meta_get(&mut self, touches: bool, hits: bool) {
        let counters = self.counters;
        let (commands, results) = match (touches, hits) {
            (true, _) => (&counters.cmd_touch, &counters.touch_hits),
            (false, true) => (&counters.cmd_get, &counters.get_hits),
            (false, false) => (&counters.cmd_get, &counters.get_misses),
        };
        commands.count();
        if !touches && !hits {
            return self.count_miss();
        }
        results.count();
    }

    fn meta_get_hit(&mut self, get: &MetaGet<'_>, found: &P::Found) -> Result<(), Refusal> {
        self.note_fetch(true, Some(found));
        let item = P::item(found);
        if get.wants_value {
            self.check_value(found)?;
        }
        let won = won(get, &item, self.partition.now());
        if won.has_won || won.expiry != item.expiry {
            let marks = if won.has_won {
                item.marks.with(Marks::WON)
            } else {
                item.marks
            };
            self.propose(Change::Alter {
                expiry: won.expiry,
                marks,
                renews_cas: false,
            })?;
        }
        self.show_meta(get, &item, won.has_won, false);
        if get.wants_value {
            self.write_value(found)?;
        }
        if !get.leaves_no_trace {
            self.partition.note_use(found);
        }
        Ok(())
    }

    /// Makes the item that an `mg` with `N` has not found, and which is its client's to store.
    fn vivify(&mut self, get: &MetaGet<'_>) -> Result<(), Refusal> {
        let now = self.partition.now();
        let mut expiry = 0;
        for flag in get.flags {
            match flag.letter {
                b'T' => expiry = expiry_of_flag(get.touch, now),
                b'N' => expiry = expiry_of_flag(get.vivify, now),
                _ => {}
            }
        }
        let item = Item {
            client_flags: 0,
            expiry: 0,
            cas: self.partition.next_cas(),
            marks: Marks::NONE,
            value_bytes: 0,
            last_use: u32::try_from(now).unwrap_or(u32::MAX),
            was_hit: false,
        };
        self.set_class(0, 0);
        self.write(0, expiry, Marks::WON, &[])?;
        if !get.leaves_no_trace
            && let Some(found) = self.partition.newest(self.hash, self.key).found
        {
            self.partition.note_use(&found);
        }
        self.show_meta(get, &item, true, true);
        if get.wants_value {
            self.out.value(&[]);
        }
        Ok(())
    }

    fn show_meta(&mut self, get: &MetaGet<'_>, item: &Item, has_won: bool, is_new: bool) {
        let now = self.partition.now();
        let shown = Shown {
            key: self.key,
            is_key_base64: item.marks.has(Marks::KEY_BASE64),
            value_bytes: item.value_bytes,
            client_flags: item.client_flags,
            cas: self.shown_cas(item.cas),
            seconds_left: seconds_left(item.expiry, now),
            now,
            is_new,
            seconds_idle: now.saturating_sub(u64::from(item.last_use)),
            was_hit: item.was_hit,
            has_won,
            is_stale: item.marks.has(Marks::STALE),
            was_won: item.marks.has(Marks::WON),
        };
        reply::meta_get(self.out.text(), get, &shown);
    }

    pub(super) fn meta_set(&mut self, set: &MetaSet<'_>) -> Result<(), Refusal> {
        let is_base64 = set.key.is_base64();
        let new = New {
            mode: set.mode,
            cas: set.cas,
            invalidates: set.invalidates,
            client_flags: set.client_flags,
            expiry: self.expiry(|now| set.exptime.expiry(now)),
            marks: if is_base64 {
                Marks::KEY_BASE64
            } else {
                Marks::NONE
            },
            vivify: set
                .vivify
                .map(|exptime| self.expiry(|now| exptime.expiry(now))),
            value: set.value,
        };
        let next_cas = self.partition.next_cas();
        let status = match self.put(new) {
            Ok(status) => status,
            Err(refusal) => return self.out_of_memory(refusal, false),
        };
        let cas = match status {
            MetaStatus::Done => self.shown_cas(next_cas),
            _ => 0,
        };
        let dialect = self.limits.dialect;
        reply::meta_set(self.out.text(), set, self.key, status, cas, dialect);
        Ok(())
    }

    pub(super) fn meta_delete(&mut self, delete: &MetaDelete<'_>) -> Result<(), Refusal> {
        self.note(EventKind::Delete, "", 0);
        let found = self.find().map(|found| P::item(&found));
        let status = match found {
            Some(item)
                if delete.removes_value && delete.cas.is_none_or(|asked| asked == item.cas) =>
            {
                match self.remove_value(delete, &item) {
                    Ok(()) => MetaStatus::Done,
                    Err(refusal) => return self.out_of_memory(refusal, false),
                }
            }
            None => {
                self.counters.delete_misses.count();
                MetaStatus::NotFound
            }
            Some(item) if delete.cas.is_some_and(|asked| asked != item.cas) => MetaStatus::Exists,
            Some(item) if delete.invalidates => {
                let expiry = match delete.touch {
                    None => item.expiry,
                    touch => expiry_of_flag(touch, self.partition.now()),
                };
                self.propose(Change::Alter {
                    expiry,
                    marks: item.marks.with(Marks::STALE).without(Marks::WON),
                    renews_cas: true,
                })?;
                MetaStatus::Done
            }
            Some(item) => {
                self.propose(Change::Remove)?;
                self.counters.delete_hits.count();
                self.class(&item).delete_hits.count();
                MetaStatus::Done
            }
        };
        let dialect = self.limits.dialect;
        reply::meta_delete(self.out.text(), delete, self.key, status, dialect);
        Ok(())
    }

    /// Leaves an item without value and client flags.
    fn remove_value(&mut self, delete: &MetaDelete<'_>, item: &Item) -> Result<(), Refusal> {
        let mut expiry = item.expiry;
        let mut marks = item.marks;
        if delete.invalidates {
            marks = marks.with(Marks::STALE).without(Marks::WON);
            if delete.touch.is_some() {
                expiry = expiry_of_flag(delete.touch, self.partition.now());
            }
        }
        self.set_class(0, 0);
        self.write(0, expiry, marks, &[])
    }

    pub(super) fn meta_debug(&mut self, sight: Sight) -> Result<(), Refusal> {
        self.counters.cmd_meta.count();
        let Some(found) = self.look(sight) else {
            reply::meta_debug_miss(self.out.text());
            return Ok(());
        };
        let item = P::item(&found);
        let now = self.partition.now();
        let bytes = item_bytes(self.key.len(), item.client_flags, item.value_bytes as usize);
        let debugged = Debugged {
            key: self.key,
            is_key_base64: item.marks.has(Marks::KEY_BASE64),
            seconds_past_end: match item.expiry {
                0 => -1,
                expiry => now.cast_signed() - i64::from(expiry),
            },
            seconds_idle: now.saturating_sub(u64::from(item.last_use)),
            cas: self.shown_cas(item.cas),
            was_hit: item.was_hit,
            class: class_of(bytes),
            bytes,
        };
        reply::meta_debug(self.out.text(), &debugged);
        Ok(())
    }
}

/// What flags in their order make of an item that was found.
fn won(get: &MetaGet<'_>, item: &Item, now: u64) -> Won {
    let was_won = item.marks.has(Marks::WON);
    let mut won = Won {
        expiry: item.expiry,
        has_won: item.marks.has(Marks::STALE) && !was_won,
    };
    for flag in get.flags {
        match flag.letter {
            b'T' => won.expiry = expiry_of_flag(get.touch, now),
            b'R' if !was_won => {
                let left = seconds_left(won.expiry, now);
                let limit = get.recache.expect("its flag is there").expiry(now);
                let limit = limit.seconds_left(now).unwrap_or(0);
                won.has_won |= left.is_some_and(|left| left < limit);
            }
            _ => {}
        }
    }
    won
}
