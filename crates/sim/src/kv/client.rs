//! A client: one operation after another on few keys, and what it saw of them.

use std::collections::BTreeMap;

use cenote_kv::group::marks::Marks;
use cenote_kv::group::member::Member;
use cenote_kv::group::owner::{Change, Refusal};
use cenote_kv::group::process::Process;

use super::linear::{Call, Kind, Value};
use super::mood::Mood;
use super::world::World;

/// A client of the group.
#[derive(Default)]
pub(super) struct Client {
    index: u32,
    written: u32,
    value_bytes: u64,
    open: Option<Open>,
    /// Steps for which it does nothing.
    dozes: u64,
    /// Whether it keeps to who served it last, and who did.
    is_faithful: bool,
    last: BTreeMap<usize, Process>,
    /// What it saw of each key.
    pub(super) calls: Vec<(u64, Call)>,
}

/// An operation that has not ended.
struct Open {
    key: u64,
    begun: u64,
    intent: Intent,
    /// Proposed or read: where, and what has to be committed there.
    sent: Option<Sent>,
}

#[derive(Clone, Copy)]
enum Intent {
    Read,
    /// What is committed, though there may be something newer.
    ReadCommitted,
    Write(Value),
    Delete,
    /// Replaces whatever there is, if it is still that when it is stored.
    Swap(Value),
    /// Gives it another expiry.
    Touch(u32),
    /// Removes everything, at a time; 0: now.
    Flush(u32),
}

struct Sent {
    process: Process,
    term: u32,
    xid: u64,
    kind: Kind,
}

/// What came of one attempt.
enum Outcome {
    /// It is done when this operation is committed; 0: it is.
    Done(Kind, u64),
    /// Once more, later.
    Again,
}

pub(super) fn key_of(key: u64) -> Vec<u8> {
    format!("key{key}").into_bytes()
}

pub(super) fn partition_of(key: u64, partitions: usize) -> usize {
    usize::try_from(key).expect("few keys") % partitions
}

/// A value tells which one it is all over, so that a garbled one is seen.
fn bytes_of(number: u32, most: u64) -> Vec<u8> {
    let words = 2 + u32::try_from(u64::from(number) * 2617 % most / 4).expect("a short value");
    let word = |at: u32| match at {
        0 => number,
        _ => number ^ at.wrapping_mul(2_654_435_761),
    };
    (0..words).map(word).flat_map(u32::to_le_bytes).collect()
}

fn check_bytes(value: &[u8], number: u32, most: u64) -> Result<(), String> {
    let whole = bytes_of(number, most);
    if whole == value {
        return Ok(());
    }
    let at = whole
        .iter()
        .zip(value)
        .position(|(one, other)| one != other);
    let bytes = value.len();
    Err(format!(
        "value {number} of {} bytes has {bytes} and is garbled at {at:?}",
        whole.len()
    ))
}

