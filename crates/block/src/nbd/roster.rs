//! Whose requests to an export may still come, and who waits for clients that have left.
//!
//! The order of `claims` begins where a request is taken. A client that closes its connection may
//! leave requests in the socket, unread while their worker is busy, and be back on another
//! connection before they are taken. So a connection whose handshake ends looks which of the others
//! have been left, and takes no request before each of them has taken what it had, or will take
//! none: all of that has its claims then, and comes first.
//!
//! Invariant: a connection waits for ones that entered before it. So nobody waits in a circle.
//! Not here: requests still under way in the network, of which a server cannot know.
//! Concurrency: shared by all workers. A request takes the lock only while its connection waits.

use std::fmt;
use std::io;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::sys::{self, Ended};
use super::transport::Transport;

/// The connections of one export that may take requests.
pub(crate) struct Roster {
    state: Mutex<State>,
    /// Tells all workers that one left for which another waits.
    ring: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    lines: Vec<Line>,
    /// Ids go up with the age.
    next_id: u64,
}

/// One connection.
#[derive(Debug)]
struct Line {
    id: u64,
    /// Its socket, open as long as the line is here.
    fd: RawFd,
    hides_departures: bool,
    /// Another waits for it.
    is_awaited: bool,
}

impl Line {
    /// Whether its client may be back on another connection.
    fn is_left(&self, ended: Ended) -> bool {
        match ended {
            Ended::Nothing => false,
            Ended::Input => self.hides_departures,
            Ended::Both => true,
        }
    }
}

impl Roster {
    /// Nobody yet; `ring` is called when one leaves for which another waits.
    pub(crate) fn new(ring: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            ring: Box::new(ring),
        })
    }

    /// Enters a connection whose handshake ends. Its socket stays open for as long as the [`Member`]
    /// has not left.
    ///
    /// # Errors
    /// The kernel does not say which of the others have been left: nothing may be taken of this one.
    pub(crate) fn enter(self: &Arc<Self>, transport: &Transport) -> io::Result<Member> {
        let mut state = self.lock();
        let ends = sys::poll_ends(state.lines.iter().map(|line| line.fd))?;
        let mut awaited = Vec::new();
        for (line, ended) in state.lines.iter_mut().zip(ends) {
            if line.is_left(ended) {
                line.is_awaited = true;
                awaited.push(line.id);
            }
        }
        let id = state.next_id;
        state.next_id += 1;
        state.lines.push(Line {
            id,
            fd: transport.fd(),
            hides_departures: transport.hides_departures(),
            is_awaited: false,
        });
        Ok(Member {
            roster: Arc::clone(self),
            id,
            has_left: false,
            awaited,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Roster {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = &self.lock().lines;
        formatter
            .debug_struct("Roster")
            .field("lines", lines)
            .finish()
    }
}

/// A connection on the roster; it leaves when this is dropped, if not before.
#[derive(Debug)]
pub(crate) struct Member {
    roster: Arc<Roster>,
    id: u64,
    has_left: bool,
    /// Those to wait for; some may have left since the last look.
    awaited: Vec<u64>,
}

impl Member {
    /// Whether the connection may take requests. If not, the workers are told when to ask again.
    pub(crate) fn may_begin(&mut self) -> bool {
        if !self.awaited.is_empty() {
            let state = self.roster.lock();
            let is_there = |id: &u64| state.lines.iter().any(|line| line.id == *id);
            self.awaited.retain(is_there);
        }
        self.awaited.is_empty()
    }

    /// Whether [`Member::may_begin`] said no when it was asked last.
    pub(crate) fn waits(&self) -> bool {
        !self.awaited.is_empty()
    }

    /// Says that the connection takes no further request: what it has taken has its claims.
    pub(crate) fn leave(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        let mut state = self.roster.lock();
        let mut ids = state.lines.iter().map(|line| line.id);
        let at = ids.position(|id| id == self.id).expect("it has not left");
        let line = state.lines.swap_remove(at);
        drop(state);
        if line.is_awaited {
            (self.roster.ring)();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::transport::Socket;
    use super::*;

    fn counting() -> (Arc<Roster>, Arc<AtomicUsize>) {
        let rings: Arc<AtomicUsize> = Arc::default();
        let rung = Arc::clone(&rings);
        let roster = Roster::new(move || {
            rung.fetch_add(1, Ordering::SeqCst);
        });
        (roster, rings)
    }

    fn unix() -> (UnixStream, Transport) {
        let (client, server) = UnixStream::pair().expect("a pair");
        (client, Transport::new(Socket::Unix(server)))
    }

    fn tcp() -> (TcpStream, Transport) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let client = TcpStream::connect(address).expect("a connection");
        let (server, _) = listener.accept().expect("a connection");
        (client, Transport::new(Socket::Tcp(server)))
    }

    #[test]
    fn who_comes_waits_for_those_that_have_been_left_until_they_take_no_more() {
        let (roster, rings) = counting();
        let (stays, staying) = unix();
        let ((first, one), (second, another)) = (unix(), tcp());
        let (_late, coming) = unix();
        let _staying = roster.enter(&staying).expect("a look");
        let mut one = roster.enter(&one).expect("a look");
        let mut another = roster.enter(&another).expect("a look");
        assert!(one.may_begin() && another.may_begin(), "nobody has left");
        drop((first, second));
        let mut coming = roster.enter(&coming).expect("a look");
        assert!(coming.waits() && !coming.may_begin());
        one.leave();
        assert_eq!(rings.load(Ordering::SeqCst), 1);
        assert!(!coming.may_begin());
        drop(another);
        assert_eq!(rings.load(Ordering::SeqCst), 2);
        assert!(coming.waits(), "it has not looked yet");
        assert!(coming.may_begin() && !coming.waits());
        drop((coming, one));
        assert_eq!(rings.load(Ordering::SeqCst), 2, "nobody waits for them");
        drop(stays);
    }

    #[test]
    fn a_client_that_only_sends_no_more_counts_as_gone_over_tcp_alone() {
        let (roster, _) = counting();
        let ((over_unix, one), (_late, coming)) = (unix(), unix());
        let _one = roster.enter(&one).expect("a look");
        over_unix.shutdown(Shutdown::Write).expect("an open socket");
        assert!(!roster.enter(&coming).expect("a look").waits());
        let (over_tcp, other) = tcp();
        let _other = roster.enter(&other).expect("a look");
        over_tcp.shutdown(Shutdown::Write).expect("an open socket");
        assert!(roster.enter(&coming).expect("a look").waits());
    }

    #[test]
    fn who_waits_waits_for_older_ones_alone() {
        let (roster, _) = counting();
        let [(first, one), (second, two), (_third, three)] = [(); 3].map(|()| unix());
        let mut one = roster.enter(&one).expect("a look");
        drop(first);
        let mut two = roster.enter(&two).expect("a look");
        drop(second);
        let mut three = roster.enter(&three).expect("a look");
        assert!(one.may_begin() && !two.may_begin() && !three.may_begin());
        drop(one);
        assert!(two.may_begin() && !three.may_begin());
        drop(two);
        assert!(three.may_begin());
    }
}
