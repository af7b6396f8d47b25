//! Messages of the binary protocol: what they do is what text and meta commands do; how it is told is
//! their own.

use super::arithmetic::Count;
use super::classic::New;
use super::partition::Partition;
use super::{EventKind, Reply, Sight, Work};
use crate::group::marks::Marks;
use crate::group::owner::Refusal;
use crate::protocol::StoreMode;
use crate::protocol::binary::{Command, Message, Seconds, Status, reply};
use crate::protocol::reply::{MetaStatus, decimal};

impl<P: Partition, R: Reply> Work<'_, P, R> {
    /// Serves a message about one item.
    ///
    /// # Panics
    /// On one about none.
    pub(super) fn binary(&mut self, message: &Message<'_>, sight: Sight) -> Result<(), Refusal> {
        let served = match message.command {
            Command::Get {
                shows_key,
                touch: None,
            } => self.binary_get(message, shows_key, sight),
            Command::Get {
                shows_key,
                touch: Some(exptime),
            } => self.binary_touch(message, exptime, Some(shows_key)),
            Command::Touch(exptime) => self.binary_touch(message, exptime, None),
            Command::Store { .. } => self.binary_store(message),
            Command::Delete => self.binary_delete(message),
            Command::Count { .. } => self.binary_count(message),
            command => panic!("{command:?} is about no item"),
        };
        match served {
            Err(Refusal::NoSpace) => {
                self.count_no_memory();
                self.tell(message, Status::OutOfMemory);
                Ok(())
            }
            served => served,
        }
    }

    fn tell(&mut self, message: &Message<'_>, status: Status) {
        reply::error(self.out.text(), message.head, status);
    }

    fn binary_get(
        &mut self,
        message: &Message<'_>,
        shows_key: bool,
        sight: Sight,
    ) -> Result<(), Refusal> {
        if let Some(found) = self.look(sight) {
            self.check_value(&found)?;
            self.show_binary(message, &found, Some(shows_key))?;
            self.partition.note_use(&found);
            self.counters.get_hits.count();
            self.class(&P::item(&found)).get_hits.count();
        } else {
            reply::miss(self.out.text(), message, shows_key);
            self.count_miss();
        }
        self.counters.cmd_get.count();
        Ok(())
    }

    /// Gives an item its new expiry time; shows it, with its key or without, where that is asked for.
    fn binary_touch(
        &mut self,
        message: &Message<'_>,
        exptime: Seconds,
        shown: Option<bool>,
    ) -> Result<(), Refusal> {
        if let Some(found) = self.find() {
            self.check_value(&found)?;
            let expiry = self.expiry(|now| exptime.expiry(now));
            self.set_expiry(P::item(&found), expiry)?;
            self.show_binary(message, &found, shown)?;
            self.partition.note_use(&found);
            self.counters.touch_hits.count();
            self.class(&P::item(&found)).touch_hits.count();
        } else {
            reply::miss(self.out.text(), message, shown.unwrap_or(false));
            self.counters.touch_misses.count();
        }
        self.counters.cmd_touch.count();
        Ok(())
    }

    /// Shows an item: without a value, or with one and its key or not.
    fn show_binary(
        &mut self,
        message: &Message<'_>,
        found: &P::Found,
        shown: Option<bool>,
    ) -> Result<(), Refusal> {
        if shown.is_some() {
            self.note_fetch(true, Some(found));
        }
        let item = P::item(found);
        let (shows_key, value_bytes) = match shown {
            Some(shows_key) => (shows_key, item.value_bytes as usize),
            None => (false, 0),
        };
        let cas = self.shown_cas(item.cas);
        let text = self.out.text();
        let flags = item.client_flags;
        reply::item(text, message, shows_key, flags, cas, value_bytes);
        if shown.is_none() {
            return Ok(());
        }
        let out = &mut *self.out;
        self.partition.value(found, |parts| out.bytes(parts))
    }

    fn binary_store(&mut self, message: &Message<'_>) -> Result<(), Refusal> {
        let Command::Store {
            mode,
            client_flags,
            exptime,
            value,
        } = message.command
        else {
            unreachable!("was looked at");
        };
        let is_extension = matches!(mode, StoreMode::Append | StoreMode::Prepend);
        let new = New {
            mode: if message.cas != 0 && !is_extension {
                StoreMode::Cas
            } else {
                mode
            },
            cas: message.cas,
            invalidates: false,
            client_flags,
            expiry: self.expiry(|now| exptime.expiry(now)),
            marks: Marks::NONE,
            vivify: None,
            value,
        };
        let cas = self.partition.next_cas();
        let status = match (self.put(new)?, mode) {
            (MetaStatus::Done, _) => {
                let cas = self.shown_cas(cas);
                reply::done(self.out.text(), message, cas);
                return Ok(());
            }
            (MetaStatus::Exists, _) | (MetaStatus::NotStored, StoreMode::Add) => Status::Exists,
            (MetaStatus::NotFound, _) | (MetaStatus::NotStored, StoreMode::Replace) => {
                Status::NotFound
            }
            (MetaStatus::NotStored, _) => Status::NotStored,
        };
        self.tell(message, status);
        Ok(())
    }

    fn binary_delete(&mut self, message: &Message<'_>) -> Result<(), Refusal> {
        self.note(EventKind::Delete, "", 0);
        let found = self.find().map(|found| P::item(&found));
        match found {
            None => {
                self.counters.delete_misses.count();
                self.tell(message, Status::NotFound);
            }
            Some(item) if message.cas != 0 && message.cas != item.cas => {
                self.tell(message, Status::Exists);
            }
            Some(item) => {
                self.remove()?;
                self.counters.delete_hits.count();
                self.class(&item).delete_hits.count();
                reply::done(self.out.text(), message, 0);
            }
        }
        Ok(())
    }

    fn binary_count(&mut self, message: &Message<'_>) -> Result<(), Refusal> {
        let Command::Count {
            direction,
            delta,
            initial,
            vivify,
        } = message.command
        else {
            unreachable!("was looked at");
        };
        let cas = self.partition.next_cas();
        let number = match self.count(direction, delta, message.cas, None)? {
            Count::Number(number, _) => number,
            Count::Missing => {
                let Some(exptime) = vivify else {
                    self.tell(message, Status::NotFound);
                    return Ok(());
                };
                let expiry = self.expiry(|now| exptime.expiry(now));
                let mut digits = Vec::with_capacity(20);
                decimal(&mut digits, initial);
                self.set_class(0, digits.len());
                self.write(0, expiry, Marks::NONE, &[&digits])?;
                initial
            }
            Count::Exists => {
                self.tell(message, Status::Exists);
                return Ok(());
            }
            Count::NoNumber => {
                self.tell(message, Status::NonNumeric);
                return Ok(());
            }
        };
        let cas = self.shown_cas(cas);
        reply::number(self.out.text(), message, number, cas);
        Ok(())
    }
}
