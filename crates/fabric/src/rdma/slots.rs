//! Verbs outstanding on one endpoint, in posting order. Pure, but for the pointers it keeps.
//!
//! By position: `first..issuing` are wholly given to the device or decided without it,
//! `issuing..next` are not, the first of them perhaps in part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::RemoteMemory;
use crate::endpoint::check_message;
use crate::{
    Completion, CompletionQueue, QUEUE_DEPTH, RemoteWindow, Rights, Status, Token, Verb as Posted,
    WindowDescriptor,
};

/// A verb as it was posted, and how far it is.
pub(super) struct Slot {
    pub(super) verb: Verb,
    pub(super) token: Token,
    /// What it accesses; `None` for SEND and for verbs that were refused here.
    pub(super) memory: Option<Arc<RemoteMemory>>,
    pub(super) window: WindowDescriptor,
    pub(super) offset: u64,
    pub(super) len_bytes: usize,
    /// Bytes that work requests were made for.
    pub(super) issued_bytes: usize,
    /// Everything was made that it needs.
    pub(super) is_issued: bool,
    /// Work requests that are not done.
    pub(super) works: u32,
    /// Set when it is known how it ends; otherwise it ends well.
    pub(super) ended: Option<Status>,
    pub(super) value: u64,
}

/// What is to be done, with what only that verb has.
pub(super) enum Verb {
    /// Into `landing`, null once it is revoked.
    Read {
        landing: *mut u8,
    },
    Write {
        source: *const u8,
        immediate: Option<u32>,
    },
    Send {
        message: Vec<u8>,
    },
    CompareSwap {
        expected: u64,
        new: u64,
    },
    FetchAdd {
        addend: u64,
    },
}

impl Verb {
    fn needs(&self) -> Rights {
        match self {
            Self::Read { .. } => Rights::READ,
            Self::Write { .. } => Rights::WRITE,
            Self::CompareSwap { .. } | Self::FetchAdd { .. } => Rights::ATOMIC,
            Self::Send { .. } => Rights(0),
        }
    }

    fn is_atomic(&self) -> bool {
        matches!(self, Self::CompareSwap { .. } | Self::FetchAdd { .. })
    }

    /// Whether its effect is an answer, which a later request can overtake.
    fn is_answered(&self) -> bool {
        self.is_atomic() || matches!(self, Self::Read { .. })
    }
}

impl Slot {
    /// What was posted on a window of `session`; refused at once when the host would refuse it.
    pub(super) fn of(posted: Posted<'_>, token: Token, session: &Arc<AtomicBool>) -> Self {
        let (verb, window, offset, len_bytes) = match posted {
            Posted::Read {
                window,
                offset,
                landing,
                len_bytes,
            } => (Verb::Read { landing }, window, offset, len_bytes),
            Posted::Write {
                window,
                offset,
                source,
                len_bytes,
                immediate,
            } => (Verb::Write { source, immediate }, window, offset, len_bytes),
            Posted::CompareSwap {
                window,
                offset,
                expected,
                new,
            } => (Verb::CompareSwap { expected, new }, window, offset, 8),
            Posted::FetchAdd {
                window,
                offset,
                addend,
            } => (Verb::FetchAdd { addend }, window, offset, 8),
            Posted::Send { message } => {
                check_message(message);
                return Self::send(message, token);
            }
        };
        Self::on_window(verb, window, offset, len_bytes, token, session)
    }

    fn on_window(
        verb: Verb,
        window: &RemoteWindow,
        offset: u64,
        len_bytes: usize,
        token: Token,
        session: &Arc<AtomicBool>,
    ) -> Self {
        let mut slot = Self {
            verb,
            token,
            memory: None,
            window: window.descriptor,
            offset,
            len_bytes,
            issued_bytes: 0,
            is_issued: false,
            works: 0,
            ended: None,
            value: 0,
        };
        match slot.admit(window, session) {
            Ok(memory) => slot.memory = Some(memory),
            Err(status) => slot.ended = Some(status),
        }
        slot
    }

    fn send(message: &[u8], token: Token) -> Self {
        Self {
            verb: Verb::Send {
                message: message.to_vec(),
            },
            token,
            memory: None,
            window: WindowDescriptor {
                id: crate::WindowId(0),
                generation: crate::Generation(0),
                len_bytes: 0,
                rights: Rights(0),
            },
            offset: 0,
            len_bytes: message.len(),
            issued_bytes: 0,
            is_issued: false,
            works: 0,
            ended: None,
            value: 0,
        }
    }

    /// In the order of every backend: generation, rights, bounds, alignment.
    fn admit(
        &self,
        window: &RemoteWindow,
        session: &Arc<AtomicBool>,
    ) -> Result<Arc<RemoteMemory>, Status> {
        let memory = window.remote.as_ref().ok_or(Status::Protocol)?;
        // A key of an ended session may name another window by now.
        if memory.stale.load(Ordering::Relaxed) || !Arc::ptr_eq(&memory.session, session) {
            return Err(Status::StaleGeneration);
        }
        if !self.window.rights.contains(self.verb.needs()) {
            return Err(Status::NoRights);
        }
        let end = self.offset.checked_add(self.len_bytes as u64);
        if end.is_none_or(|end| end > self.window.len_bytes)
            || (self.verb.is_atomic() && !self.offset.is_multiple_of(8))
        {
            return Err(Status::OutOfBounds);
        }
        Ok(Arc::clone(memory))
    }

