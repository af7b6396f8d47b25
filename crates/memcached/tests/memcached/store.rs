//! One connection to one store that is served by the engine, while time stands still.

use std::sync::Arc;

use cenote_kv::engine::{Ask, Counters, Engine, Outcome, Partition, Sight, key_of};
use cenote_kv::group::owner::Change;
use cenote_kv::protocol::reply::{self, Answer};
use cenote_kv::protocol::{CloseReason, Error, Limits, Parser, Request, Step};

use super::items::Items;

/// The one moment. Any would do.
const NOW: u32 = 1_800_000_000;

/// One connection to one store.
pub struct Server {
    parser: Parser,
    buffer: Vec<u8>,
    engine: Engine,
    items: Items,
    /// A line was too long.
    pub is_closed: bool,
    /// All answers.
    pub out: Vec<u8>,
}

impl Server {
    pub fn new(last_cas: u64) -> Self {
        let limits = Limits::default();
        Self {
            parser: Parser::new(limits),
            buffer: Vec::new(),
            engine: Engine::new(limits, Arc::new(Counters::default())),
            items: Items::new(last_cas, u64::from(NOW)),
            is_closed: false,
            out: Vec::new(),
        }
    }

    /// The newest cas number.
    pub fn last_cas(&self) -> u64 {
        self.items.last_cas()
    }

    /// Takes bytes and answers what they ask.
    pub fn receive(&mut self, bytes: &[u8]) {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.extend_from_slice(bytes);
        let mut front = 0;
        loop {
            let taken = match self.parser.parse(&buffer[front..]) {
                Step::More { .. } => break,
                Step::Skipped { taken } => taken,
                Step::Request { request, taken } => {
                    self.serve(&request);
                    taken
                }
                Step::Refused { refusal, taken } => {
                    if let Some(key) = refusal.forget {
                        let mut scratch = [0; 250];
                        let key = key.bytes(&mut scratch);
                        let noreply = true;
                        self.ask(&Request::Delete { key, noreply }, key);
                    }
                    if !refusal.is_silent {
                        reply::error(&mut self.out, refusal.error);
                    }
                    taken
                }
                Step::Close(CloseReason::LineTooLong | CloseReason::Http) => {
                    self.is_closed = true;
                    return;
                }
                Step::Close(reason) => panic!("{reason:?}"),
            };
            front += taken;
        }
        buffer.drain(..front);
        self.buffer = buffer;
    }

    /// Whether all that was received has been taken. A value that is passed over may be open.
    pub fn is_idle(&self) -> bool {
        let mut probe = self.parser.clone();
        self.buffer.is_empty() && !matches!(probe.parse(b"m"), Step::Skipped { .. })
    }

    fn serve(&mut self, request: &Request<'_>) {
        let mut scratch = [0; 250];
        match request {
            Request::Get(get) => {
                for key in get.keys {
                    self.ask(request, key);
                }
                reply::end(&mut self.out);
            }
            Request::FlushAll { noreply, .. } => {
                let flush = Change::Flush { at: NOW };
                self.items.propose(0, b"", flush).expect("never refuses");
                if !noreply {
                    reply::answer(&mut self.out, Answer::Ok);
                }
            }
            Request::Verbosity { noreply, .. } => {
                if !noreply {
                    reply::answer(&mut self.out, Answer::Ok);
                }
            }
            Request::Stats(words) => match { *words }.next() {
                Some(b"reset") => reply::answer(&mut self.out, Answer::Reset),
                _ => reply::error(&mut self.out, Error::Unknown),
            },
            Request::Version => reply::version(&mut self.out, "any"),
            Request::MetaNoop => reply::answer(&mut self.out, Answer::MetaNoop),
            request => {
                let key = key_of(request, &mut scratch).expect("all others have one");
                self.ask(request, key);
            }
        }
    }

    fn ask(&mut self, request: &Request<'_>, key: &[u8]) {
        let ask = Ask {
            request,
            key,
            sight: Sight::Newest,
        };
        let outcome = self.engine.serve(&mut self.items, &ask, &mut self.out);
        assert_eq!(outcome, Outcome::Answered { waits_for: None });
    }
}
