//! The commands without flags, but `incr` and `decr`.

use super::partition::{Item, Partition, seconds_left};
use super::{EventKind, Reply, Sight, Work};
use crate::group::marks::Marks;
use crate::group::owner::{Change, Refusal};
use crate::protocol::reply::{self, Answer, MetaStatus};
use crate::protocol::{Exptime, Retrieval, Store, StoreMode};

/// What a request wants to store.
pub(super) struct New<'a> {
    pub(super) mode: StoreMode,
    pub(super) cas: u64,
    pub(super) invalidates: bool,
    pub(super) client_flags: u32,
    pub(super) expiry: u32,
    pub(super) marks: Marks,
    /// The expiry of an item that an append or prepend makes where there is none.
    pub(super) vivify: Option<u32>,
    pub(super) value: &'a [u8],
}

impl<P: Partition, R: Reply> Work<'_, P, R> {
    pub(super) fn get(&mut self, get: &Retrieval<'_>, sight: Sight) -> Result<(), Refusal> {
        if let Some(exptime) = get.touch {
            return self.get_and_touch(get.with_cas, exptime);
        }
        let Some(found) = self.look(sight) else {
            self.counters.cmd_get.count();
            self.count_miss();
            return Ok(());
        };
        self.check_value(&found)?;
        self.show(&found, get.with_cas)?;
        self.partition.note_use(&found);
        self.counters.cmd_get.count();
        self.counters.get_hits.count();
        self.class(&P::item(&found)).get_hits.count();
        Ok(())
    }

    fn show(&mut self, found: &P::Found, with_cas: bool) -> Result<(), Refusal> {
        self.note_fetch(true, Some(found));
        let item = P::item(found);
        let cas = with_cas.then(|| self.shown_cas(item.cas));
        let text = self.out.text();
        reply::value_line(text, self.key, item.client_flags, item.value_bytes, cas);
        self.write_value(found)
    }

    fn get_and_touch(&mut self, with_cas: bool, exptime: Exptime) -> Result<(), Refusal> {
        if let Some(found) = self.find() {
            self.check_value(&found)?;
            if let Err(refusal) = self.give_expiry(P::item(&found), exptime) {
                return self.out_of_memory(refusal, false);
            }
            self.show(&found, with_cas)?;
            self.partition.note_use(&found);
            self.counters.touch_hits.count();
            self.class(&P::item(&found)).touch_hits.count();
        } else {
            self.counters.touch_misses.count();
        }
        self.counters.cmd_touch.count();
        Ok(())
    }

    fn give_expiry(&mut self, item: Item, exptime: Exptime) -> Result<(), Refusal> {
        let expiry = self.expiry(|now| exptime.expiry(now));
        self.set_expiry(item, expiry)
    }

    pub(super) fn set_expiry(&mut self, item: Item, expiry: u32) -> Result<(), Refusal> {
        if expiry == item.expiry {
            return Ok(());
        }
        self.propose(Change::Alter {
            expiry,
            marks: item.marks,
            renews_cas: false,
        })
    }

    pub(super) fn touch(&mut self, exptime: Exptime, noreply: bool) -> Result<(), Refusal> {
        let found = self.find();
        if let Some(found) = found {
            if let Err(refusal) = self.give_expiry(P::item(&found), exptime) {
                return self.out_of_memory(refusal, noreply);
            }
            self.partition.note_use(&found);
            self.counters.touch_hits.count();
            self.class(&P::item(&found)).touch_hits.count();
            self.answer(Answer::Touched, noreply);
        } else {
            self.counters.touch_misses.count();
            self.answer(Answer::NotFound, noreply);
        }
        self.counters.cmd_touch.count();
        Ok(())
    }

    pub(super) fn delete(&mut self, noreply: bool) -> Result<(), Refusal> {
        self.note(EventKind::Delete, "", 0);
        if let Some(found) = self.find() {
            self.propose(Change::Remove)?;
            self.counters.delete_hits.count();
            self.class(&P::item(&found)).delete_hits.count();
            self.answer(Answer::Deleted, noreply);
        } else {
            self.counters.delete_misses.count();
            self.answer(Answer::NotFound, noreply);
        }
        Ok(())
    }

    pub(super) fn store(&mut self, store: &Store<'_>) -> Result<(), Refusal> {
        let new = New {
            mode: store.mode,
            cas: store.cas,
            invalidates: false,
            client_flags: store.client_flags,
            expiry: self.expiry(|now| store.exptime.expiry(now)),
            marks: Marks::NONE,
            vivify: None,
            value: store.value,
        };
        match self.put(new) {
            Ok(status) => {
                let answer = match status {
                    MetaStatus::Done => Answer::Stored,
                    MetaStatus::NotStored => Answer::NotStored,
                    MetaStatus::Exists => Answer::Exists,
                    MetaStatus::NotFound => Answer::NotFound,
                };
                self.answer(answer, store.noreply);
                Ok(())
            }
            Err(refusal) => self.out_of_memory(refusal, store.noreply),
        }
    }

    /// Stores, if it may. With no space for a value that nothing can stop, what it would have
    /// replaced is deleted, and the refusal is [`Refusal::NoSpace`].
    pub(super) fn put(&mut self, new: New<'_>) -> Result<MetaStatus, Refusal> {
        let found = self.find();
        let mode = new.mode;
        self.set_class(new.client_flags, new.value.len());
        self.note_fetch(false, found.as_ref());
        let status = match found {
            None => self.put_new(&new)?,
            Some(found) => match self.put_over(&new, &found) {
                Err(Refusal::NoSpace) if mode == StoreMode::Set => {
                    self.propose(Change::Remove)?;
                    return Err(Refusal::NoSpace);
                }
                result => result?,
            },
        };
        let counters = self.counters;
        let class = counters.classes.of(self.class);
        counters.cmd_set.count();
        class.cmd_set.count();
        self.note_store(&new, status);
        if mode == StoreMode::Cas {
            match status {
                MetaStatus::Done => {
                    counters.cas_hits.count();
                    class.cas_hits.count();
                }
                MetaStatus::NotFound => counters.cas_misses.count(),
                _ => {
                    counters.cas_badval.count();
                    class.cas_badval.count();
                }
            }
        }
        Ok(status)
    }

    fn note_store(&mut self, new: &New<'_>, status: MetaStatus) {
        if self.events.is_none() {
            return;
        }
        let command = match new.mode {
            StoreMode::Set => "set",
            StoreMode::Add => "add",
            StoreMode::Replace => "replace",
            StoreMode::Append => "append",
            StoreMode::Prepend => "prepend",
            StoreMode::Cas => "cas",
        };
        let status = match status {
            MetaStatus::Done => "stored",
            MetaStatus::NotStored => "not_stored",
            MetaStatus::Exists => "exists",
            MetaStatus::NotFound => "not_found",
        };
        let ttl = seconds_left(new.expiry, self.partition.now()).unwrap_or(0);
        let kind = EventKind::Store { command, ttl };
        self.note(kind, status, new.value.len());
    }

    fn put_new(&mut self, new: &New<'_>) -> Result<MetaStatus, Refusal> {
        match new.mode {
            StoreMode::Set | StoreMode::Add => {
                self.write(new.client_flags, new.expiry, new.marks, &[new.value])?;
                Ok(MetaStatus::Done)
            }
            StoreMode::Cas => Ok(MetaStatus::NotFound),
            StoreMode::Replace => Ok(MetaStatus::NotStored),
            StoreMode::Append | StoreMode::Prepend => {
                let Some(expiry) = new.vivify else {
                    return Ok(MetaStatus::NotStored);
                };
                self.write(new.client_flags, expiry, new.marks, &[new.value])?;
                Ok(MetaStatus::Done)
            }
        }
    }

    fn put_over(&mut self, new: &New<'_>, found: &P::Found) -> Result<MetaStatus, Refusal> {
        let old = P::item(found);
        let mut expiry = new.expiry;
        let mut marks = new.marks;
        match new.mode {
            StoreMode::Set | StoreMode::Replace => {}
            StoreMode::Add => return Ok(MetaStatus::NotStored),
            StoreMode::Cas if new.cas == old.cas => {}
            StoreMode::Cas if new.invalidates && new.cas != 0 && new.cas < old.cas => {
                expiry = old.expiry;
                marks = marks.with(Marks::STALE);
                if old.marks.has(Marks::WON) {
                    marks = marks.with(Marks::WON);
                }
            }
            StoreMode::Cas => return Ok(MetaStatus::Exists),
            StoreMode::Append | StoreMode::Prepend => return self.extend(new, found),
        }
        self.write(new.client_flags, expiry, marks, &[new.value])?;
        Ok(MetaStatus::Done)
    }

    /// Adds to a value. Client flags and expiry stay the old ones.
    fn extend(&mut self, new: &New<'_>, found: &P::Found) -> Result<MetaStatus, Refusal> {
        let old = P::item(found);
        if new.cas != 0 && new.cas != old.cas {
            return Ok(MetaStatus::Exists);
        }
        let length = old.value_bytes as usize + new.value.len();
        if !self.limits.fits(self.key.len(), old.client_flags, length) {
            return Ok(MetaStatus::NotStored);
        }
        self.append_to_scratch(found)?;
        let scratch = std::mem::take(self.scratch);
        let parts: [&[u8]; 2] = match new.mode {
            StoreMode::Append => [&scratch, new.value],
            _ => [new.value, &scratch],
        };
        let written = self.write(old.client_flags, old.expiry, Marks::NONE, &parts);
        *self.scratch = scratch;
        written.map(|()| MetaStatus::Done)
    }

    /// Stores a value. Its class was said before.
    pub(super) fn write(
        &mut self,
        client_flags: u32,
        expiry: u32,
        marks: Marks,
        value: &[&[u8]],
    ) -> Result<(), Refusal> {
        self.propose(Change::Put {
            client_flags,
            expiry,
            marks,
            value,
        })?;
        self.counters.total_items.count();
        Ok(())
    }
}