impl Client {
    pub(super) fn new(index: u32, mood: &Mood) -> Self {
        Self {
            index,
            value_bytes: mood.value_bytes,
            is_faithful: u64::from(index) * 12 < mood.faithful,
            ..Self::default()
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    pub(super) fn describe(&self) -> String {
        let open = self.open.as_ref();
        open.map_or(String::new(), |open| {
            let sent = open.sent.as_ref().map(|sent| (sent.process, sent.xid));
            format!(
                "client {} key {} since {} {sent:?}",
                self.index, open.key, open.begun
            )
        })
    }

    pub(super) fn step(&mut self, world: &mut World) {
        if self.dozes > 0 && !world.is_quiet {
            self.dozes -= 1;
            return;
        }
        if world.random.percent(world.mood.dozes) {
            self.dozes = world.random.below(40);
        }
        match self.open.take() {
            None if world.is_quiet => {}
            None => self.begin(world),
            Some(open) => self.go_on(open, world),
        }
    }

    fn begin(&mut self, world: &mut World) {
        self.written += 1;
        let number = self.written * 16 + self.index;
        let seconds = world.seconds();
        let (is_mortal, flushes) = (world.mood.is_mortal, world.mood.flushes);
        let expiry = match is_mortal && world.random.percent(40) {
            true => seconds + u32::try_from(world.random.below(3)).expect("few seconds"),
            false => 0,
        };
        let value = Value { number, expiry };
        let intent = match world.random.below(100) {
            0..35 => Intent::Read,
            35..45 => Intent::ReadCommitted,
            45..75 => Intent::Write(value),
            75..83 => Intent::Delete,
            83..86 if is_mortal => Intent::Touch(expiry),
            86..88 if flushes => Intent::Flush(*world.random.pick(&[0, 0, seconds + 1])),
            _ => Intent::Swap(value),
        };
        self.open = Some(Open {
            key: world.random.below(world.mood.keys),
            begun: world.now,
            intent,
            sent: None,
        });
    }

    fn go_on(&mut self, mut open: Open, world: &mut World) {
        let partition = partition_of(open.key, world.options.k);
        if let Some(sent) = &open.sent {
            if world.random.percent(world.mood.gives_up) {
                return self.lose(&open, world);
            }
            let member = world.members.get_mut(&sent.process);
            let owner = member.and_then(|member| member.owner(partition));
            let owner = owner.filter(|owner| owner.term() == sent.term);
            match owner {
                None => self.lose(&open, world),
                Some(owner) if owner.committed_xid() >= sent.xid => {
                    let (kind, process) = (sent.kind, sent.process);
                    self.finish(&open, kind, process, world);
                }
                Some(_) => self.open = Some(open),
            }
            return;
        }
        let Some(process) = self.choose(partition, world) else {
            self.open = Some(open);
            return;
        };
        match self.attempt(&open, partition, process, world) {
            Ok(Outcome::Done(kind, 0)) => self.finish(&open, kind, process, world),
            Ok(Outcome::Done(kind, xid)) => {
                let member = world.members.get_mut(&process);
                let owner = member.and_then(|member| member.owner(partition));
                open.sent = Some(Sent {
                    process,
                    term: owner.map_or(0, |owner| owner.term()),
                    xid,
                    kind,
                });
                self.open = Some(open);
            }
            Ok(Outcome::Again) => self.open = Some(open),
            Err(what) => world.violate(format!("key {}: {what}", open.key)),
        }
    }

    /// Who says that the partition is its own.
    fn choose(&mut self, partition: usize, world: &mut World) -> Option<Process> {
        let owns = |member: &Member| member.owned().any(|index| index == partition);
        let all = world.members.iter();
        let claims: Vec<Process> = all
            .filter(|(_, member)| owns(member))
            .map(|(process, _)| *process)
            .collect();
        if claims.is_empty() {
            return None;
        }
        let last = self.last.get(&partition);
        let kept = last.filter(|last| self.is_faithful && !world.is_quiet && claims.contains(last));
        let chosen = match kept {
            Some(kept) => *kept,
            None => *world.random.pick(&claims),
        };
        self.last.insert(partition, chosen);
        Some(chosen)
    }

    /// What was done, and what has to be committed before the client may know.
    fn attempt(
        &mut self,
        open: &Open,
        partition: usize,
        process: Process,
        world: &mut World,
    ) -> Result<Outcome, String> {
        let key = key_of(open.key);
        let now = world.now;
        let Some(member) = world.members.get_mut(&process) else {
            return Ok(Outcome::Again);
        };
        let may_read = member.may_read(partition, now);
        let owner = member.owner(partition).expect("it claims the partition");
        let hash = owner.hash_of(&key);
        let newest = owner.newest(hash, &key);
        let mut found = newest.found;
        let mut pending = newest.pending.unwrap_or(0);
        if matches!(open.intent, Intent::ReadCommitted) {
            found = owner.committed(hash, &key);
            pending = 0;
        }
        let is_read = matches!(open.intent, Intent::Read | Intent::ReadCommitted);
        if is_read && !may_read {
            return Ok(Outcome::Again);
        }
        let value = found.map(|found| Value {
            number: found.entry.client_flags,
            expiry: found.entry.expiry,
        });
        let sees = is_read || matches!(open.intent, Intent::Swap(_));
        if let Some(found) = found.filter(|_| sees) {
            match owner.value(&found, |parts| parts.concat()) {
                Ok(bytes) => check_bytes(&bytes, found.entry.client_flags, self.value_bytes)?,
                Err(Refusal::Units(run)) => {
                    member.want(partition, run, now);
                    world.post(process);
                    return Ok(Outcome::Again);
                }
                Err(_) => return Ok(Outcome::Again),
            }
        }
        if is_read {
            world.seen.note_time(partition, owner.now())?;
            if let Some(found) = found.filter(|_| pending == 0) {
                owner.note_use(&found);
                world.seen.note_item(partition, open.key, &found.entry)?;
            }
            return Ok(Outcome::Done(Kind::Read(value), pending));
        }
        let (kind, proposed) = match (open.intent, value) {
            (Intent::Swap(_) | Intent::Touch(_), None) if may_read => {
                return Ok(Outcome::Done(Kind::Read(None), pending));
            }
            (Intent::Swap(_) | Intent::Touch(_), None) => return Ok(Outcome::Again),
            (Intent::Touch(expiry), Some(seen)) => {
                let change = Change::Alter {
                    expiry,
                    marks: Marks::NONE,
                    renews_cas: true,
                };
                let after = Value { expiry, ..seen };
                (Kind::Swap(seen, after), owner.propose(hash, &key, change))
            }
            (Intent::Flush(at), _) => {
                (Kind::Flush(at), owner.propose(0, b"", Change::Flush { at }))
            }
            (Intent::Write(new), _) | (Intent::Swap(new), Some(_)) => {
                let change = Change::Put {
                    client_flags: new.number,
                    expiry: new.expiry,
                    marks: Marks::NONE,
                    value: &[&bytes_of(new.number, self.value_bytes)],
                };
                let kind = match (open.intent, value) {
                    (Intent::Swap(_), Some(seen)) => Kind::Swap(seen, new),
                    _ => Kind::Write(Some(new)),
                };
                (kind, owner.propose(hash, &key, change))
            }
            _ => (Kind::Write(None), owner.propose(hash, &key, Change::Remove)),
        };
        match proposed {
            Ok(xid) if owner.committed_xid() >= xid => Ok(Outcome::Done(kind, 0)),
            Ok(xid) => Ok(Outcome::Done(kind, xid)),
            Err(Refusal::Units(run)) => {
                member.want(partition, run, now);
                world.post(process);
                Ok(Outcome::Again)
            }
            // Nothing was done: that is an end, and nothing to remember.
            Err(Refusal::NoSpace) => {
                world.report.tally.refused += 1;
                Ok(Outcome::Done(Kind::Nothing, 0))
            }
            Err(_) => Ok(Outcome::Again),
        }
    }

    fn finish(&mut self, open: &Open, kind: Kind, process: Process, world: &mut World) {
        let (key, begun) = (open.key, open.begun);
        world.log(|| format!("key {key} {kind:?} since {begun} at {process}"));
        world.report.tally.operations += 1;
        let ended = Some(world.now);
        self.remember(open, kind, ended, world);
    }

    /// Who was asked does not answer any more: what was asked may have been done, or may be yet.
    fn lose(&mut self, open: &Open, world: &mut World) {
        if let Some(sent) = &open.sent {
            world.report.tally.operations += 1;
            self.remember(open, sent.kind, None, world);
        }
    }

    fn remember(&mut self, open: &Open, kind: Kind, ended: Option<u64>, world: &World) {
        let begun = open.begun;
        let Kind::Flush(at) = kind else {
            self.calls.push((open.key, Call { kind, begun, ended }));
            return;
        };
        // A flush deletes each key of its partition. One that is to come may do so at any time from then
        // on, or not at all if another one takes its place.
        let partitions = world.options.k;
        let is_to_come = at != 0;
        for key in 0..world.mood.keys {
            if partition_of(key, partitions) == partition_of(open.key, partitions) {
                let call = Call {
                    kind: Kind::Write(None),
                    begun,
                    ended: ended.filter(|_| !is_to_come),
                };
                self.calls.push((key, call));
            }
        }
    }
}
