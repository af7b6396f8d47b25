//! Requests for partitions of other nodes, on their way there and back.
//!
//! Requests of one client to one node stay in order. What waits for a link is served by whoever owns
//! the partition when the view changes; what was sent over a link that broke may have been done: a
//! read is asked again, of anything else nobody knows the outcome.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use cenote_kv::protocol::{Limits, Request, whole};
use cenote_memcached::{Asker, Batch, Ticket, limited};

use super::super::NodeId;
use super::super::forward::{Forward, TEXT_BYTES_MAX, Window, read_reply, reply_head};
use super::super::frame::kind;
use super::super::links::Links;
use super::super::membership::Closed;

/// What a request or an answer takes beside its text.
const ENTRY_BYTES: usize = 128;
/// What is answered where nobody knows.
const UNKNOWN: &[u8] = b"SERVER_ERROR connection to the owner was lost, outcome unknown\r\n";
/// What is answered where a request or its reply is too long for a link.
const TOO_LONG: &[u8] = b"SERVER_ERROR object too large for nodes to tell each other\r\n";
/// What is answered for keys of a partition that is gone.
const LOST: &[u8] =
    b"SERVER_ERROR more nodes were lost than the group bears, its items are gone\r\n";
/// What is answered by a node that others may have gone on without.
const UNREGISTERED: &[u8] =
    b"SERVER_ERROR this node is cut off from etcd and from nodes of the group, nothing was done\r\n";
/// What is answered while too many nodes of a group are away.
const MISSING: &[u8] =
    b"SERVER_ERROR more nodes are missing than the group bears, nothing was done\r\n";
/// What is answered where not all partitions could be flushed.
const UNFLUSHED: &[u8] =
    b"SERVER_ERROR nodes are missing or cut off, not all items were flushed\r\n";

pub(super) struct Forwarding {
    nodes: BTreeMap<NodeId, Way>,
    /// Bytes of requests that may be on their way to one node.
    window_bytes: usize,
    /// Memory of requests that have no answer yet.
    asked_bytes: usize,
    /// Requests that no link takes, and what they are answered.
    refused: Vec<(Ticket, &'static [u8])>,
}

/// To one node.
#[derive(Default)]
struct Way {
    waiting: VecDeque<Asked>,
    window: Window<Asked>,
    /// Answers to its requests that the link has no room for.
    replies: VecDeque<(u64, Bytes)>,
    /// Their memory.
    reply_bytes: usize,
    /// Its requests over this link that are not answered.
    unanswered: usize,
    /// Counts its links: an answer to a request of an earlier one is dropped.
    link: u32,
    is_open: bool,
}

struct Asked {
    ticket: Ticket,
    text: Bytes,
}

impl Way {
    /// Hands back what waits to be sent, and says how much memory that took. A flush is for this node
    /// in any case, until it owns nothing.
    fn hand_back(&mut self, asks: &mut Batch) -> usize {
        let mut bytes = 0;
        self.waiting.retain(|asked| {
            let is_kept = is_flush(&asked.text);
            if !is_kept {
                bytes += cost(&asked.text);
                asks.push(asked.ticket, &asked.text);
            }
            is_kept
        });
        bytes
    }
}

/// Whether a request is for all partitions of a node.
pub(super) fn is_flush(text: &[u8]) -> bool {
    text.starts_with(b"flush_all")
}

/// The memory that a text takes while it waits.
fn cost(text: &[u8]) -> usize {
    ENTRY_BYTES + text.len()
}

/// What has been sent to a node by some moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    node: NodeId,
    link: u32,
    number: u64,
}

impl Mark {
    pub(super) fn node(&self) -> NodeId {
        self.node
    }
}

impl Forwarding {
    pub(super) fn new(window_bytes: usize) -> Self {
        Self {
            nodes: BTreeMap::new(),
            window_bytes,
            asked_bytes: 0,
            refused: Vec::new(),
        }
    }

    pub(super) fn asked_bytes(&self) -> usize {
        self.asked_bytes
    }

    /// Memory of answers to a node that its link has no room for.
    pub(super) fn reply_bytes(&self, node: NodeId) -> usize {
        self.nodes.get(&node).map_or(0, |way| way.reply_bytes)
    }

