//! One command on its way: which step it is at, and what was read so far.

use std::time::Duration;

use cenote_fabric::calls::CALLS_UNDER_WAY_MAX;
use cenote_fabric::{Status, Time};

use super::step::Step;
use super::{Client, ClientError, Command, Outcome, REST, Token};
use crate::format::{FLAG_AT, HEADER_BYTES, Header, Kind, Word, checksum, flag, u64_at};
use crate::index::{ENTRIES_AT, ENTRY_BYTES, PROBE_COUNT, home};
use crate::injected_faults::{InjectedFault, is_injected};
use crate::pool::Condition;
use crate::protocol::{Answer, INLINE_BYTES_MAX, Notice, Refusal, Request, WRITTEN};
use crate::schemes::{GetStep, PutStep, Scheme};

/// Who hears of the end of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Whose {
    /// Who polls.
    Submitted(Token),
    /// Who waits for this call.
    Called(u64),
}

/// A command, and memory for its verbs.
pub(super) struct Operation {
    pub command: Command,
    pub whose: Whose,
    pub step: Step,
    shard: usize,
    hash: u64,
    /// Calls carry its value as far as that fits.
    calls_carry: bool,
    /// When its last call was made.
    called_at: Time,
    /// Verbs under way: it does not end before they have.
    verbs: u32,
    /// How the first of them failed.
    failed: Option<Status>,
    /// Reads that met something else than the object.
    tries: u32,
    /// Versions of this client that were given up, as a `Sync` is told; and as those were told that had ended
    /// when this one began.
    lost: u64,
    lost_before: u64,
    /// A `Sync` was told of lost versions, of which that of this PUT may be one: it ends by the server's word.
    is_doubtful: bool,
    entry: [u8; (PROBE_COUNT * ENTRY_BYTES) as usize],
    keyed: Vec<u8>,
    value: Vec<u8>,
    oldest: [u8; 8],
}

/// Objects that are found changed so often in a row are asked for again.
const TRIES_MAX: u32 = 64;

/// For so long after a call for space its version is surely not given up. A value that is there later may
/// have come too late: the server knows. Half of the least time that a server waits for values.
const SURE_FOR: Duration = Duration::from_millis(500);

impl Operation {
    pub fn new(
        command: Command,
        whose: Whose,
        shard: usize,
        hash: u64,
        scheme: &dyn Scheme,
        calls_carry: bool,
        lost_before: u64,
    ) -> Self {
        let step = match command {
            Command::Get { .. } if !calls_carry && scheme.get_steps()[0] == GetStep::ReadEntry => {
                Step::Entry
            }
            _ => Step::Call,
        };
        Self {
            command,
            whose,
            step,
            shard,
            hash,
            calls_carry,
            called_at: Time::default(),
            verbs: 0,
            failed: None,
            tries: 0,
            lost: 0,
            lost_before,
            is_doubtful: false,
            entry: [0; (PROBE_COUNT * ENTRY_BYTES) as usize],
            keyed: Vec::new(),
            value: Vec::new(),
            oldest: [0; 8],
        }
    }

    /// Whether an acknowledgement is of this one. Sequences are of a shard: another one may have the same.
    pub fn waits_for_ack(&self, of_shard: u16, of: u64) -> bool {
        match self.step {
            Step::Written {
                sequence, shard, ..
            }
            | Step::Acknowledged {
                sequence, shard, ..
            } => {
                // An immediate has the low half alone.
                shard == of_shard && sequence as u32 == of as u32
            }
            _ => false,
        }
    }

    fn key(&self) -> &[u8] {
        match &self.command {
            Command::Put { key, .. } | Command::Get { key } | Command::Delete { key, .. } => key,
            Command::Sync => &[],
        }
    }
}

/// What an object that was read turned out to be.
enum Seen {
    Value {
        sequence: u64,
    },
    Deleted,
    /// Not durable, or not whole; where the version before is.
    NotYet,
    /// Another object, or a part of one.
    Changed,
}

