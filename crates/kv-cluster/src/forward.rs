//! Requests that are another node's to answer: what is on its way to one node over one link.
//!
//! A sub-request is the text of one request for one key. The front numbers what it sends to a
//! node without gaps; the link keeps the order, so the owner takes requests of one partition in
//! the order in which the front had them. Replies name the number and may come in any order
//! between partitions. Nothing is sent twice: when a link breaks, the front learns which requests
//! have no reply, and only it knows which may be asked again.
//! Pure; the frames are [`super::frame::kind::FORWARD`] and `REPLY`.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use cenote_kv::protocol::Limits;

use super::frame::{FrameError, PAYLOAD_BYTES_MAX, kind};

/// Requests on their way to one node over one link.
pub const WINDOW: usize = 4096;

const FORWARD_BYTES: usize = 12;
const REPLY_BYTES: usize = 8;
/// Longest text of a request, and of a reply, that a frame carries.
pub const TEXT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX - FORWARD_BYTES;
/// What stands beside a line and a value at most: their ends, a key, the facts of a reply, the head of an
/// operation.
const BESIDE_BYTES: u64 = 4096;

/// Whether frames carry whatever clients with these limits may ask and be answered: the requests and
/// replies here, and the operations of a group.
#[must_use]
pub fn is_carried(limits: &Limits) -> bool {
    let line = |bytes: usize| u64::try_from(bytes).unwrap_or(u64::MAX);
    let with_value = limits
        .item_bytes_max
        .saturating_add(line(limits.line_bytes_max));
    let longest = with_value.max(line(limits.multiget_bytes_max));
    longest.saturating_add(BESIDE_BYTES) <= line(TEXT_BYTES_MAX)
}

/// A sub-request as it is on the link.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Forward {
    /// The front's number of it.
    pub number: u64,
    /// Which of the front's clients asks: its requests stay in order, others need not wait for them.
    pub client: u32,
    /// The request's text.
    pub text: Bytes,
}

impl Forward {
    /// The payload's beginning; the text follows as a part of its own.
    #[must_use]
    pub fn head(&self) -> Bytes {
        let mut head = BytesMut::with_capacity(FORWARD_BYTES);
        head.put_u64_le(self.number);
        head.put_u32_le(self.client);
        head.freeze()
    }

    /// Reads a payload.
    ///
    /// # Errors
    /// `Payload`.
    pub fn read(payload: &Bytes) -> Result<Self, FrameError> {
        let (number, rest) = numbered(kind::FORWARD, payload)?;
        let client = rest.first_chunk().ok_or(FrameError::Payload {
            kind: kind::FORWARD,
            bytes: payload.len(),
        })?;
        Ok(Self {
            number,
            client: u32::from_le_bytes(*client),
            text: payload.slice(FORWARD_BYTES..),
        })
    }
}

