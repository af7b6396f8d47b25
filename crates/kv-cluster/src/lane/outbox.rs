//! What members of groups say, on its way to links.

use std::collections::VecDeque;

use bytes::Bytes;
use cenote_kv::group::member::Outgoing;
use cenote_kv::group::message::Message;

use super::super::NodeId;
use super::super::frame::kind;
use super::super::links::{Links, SendError};

#[derive(Default)]
pub(super) struct Outbox {
    frames: VecDeque<[Bytes; 2]>,
    bytes: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Keeps a frame until its link has room.
    pub(super) fn push(&mut self, head: &[u8], body: Bytes) {
        self.bytes += head.len() + body.len();
        self.frames.push_back([Bytes::copy_from_slice(head), body]);
    }

    /// Gives its link what that has room for. False: the link has to begin again.
    pub(super) fn fill(&mut self, node: NodeId, links: &mut Links, bytes_max: usize) -> bool {
        let mut is_sound = true;
        while let Some(frame) = self.frames.front() {
            match links.send(node, kind::GROUP, frame) {
                Ok(()) => {}
                Err(SendError::Frame(error)) => {
                    // None that a member says is. Without it the peer would miss something for good.
                    tracing::error!(%node, %error, "a group's message that no link takes");
                    is_sound = false;
                    break;
                }
                Err(_) => break,
            }
            self.bytes -= frame.iter().map(Bytes::len).sum::<usize>();
            self.frames.pop_front();
        }
        if self.bytes > bytes_max {
            tracing::warn!(%node, "it takes too little: begin again");
            is_sound = false;
        }
        is_sound
    }
}

/// Leaves out what a later acknowledgement of the same says, too.
pub(super) fn drop_early_acks(messages: &mut Vec<Outgoing>) {
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