impl Client {
    /// Takes steps until something has to be waited for.
    pub(super) fn go_on(&mut self, index: usize, now: Time) {
        loop {
            let Some(operation) = self.operations[index].as_mut() else {
                return;
            };
            let went = match operation.step {
                Step::Call | Step::Settle { .. } => self.call_server(index, now),
                Step::Write { .. } => self.write_value(index),
                Step::Entry => self.read_entry(index),
                Step::Object { word, is_told } => self.read_object(index, word, is_told),
                Step::Acknowledged {
                    sequence,
                    is_durable: Some(is_durable),
                    ..
                } => {
                    let given_up = ClientError::Refused(Refusal::Incomplete);
                    let done = is_durable.then_some(Outcome::Done { sequence });
                    return self.end(index, done.ok_or(given_up));
                }
                _ => return,
            };
            if !went {
                self.stalled.push_back(index);
                return;
            }
            // What completed at once goes on. What did not is sent with what others begin: see `progress`.
            while let Some((other, status)) = self.verbs.completed() {
                self.take_completion(other, status, now);
            }
        }
    }

    fn call_server(&mut self, index: usize, now: Time) -> bool {
        // The last place is for the question whether the server is there.
        if self.caller.outstanding() + 1 >= CALLS_UNDER_WAY_MAX {
            return false;
        }
        let has_space_step = self.has_space_step();
        let mut bytes = std::mem::take(&mut self.request);
        let operation = self.operations[index].as_mut().expect("it is under way");
        let (request, what) = request_of(operation, has_space_step);
        request.encode(&mut bytes);
        let called = self.caller.call(&bytes, index as u64).is_ok();
        self.request = bytes;
        if called {
            operation.step = Step::Called;
            operation.called_at = now;
            self.note(what);
        }
        called
    }

    pub(super) fn take_answer(
        &mut self,
        index: usize,
        answer: Result<Answer, ClientError>,
        now: Time,
    ) {
        let Some(operation) = self.operations.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let end = match answer {
            Err(error) => Err(error),
            Ok(Answer::Refused(Refusal::Busy)) if self.calls.hears(operation.whose) => {
                // Before anything was done: the same again a little later.
                operation.step = Step::Call;
                self.resting.push_back((now.after(REST), index));
                return;
            }
            Ok(Answer::Refused(refusal)) => Err(ClientError::Refused(refusal)),
            Ok(Answer::Space {
                sequence,
                shard,
                offset,
            }) => {
                operation.step = Step::Write {
                    sequence,
                    shard,
                    offset,
                };
                return self.go_on(index, now);
            }
            Ok(Answer::Place { word, .. }) => {
                operation.step = Step::Object {
                    word: Word(word),
                    is_told: true,
                };
                return self.go_on(index, now);
            }
            Ok(Answer::Value { sequence, value }) => {
                self.counts.asked_gets += 1;
                Ok(Outcome::Value { sequence, value })
            }
            Ok(Answer::Done { sequence }) => Ok(Outcome::Done { sequence }),
            Ok(Answer::Absent) => {
                self.counts.asked_gets += 1;
                Ok(Outcome::Absent)
            }
            Ok(Answer::Synced { lost }) => {
                operation.lost = operation.lost.saturating_add(lost);
                operation.shard += 1;
                if operation.shard < self.shards.len() {
                    operation.step = Step::Call;
                    return self.go_on(index, now);
                }
                let (all, before) = (operation.lost, operation.lost_before);
                let is_heard = self.calls.hears(operation.whose);
                Ok(self.synced(all, before, is_heard))
            }
            Ok(Answer::Keys { .. } | Answer::Figures(_)) => Err(ClientError::Protocol),
        };
        self.end(index, end);
    }