/// The beginning of a reply's payload; its text follows as a part of its own.
#[must_use]
pub fn reply_head(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

/// Reads a reply's payload: the number of its request, and its text.
///
/// # Errors
/// `Payload`.
pub fn read_reply(payload: &Bytes) -> Result<(u64, Bytes), FrameError> {
    let (number, _) = numbered(kind::REPLY, payload)?;
    Ok((number, payload.slice(REPLY_BYTES..)))
}

fn numbered(kind: u8, payload: &Bytes) -> Result<(u64, &[u8]), FrameError> {
    let bytes = payload.len();
    let (number, rest) = payload
        .split_first_chunk()
        .ok_or(FrameError::Payload { kind, bytes })?;
    Ok((u64::from_le_bytes(*number), rest))
}

/// The window is full: hold the client back until replies have come.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{WINDOW} requests or as many bytes as may be are on their way")]
pub struct WindowFull;

/// A reply to nothing; the link is to be given up.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a reply to request {0}, which is not on its way")]
pub struct NotAsked(pub u64);

/// Requests on their way to one node, with what the front has to know of each.
#[derive(Debug)]
pub struct Window<T> {
    /// Number of the first in `asked`.
    first: u64,
    /// Those whose reply has come are `None`.
    asked: VecDeque<Option<(T, usize)>>,
    bytes: usize,
}

impl<T> Default for Window<T> {
    fn default() -> Self {
        Self {
            first: 1,
            asked: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<T> Window<T> {
    /// Takes a request of so many bytes, where all may have `bytes_max`; the number to send it with. One
    /// that is alone is taken however long it is.
    ///
    /// # Errors
    /// [`WindowFull`], with nothing changed.
    pub fn ask(&mut self, request: T, bytes: usize, bytes_max: usize) -> Result<u64, WindowFull> {
        let too_many = self.asked.len() >= WINDOW;
        let too_long = self.bytes > 0 && self.bytes + bytes > bytes_max;
        if too_many || too_long {
            return Err(WindowFull);
        }
        let number = self.first + self.asked.len() as u64;
        self.asked.push_back(Some((request, bytes)));
        self.bytes += bytes;
        Ok(number)
    }

    /// Takes the reply to a request; what the front noted of it.
    ///
    /// # Errors
    /// [`NotAsked`], also when it was replied to before.
    pub fn reply(&mut self, number: u64) -> Result<T, NotAsked> {
        let index = number.checked_sub(self.first);
        let index = index.and_then(|index| usize::try_from(index).ok());
        let asked = index.and_then(|index| self.asked.get_mut(index)?.take());
        let (request, bytes) = asked.ok_or(NotAsked(number))?;
        self.bytes -= bytes;
        while let Some(None) = self.asked.front() {
            self.asked.pop_front();
            self.first += 1;
        }
        Ok(request)
    }

    /// The link is broken: all requests without a reply, in the order of their asking.
    pub fn fail(&mut self) -> Vec<T> {
        self.first += self.asked.len() as u64;
        self.bytes = 0;
        let asked = self.asked.drain(..).flatten();
        asked.map(|(request, _)| request).collect()
    }

    /// Number of the last request that was taken.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.first + self.asked.len() as u64 - 1
    }

    /// Whether every request up to this number has its reply, or failed.
    #[must_use]
    pub fn is_done(&self, number: u64) -> bool {
        number < self.first
    }

    /// Whether nothing is on its way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES: usize = 1 << 20;

    #[test]
    fn frames_carry_what_clients_may_say_by_default_and_not_much_more() {
        let limits = Limits::default();
        assert!(is_carried(&limits));
        for too_much in [
            Limits {
                item_bytes_max: 2 << 20,
                ..limits
            },
            Limits {
                item_bytes_max: u64::MAX,
                ..limits
            },
            Limits {
                line_bytes_max: usize::MAX,
                ..limits
            },
            Limits {
                multiget_bytes_max: 2 << 20,
                ..limits
            },
        ] {
            assert!(!is_carried(&too_much), "{too_much:?}");
        }
    }

    #[test]
    fn payloads_have_the_bytes_of_the_table() {
        let forward = Forward {
            number: 5,
            client: 3,
            text: Bytes::from_static(b"get a\r\n"),
        };
        let head = forward.head();
        assert_eq!(head[..], [5, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0]);
        let payload = Bytes::from([&head[..], &forward.text[..]].concat());
        assert_eq!(Forward::read(&payload), Ok(forward));
        let reply = Bytes::from([&reply_head(5)[..], b"END\r\n"].concat());
        assert_eq!(read_reply(&reply), Ok((5, Bytes::from_static(b"END\r\n"))));
        for short in 0..FORWARD_BYTES {
            assert!(Forward::read(&payload.slice(..short)).is_err());
        }
        assert!(read_reply(&reply.slice(..7)).is_err());
    }

    #[test]
    fn a_full_window_takes_no_more_until_its_oldest_has_a_reply() {
        let mut window = Window::default();
        for index in 0..WINDOW {
            assert_eq!(window.ask(index, 1, BYTES), Ok(index as u64 + 1));
        }
        assert_eq!(window.ask(0, 1, BYTES), Err(WindowFull));
        // The numbers in between are still in the window.
        assert_eq!(window.reply(2), Ok(1));
        assert_eq!(window.ask(0, 1, BYTES), Err(WindowFull));
        assert_eq!(window.reply(1), Ok(0));
        assert_eq!(window.ask(7, 1, BYTES), Ok(WINDOW as u64 + 1));

        let mut window = Window::default();
        assert_eq!(window.ask('a', BYTES + 1, BYTES), Ok(1));
        assert_eq!(window.ask('b', 1, BYTES), Err(WindowFull));
        assert_eq!(window.fail(), ['a']);
        assert_eq!(window.ask('c', BYTES, BYTES), Ok(2));
        assert_eq!(window.reply(1), Err(NotAsked(1)), "of the link before");
    }

    proptest! {
        #[test]
        fn every_request_has_one_reply_or_fails_in_order(
            steps in proptest::collection::vec((0_u8..3, 0_u64..20), 0..120),
        ) {
            let mut window = Window::default();
            let mut open: Vec<(u64, u64)> = Vec::new();
            let mut next = 0;
            for (step, number) in steps {
                match step {
                    0 => {
                        let given = window.ask(next, 10, BYTES).unwrap();
                        open.push((given, next));
                        next += 1;
                    }
                    1 => {
                        let place = open.iter().position(|asked| asked.0 == number);
                        let expected = place.map(|place| open.remove(place).1);
                        prop_assert_eq!(window.reply(number), expected.ok_or(NotAsked(number)));
                    }
                    _ if number == 0 => {
                        let expected: Vec<u64> = open.drain(..).map(|asked| asked.1).collect();
                        prop_assert_eq!(window.fail(), expected);
                    }
                    _ => {}
                }
                prop_assert_eq!(window.is_empty(), open.is_empty());
                prop_assert_eq!(window.bytes, 10 * open.len());
            }
        }
    }
}
