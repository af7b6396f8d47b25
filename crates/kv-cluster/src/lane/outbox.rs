//! What members of groups say, on its way to links.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use cenote_kv::group::member::Outgoing;
use cenote_kv::group::message::Message;
use cenote_kv::group::wire;

use super::super::NodeId;
use super::super::frame::kind;
use super::super::links::SendError;
use super::Lane;

#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<[Bytes; 2]>,
    bytes: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

/// Where messages go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Way {
    /// To the link, as long as it has room. A link that is new may not have been told of yet, so not
    /// before all events have been taken.
    Link,
    /// To what waits for it.
    Outbox,
}

impl Lane {
    /// Puts what members say where it leaves from, in its order.
    pub(super) fn post(&mut self, way: Way) {
        for seat in &mut self.seats {
            let mut messages = seat.member.take_messages();
            drop_early_acks(&mut messages);
            let group = u16::try_from(seat.group).expect("fewer than 65,536 groups");
            for outgoing in messages {
                let node = NodeId(outgoing.to.node);
                // Another process of that node is none of the view's.
                if self.membership.linked(node) != Some(outgoing.to) {
                    continue;
                }
                let (head, links) = (&mut self.head, &mut self.links);
                head.clear();
                let body = wire::encode_into(group, outgoing.view, &outgoing.message, head);
                let outbox = self.outboxes.entry(node).or_default();
                if way == Way::Link && outbox.frames.is_empty() {
                    let sent = links.send_behind(node, kind::GROUP, head, body.as_slice());
                    if sent.is_ok() {
                        continue;
                    }
                }
                let body = body.unwrap_or_default();
                outbox.bytes += head.len() + body.len();
                outbox
                    .frames
                    .push_back([Bytes::copy_from_slice(head), body]);
            }
        }
    }

    /// Gives links what they have room for.
    pub(super) fn fill_links(&mut self, now: Instant) {
        let mut broken = Vec::new();
        for (node, outbox) in &mut self.outboxes {
            while let Some(frame) = outbox.frames.front() {
                match self.links.send(*node, kind::GROUP, frame) {
                    Ok(()) => {}
                    Err(SendError::Frame(error)) => {
                        // None that a member says is. Without it the peer would miss something for good.
                        tracing::error!(%node, %error, "a group's message that no link takes");
                        broken.push(*node);
                        break;
                    }
                    Err(_) => break,
                }
                outbox.bytes -= frame.iter().map(Bytes::len).sum::<usize>();
                outbox.frames.pop_front();
            }
            if outbox.bytes > self.bounds.outbox_bytes {
                tracing::warn!(%node, "it takes too little: begin again");
                broken.push(*node);
            }
        }
        for node in broken {
            self.links.reset(node, now, &mut self.events);
        }
    }
}

/// Leaves out what a later acknowledgement of the same says, too.
fn drop_early_acks(messages: &mut Vec<Outgoing>) {
    let mut later = Vec::new();
    messages.reverse();
    messages.retain(|outgoing| {
        let Message::Ack { partition, .. } = outgoing.message else {
            return true;
        };
        let stream = (outgoing.to, outgoing.view, partition);
        let is_last = !later.contains(&stream);
        if is_last {
            later.push(stream);
        }
        is_last
    });
    messages.reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_kv::group::process::Process;

    #[test]
    fn of_acknowledgements_only_the_last_of_each_is_said() {
        let to = |node| Process {
            node,
            incarnation: 1,
        };
        let ack = |node, view, partition, xid| Outgoing {
            to: to(node),
            view,
            message: Message::Ack { partition, xid },
        };
        let other = Outgoing {
            to: to(1),
            view: 1,
            message: Message::Settled { partition: 0 },
        };
        let mut messages = vec![
            ack(1, 1, 0, 1),
            ack(2, 1, 0, 1),
            other,
            ack(1, 1, 1, 7),
            ack(1, 1, 0, 2),
            ack(1, 2, 0, 3),
        ];
        drop_early_acks(&mut messages);
        let left = messages.iter().map(|outgoing| match outgoing.message {
            Message::Ack { partition, xid } => Some((outgoing.to.node, partition, xid)),
            _ => None,
        });
        let left: Vec<_> = left.collect();
        let of_another_view = Some((1, 0, 3));
        let expected = [
            Some((2, 0, 1)),
            None,
            Some((1, 1, 7)),
            Some((1, 0, 2)),
            of_another_view,
        ];
        assert_eq!(left, expected);
    }
}
