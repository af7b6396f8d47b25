//! Calls on the simulated network: a client thread's end, and the end of a host's server thread.
//!
//! A call is one message to the host's process and waits there until the process takes it; the
//! answer is one message back. Both take what a SEND takes. A server thread works in no time: who
//! wants a slow one lets time pass before it takes its turn.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::RawFd;
use std::time::Duration;

use super::connection::{ConnectionId, Patience};
use super::message::{Body, Leg, MessageId, Messages};
use super::net::{Net, NodeId};
use super::state::State;
use crate::calls::{
    Answered, Answering, CALL_BYTES_MAX, CALLS_UNDER_WAY_MAX, Call, CallId, Caller, CallsFull,
    Handler, OnAnswer,
};
use crate::{ClientId, Result, Status, Time, Token};

/// A connection for calls, as its client sees it.
pub(super) struct Calls {
    pub(super) control: ConnectionId,
    pub(super) patience: Patience,
    /// Calls made so far: the next one's position.
    made: u64,
    /// Made, and not flushed.
    queued: Vec<MessageId>,
    under_way: BTreeMap<u64, Token>,
    /// Ended, and not told.
    ended: VecDeque<(Token, Ended)>,
    /// What calls end with once the client's end is closed.
    end: Status,
}

type Ended = std::result::Result<Vec<u8>, Status>;

impl Calls {
    pub(super) fn new(control: ConnectionId) -> Self {
        Self {
            control,
            patience: Patience::default(),
            made: 0,
            queued: Vec::new(),
            under_way: BTreeMap::new(),
            ended: VecDeque::new(),
            end: Status::Ok,
        }
    }

    fn outstanding(&self) -> usize {
        self.under_way.len() + self.ended.len()
    }

    /// Ends all that is under way; nothing is sent any more.
    pub(super) fn end(&mut self, status: Status, messages: &mut Messages) {
        self.end = status;
        self.patience.forget();
        for id in self.queued.drain(..) {
            messages.free(id);
        }
        let under_way = std::mem::take(&mut self.under_way);
        let ended = under_way.into_values().map(|token| (token, Err(status)));
        self.ended.extend(ended);
    }
}

/// What a host's process has for its server thread.
#[derive(Default)]
pub(super) struct Server {
    pub(super) is_there: bool,
    /// Calls that nobody has taken.
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    connection: ConnectionId,
    position: u64,
    bytes: Vec<u8>,
}

impl State {
    fn calls(&mut self, id: ConnectionId) -> &mut Calls {
        let calls = self.connection(id).calls();
        calls.expect("a caller's connection is one for calls")
    }

    /// A call is at its host.
    pub(super) fn take_call(&mut self, id: MessageId) {
        let message = self.messages.at(id);
        let waiting = Waiting {
            connection: message.connection,
            position: message.position,
            bytes: message.payload().to_vec(),
        };
        let connection = self.connections.at(message.connection);
        let (host, incarnation) = (connection.host, connection.incarnation);
        if let Some(process) = self.node(host).process(incarnation) {
            process.server.waiting.push_back(waiting);
        }
        self.messages.free(id);
        self.make_ready(host);
    }

    /// An answer is at its client.
    pub(super) fn take_answer(&mut self, connection: ConnectionId, id: MessageId) {
        let now = self.now;
        let message = self.messages.at(id);
        let (position, bytes) = (message.position, message.payload().to_vec());
        let calls = self.calls(connection);
        if let Some(token) = calls.under_way.remove(&position) {
            calls.patience.hear(now);
            calls.ended.push_back((token, Ok(bytes)));
        }
        self.messages.free(id);
    }

    fn flush_calls(&mut self, id: ConnectionId) {
        let now = self.now;
        for message in std::mem::take(&mut self.calls(id).queued) {
            self.calls(id).patience.ask(now);
            self.send(message);
        }
        self.watch_silence(id);
    }

    /// The oldest call that waits at a process, and whose. Those of connections that are over are
    /// dropped.
    fn next_call(&mut self, host: NodeId, incarnation: u32) -> Result<Option<(ClientId, Waiting)>> {
        loop {
            let process = self.process(host, incarnation)?;
            let Some(waiting) = process.server.waiting.pop_front() else {
                return Ok(None);
            };
            let connection = self.connections.find(waiting.connection);
            let Some(connection) = connection.filter(|connection| connection.host_open) else {
                continue;
            };
            let control = connection.calls().expect("a call came on it").control;
            let client = self.control(control).name;
            return Ok(Some((client, waiting)));
        }
    }

    fn answer_call(&mut self, id: ConnectionId, position: u64, answer: &[u8]) {
        let is_open = |connection: &mut super::connection::Connection| connection.host_open;
        if !self.connections.find(id).is_some_and(is_open) {
            return;
        }
        let (message_id, message) = self.messages.take(id, Body::Answer, Leg::ToClient);
        message.position = position;
        message.fill(answer);
        self.send(message_id);
    }
}

