//! One client's requests, whatever it speaks over: what each does, and its place in the replies.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_kv::engine::{Ask, Outcome, Sight, key_of};
use cenote_kv::memory::key_hash::place_hash;
use cenote_kv::protocol::binary::Head;
use cenote_kv::protocol::reply::{self, Answer};
use cenote_kv::protocol::{Error, Exptime, KEY_BYTES_MAX, Refusal, Request, Retrieval, Words};

use super::backend::{Backend, Route};
use super::batch::{Asker, Ticket};
use super::core::Core;
use super::crawl::{Command, Walk};
use super::direct::{Direct, Target};
use super::replies::{Replies, is_error, told};
use super::small_answers::{Doubtful, shows_value};
use super::stats;
use super::times::{Operation, Timed};
use super::watch::Watcher;

/// What follows a value.
const LINE_END: &[u8] = b"\r\n";
/// What follows the value of a retrieval of one key.
const GET_END: &[u8] = b"\r\nEND\r\n";
/// Keys of a retrieval that are looked up in a row: there may be a hundred thousand in one line, and of those
/// that are not found nothing has to be sent.
const KEYS_IN_A_ROW: u32 = 256;
/// Bytes that are written straight to its client in a row. Arbitrary, as the number of keys.
const DIRECT_BYTES_IN_A_ROW: u64 = 1 << 20;
/// So many keys of a retrieval count as one more request of a turn; arbitrary.
const KEYS_PER_REQUEST: u32 = 16;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Session {
    client: u32,
    generation: u32,
    pub(super) replies: Replies,
    /// A retrieval of many keys that is not at its end.
    long_get: Option<LongGet>,
    /// A dump, likewise.
    walk: Option<Walk>,
    /// Keys of retrievals that were looked up in this turn.
    keys: u32,
    /// The reply of a request that cannot be served yet, or a piece of one. Those after it wait.
    pub(super) parked: Option<u64>,
    /// The same reply, where it may be larger than there is memory for.
    pub(super) doubtful: Option<Doubtful>,
    /// Others have the memory for answers: only small ones are to be had, one at a time.
    pub(super) only_small: bool,
    /// What the last message of a client of the binary protocol is answered by.
    pub(super) asked: Option<Head>,
    /// The same of replies that are awaited, by their numbers.
    heads: VecDeque<(u64, Head)>,
    /// It is shown what happens, and asks for nothing any more.
    pub(super) watcher: Option<Arc<Watcher>>,
    /// The descriptor of its connection; nothing where it has none.
    pub(super) connection: Option<i32>,
    /// The client is done: no more requests.
    pub(super) has_quit: bool,
}

#[derive(Debug)]
struct LongGet {
    keys: Vec<u8>,
    taken: usize,
    with_cas: bool,
    touch: Option<Exptime>,
}

impl Session {
    pub(super) fn new(client: u32, generation: u32) -> Self {
        Self {
            client,
            generation,
            replies: Replies::default(),
            long_get: None,
            walk: None,
            keys: 0,
            parked: None,
            doubtful: None,
            only_small: false,
            asked: None,
            heads: VecDeque::new(),
            watcher: None,
            connection: None,
            has_quit: false,
        }
    }

    /// Whether the next request has to wait.
    pub(super) fn is_held_up(&self) -> bool {
        self.parked.is_some() || self.replies.is_full()
    }

    /// Whether a retrieval or a dump is under way, which goes on by [`Session::go_on`], or a
    /// request waits for memory, or will if its answer turns out to be large.
    pub(super) fn has_more(&self) -> bool {
        self.long_get.is_some() || self.walk.is_some() || self.doubtful.is_some()
    }

    /// Whether a dump is under way.
    pub(super) fn is_dumping(&self) -> bool {
        self.walk.is_some()
    }

    /// Its place at its worker.
    pub(super) fn place(&self) -> usize {
        self.client as usize
    }

    /// Memory that it has taken.
    pub(super) fn bytes(&self) -> usize {
        let keys = self.long_get.as_ref().map_or(0, |get| get.keys.len());
        self.replies.bytes() + keys
    }