    fn write_value(&mut self, index: usize) -> bool {
        if !self.verbs.has_room() {
            return false;
        }
        let operation = self.operations[index].as_mut().expect("it is under way");
        let Step::Write {
            sequence,
            shard,
            offset,
        } = operation.step
        else {
            return true;
        };
        let window = match self.scheme.lands_beside_log() {
            true => Some(&self.landing),
            false => self.shards.get(usize::from(shard)).map(|shard| &shard.log),
        };
        let (Some(window), Command::Put { value, .. }) = (window, &operation.command) else {
            self.end(index, Err(ClientError::Protocol));
            return true;
        };
        let mut notes: Vec<&'static str> = Vec::new();
        for step in self.scheme.put_steps() {
            let posted = match step {
                PutStep::Write => {
                    notes.push("WRITE");
                    self.verbs.write(window, offset, value, None, index)
                }
                PutStep::WriteImmediate => {
                    notes.push("WRITE_IMM");
                    let immediate = Some(sequence as u32);
                    self.verbs.write(window, offset, value, immediate, index)
                }
                PutStep::Send => {
                    notes.push("SEND");
                    let notice = Notice {
                        kind: WRITTEN,
                        shard,
                        sequence,
                        is_durable: false,
                    };
                    self.verbs.send(&notice.encode(), index)
                }
                _ => continue,
            };
            posted.expect("there is room for a step");
            operation.verbs += 1;
        }
        operation.step = Step::Written {
            sequence,
            shard,
            is_durable: None,
        };
        notes.into_iter().for_each(|note| self.note(note));
        true
    }

    fn read_entry(&mut self, index: usize) -> bool {
        if !self.verbs.has_room() {
            return false;
        }
        let operation = self.operations[index].as_mut().expect("it is under way");
        let shard = &self.shards[operation.shard];
        let slot = home(operation.hash, shard.entry_count);
        let offset = ENTRIES_AT + slot * ENTRY_BYTES;
        self.verbs
            .read(&shard.index, offset, &mut operation.entry, index)
            .expect("there is room for a step");
        operation.verbs += 1;
        operation.step = Step::EntryRead;
        self.note("READ entry");
        true
    }

    fn read_object(&mut self, index: usize, word: Word, is_told: bool) -> bool {
        if !self.verbs.has_room() {
            return false;
        }
        let operation = self.operations[index].as_mut().expect("it is under way");
        let shard = &self.shards[operation.shard];
        let keyed_bytes = HEADER_BYTES as usize + operation.key().len();
        let value_at = HEADER_BYTES + (operation.key().len() as u64).next_multiple_of(8);
        let bytes = word.object_bytes();
        let Some(at) = word.object_at().filter(|_| bytes >= value_at) else {
            // Of another key, whose object is shorter.
            self.ask_again(index);
            return true;
        };
        operation.keyed.resize(keyed_bytes, 0);
        operation.value.resize((bytes - value_at) as usize, 0);
        let log = &shard.log;
        let Operation {
            keyed,
            value,
            oldest,
            ..
        } = &mut **operation;
        if is_injected(InjectedFault::FlagInOneRead) {
            value.resize(bytes as usize, 0);
            let posted = self.verbs.read(log, at, value, index);
            let posted = posted.and_then(|()| self.verbs.read(&shard.index, 0, oldest, index));
            posted.expect("there is room for a step");
            operation.verbs += 2;
            operation.step = Step::ObjectRead { word, is_told };
            return true;
        }
        // In this order: the flag before the value, and what tells whether they were overwritten after both.
        let is_backwards = is_injected(InjectedFault::ValueBeforeFlag);
        let mut reads = [(at, &mut keyed[..]), (at + value_at, &mut value[..])];
        if is_backwards {
            reads.reverse();
        }
        let mut posted = Ok(());
        for (from, buffer) in reads {
            if !buffer.is_empty() {
                posted = posted.and_then(|()| self.verbs.read(log, from, buffer, index));
            }
            if is_backwards {
                // One READ of both may take so long where the network is slow.
                std::thread::sleep(std::time::Duration::from_micros(200));
            }
        }
        let posted = posted.and_then(|()| self.verbs.read(&shard.index, 0, oldest, index));
        posted.expect("there is room for a step");
        operation.verbs += if operation.value.is_empty() { 2 } else { 3 };
        operation.step = Step::ObjectRead { word, is_told };
        self.note("READ object");
        true
    }

