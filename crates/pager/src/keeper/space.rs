//! A shard of one address space of a program, whose pages are served: its books, and what is done to
//! it. Each shard has an agent in the program, a userfaultfd and a mailbox of its own, so that it
//! goes on as if there were no others; to its handler it is an address space.
//!
//! Pages leave by the program's agent, in batches; a page that leaves is not installed again before
//! the agent has said that it is gone. A fork makes another address space with the same pages, in
//! the same slots, which whoever writes first leaves.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use cenote_volume::{Done, Op};

use super::kernel::{Cause, Fault, Kernel, is_gone};
use super::layout::Layout;
use super::slots::NONE;
use super::store::{Purpose, Store};
use crate::counters::Counters;
use crate::pages::{Action, Arrival, Pages, WrittenAs};
use crate::reports;
use crate::shares::Share;
use change::Change;
use leaving::Leaving;
use requests::Request;

/// Pause after a change that the kernel refused for now, or a fork that there was no descriptor
/// for: as short as a wait can be.
const AGAIN_AFTER: Duration = Duration::from_millis(1);

/// Room of an address space whose pages nobody can drop.
const UNBOUNDED: u32 = u32::MAX;

/// An address space.
pub struct Space {
    pub id: u32,
    kernel: Kernel,
    /// The program's `/proc/self/mem`; a child has none before it introduces itself.
    memory: Option<File>,
    agent: Option<OwnedFd>,
    layout: Layout,
    pages: Pages,
    /// Which page is in which slot.
    slots: Vec<u32>,
    /// Writes under way: to which slot, of which page; or of none, if that was forgotten meanwhile.
    /// Such a slot is nobody's until the write has ended.
    writes: HashMap<u32, Option<u32>>,
    leaving: Leaving,
    /// Faults at pages on their way out, to be looked at when they are gone; and at others, while
    /// too many are on their way out.
    held_faults: Vec<Fault>,
    /// Reads of such pages that have ended, and all that ends while a change is put off: each with
    /// its page, or, of a write, its slot. Until then they count as under way: a page whose books
    /// were ahead of it could be chosen to go before it came.
    held_ends: Vec<(u32, Purpose, Done)>,
    /// Such pages that are to get zeros. They count as under way, too.
    held_zeros: Vec<u32>,
    /// The kernel refused this while the program forks: nothing else is done before.
    put_off: Option<Change>,
    /// Pages that the program has forgotten.
    request: Option<Request>,
    answered: u64,
    /// The page that is being forgotten: the program drops it.
    forgetting: Option<u32>,
    in_flight: u32,
    /// The agent is gone: the program, too, or soon.
    is_ending: bool,
    /// Its memory cannot be served: its faults are left alone until it is dead.
    is_given_up: bool,
    is_dead: bool,
    /// When the last turn looked for what is due. What falls due after that is so when its handler
    /// sleeps.
    looked_at: Duration,
    /// Address spaces that forks made.
    pub children: Vec<Space>,
}

impl Space {
    /// Begins to serve a program that has introduced itself.
    pub fn begin(id: u32, uffd: OwnedFd, memory: File, layout: Layout) -> io::Result<Self> {
        let kernel = Kernel::begin(uffd, &layout.ranges())?;
        let pages = Pages::new(layout.count(), UNBOUNDED);
        let slots = vec![NONE; layout.count() as usize];
        let mut space = Self::of(id, kernel, layout, pages, slots);
        space.memory = Some(memory);
        Ok(space)
    }

    fn of(id: u32, kernel: Kernel, layout: Layout, pages: Pages, slots: Vec<u32>) -> Self {
        Self {
            id,
            kernel,
            memory: None,
            agent: None,
            layout,
            pages,
            slots,
            writes: HashMap::new(),
            leaving: Leaving::new(),
            held_faults: Vec::new(),
            held_ends: Vec::new(),
            held_zeros: Vec::new(),
            put_off: None,
            request: None,
            answered: 0,
            forgetting: None,
            in_flight: 0,
            is_ending: false,
            is_given_up: false,
            is_dead: false,
            looked_at: Duration::ZERO,
            children: Vec::new(),
        }
    }

    /// A child introduces itself.
    pub fn introduce(&mut self, memory: File) {
        self.memory = Some(memory);
    }

    /// From now on the agent at this socket drops pages.
    pub fn bound_by(&mut self, agent: OwnedFd) {
        // One that is given up hears that at once.
        self.agent = Some(agent).filter(|_| !self.is_given_up);
    }

    pub fn uffd(&self) -> RawFd {
        self.kernel.fd()
    }