    /// Decides how the verb ends, without the device.
    pub(super) fn decide(&mut self, status: Status) {
        self.ended = Some(status);
        self.is_issued = true;
    }

    /// As before anything was made for it.
    fn rewind(&mut self) {
        self.works = 0;
        self.issued_bytes = 0;
        if self.ended == Some(Status::ReceiverNotReady) && self.memory.is_some() {
            self.ended = None;
        }
        self.is_issued = self.ended.is_some();
    }

    fn overlaps(&self, other: &Self) -> bool {
        let is_same = match (&self.memory, &other.memory) {
            (Some(mine), Some(theirs)) => mine.key == theirs.key,
            _ => false,
        };
        is_same
            && self.offset < other.offset + other.len_bytes as u64
            && other.offset < self.offset + self.len_bytes as u64
    }
}

/// All outstanding verbs.
pub(super) struct Slots {
    slots: std::collections::VecDeque<Slot>,
    first: u64,
    pub(super) issuing: u64,
    /// READs and atomics among them, done or not.
    answered: usize,
}

impl Slots {
    pub(super) fn new() -> Self {
        Self {
            slots: std::collections::VecDeque::with_capacity(QUEUE_DEPTH),
            first: 0,
            issuing: 0,
            answered: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn push(&mut self, slot: Slot) {
        self.answered += usize::from(slot.verb.is_answered());
        self.slots.push_back(slot);
    }

    pub(super) fn get(&mut self, position: u64) -> &mut Slot {
        &mut self.slots[(position - self.first) as usize]
    }

    /// The next verb to be given to the device, after passing those that are decided.
    pub(super) fn next_to_issue(&mut self) -> Option<u64> {
        while let Some(slot) = self.slots.get((self.issuing - self.first) as usize) {
            if !slot.is_issued && slot.ended.is_none() {
                return Some(self.issuing);
            }
            self.slots[(self.issuing - self.first) as usize].is_issued = true;
            self.issuing += 1;
        }
        None
    }

    /// Whether the verb must wait for answers of earlier ones: a device may fetch what a READ
    /// returns after it has carried out a later WRITE.
    pub(super) fn needs_fence(&self, position: u64) -> bool {
        let index = (position - self.first) as usize;
        let slot = &self.slots[index];
        if self.answered == 0 || matches!(slot.verb, Verb::Read { .. }) {
            return false;
        }
        let mut earlier = self.slots.iter().take(index).filter(|e| e.works > 0);
        match slot.verb {
            Verb::Send { .. } => earlier.any(|earlier| earlier.verb.is_answered()),
            // Atomics are carried out in turn.
            Verb::CompareSwap { .. } | Verb::FetchAdd { .. } => earlier
                .any(|earlier| matches!(earlier.verb, Verb::Read { .. }) && slot.overlaps(earlier)),
            Verb::Write { immediate, .. } => earlier.any(|earlier| {
                earlier.verb.is_answered() && (immediate.is_some() || slot.overlaps(earlier))
            }),
            Verb::Read { .. } => false,
        }
    }

    /// Completes what is done, in order.
    pub(super) fn finish(&mut self, queue: &mut CompletionQueue) {
        while let Some(slot) = self.slots.front() {
            if !slot.is_issued || slot.works > 0 {
                return;
            }
            let status = slot.ended.unwrap_or(Status::Ok);
            self.complete(status, queue);
        }
    }

    /// Completes everything, done or not, with `status`.
    pub(super) fn fail(&mut self, status: Status, queue: &mut CompletionQueue) {
        while !self.slots.is_empty() {
            self.complete(status, queue);
        }
    }

    fn complete(&mut self, status: Status, queue: &mut CompletionQueue) {
        let Some(slot) = self.slots.pop_front() else {
            return;
        };
        self.answered -= usize::from(slot.verb.is_answered());
        self.first += 1;
        self.issuing = self.issuing.max(self.first);
        queue.push(Completion {
            token: slot.token,
            status,
            value: if status == Status::Ok { slot.value } else { 0 },
        });
    }

    /// The host's device refused a request of this verb, and carried out none that came after it.
    pub(super) fn refuse(&mut self, position: u64) {
        let slot = self.get(position);
        slot.works = 0;
        // A WRITE of several packets may have begun before the window went.
        let status = match slot.verb {
            Verb::Write { .. } if slot.len_bytes > PACKET_BYTES_MIN => Status::Revoked,
            _ => Status::StaleGeneration,
        };
        slot.decide(status);
        if let Some(memory) = &slot.memory {
            memory.stale.store(true, Ordering::Relaxed);
        }
        let after = (position - self.first) as usize + 1;
        for slot in self.slots.iter_mut().skip(after) {
            slot.rewind();
        }
        self.issuing = position + 1;
    }

    pub(super) fn revoke_landing(&mut self, token: Token) {
        for slot in self.slots.iter_mut().filter(|slot| slot.token == token) {
            if let Verb::Read { landing } = &mut slot.verb {
                *landing = std::ptr::null_mut();
            }
        }
    }
}

/// The shortest packet of RDMA: what fits is carried out whole or not at all.
const PACKET_BYTES_MIN: usize = 256;