/// The end of a simulated host's server thread.
pub struct SimAnswerer {
    net: Net,
    node: NodeId,
    incarnation: u32,
    /// The answer that is being made.
    answer: Vec<u8>,
}

impl SimAnswerer {
    pub(super) fn new(net: &Net, node: NodeId, incarnation: u32) -> Self {
        Self {
            net: net.clone(),
            node,
            incarnation,
            answer: Vec::new(),
        }
    }

    fn next(&self) -> Result<Option<(ClientId, Waiting)>> {
        let mut state = self.net.lock();
        if state.node(self.node).is_paused {
            return Ok(None);
        }
        state.next_call(self.node, self.incarnation)
    }
}

impl Answering for SimAnswerer {
    /// Answers all that wait; no time passes, whatever `patience` is.
    ///
    /// # Errors
    /// `Closed`: the process has crashed.
    fn turn(&mut self, _patience: Option<Duration>, handler: Handler<'_>) -> Result<bool> {
        let mut any = false;
        while let Some((client, waiting)) = self.next()? {
            any = true;
            self.answer.clear();
            let call = Call {
                client,
                id: CallId::simulated(waiting.connection.0, waiting.position),
                request: &waiting.bytes,
            };
            match handler(call, &mut self.answer) {
                Answered::Now => {
                    let mut state = self.net.lock();
                    state.answer_call(waiting.connection, waiting.position, &self.answer);
                }
                Answered::Later => {}
                Answered::Never(what) => {
                    tracing::warn!(?client, what, "a connection for calls broke the protocol");
                    self.net.lock().end_by_host(waiting.connection);
                }
            }
        }
        Ok(any)
    }

    fn answer(&mut self, call: CallId, answer: &[u8]) {
        assert!(
            answer.len() <= CALL_BYTES_MAX,
            "an answer of {} bytes",
            answer.len()
        );
        let (connection, position) = call.of_simulation();
        let mut state = self.net.lock();
        if state.process(self.node, self.incarnation).is_ok() {
            state.answer_call(ConnectionId(connection), position, answer);
        }
    }
}

/// One client thread's connection to a simulated host's server thread.
pub(super) struct SimCaller {
    net: Net,
    connection: ConnectionId,
}

impl SimCaller {
    pub(super) fn new(net: Net, connection: ConnectionId) -> Self {
        Self { net, connection }
    }
}

impl Caller for SimCaller {
    fn call(&mut self, request: &[u8], token: Token) -> std::result::Result<(), CallsFull> {
        assert!(
            request.len() <= CALL_BYTES_MAX,
            "a call of {} bytes",
            request.len()
        );
        let state = &mut *self.net.lock();
        let is_open = state.connection(self.connection).client_open;
        let calls = state.calls(self.connection);
        if calls.outstanding() == CALLS_UNDER_WAY_MAX {
            return Err(CallsFull);
        }
        if !is_open {
            let end = calls.end;
            calls.ended.push_back((token, Err(end)));
            return Ok(());
        }
        let position = calls.made;
        let (id, message) = state
            .messages
            .take(self.connection, Body::Call, Leg::ToHost);
        message.position = position;
        message.fill(request);
        let calls = state.calls(self.connection);
        calls.made += 1;
        calls.under_way.insert(position, token);
        calls.queued.push(id);
        Ok(())
    }

    fn flush(&mut self) {
        let mut state = self.net.lock();
        if state.connection(self.connection).client_open {
            state.flush_calls(self.connection);
        }
    }

    /// Sends and takes; the failure timeout is an event of the network's own clock.
    fn poll(&mut self, _now: Time, on_answer: OnAnswer<'_>) {
        self.flush();
        let ended = std::mem::take(&mut self.net.lock().calls(self.connection).ended);
        for (token, answer) in ended {
            on_answer(token, answer.as_deref().map_err(|status| *status));
        }
    }

    fn outstanding(&self) -> usize {
        self.net.lock().calls(self.connection).outstanding()
    }

    fn is_dead(&self) -> bool {
        !self.net.lock().connection(self.connection).client_open
    }

    /// There is nothing to wait on: [`Net::take_ready`] says who has something to poll.
    fn fd(&self) -> Option<RawFd> {
        None
    }
}

impl Drop for SimCaller {
    /// What was sent may be carried out; nobody hears of it.
    fn drop(&mut self) {
        let state = &mut *self.net.lock();
        let connection = state.connections.at_mut(self.connection);
        let was_open = std::mem::replace(&mut connection.client_open, false);
        connection.is_dropped = true;
        let calls = connection.calls().expect("a connection for calls");
        calls.end(Status::Disconnected, &mut state.messages);
        if was_open {
            state.say_closed(self.connection);
        }
    }
}