    pub(super) fn ask(&mut self, node: NodeId, ticket: Ticket, text: &[u8]) {
        if text.len() > TEXT_BYTES_MAX {
            return self.refused.push((ticket, too_long(text)));
        }
        let way = self.nodes.entry(node).or_default();
        self.asked_bytes += cost(text);
        let text = Bytes::copy_from_slice(text);
        way.waiting.push_back(Asked { ticket, text });
    }

    /// Whether a node that has asked can still be answered.
    pub(super) fn is_awaited(&self, ticket: &Ticket) -> bool {
        let Asker::Node(node) = ticket.asker else {
            return true;
        };
        let way = self.nodes.get(&NodeId(node));
        way.is_some_and(|way| way.is_open && way.link == ticket.client)
    }

    pub(super) fn reply(&mut self, node: NodeId, ticket: Ticket, text: &[u8]) {
        let way = self.nodes.entry(node).or_default();
        if way.link == ticket.client {
            // Who asked does not parse a part of it.
            let text = if text.len() > TEXT_BYTES_MAX {
                TOO_LONG
            } else {
                text
            };
            way.reply_bytes += cost(text);
            let text = Bytes::copy_from_slice(text);
            way.replies.push_back((ticket.slot, text));
            way.unanswered -= 1;
        }
    }

    pub(super) fn link_up(&mut self, node: NodeId) {
        let way = self.nodes.entry(node).or_default();
        way.link = way.link.wrapping_add(1);
        way.unanswered = 0;
        way.is_open = true;
    }

    /// A node has a partition less: what waits for it is to ask again.
    pub(super) fn note_loss(&mut self, node: NodeId, asks: &mut Batch) {
        let way = self.nodes.entry(node).or_default();
        self.asked_bytes -= way.hand_back(asks);
    }

    /// A node has nothing any more: what waits for it is to ask again, and what was sent it passes on.
    pub(super) fn let_go(&mut self, node: NodeId, asks: &mut Batch) {
        let way = self.nodes.entry(node).or_default();
        for asked in way.waiting.drain(..) {
            self.asked_bytes -= cost(&asked.text);
            asks.push(asked.ticket, &asked.text);
        }
    }

    /// What is on its way to a node; nothing if nothing is.
    pub(super) fn mark(&self, node: NodeId) -> Option<Mark> {
        let way = self.nodes.get(&node)?;
        (!way.window.is_empty()).then(|| Mark {
            node,
            link: way.link,
            number: way.window.last(),
        })
    }

    /// Whether all that was on its way then has been answered, or is lost.
    pub(super) fn has_answered(&self, mark: &Mark) -> bool {
        let way = self.nodes.get(&mark.node);
        way.is_none_or(|way| way.link != mark.link || way.window.is_done(mark.number))
    }

    /// Whether a node has the answers to all that it has asked.
    pub(super) fn owes_nothing(&self, node: NodeId) -> bool {
        let way = self.nodes.get(&node);
        way.is_none_or(|way| way.unanswered == 0 && way.replies.is_empty())
    }

    /// Whether nothing waits for an answer of another node.
    pub(super) fn is_quiet(&self) -> bool {
        let mut ways = self.nodes.values();
        ways.all(|way| way.waiting.is_empty() && way.window.is_empty())
    }

    pub(super) fn link_down(&mut self, node: NodeId, asks: &mut Batch, answers: &mut Batch) {
        let Some(way) = self.nodes.get_mut(&node) else {
            return;
        };
        way.is_open = false;
        way.link = way.link.wrapping_add(1);
        way.unanswered = 0;
        way.replies.clear();
        way.reply_bytes = 0;
        for asked in way.window.fail() {
            self.asked_bytes -= cost(&asked.text);
            match fate(&asked.text) {
                Fate::Again => asks.push(asked.ticket, &asked.text),
                Fate::Unknown => answers.push(asked.ticket, UNKNOWN),
                Fate::Silent => answers.push(asked.ticket, b""),
            }
        }
    }

    /// A request of another node.
    pub(super) fn take_ask(
        &mut self,
        node: NodeId,
        payload: &Bytes,
        asks: &mut Batch,
    ) -> Result<(), String> {
        let forward = Forward::read(payload).map_err(|error| error.to_string())?;
        let way = self.nodes.entry(node).or_default();
        way.unanswered += 1;
        let ticket = Ticket {
            asker: Asker::Node(node.0),
            client: way.link,
            generation: forward.client,
            slot: forward.number,
        };
        asks.push(ticket, &forward.text);
        Ok(())
    }

