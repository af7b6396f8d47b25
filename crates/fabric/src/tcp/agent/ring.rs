//! The agent's thread where the kernel has `io_uring`: one call for a round of all connections.
//!
//! A call hands over what the last round made (responses to send, receives to begin) and waits for
//! the next event of any connection, so connections that are busy share it. A lone one shares with
//! nobody: while it is busy the thread waits in its socket, as without a ring. That is a call more for
//! each request, and less work for the kernel than a receive that waits in the ring.
//!
//! Sends carry `MSG_DONTWAIT`, so the kernel ends them while it takes them. A receive stays with
//! the kernel: it fills the room of an inbox, and a connection that ends is kept until the kernel
//! has given its inbox back. No operation touches a window: bytes are copied under a guard that
//! lives as long as the copy. Long payloads and long READs are left to calls of the connection's
//! own, as without a ring.
//!
//! A client that shuts its sending half is gone: unlike without a ring, also while answers wait for room.
//!
//! The ring belongs to this thread alone and runs its work only inside the thread's calls
//! (`DEFER_TASKRUN`, Linux 6.1): without that the agent serves by `epoll`.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use io_uring::types::{self, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};

use super::{
    Adopted, AgentEvent, CLIENT_SILENCE, Command, LONE_WAIT, RETRY_MS, Serving, Shared, log_end,
    prepare,
};
use crate::tcp::batch::{OPERATIONS, require};
use crate::tcp::bench::Bench;
use crate::tcp::connection::{Connection, End, Interest, Turn};
use crate::{ClientId, Waker};

/// Operations that one call hands over; more take a call more.
const ENTRIES: u32 = 256;

/// Stands for the eventfd among connection indices.
const COMMANDS: u64 = u64::MAX >> KIND_BITS;

const KIND_BITS: u32 = 2;

/// Linux: the receive waits for bytes before it first looks.
const POLL_FIRST: u16 = 1;

/// What an operation does; in the low bits of its token, with the connection's index above.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u64)]
enum Kind {
    /// Fills the inbox.
    Receive = 0,
    /// Waits for bytes that the connection receives itself.
    Readable = 1,
    /// Waits for room for responses.
    Room = 2,
    Send = 3,
}

/// The thread's own state.
pub(super) struct RingService<'t> {
    ring: IoUring,
    shared: &'t Shared,
    bench: Bench<'t>,
    waker: Waker,
    connections: Vec<Option<Box<Served>>>,
    /// Connections that stand.
    live: usize,
    /// Sends of which the ends were not seen.
    sends: usize,
    /// Ends that the control thread's queue had no room for.
    unsaid: Vec<ClientId>,
}

struct Served {
    connection: Connection,
    /// Operations that the kernel has of it.
    pending: usize,
    /// A send is among them.
    is_sending: bool,
    /// A receive is, or a wait for bytes.
    is_receiving: bool,
    /// A wait for room for responses is.
    is_blocked: bool,
    /// Something came while no response could be made.
    is_held: bool,
    /// It is over; only the kernel still has it.
    has_ended: bool,
}

/// How long another event is waited for behind sends, before these are looked at: long beside a
/// round trip between busy connections.
const SENT_PATIENCE: Duration = Duration::from_millis(1);

/// A ring for the calling thread.
///
/// # Errors
/// The kernel has none that will do, or it is forbidden.
pub(super) fn ring(serving: Serving) -> io::Result<IoUring> {
    if serving == Serving::Epoll {
        return Err(io::Error::other("switched off"));
    }
    let mut ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        // A round of many connections does not overflow it.
        .setup_cqsize(16 * ENTRIES)
        .build(ENTRIES)?;
    require(&ring, &OPERATIONS)?;
    require(&ring, &[opcode::PollAdd::CODE])?;
    if !(ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop()) {
        return Err(io::ErrorKind::Unsupported.into());
    }
    try_out(&mut ring)?;
    Ok(ring)
}