    /// Whether nothing is under way, and all replies are sent.
    pub(super) fn is_done(&self) -> bool {
        !self.has_more() && self.replies.is_done()
    }

    /// Takes a reply that was awaited; what it is timed as.
    pub(super) fn fill(&mut self, slot: u64, mut text: &[u8]) -> Option<Timed> {
        if self.parked == Some(slot) {
            if self.is_put_off(text) {
                return None;
            }
            self.parked = None;
            if let Some(walk) = &mut self.walk {
                text = walk.take(text);
            }
        }
        let is_error = is_error(text);
        match self.take_head(slot) {
            None => self.replies.fill_with(slot, text, is_error),
            Some(head) => {
                let text = told(head, text);
                self.replies.fill_with(slot, &text, is_error)
            }
        }
    }

    fn take_head(&mut self, slot: u64) -> Option<Head> {
        let at = self.heads.iter().position(|(held, _)| *held == slot)?;
        self.heads.remove(at).map(|(_, head)| head)
    }

    fn hold<B: Backend>(&mut self, core: &Core<B>, is_silent: bool, bytes: usize) -> Ticket {
        let slot = self.replies.hold(is_silent, bytes);
        self.heads.extend(self.asked.map(|head| (slot, head)));
        Ticket {
            asker: Asker::Worker(core.index),
            client: self.client,
            generation: self.generation,
            slot,
        }
    }

