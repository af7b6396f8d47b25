//! A client in a test: one session, one endpoint, and waiting with a deadline.

use std::time::Duration;

use super::{Backend, DEADLINE, Host, HostEvent};
use cenote_fabric::{
    ClientId, Completion, CompletionQueue, Endpoint, Hello, Incoming, RemoteWindow, Result, Rights,
    Session, Status, Token, WindowDescriptor,
};

/// A connected client. Buffers that it posts belong to the caller, as with any endpoint.
pub struct Client<'b> {
    backend: &'b dyn Backend,
    /// The control connection.
    pub session: Box<dyn Session>,
    /// A data connection.
    pub endpoint: Box<dyn Endpoint>,
    /// The endpoint's completions.
    pub queue: CompletionQueue,
}

/// What a client called `number` says about itself.
pub(super) fn hello(number: u128) -> Hello {
    Hello {
        client: ClientId(number),
        name: format!("client-{number}"),
    }
}

impl<'b> Client<'b> {
    /// Connects client `number` to a host that must answer.
    pub fn connect(backend: &'b dyn Backend, host: &dyn Host, number: u128) -> Self {
        let address = host.address();
        let session = backend
            .connector()
            .connect(&address, &hello(number), DEADLINE)
            .unwrap_or_else(|error| panic!("connect to {address}: {error}"));
        let endpoint = session.endpoint(DEADLINE).expect("open a data connection");
        Self {
            backend,
            session,
            endpoint,
            queue: CompletionQueue::default(),
        }
    }

    /// Waits until `probe` gives something; `state` is printed when it never does.
    pub fn until<T>(&mut self, what: &str, mut probe: impl FnMut(&mut Self) -> Option<T>) -> T {
        let start = self.backend.now();
        loop {
            if let Some(found) = probe(self) {
                return found;
            }
            let waited = self.backend.now().since(start);
            assert!(
                waited < DEADLINE,
                "waited {waited:?} for {what}: {} outstanding, {} completions, endpoint {}",
                self.endpoint.outstanding(),
                self.queue.len(),
                if self.endpoint.is_dead() {
                    "dead"
                } else {
                    "alive"
                },
            );
            let fds: Vec<_> = self
                .endpoint
                .fd()
                .into_iter()
                .chain(self.session.fd())
                .collect();
            self.backend.pause(&fds);
            self.endpoint.poll(self.backend.now(), &mut self.queue);
        }
    }

    /// Sends what is posted and waits for the next completion.
    pub fn completion(&mut self) -> Completion {
        self.endpoint.flush(&mut self.queue);
        self.until("a completion", |client| client.queue.pop())
    }

    /// The statuses of the next `count` completions.
    pub fn statuses(&mut self, count: usize) -> Vec<Status> {
        (0..count).map(|_| self.completion().status).collect()
    }

    /// Asks for a window and waits for the answer.
    ///
    /// # Errors
    /// The host's refusal.
    pub fn try_attach(&mut self, window: WindowDescriptor) -> Result<RemoteWindow> {
        self.session.attach(window)?;
        self.attached()
    }

    /// Waits for the answer to the oldest question for a window.
    fn attached(&mut self) -> Result<RemoteWindow> {
        self.until("an answer to attach", |client| {
            match client.session.receive() {
                Ok(Some(Incoming::Attached(_, answer))) => Some(answer),
                Ok(_) => None,
                Err(error) => Some(Err(error)),
            }
        })
    }

    /// Attaches windows that stand, many at a time; in the order given.
    pub fn attach_many(&mut self, windows: &[WindowDescriptor]) -> Vec<RemoteWindow> {
        const TOGETHER: usize = 64;
        let mut attached = Vec::with_capacity(windows.len());
        for part in windows.chunks(TOGETHER) {
            for window in part {
                self.session.attach(*window).expect("ask for a window");
            }
            for _ in part {
                attached.push(self.attached().expect("attach a fresh window"));
            }
        }
        attached
    }

    /// Registers memory on the host and attaches it.
    pub fn window(&mut self, host: &mut dyn Host, len_bytes: u64, rights: Rights) -> RemoteWindow {
        let descriptor = host.register(len_bytes, rights);
        self.try_attach(descriptor).expect("attach a fresh window")
    }

    /// Posts a READ into `landing`, which the caller keeps until it is done with the token.
    pub fn post_read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        landing: &mut [u8],
        token: Token,
    ) {
        let (start, len_bytes) = (landing.as_mut_ptr(), landing.len());
        let queue = &mut self.queue;
        // SAFETY: cases keep landings until they have the completion or have revoked them.
        unsafe {
            self.endpoint
                .post_read(window, offset, start, len_bytes, token, queue)
        }
        .expect("room for a READ");
    }

    /// Posts a WRITE of `source`, which the caller keeps until it has the completion.
    pub fn post_write(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        source: &[u8],
        immediate: Option<u32>,
        token: Token,
    ) {
        let (start, len_bytes) = (source.as_ptr(), source.len());
        let queue = &mut self.queue;
        // SAFETY: cases keep sources until they have the completion.
        unsafe {
            self.endpoint
                .post_write(window, offset, start, len_bytes, immediate, token, queue)
        }
        .expect("room for a WRITE");
    }

    /// Reads, and waits for it. `Err`: how it was refused.
    pub fn read(
        &mut self,
        window: &RemoteWindow,
        offset: u64,
        len_bytes: usize,
    ) -> std::result::Result<Vec<u8>, Status> {
        let mut landing = vec![0; len_bytes];
        self.post_read(window, offset, &mut landing, 0);
        match self.completion().status {
            Status::Ok => Ok(landing),
            status => Err(status),
        }
    }

    /// Writes, and waits for it.
    pub fn write(&mut self, window: &RemoteWindow, offset: u64, source: &[u8]) -> Status {
        self.post_write(window, offset, source, None, 0);
        self.completion().status
    }

    /// Sends, and waits for it.
    pub fn send(&mut self, message: &[u8]) -> Status {
        self.endpoint
            .post_send(message, 0, &mut self.queue)
            .expect("room for a SEND");
        self.completion().status
    }

    /// Waits until the host has seen something that `pick` picks.
    pub fn host_event<T>(
        &mut self,
        host: &mut dyn Host,
        what: &str,
        mut pick: impl FnMut(HostEvent) -> Option<T>,
    ) -> T {
        self.until(what, |_| host.events().into_iter().find_map(&mut pick))
    }

    /// Lets time pass without touching this client.
    pub fn pause(&self) {
        self.backend.pause(&[]);
    }

    /// Asserts that verbs posted from now on end with an error.
    pub fn assert_dead(&mut self) {
        self.until("the endpoint's death", |client| {
            client.endpoint.is_dead().then_some(())
        });
        let status = self.send(b"into the void");
        assert_ne!(status, Status::Ok, "a dead endpoint took a message");
        assert_eq!(
            self.endpoint.outstanding(),
            0,
            "verbs outstanding on a dead endpoint"
        );
    }

    /// Longest time that a verb on a silent peer may take in a test on a busy machine.
    pub(super) const SILENCE_MAX: Duration = Duration::from_secs(20);
}

/// Bytes that differ by position and by `seed`.
pub(super) fn pattern(len_bytes: usize, seed: u64) -> Vec<u8> {
    (0..len_bytes as u64)
        .map(|i| (i.wrapping_mul(0x9E37_79B9) >> 9 ^ seed) as u8)
        .collect()
}