/// Has the ring do nothing: a sandbox may allow to make one and refuse to use it.
fn try_out(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the operation points to nothing.
    let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
    pushed.map_err(io::Error::other)?;
    loop {
        match ring.submit_and_wait(1) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    let ended = ring.completion().next();
    ended
        .map(drop)
        .ok_or_else(|| io::ErrorKind::Unsupported.into())
}

impl<'t> RingService<'t> {
    pub(super) fn new(ring: IoUring, shared: &'t Shared, bench: Bench<'t>, waker: Waker) -> Self {
        Self {
            ring,
            shared,
            bench,
            waker,
            connections: Vec::new(),
            live: 0,
            sends: 0,
            unsaid: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        self.watch_commands();
        loop {
            // Sends end at once: what is waited for is one event more. None may come, where a socket
            // took a part of what was sent and its peer waits for the rest.
            self.enter(self.sends + 1);
            let mut is_commanded = false;
            while let Some((token, result)) = self.ended() {
                match token >> KIND_BITS {
                    COMMANDS => is_commanded = true,
                    index => {
                        let index = usize::try_from(index).expect("an index into a Vec");
                        self.hear(index, kind_of(token), result);
                    }
                }
            }
            if is_commanded {
                if !self.obey() {
                    return self.stop();
                }
                self.watch_commands();
            }
            self.say_ends();
            if std::mem::take(&mut self.bench.has_news) {
                self.bench.count_system_call();
                self.waker.wake();
            }
        }
    }

    /// Hands over what was pushed, and waits until `wanted` operations have ended.
    fn enter(&mut self, wanted: usize) {
        let patience = match self.sends {
            0 => Duration::from_millis(RETRY_MS as u64),
            _ => SENT_PATIENCE,
        };
        let patience = Timespec::from(patience);
        let mut how = SubmitArgs::new();
        if self.sends > 0 || !self.unsaid.is_empty() {
            how = how.timespec(&patience);
        }
        self.bench.count_system_call();
        if let Err(error) = self.ring.submitter().submit_with_args(wanted, &how) {
            let is_usual = matches!(
                error.raw_os_error(),
                // A signal, the end of the time, memory that is short, completions to be taken
                // first.
                Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY)
            );
            assert!(is_usual, "io_uring_enter of the agent: {error}");
        }
    }

    /// Token and result of the oldest operation that has ended and was not seen.
    fn ended(&mut self) -> Option<(u64, i32)> {
        let completion = self.ring.completion().next()?;
        Some((completion.user_data(), completion.result()))
    }

    /// Takes what an operation of a connection came to.
    fn hear(&mut self, index: usize, kind: Kind, result: i32) {
        let served = self.served(index);
        served.pending -= 1;
        match kind {
            Kind::Send => served.is_sending = false,
            Kind::Receive | Kind::Readable => served.is_receiving = false,
            Kind::Room => served.is_blocked = false,
        }
        let has_ended = served.has_ended;
        self.sends -= usize::from(kind == Kind::Send);
        if has_ended {
            return self.free(index);
        }
        let result = usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result));
        if let Err(end) = self.go_on(index, kind, result) {
            self.end(index, &end);
        }
    }

    fn go_on(&mut self, index: usize, kind: Kind, result: io::Result<usize>) -> Result<(), End> {
        match (kind, result) {
            (Kind::Send, sent) => {
                let sent = match sent {
                    Err(error) if is_passing(&error) => Ok(0),
                    sent => sent,
                };
                if !self.served(index).connection.take_sent(sent)? {
                    self.await_room(index);
                    return Ok(());
                }
                self.resume(index)
            }
            (Kind::Receive, Ok(0)) => Err(End::Closed),
            (Kind::Receive, Ok(bytes)) => {
                let served = self.served(index);
                served.connection.take(bytes);
                served.is_held = true;
                self.resume(index)
            }
            (_, Err(error)) if is_passing(&error) => {
                // Nothing came of it: once more.
                match kind {
                    Kind::Room => self.await_room(index),
                    _ => self.receive(index),
                }
                Ok(())
            }
            (_, Err(error)) => Err(End::Os(error)),
            (Kind::Readable, Ok(_)) => {
                let served = self.connections[index].as_mut().expect(KNOWN);
                match served.connection.serve(&mut self.bench)? {
                    Interest::Requests => self.receive(index),
                    Interest::Room => self.await_room(index),
                }
                Ok(())
            }
            (Kind::Room, Ok(_)) => {
                let served = self.connections[index].as_mut().expect(KNOWN);
                if !served.connection.respond(&mut self.bench)? {
                    self.await_room(index);
                    return Ok(());
                }
                // What stopped for want of room goes on. What the kernel still receives tells by itself, and
                // its inbox is not touched meanwhile.
                served.is_held |= !served.is_receiving;
                self.resume(index)
            }
        }
    }

    /// Executes what has come, unless responses have no way out.
    fn resume(&mut self, index: usize) -> Result<(), End> {
        let served = self.connections[index].as_mut().expect(KNOWN);
        if !served.is_held || served.is_blocked || served.is_sending {
            return Ok(());
        }
        served.is_held = false;
        debug_assert!(
            !served.is_receiving,
            "an inbox that the kernel fills is left alone"
        );
        if self.live == 1 && served.pending == 0 {
            return self.serve_lone(index);
        }
        match served.connection.go_on(&mut self.bench)? {
            Turn::Receive => self.receive(index),
            Turn::Room => self.await_room(index),
            Turn::Send(entry) => {
                served.is_sending = true;
                self.sends += 1;
                self.push(index, Kind::Send, entry);
                self.receive(index);
            }
        }
        Ok(())
    }

    /// Serves the only connection, of which the kernel has nothing, for as long as it is busy and there is
    /// nothing else to do.
    fn serve_lone(&mut self, index: usize) -> Result<(), End> {
        let connection = &mut self.connections[index].as_mut().expect(KNOWN).connection;
        let mut interest = Some(connection.answer(&mut self.bench)?);
        while interest == Some(Interest::Requests)
            && self.unsaid.is_empty()
            && !self.bench.has_news
            && !self.shared.has_commands.load(Ordering::Acquire)
        {
            interest = connection.await_requests(&mut self.bench)?;
        }
        match interest {
            Some(Interest::Room) => self.await_room(index),
            Some(Interest::Requests) | None => self.receive(index),
        }
        Ok(())
    }

    /// Begins to receive, if the kernel is not at it.
    fn receive(&mut self, index: usize) {
        let served = self.connections[index].as_mut().expect(KNOWN);
        if std::mem::replace(&mut served.is_receiving, true) {
            return;
        }
        let socket = types::Fd(served.connection.stream.as_raw_fd());
        let (kind, entry) = match served.connection.room() {
            Some(room) => {
                let len_bytes = u32::try_from(room.len()).unwrap_or(u32::MAX);
                let receive = opcode::Recv::new(socket, room.as_mut_ptr(), len_bytes);
                (Kind::Receive, receive.ioprio(POLL_FIRST).build())
            }
            None => {
                let readable = opcode::PollAdd::new(socket, libc::POLLIN as u32).build();
                (Kind::Readable, readable)
            }
        };
        self.push(index, kind, entry);
    }

    /// Waits for room for responses, if the kernel is not at it.
    fn await_room(&mut self, index: usize) {
        let served = self.served(index);
        if std::mem::replace(&mut served.is_blocked, true) {
            return;
        }
        let socket = types::Fd(served.connection.stream.as_raw_fd());
        let entry = opcode::PollAdd::new(socket, libc::POLLOUT as u32).build();
        self.push(index, Kind::Room, entry);
    }

    /// Has the next call begin an operation of a connection.
    fn push(&mut self, index: usize, kind: Kind, entry: squeue::Entry) {
        self.served(index).pending += 1;
        self.push_entry(entry.user_data((index as u64) << KIND_BITS | kind as u64));
    }

    fn push_entry(&mut self, entry: squeue::Entry) {
        // SAFETY: a send's list and a receive's room lie in a connection that is boxed, that is not
        // dropped while operations of it are pending, and in which both stay as they are until
        // their ends were heard.
        while unsafe { self.ring.submission().push(&entry) }.is_err() {
            self.enter(0);
        }
    }

    fn watch_commands(&mut self) {
        let bell = types::Fd(self.shared.wake.as_fd().as_raw_fd());
        let entry = opcode::PollAdd::new(bell, libc::POLLIN as u32).build();
        self.push_entry(entry.user_data(COMMANDS << KIND_BITS));
    }

    fn end(&mut self, index: usize, end: &End) {
        let served = self.served(index);
        log_end(&served.connection, end);
        let client = served.connection.client;
        served.has_ended = true;
        self.live -= 1;
        self.unsaid.push(client);
        self.free(index);
    }

    /// Drops a connection that is over, once the kernel has nothing of it.
    fn free(&mut self, index: usize) {
        let served = self.served(index);
        if served.pending == 0 {
            self.connections[index] = None;
            return;
        }
        // Ends what the kernel waits for. Asking again does no harm.
        self.bench.count_system_call();
        let served = self.served(index);
        if let Err(error) = served.connection.stream.shutdown(Shutdown::Both) {
            // The peer was faster: the kernel's operations end by that.
            tracing::trace!(%error, "shut down a data connection");
        }
    }

    /// Carries out what the control thread left. False: to stop.
    fn obey(&mut self) -> bool {
        self.bench.count_system_call();
        let Some(commands) = self.shared.take_commands() else {
            return false;
        };
        for command in commands {
            match command {
                Command::Adopt(adopted) => self.adopt(*adopted),
                Command::Disconnect(client) => {
                    for index in 0..self.connections.len() {
                        let served = self.connections[index].as_ref();
                        let is_theirs = served.is_some_and(|served| {
                            !served.has_ended && served.connection.client == client
                        });
                        if is_theirs {
                            self.end(index, &End::Closed);
                        }
                    }
                }
            }
        }
        true
    }

    fn adopt(&mut self, adopted: Adopted) {
        let Adopted {
            stream,
            client,
            records,
        } = adopted;
        // Every call on the socket but that of a lone one asks not to be blocked, and every operation of
        // the ring may wait.
        let prepared = prepare(&stream, CLIENT_SILENCE).and_then(|()| {
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(LONE_WAIT))
        });
        if let Err(error) = prepared {
            tracing::warn!(?client, %error, "take over a data connection");
            self.unsaid.push(client);
            return;
        }
        let free = self.connections.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.live += 1;
        self.connections[index] = Some(Box::new(Served {
            connection: Connection::new(stream, client, records, true),
            pending: 0,
            is_sending: false,
            is_receiving: false,
            is_blocked: false,
            is_held: false,
            has_ended: false,
        }));
        self.receive(index);
    }

    fn say_ends(&mut self) {
        while let Some(client) = self.unsaid.pop() {
            if !self.bench.tell(AgentEvent::Closed { client }) {
                self.unsaid.push(client);
                break;
            }
        }
    }

    /// Ends all connections and waits until the kernel has given back what it has of them.
    fn stop(mut self) {
        self.unsaid.clear();
        for index in 0..self.connections.len() {
            if let Some(served) = &mut self.connections[index] {
                served.has_ended = true;
                self.free(index);
            }
        }
        while self.connections.iter().any(Option::is_some) {
            self.enter(1);
            while let Some((token, result)) = self.ended() {
                if token >> KIND_BITS != COMMANDS {
                    let index = usize::try_from(token >> KIND_BITS).expect("an index into a Vec");
                    self.hear(index, kind_of(token), result);
                }
            }
        }
    }

    fn served(&mut self, index: usize) -> &mut Served {
        self.connections[index].as_mut().expect(KNOWN)
    }
}

impl Drop for RingService<'_> {
    /// After a panic the kernel may still have connections: what it fills must not go.
    fn drop(&mut self) {
        let connections = std::mem::take(&mut self.connections);
        if connections
            .iter()
            .flatten()
            .any(|served| served.pending > 0)
        {
            for served in connections.iter().flatten() {
                // So that its client hears of it.
                drop(served.connection.stream.shutdown(Shutdown::Both));
            }
            std::mem::forget(connections);
        }
    }
}

const KNOWN: &str = "a connection stays while operations of it are pending";

fn kind_of(token: u64) -> Kind {
    match token & ((1 << KIND_BITS) - 1) {
        0 => Kind::Receive,
        1 => Kind::Readable,
        2 => Kind::Room,
        _ => Kind::Send,
    }
}

/// Whether an operation ended without having done anything, and may be begun again.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