    /// Serves a request, whose text is `text`.
    pub(super) fn request<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        request: &Request<'_>,
        text: &[u8],
        direct: Option<&mut Direct<'_>>,
    ) {
        match request {
            Request::Get(get) => self.get(core, request, get, text, direct),
            Request::FlushAll { exptime, noreply } => self.flush_all(core, *exptime, *noreply),
            Request::Verbosity { level, noreply } => {
                let level = u8::try_from(*level).unwrap_or(u8::MAX);
                let verbosity = &core.shared.verbosity;
                verbosity.store(level, Ordering::Relaxed);
                if !noreply {
                    reply::answer(self.replies.tail(), Answer::Ok);
                }
            }
            Request::Stats(words) => {
                let mut rest = *words;
                match rest.next() {
                    Some(b"cachedump") => return self.dump(core, rest),
                    Some(b"detail") => return self.detail(core, rest),
                    _ => {}
                }
                stats::write(self.replies.tail(), core, *words);
            }
            Request::Tune {
                tuning,
                words,
                noreply,
            } => self.tune(core, *tuning, *words, *noreply),
            Request::Watch(words) => self.watch(core, *words),
            Request::Crawler(words) => self.crawl(core, *words),
            Request::Version => {
                reply::version(self.replies.tail(), &core.shared.settings.version);
            }
            Request::Quit => self.has_quit = true,
            Request::MetaNoop => reply::answer(self.replies.tail(), Answer::MetaNoop),
            request => self.serve(core, request, text),
        }
    }

    /// Serves a request for one key that is no retrieval in text.
    pub(super) fn serve<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        request: &Request<'_>,
        text: &[u8],
    ) {
        let mut decoded = [0; KEY_BYTES_MAX];
        let key = key_of(request, &mut decoded).expect("it has one");
        self.item(core, request, key, Text::Whole(text), None, LINE_END);
    }

    /// Answers what is no request.
    pub(super) fn refuse<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        refusal: &Refusal<'_>,
        line: &[u8],
    ) {
        if refusal.error == Error::TooLarge {
            core.engine.counters().store_too_large.count();
        }
        if let Some(key) = &refusal.forget {
            let end: &[u8] = if key.is_base64() { b" b\r\n" } else { b"\r\n" };
            self.forget(core, &[b"md ", key.raw(), end].concat());
        }
        if refusal.error == Error::NoShutdown && core.shared.settings.may_shut_down {
            return self.shut_down(core, line);
        }
        if !refusal.is_silent {
            reply::error(self.replies.tail(), refusal.error);
        }
    }

    fn shut_down<B: Backend>(&mut self, core: &Core<B>, line: &[u8]) {
        let line = line.trim_ascii_end();
        let gracefully = match Words::new(line).nth(1) {
            None => false,
            Some(b"graceful") => true,
            Some(_) => {
                let text = b"CLIENT_ERROR invalid shutdown mode\r\n";
                return self.replies.tail().extend_from_slice(text);
            }
        };
        self.has_quit = true;
        core.shared.stop(gracefully);
    }

    /// Deletes an item in whose place a larger one was refused, by the request `text`.
    pub(super) fn forget<B: Backend>(&mut self, core: &mut Core<B>, text: &[u8]) {
        let ticket = self.hold(core, true, text.len());
        core.serve(ticket, text);
    }

    fn get<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        request: &Request<'_>,
        get: &Retrieval<'_>,
        text: &[u8],
        direct: Option<&mut Direct<'_>>,
    ) {
        let mut keys = get.keys;
        let Some(first) = keys.next() else {
            return reply::end(self.replies.tail());
        };
        self.replies.begin_retrieval();
        if keys.next().is_none() {
            if !self.item(core, request, first, Text::Whole(text), direct, GET_END) {
                reply::end(self.replies.tail());
            }
            return self.replies.end_retrieval();
        }
        let mut keys = get.keys;
        if !self.look_up(core, request, get, &mut keys, direct) {
            self.long_get = Some(LongGet {
                keys: keys.rest().to_vec(),
                taken: 0,
                with_cas: get.with_cas,
                touch: get.touch,
            });
        }
    }

    /// Looks up the next keys of a retrieval of many; whether that was the end of it.
    fn look_up<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        request: &Request<'_>,
        get: &Retrieval<'_>,
        keys: &mut Words<'_>,
        mut direct: Option<&mut Direct<'_>>,
    ) -> bool {
        for _ in 0..KEYS_IN_A_ROW {
            if self.replies.has_ended_early() {
                return true;
            }
            let written = direct.as_deref().map_or(0, |direct| *direct.written);
            let has_small = self.only_small && !self.replies.is_done();
            if self.is_held_up() || has_small || written >= DIRECT_BYTES_IN_A_ROW {
                return false;
            }
            let Some(key) = keys.next() else {
                reply::end(self.replies.tail());
                self.replies.end_retrieval();
                return true;
            };
            let text = Text::Get(key, get.with_cas, get.touch);
            self.item(core, request, key, text, direct.as_deref_mut(), LINE_END);
            self.keys += 1;
        }
        false
    }

    /// How many requests more than one the keys come to that were looked up since this was last asked.
    pub(super) fn take_cost(&mut self) -> u32 {
        std::mem::take(&mut self.keys) / KEYS_PER_REQUEST
    }

    fn crawl<B: Backend>(&mut self, core: &mut Core<B>, words: Words<'_>) {
        let (shared, settings) = (&core.shared, &core.shared.settings);
        let is_enabled = shared.has_crawler.load(Ordering::Relaxed);
        let dialect = settings.limits.dialect;
        let (is_on, text): (bool, &[u8]) =
            match Command::parse(words, dialect, is_enabled, settings.may_dump) {
                Ok(Command::Dump(_)) if !self.replies.is_done() => (
                    is_enabled,
                    b"ERROR cannot pipeline other commands before metadump\r\n",
                ),
                Ok(Command::Dump(walk)) => {
                    self.walk = Some(walk);
                    return self.go_on_walking(core, walk);
                }
                Ok(Command::Enable) => (true, b"OK\r\n"),
                Ok(Command::Disable) => (false, b"OK\r\n"),
                Ok(Command::Done) => (is_enabled, b"OK\r\n"),
                Err(text) => (is_enabled, text),
            };
        if is_on != is_enabled {
            shared.has_crawler.store(is_on, Ordering::Relaxed);
        }
        self.replies.tail().extend_from_slice(text);
    }

    /// Asks for the next piece of a dump, if the client takes it.
    fn go_on_walking<B: Backend>(&mut self, core: &mut Core<B>, walk: Walk) {
        if self.is_held_up() {
            return;
        }
        if walk.is_over(core.shared.workers.len()) {
            self.walk = None;
            return self.replies.tail().extend_from_slice(walk.end());
        }
        let text = walk.text();
        let ticket = self.hold(core, false, text.len());
        self.parked = Some(ticket.slot);
        core.ask_worker(walk.worker, ticket, text.as_bytes());
    }

    /// Goes on with a retrieval or a dump, as far as that is possible now and others need not wait.
    pub(super) fn go_on<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        direct: Option<&mut Direct<'_>>,
    ) {
        if let Some(walk) = self.walk {
            return self.go_on_walking(core, walk);
        }
        let Some(mut get) = self.long_get.take() else {
            return;
        };
        let mut keys = Words::new(&get.keys[get.taken..]);
        let retrieval = Retrieval {
            keys,
            with_cas: get.with_cas,
            touch: get.touch,
        };
        let request = Request::Get(retrieval);
        if !self.look_up(core, &request, &retrieval, &mut keys, direct) {
            get.taken = get.keys.len() - keys.rest().len();
            self.long_get = Some(get);
        }
    }

    /// Serves a request for one key here, or sends its text to where it is served. `tail` follows a
    /// value; says whether that has been written.
    fn item<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        request: &Request<'_>,
        key: &[u8],
        text: Text<'_>,
        direct: Option<&mut Direct<'_>>,
        tail: &'static [u8],
    ) -> bool {
        let operation = Operation::of(request);
        let is_silent = request.is_noreply();
        let place = place_hash(key);
        let shows_value = shows_value(request);
        if self.only_small && shows_value && self.doubt(core, key, &text, operation) {
            return false;
        }
        // A reply that is too long for datagrams is lost in any case.
        let may_be_put_off = shows_value && self.connection.is_some();
        if core.is_to_wait(self.client, self.generation, place) {
            self.park(core, &text.bytes(), is_silent, operation, may_be_put_off);
            return false;
        }
        let partition = match core.backend.route(place) {
            Route::Here(partition) => partition,
            _ if may_be_put_off && self.replies.knows_no_value() => {
                self.ask_first(core, &text.bytes(), operation);
                return false;
            }
            route => {
                let text = text.bytes();
                let ticket = self.hold(core, is_silent, text.len());
                if shows_value {
                    self.replies.expect_as_before();
                }
                self.replies.time(core.stopwatch.start(operation));
                core.send(route, ticket, &text);
                return false;
            }
        };
        // Who has asked for nothing that is not answered may see what is committed.
        let is_settled = self.replies.is_settled();
        let sight = if is_settled {
            Sight::Committed
        } else {
            Sight::Newest
        };
        let only_reads = matches!(request, Request::Get(get) if get.touch.is_none());
        let mark = self.replies.mark();
        let mut target = Target {
            replies: &mut self.replies,
            direct: direct.filter(|direct| is_settled && only_reads && *direct.is_writable),
            tail,
            has_value: false,
        };
        let ask = Ask {
            request,
            key,
            sight,
        };
        if !core.backend.may_serve(partition) {
            self.park(core, &text.bytes(), is_silent, operation, may_be_put_off);
            return false;
        }
        let place = core.backend.partition(partition);
        let outcome = core.engine.serve(place, &ask, &mut target);
        let has_value = target.has_value;
        core.note_events(key, || self.connection.unwrap_or(0));
        match outcome {
            Outcome::Answered { waits_for: None } => {
                core.stopwatch.count(operation);
                return has_value;
            }
            Outcome::Answered {
                waits_for: Some(xid),
            } => {
                let answer = self.replies.take_since(mark);
                let ticket = self.hold(core, is_silent, answer.len());
                self.replies.time(core.stopwatch.start(operation));
                core.hold(partition, xid, ticket, answer);
                return has_value;
            }
            Outcome::Retry(refusal) => {
                core.backend.on_refusal(partition, refusal);
                self.park(core, &text.bytes(), is_silent, operation, may_be_put_off);
            }
        }
        false
    }

    fn dump<B: Backend>(&mut self, core: &mut Core<B>, words: Words<'_>) {
        let refused: &[u8] = match Walk::of_class(words, core.shared.workers.len()) {
            Ok(walk) if core.shared.settings.may_dump => {
                self.walk = Some(walk);
                return self.go_on_walking(core, walk);
            }
            Ok(_) => b"CLIENT_ERROR stats cachedump not allowed\r\n",
            Err(error) => error,
        };
        self.replies.tail().extend_from_slice(refused);
    }

    /// Keeps a request that cannot be served yet. One that shows a value is served then if that is
    /// small, or there is memory: many may be kept, and are served at once.
    fn park<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        text: &[u8],
        is_silent: bool,
        operation: Option<Operation>,
        shows_value: bool,
    ) {
        if shows_value {
            return self.ask_small(core, text, operation);
        }
        let ticket = self.hold_up(core, text, is_silent, operation);
        core.park(ticket, text);
    }

    /// Makes a place for a reply which those after it wait for.
    pub(super) fn hold_up<B: Backend>(
        &mut self,
        core: &Core<B>,
        text: &[u8],
        is_silent: bool,
        operation: Option<Operation>,
    ) -> Ticket {
        let ticket = self.hold(core, is_silent, text.len());
        self.replies.time(core.stopwatch.start(operation));
        self.parked = Some(ticket.slot);
        ticket
    }

    fn flush_all<B: Backend>(&mut self, core: &mut Core<B>, exptime: Exptime, noreply: bool) {
        if !core.shared.settings.may_flush {
            if !noreply {
                let text = b"CLIENT_ERROR flush_all not allowed\r\n";
                self.replies.tail().extend_from_slice(text);
            }
            return;
        }
        self.spread_flush(core, exptime.flush_at(core.now), noreply, |out| {
            if !noreply {
                reply::answer(out, Answer::Ok);
            }
        });
    }

    /// Flushes at a second, and tells so where `tell` does.
    pub(super) fn spread_flush<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        at: u64,
        is_silent: bool,
        tell: impl FnOnce(&mut Vec<u8>),
    ) {
        core.engine.counters().cmd_flush.count();
        // A text's time has a sign: the binary protocol's later ones would be read as times that have passed.
        let at = at.min(i32::MAX.unsigned_abs().into());
        self.spread(core, &format!("flush_all {at}\r\n"), is_silent, tell);
    }

    /// Asks every worker for its part, and tells that all is done where `tell` does.
    pub(super) fn spread<B: Backend>(
        &mut self,
        core: &mut Core<B>,
        text: &str,
        is_silent: bool,
        tell: impl FnOnce(&mut Vec<u8>),
    ) {
        // An error of one part is the end of the reply.
        self.replies.begin_retrieval();
        for worker in 0..core.shared.workers.len() {
            let ticket = self.hold(core, is_silent, text.len());
            core.ask_worker(worker, ticket, text.as_bytes());
        }
        tell(self.replies.tail());
        self.replies.end_retrieval();
    }
}

/// The text of a request for one key.
pub(super) enum Text<'a> {
    /// As it came.
    Whole(&'a [u8]),
    /// One key of a retrieval of many.
    Get(&'a [u8], bool, Option<Exptime>),
}

impl Text<'_> {
    pub(super) fn bytes(&self) -> Cow<'_, [u8]> {
        let (key, with_cas, touch) = match self {
            Self::Whole(text) => return Cow::Borrowed(text),
            Self::Get(key, with_cas, touch) => (key, with_cas, touch),
        };
        let mut text = match (touch, with_cas) {
            (None, false) => b"get ".to_vec(),
            (None, true) => b"gets ".to_vec(),
            (Some(Exptime(seconds)), false) => format!("gat {seconds} ").into_bytes(),
            (Some(Exptime(seconds)), true) => format!("gats {seconds} ").into_bytes(),
        };
        text.extend_from_slice(key);
        text.extend_from_slice(b"\r\n");
        Cow::Owned(text)
    }
}