    /// The answer of another node.
    pub(super) fn take_reply(
        &mut self,
        node: NodeId,
        payload: &Bytes,
        answers: &mut Batch,
    ) -> Result<(), String> {
        let (number, text) = read_reply(payload).map_err(|error| error.to_string())?;
        let way = self.nodes.entry(node).or_default();
        let asked = way
            .window
            .reply(number)
            .map_err(|error| error.to_string())?;
        self.asked_bytes -= cost(&asked.text);
        answers.push(asked.ticket, &text);
        Ok(())
    }

    /// Answers what no link takes.
    pub(super) fn take_refused(&mut self, answers: &mut Batch) {
        for (ticket, answer) in self.refused.drain(..) {
            answers.push(ticket, answer);
        }
    }

    /// Refuses flushes that wait for a node which cannot be reached, and has a partition that is refused:
    /// nobody may take its place, so they would wait until it or an operator acts.
    pub(super) fn refuse_flushes(&mut self, node: NodeId, why: Closed) {
        let Some(way) = self.nodes.get_mut(&node).filter(|way| !way.is_open) else {
            return;
        };
        way.waiting.retain(|asked| {
            let is_refused = is_flush(&asked.text);
            if is_refused {
                self.asked_bytes -= cost(&asked.text);
                self.refused.push((asked.ticket, refusal(why, &asked.text)));
            }
            !is_refused
        });
    }

    /// Whoever waits for a node that cannot be reached is to ask again: another may be the owner by now.
    pub(super) fn take_waiting(&mut self, asks: &mut Batch) {
        for way in self.nodes.values_mut().filter(|way| !way.is_open) {
            self.asked_bytes -= way.hand_back(asks);
        }
    }

    /// Gives links what they have room for.
    pub(super) fn send(&mut self, links: &mut Links) {
        for (node, way) in self.nodes.iter_mut().filter(|(_, way)| way.is_open) {
            while let Some((number, text)) = way.replies.front() {
                let parts = [reply_head(*number), text.clone()];
                if links.send(*node, kind::REPLY, &parts).is_err() {
                    break;
                }
                way.reply_bytes -= cost(text);
                way.replies.pop_front();
            }
            while let Some(asked) = way.waiting.pop_front() {
                let bytes = asked.text.len();
                if links.room_bytes(*node) < bytes + 64 {
                    way.waiting.push_front(asked);
                    break;
                }
                let (ticket, text) = (asked.ticket, asked.text.clone());
                let Ok(number) = way.window.ask(asked, bytes, self.window_bytes) else {
                    way.waiting.push_front(Asked { ticket, text });
                    break;
                };
                let forward = Forward {
                    number,
                    client: client_of(&ticket),
                    text,
                };
                let parts = [forward.head(), forward.text];
                if links.send(*node, kind::FORWARD, &parts).is_err() {
                    tracing::warn!(%node, "a link without the room that it had");
                    break;
                }
            }
        }
    }
}

/// Tells clients of one front apart, as far as it can be told in 32 bits: two that are taken for one
/// only wait for each other.
fn client_of(ticket: &Ticket) -> u32 {
    ticket.client.wrapping_mul(0x9e37_79b1) ^ ticket.generation
}

enum Fate {
    Again,
    Unknown,
    Silent,
}

/// What is answered to a request for a partition that must not be served here now.
pub(super) fn refusal(why: Closed, text: &[u8]) -> &'static [u8] {
    match (fate(text), why) {
        (Fate::Silent, _) => b"",
        // Others of its partitions are flushed.
        _ if is_flush(text) => UNFLUSHED,
        (_, Closed::Unregistered) => UNREGISTERED,
        (_, Closed::Missing) => MISSING,
    }
}

/// What is answered to a request that is too long for a link.
fn too_long(text: &[u8]) -> &'static [u8] {
    match fate(text) {
        Fate::Silent => b"",
        Fate::Again | Fate::Unknown => TOO_LONG,
    }
}

/// What is answered to a request for a partition that is gone: to a read, too, as "not found" would be
/// believed of an item that was acknowledged. In a retrieval of many keys it is the end of the reply.
pub(super) fn loss(text: &[u8]) -> &'static [u8] {
    match fate(text) {
        Fate::Silent => b"",
        Fate::Again | Fate::Unknown => LOST,
    }
}