    /// What to wait for to hear of it. What may say the same for long is left out, and looked at
    /// now and then: the faults of one that is given up, a fork that cannot be read, and what the
    /// agent says while a change is put off.
    pub fn waits(&self) -> impl Iterator<Item = RawFd> {
        let is_read = !(self.is_given_up || self.is_short());
        let is_heard = self.is_bounded() && self.put_off.is_none();
        let agent = self.agent.as_ref().filter(|_| is_heard);
        let faults = is_read.then(|| self.uffd());
        faults.into_iter().chain(agent.map(AsRawFd::as_raw_fd))
    }

    /// Whether it is not served, and whoever introduces it has to end.
    pub fn is_given_up(&self) -> bool {
        self.is_given_up
    }

    /// Whether its pages can be dropped.
    pub fn is_bounded(&self) -> bool {
        self.agent.is_some() && !self.is_ending
    }

    /// Whether nobody has it any more, and nothing is under way for it.
    pub fn is_over(&self) -> bool {
        self.is_dead && self.in_flight == 0
    }

    /// Whether it is to be looked at now and then, since nothing will say that it is over.
    pub fn is_watched(&self) -> bool {
        !self.is_bounded()
    }

    pub fn resident(&self) -> u32 {
        self.pages.resident()
    }

    pub fn counters(&self) -> Counters {
        self.pages.counters()
    }

    /// Whether a thread waits for room, or for a page on its way out.
    pub fn is_awaited(&self) -> bool {
        let is_held = !(self.held_faults.is_empty() && self.held_zeros.is_empty());
        is_held || self.put_off.is_some() || self.pages.is_awaited()
    }

    /// Whether a fork waits for a descriptor. Until there is one the program's own says that there
    /// is something to be read.
    pub fn is_short(&self) -> bool {
        self.kernel.is_short()
    }

