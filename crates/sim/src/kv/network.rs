//! Links between processes: in order, until they break; slow for a while, in one direction or both.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cenote_kv::group::message::Message;
use cenote_kv::group::process::Process;
use cenote_kv::group::wire;
use cenote_measure::random::Random;

/// A message and the number of the view that it was sent in.
pub(super) type Sent = (u32, Message);
/// Ways from one process to another. Messages are in order on each, and overtake those on others.
pub(super) const WAYS: u8 = 5;
/// From, to, and which way.
pub(super) type Channel = (Process, Process, u8);

/// What is on its way, and where nothing is.
#[derive(Default)]
pub(super) struct Network {
    channels: BTreeMap<Channel, VecDeque<Sent>>,
    /// Pairs whose link is broken and not made again yet, the lesser process first.
    broken: Vec<(Process, Process)>,
    /// Who has a new link to whom without knowing it: it is told before it takes anything from there.
    unaware: BTreeSet<(Process, Process)>,
    /// Channels that carry nothing, and until when.
    slow: BTreeMap<Channel, u64>,
}

fn pair(one: Process, other: Process) -> (Process, Process) {
    (one.min(other), one.max(other))
}

impl Network {
    /// Puts a message on a link, as bytes; it is lost where there is none.
    pub(super) fn post(&mut self, channel: Channel, view: u32, message: &Message) {
        let (from, to, _) = channel;
        if self.broken.contains(&pair(from, to)) || self.unaware.contains(&(from, to)) {
            return;
        }
        let encoded = wire::encode(0, view, message);
        let bytes = [encoded.head, encoded.body.unwrap_or_default()].concat();
        let frame = wire::decode(bytes.into()).expect("what members say can be read");
        let queue = self.channels.entry(channel).or_default();
        queue.push_back((frame.view, frame.message));
    }

    /// A channel that has something and is not slow.
    pub(super) fn pick(&self, random: &mut Random, now: u64) -> Option<Channel> {
        let is_fast = |channel: &Channel| self.slow.get(channel).is_none_or(|until| *until <= now);
        let channels: Vec<Channel> = self.channels.keys().copied().filter(is_fast).collect();
        (!channels.is_empty()).then(|| *random.pick(&channels))
    }

    /// The next message of a channel.
    pub(super) fn take(&mut self, channel: Channel) -> Option<Sent> {
        let queue = self.channels.get_mut(&channel)?;
        let sent = queue.pop_front();
        if queue.is_empty() {
            self.channels.remove(&channel);
        }
        sent
    }

    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Whether every link is there, and known at both ends.
    pub(super) fn is_whole(&self) -> bool {
        self.broken.is_empty() && self.unaware.is_empty()
    }

    /// Breaks a link: what is on it is lost. False if it was broken already.
    pub(super) fn part(&mut self, one: Process, other: Process) -> bool {
        let gone = pair(one, other);
        if one == other || self.broken.contains(&gone) {
            return false;
        }
        self.broken.push(gone);
        self.unaware.retain(|(near, far)| pair(*near, *far) != gone);
        self.channels
            .retain(|(from, to, _), _| pair(*from, *to) != gone);
        true
    }

    /// A broken link that is to be made again, the one that broke last.
    pub(super) fn mend(&mut self) -> Option<(Process, Process)> {
        self.broken.pop()
    }

    /// It cannot be, yet.
    pub(super) fn delay(&mut self, (one, other): (Process, Process)) {
        self.broken.insert(0, (one, other));
    }

    /// One end does not know yet that its link to another is new.
    pub(super) fn keep_unaware(&mut self, near: Process, far: Process) {
        self.unaware.insert((near, far));
    }

    /// Whether an end hears only now that its link is new.
    pub(super) fn becomes_aware(&mut self, near: Process, far: Process) -> bool {
        self.unaware.remove(&(near, far))
    }

    /// Somebody who does not know yet.
    pub(super) fn an_unaware(&self) -> Option<(Process, Process)> {
        self.unaware.first().copied()
    }

    /// Nothing comes this way until then; it is not lost.
    pub(super) fn slow_down(&mut self, channel: Channel, until: u64) {
        self.slow.insert(channel, until);
    }

    /// Everything is fast again.
    pub(super) fn hasten(&mut self) {
        self.slow.clear();
    }

    /// A process is dead: nothing comes to it, and of what it has sent only a part.
    pub(super) fn lose(&mut self, dead: Process, random: &mut Random) {
        self.channels.retain(|(_, to, _), _| *to != dead);
        self.unaware
            .retain(|(near, far)| *near != dead && *far != dead);
        for ((from, ..), queue) in &mut self.channels {
            if *from == dead {
                let kept = random.below(queue.len() as u64 + 1);
                queue.truncate(usize::try_from(kept).expect("a short queue"));
            }
        }
        self.channels.retain(|_, queue| !queue.is_empty());
    }

    pub(super) fn describe(&self) -> String {
        format!("broken {:?}, unaware {:?}", self.broken, self.unaware)
    }
}