    pub(super) fn take_completion(&mut self, index: usize, status: Status, now: Time) {
        let Some(operation) = self.operations.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        operation.verbs -= 1;
        if status != Status::Ok {
            operation.failed.get_or_insert(status);
        }
        if operation.verbs > 0 {
            return;
        }
        if let Some(status) = operation.failed {
            return self.end(index, Err(ClientError::Lost(status)));
        }
        match operation.step {
            Step::Written {
                sequence,
                shard,
                is_durable,
            } => self.value_is_there(index, (sequence, shard, is_durable), now),
            Step::EntryRead => self.take_entry(index, now),
            Step::ObjectRead { word, is_told } => self.take_object(index, word, is_told, now),
            _ => {}
        }
    }

    /// A `Sync` ends. What it tells is not told again by those that begin later, if somebody hears it: that it
    /// was lost has to be known by then of every PUT, those under way too.
    fn synced(&mut self, all: u64, before: u64, is_heard: bool) -> Outcome {
        if is_heard {
            self.lost = self.lost.max(all);
        }
        if all > before {
            for operation in self.operations.iter_mut().flatten() {
                operation.is_doubtful = true;
            }
        }
        Outcome::Synced {
            lost: all.saturating_sub(before),
        }
    }

    fn value_is_there(&mut self, index: usize, written: (u64, u16, Option<bool>), now: Time) {
        let (sequence, shard, said) = written;
        let operation = self.operations[index].as_mut().expect("it is under way");
        let is_durable = matches!(operation.command, Command::Put { is_durable, .. } if is_durable);
        let waits = self.scheme.put_steps().contains(&PutStep::AwaitAck);
        if waits {
            operation.step = Step::Acknowledged {
                sequence,
                shard,
                is_durable: said,
            };
            return self.go_on(index, now);
        }
        let (is_doubtful, called_at) = (operation.is_doubtful, operation.called_at);
        // By the clock: this process may have stood still between `now` and the write.
        let is_in_time = || now.max((self.clock)()).since(called_at) <= SURE_FOR;
        if !is_durable && !is_doubtful && is_in_time() {
            return self.end(index, Ok(Outcome::Done { sequence }));
        }
        let operation = self.operations[index].as_mut().expect("it is under way");
        operation.step = Step::Settle { sequence, shard };
        self.go_on(index, now);
    }

    fn take_entry(&mut self, index: usize, now: Time) {
        let operation = self.operations[index].as_mut().expect("it is under way");
        let mut entries = operation.entry.chunks_exact(ENTRY_BYTES as usize);
        let entry = entries.find(|entry| u64_at(entry, 0) == operation.hash);
        let word = entry.map(|entry| Word(u64_at(entry, 8)));
        operation.step = match word.filter(|word| word.object_at().is_some()) {
            Some(word) => Step::Object {
                word,
                is_told: false,
            },
            // Absent, further away, or on its way to another place: the server knows.
            None => Step::Call,
        };
        self.go_on(index, now);
    }

    fn take_object(&mut self, index: usize, word: Word, is_told: bool, now: Time) {
        let steps = self.scheme.get_steps();
        let checks = steps.contains(&GetStep::CheckValue);
        let needs_flag =
            steps.contains(&GetStep::UnlessDurable) || steps[0] == GetStep::CallForPlace;
        let operation = self.operations[index].as_mut().expect("it is under way");
        match see(operation, word, checks, needs_flag) {
            Seen::Value { sequence } => {
                match is_told {
                    true => self.counts.asked_gets += 1,
                    false => self.counts.pure_gets += 1,
                }
                let operation = self.operations[index].as_mut().expect("it is under way");
                let value = std::mem::take(&mut operation.value);
                self.end(index, Ok(Outcome::Value { sequence, value }));
            }
            Seen::Deleted => self.end(index, Ok(Outcome::Absent)),
            Seen::NotYet | Seen::Changed => {
                self.ask_again(index);
                self.go_on(index, now);
            }
        }
    }