    /// How long from `now` until it has something to do by itself.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let is_unsent = self.is_bounded() && self.leaving.is_unsent();
        let is_refused = self.put_off.is_some() || self.is_short() || is_unsent;
        match is_refused && !self.is_given_up {
            // Nothing tells when the thread that forks has gone on.
            true => Some(AGAIN_AFTER),
            // They are not looked at any more.
            false if self.is_given_up || self.is_dead => self.pages.deadline(self.looked_at),
            false => {
                let left = self.pages.deadline(self.looked_at)?;
                Some((self.looked_at + left).saturating_sub(now))
            }
        }
    }

    /// Pages that may be on their way out, beyond its room.
    pub fn leaving_max(&self) -> u32 {
        self.leaving.most
    }

    /// How many pages may be resident, and on their way out.
    pub fn set_share(&mut self, share: Share, store: &mut Store) {
        self.leaving.most = share.leaving;
        self.set_room(share.room, store);
    }

    /// How many pages may be resident.
    pub fn set_room(&mut self, room: u32, store: &mut Store) {
        if self.pages.room() != room {
            self.pages.set_room(room, store.now());
            self.act(store);
        }
    }

    /// Looks whether anybody has it.
    pub fn probe(&mut self, store: &mut Store) {
        if !self.is_dead && self.kernel.is_dead(self.layout.doorbell()) {
            self.is_dead = true;
            self.leaving = Leaving::new();
            for (place, purpose, end) in std::mem::take(&mut self.held_ends) {
                self.end(place, purpose, end, store);
            }
        }
    }

    /// Leaves its number and all slots, when it is over: what was under way went to some of them.
    pub fn leave(&mut self, store: &mut Store) {
        store.ids.release(self.id);
        let mut slots = store.slots();
        for slot in self.slots.drain(..) {
            slots.release(slot);
        }
    }

    /// Whether something was read that is not looked at.
    pub fn is_told(&self) -> bool {
        // What is put off is tried again in a while.
        let is_ready = !self.is_dead && self.put_off.is_none();
        is_ready && !(self.kernel.faults.is_empty() && self.kernel.forked.is_empty())
    }

    /// Whether it has something to do though its descriptors say nothing.
    pub fn is_due(&self, now: Duration) -> bool {
        let is_held_up = self.put_off.is_some() || self.is_given_up || self.is_short();
        let has_lost_agent = self.agent.is_none() && !self.leaving.is_empty();
        let is_late = self
            .deadline(self.looked_at)
            .is_some_and(|left| now >= self.looked_at + left);
        is_held_up || has_lost_agent || is_late || self.is_told() || self.request.is_some()
    }

    /// Goes on. Whether anything happened.
    pub fn turn(&mut self, store: &mut Store) -> bool {
        if self.is_dead {
            return false;
        }
        if self.is_given_up {
            return self.turn_away(store);
        }
        let was_short = self.is_short();
        let read = self.kernel.read();
        self.done("read faults", read);
        if self.is_short() && !was_short {
            let space = self.id;
            reports::say(move || {
                tracing::warn!(space, "a program's fork waits: no descriptors are left");
            });
        }
        if !self.catch_up(store) {
            return false;
        }
        let mut is_busy = self.hear(store);
        self.settle_forks(store);
        while !self.kernel.faults.is_empty() && self.put_off.is_none() {
            is_busy = true;
            for fault in std::mem::take(&mut self.kernel.faults) {
                self.fault(fault, store);
                self.act(store);
            }
        }
        if self.put_off.is_some() {
            return is_busy;
        }
        self.looked_at = store.now();
        self.pages.look(self.looked_at);
        if self.is_bounded() {
            self.pages.retry_lost(self.looked_at);
        }
        self.act(store);
        is_busy | self.go_on_forgetting(store)
    }

    /// Installs zeros at a page. One on its way out gets them when it is gone: the agent would drop
    /// them, and what was written to them meanwhile. Nobody waits for that here, since a stopped
    /// program has no agent that answers, and others are served by this handler.
    fn zero(&mut self, page: u32, store: &mut Store) {
        if self.leaving.holds(page) || self.put_off.is_some() {
            self.held_zeros.push(page);
            return self.flush();
        }
        if let Arrival::Install { .. } = self.pages.zero_done(page, store.now()) {
            self.change(Change::Zero(page), store);
        }
    }

    fn fault(&mut self, fault: Fault, store: &mut Store) {
        let Some(page) = self.layout.page(fault.address) else {
            return;
        };
        let is_put_off = self.put_off.is_some();
        if page == 0 && !is_put_off {
            return self.doorbell(store);
        }
        let is_missing = matches!(fault.cause, Cause::Missing { .. });
        let may_come = is_missing && !self.pages.is_resident(page);
        let is_held = match may_come {
            true => self.leaving.holds(page),
            false => self.leaving.has(page),
        };
        if is_put_off || is_held {
            // A thread that takes signals faults again while it waits.
            if !self.held_faults.contains(&fault) {
                self.held_faults.push(fault);
            }
            return self.flush();
        }
        match fault.cause {
            Cause::Missing { .. } if self.pages.is_resident(page) => {
                // It came since the fault, or the program took it out by itself. One that came
                // stays protected, if it is: otherwise what is written to it would not be seen.
                let protected = !self.pages.is_writable(page);
                self.change(Change::Restore(page, protected), store);
            }
            Cause::Missing { to_write } => self.pages.fault(page, to_write, store.now()),
            Cause::Protected if self.pages.is_writable(page) => {
                self.change(Change::Protect(page, false), store);
            }
            Cause::Protected => self.pages.fault(page, true, store.now()),
        }
    }

    /// What the kernel refuses is about a mapping that is not there any more, or the program ends: its
    /// pages would not be what the books say.
    fn done<T>(&mut self, what: &'static str, result: io::Result<T>) -> Option<T> {
        let error = match result {
            Ok(done) => return Some(done),
            Err(error) => error,
        };
        let space = self.id;
        if is_gone(&error) {
            reports::say(move || tracing::debug!(space, %error, what, "a mapping is gone"));
            return None;
        }
        if !self.is_given_up {
            reports::say(move || {
                tracing::error!(space, %error, what, "a program is ended: its memory cannot be served");
            });
        }
        self.give_up();
        None
    }

    /// Has the program's agent end it, by the end of their connection. Whoever waits at a page waits until
    /// then: there is nothing right to install.
    fn give_up(&mut self) {
        self.is_given_up = true;
        self.is_ending = true;
        self.agent = None;
        self.put_off = None;
    }

    fn act(&mut self, store: &mut Store) {
        while !self.is_given_up
            && self.put_off.is_none()
            && let Some(action) = self.pages.next_action()
        {
            match action {
                // Seldom on its way out: who waited for room waits at a page that went again.
                Action::Zero(page) => self.zero(page, store),
                Action::Protect(page) => self.change(Change::Protect(page, true), store),
                Action::Unprotect(page) => self.change(Change::Protect(page, false), store),
                Action::Drop(page) if self.forgetting == Some(page) => {}
                // Nobody drops pages any more. One that stays is as the store has it.
                Action::Drop(_) | Action::Unpoison(_) if self.is_ending => {}
                Action::Unpoison(page) => self.leaving.enter_poisoned(page),
                Action::Drop(page) => {
                    self.leaving.enter(page);
                    if self.leaving.is_batch() {
                        self.flush();
                    }
                }
                Action::Wake(page) => {
                    let result = self.kernel.wake(self.layout.address(page));
                    self.done("wake", result);
                }
                Action::Read(page) => {
                    self.in_flight += 1;
                    store.read(self.id, page, self.slots[page as usize]);
                }
                Action::Write(page) => self.write(page, store),
                Action::Erase(page) => {
                    self.leave_slot(page, store);
                    self.pages.erase_done(page, store.now());
                }
            }
        }
        self.settle_forks(store);
    }

    fn leave_slot(&mut self, page: u32, store: &mut Store) {
        let slot = std::mem::replace(&mut self.slots[page as usize], NONE);
        store.slots().release(slot);
    }

    /// A page that is being written is to be forgotten: nothing of it is needed any more.
    fn disown_write(&mut self, page: u32, store: &Store) {
        if self.pages.disown_write(page) {
            let slot = std::mem::replace(&mut self.slots[page as usize], NONE);
            match self.writes.get_mut(&slot) {
                Some(page) => *page = None,
                None => store.slots().release(slot),
            }
        }
    }

    /// The write to a slot has ended: of which page it was.
    fn end_write(&mut self, slot: u32, store: &Store) -> Option<u32> {
        let page = self.writes.remove(&slot);
        let page = page.expect("what is written is noted");
        if page.is_none() {
            store.slots().release(slot);
        }
        page
    }

    fn write(&mut self, page: u32, store: &mut Store) {
        let mut buffer = store.buffer();
        let address = self.layout.address(page);
        let memory = self.memory.as_ref();
        if memory.is_none_or(|memory| memory.read_exact_at(&mut buffer, address).is_err()) {
            if self.stays_unread(page, store) {
                return store.keep(buffer);
            }
            // Nobody has the mapping any more.
            buffer.fill(0);
        }
        let is_zeros = buffer.iter().all(|byte| *byte == 0);
        let how = self.pages.written_as(page, is_zeros);
        match how {
            WrittenAs::Bytes => {
                let slot = store.slots().renew(self.slots[page as usize]);
                if let Some(slot) = slot {
                    self.slots[page as usize] = slot;
                    self.writes.insert(slot, Some(page));
                    self.in_flight += 1;
                    return store.write(self.id, slot, buffer);
                }
                store.is_full = true;
                self.pages.write_done(page, None, store.now());
            }
            WrittenAs::Erased => {
                self.leave_slot(page, store);
                self.pages.write_done(page, Some(how), store.now());
            }
            WrittenAs::Nothing => self.pages.write_done(page, Some(how), store.now()),
        }
        store.keep(buffer);
    }

    /// The read of a page has ended, or the write to a slot.
    pub fn end(&mut self, place: u32, purpose: Purpose, end: Done, store: &mut Store) {
        let is_early = purpose == Purpose::Read && self.leaving.holds(place);
        if (is_early || self.put_off.is_some()) && !self.is_dead {
            self.held_ends.push((place, purpose, end));
            return self.flush();
        }
        self.in_flight -= 1;
        let page = match purpose {
            Purpose::Read => Some(place),
            Purpose::Write => self.end_write(place, store),
        };
        let (now, is_ok) = (store.now(), end.result.is_ok());
        if let Err(error) = &end.result {
            let what = "pages of programs cannot be moved";
            store.failures.note(now, what, error);
        }
        if purpose == Purpose::Write {
            store.failures.note_write(now, is_ok);
        }
        if self.is_dead || self.is_given_up {
            return;
        }
        match (page, end.op) {
            (Some(page), Op::Read(bytes)) => match self.pages.read_done(page, is_ok, now) {
                Arrival::Install { protected } => {
                    self.change(Change::Install(page, bytes, protected), store);
                }
                Arrival::Ignore => store.keep(bytes),
                Arrival::Poison => {
                    self.change(Change::Poison(page), store);
                    store.keep(bytes);
                }
            },
            (page, op) => {
                let written = is_ok.then_some(WrittenAs::Bytes);
                match page {
                    Some(page) => self.pages.write_done(page, written, now),
                    None => self.pages.orphan_done(is_ok, now),
                }
                if let Op::Write(bytes) = op {
                    store.keep(bytes);
                }
            }
        }
        self.act(store);
        self.go_on_forgetting(store);
    }
}

mod change;
mod forks;
mod leaving;
mod refused;
mod requests;
#[cfg(test)]
mod tests;