/// What becomes of a request whose answer is lost.
fn fate(text: &[u8]) -> Fate {
    let limits = Limits {
        item_bytes_max: u64::MAX,
        ..Limits::default()
    };
    let Some(request) = whole(limited(text).0, limits) else {
        return Fate::Unknown;
    };
    match request {
        Request::Get(get) if get.touch.is_none() => Fate::Again,
        Request::MetaGet(get)
            if get.touch.is_none() && get.vivify.is_none() && get.recache.is_none() =>
        {
            Fate::Again
        }
        Request::MetaDebug(_) => Fate::Again,
        Request::Binary(message) if message.only_reads() => Fate::Again,
        request if request.is_noreply() => Fate::Silent,
        _ => Fate::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_for_a_link_is_answered_and_never_sent() {
        let mut forwarding = Forwarding::new(1 << 20);
        let ticket = Ticket {
            asker: Asker::Node(1),
            client: 0,
            generation: 0,
            slot: 7,
        };
        let set = |noreply: &str| {
            let value = "x".repeat(TEXT_BYTES_MAX);
            format!("set a 0 0 {}{noreply}\r\n{value}\r\n", value.len())
        };
        let node = NodeId(2);
        forwarding.ask(node, ticket, set("").as_bytes());
        forwarding.ask(node, ticket, set(" noreply").as_bytes());
        assert!(forwarding.is_quiet() && forwarding.asked_bytes() == 0);
        let mut answers = Batch::default();
        forwarding.take_refused(&mut answers);
        let told: Vec<_> = answers.iter().map(|(_, text)| text.to_vec()).collect();
        assert_eq!(told, [TOO_LONG.to_vec(), Vec::new()]);

        // A reply: the one that asked is told instead.
        let way = forwarding.nodes.entry(NodeId(1)).or_default();
        way.unanswered = 1;
        forwarding.reply(NodeId(1), ticket, &vec![b'x'; TEXT_BYTES_MAX + 1]);
        let replies = &forwarding.nodes[&NodeId(1)].replies;
        assert_eq!(replies[0], (7, Bytes::from_static(TOO_LONG)));
    }

    #[test]
    fn a_node_awaits_what_it_asked_over_the_link_that_is_there() {
        let mut forwarding = Forwarding::new(1 << 20);
        let (node, text) = (NodeId(3), Bytes::from_static(b"get a\r\n"));
        let (mut asks, mut answers) = (Batch::default(), Batch::default());
        let mut taken = Vec::new();
        for number in 1..3 {
            forwarding.link_up(node);
            let (client, text) = (7, text.clone());
            let forward = Forward {
                number,
                client,
                text,
            };
            let payload = Bytes::from([&forward.head()[..], &forward.text].concat());
            forwarding.take_ask(node, &payload, &mut asks).unwrap();
            taken = asks.iter().map(|(ticket, _)| ticket).collect();
            let is_awaited = |ticket| forwarding.is_awaited(ticket);
            let awaited = taken.iter().filter(|ticket| is_awaited(ticket)).count();
            assert_eq!((taken.len() as u64, awaited), (number, 1));
            forwarding.link_down(node, &mut asks, &mut answers);
        }
        assert!(!taken.iter().any(|ticket| forwarding.is_awaited(ticket)));
    }

    #[test]
    fn only_reads_are_asked_again() {
        let is_again = |text: &[u8]| matches!(fate(text), Fate::Again);
        assert!(is_again(b"\0\0\x04\0\0get a\r\n") && !is_again(b"\0\0\x04\0\0gat 5 a\r\n"));
        assert!(is_again(b"get a\r\n") && is_again(b"gets a\r\n") && is_again(b"mg a v c\r\n"));
        for text in [
            &b"gat 5 a\r\n"[..],
            b"mg a N30\r\n",
            b"set a 0 0 1\r\nx\r\n",
            b"incr a 1\r\n",
            b"md a\r\n",
            b"flush_all 0\r\n",
        ] {
            assert!(matches!(fate(text), Fate::Unknown), "{text:?}");
        }
        let silent = b"set a 0 0 1 noreply\r\nx\r\n";
        assert!(matches!(fate(silent), Fate::Silent));
        assert_eq!(loss(silent), b"");
        for text in [
            "get a", "gets a", "gat 5 a", "gats 5 a", "mg a v", "mg a v q", "delete a",
        ] {
            assert_eq!(loss(format!("{text}\r\n").as_bytes()), LOST, "{text}");
        }
    }
}