    /// Has the server say where the object is, unless it was asked too often.
    fn ask_again(&mut self, index: usize) {
        let operation = self.operations[index].as_mut().expect("it is under way");
        operation.tries += 1;
        operation.step = Step::Call;
        if operation.tries > TRIES_MAX {
            self.end(index, Err(ClientError::Refused(Refusal::Busy)));
        }
    }
}

fn request_of(operation: &Operation, has_space_step: bool) -> (Request<'_>, &'static str) {
    if let Step::Settle { sequence, shard } = operation.step {
        return (Request::Settle { shard, sequence }, "CALL settle");
    }
    match &operation.command {
        Command::Get { key } if operation.calls_carry => (Request::Get { key }, "CALL get"),
        Command::Get { key } => (Request::Locate { key }, "CALL place"),
        Command::Delete { key, condition } => {
            let condition = *condition;
            (Request::Delete { condition, key }, "CALL delete")
        }
        Command::Sync => {
            let shard = operation.shard as u16;
            (Request::Sync { shard }, "CALL sync")
        }
        Command::Put {
            key,
            value,
            condition,
            is_durable,
        } => {
            let condition: Condition = *condition;
            let is_inline =
                (*is_durable || operation.calls_carry) && value.len() <= INLINE_BYTES_MAX;
            match !has_space_step || is_inline || value.is_empty() {
                true => (
                    Request::Put {
                        condition,
                        is_durable: *is_durable,
                        key,
                        value,
                    },
                    "CALL value",
                ),
                false => (
                    Request::Space {
                        condition,
                        value_bytes: value.len() as u32,
                        checksum: checksum(&[key, value]),
                        key,
                    },
                    "CALL space",
                ),
            }
        }
    }
}

/// What was read, judged by what was read after it.
fn see(operation: &mut Operation, word: Word, checks: bool, needs_flag: bool) -> Seen {
    if is_injected(InjectedFault::FlagInOneRead) && operation.value.len() >= operation.keyed.len() {
        let value_at = operation.keyed.len().next_multiple_of(8);
        let value = operation.value.split_off(value_at);
        let keyed = std::mem::replace(&mut operation.value, value);
        let len = operation.keyed.len();
        operation.keyed.copy_from_slice(&keyed[..len]);
    }
    let oldest = u64::from_le_bytes(operation.oldest);
    let epoch = word.epoch(oldest.saturating_add(1));
    if epoch < oldest && !is_injected(InjectedFault::EpochUnread) {
        return Seen::Changed;
    }
    let at = word.object_at().expect("an object was read there");
    let Some(header) = Header::decode(&operation.keyed, at, epoch) else {
        return Seen::Changed;
    };
    if operation.keyed[HEADER_BYTES as usize..] != *operation.key()
        || header.object_bytes() != word.object_bytes()
    {
        return Seen::Changed;
    }
    let has_flag = u64_at(&operation.keyed, FLAG_AT as usize) == flag(header.sequence, epoch);
    if needs_flag && !has_flag {
        return Seen::NotYet;
    }
    if header.kind == Kind::Deletion {
        return Seen::Deleted;
    }
    let value_bytes = header.value_bytes as usize;
    operation.value.truncate(value_bytes);
    if checks && checksum(&[operation.key(), &operation.value]) != header.checksum {
        return Seen::NotYet;
    }
    Seen::Value {
        sequence: header.sequence,
    }
}

#[cfg(test)]
mod tests;
