//! How owner and clients of a cache come to sessions with hosts without waiting for them.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use cenote_fabric::{
    Address, Connector, Endpoint, FAILURE_TIMEOUT, Hello, Result, Session, Waker, calls,
};

use crate::owner::HostIndex;

/// A host of the cluster.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// For people.
    pub name: String,
    /// Where it listens.
    pub address: Address,
    /// Hosts that fail together have the same.
    pub domain: String,
}

/// A session to a host, with a connection for requests where one was asked for.
pub struct Linked {
    /// The session.
    pub session: Box<dyn Session>,
    /// The data connection.
    pub endpoint: Option<Box<dyn Endpoint>>,
    /// The connection to a server thread.
    pub calls: Option<Box<dyn calls::Caller>>,
}

/// What a connecting thread brings back.
pub struct Arrival {
    /// As it was asked for.
    pub host: HostIndex,
    /// Where it was looked for: it may be elsewhere by now.
    pub address: Address,
    /// What came of it.
    pub linked: Result<Linked>,
}

/// Opens sessions, elsewhere or at once.
pub trait Dial: Send {
    /// Begins to connect; the end comes by [`Dial::poll`].
    fn dial(&mut self, host: HostIndex, address: &Address);

    /// The end of one attempt.
    fn poll(&mut self) -> Option<Arrival>;
}

/// Who connects, and with how much.
#[derive(Clone)]
pub struct Caller {
    /// What opens sessions.
    pub connector: Arc<dyn Connector>,
    /// What is said first.
    pub hello: Hello,
    /// Whether a data connection is wanted as well.
    pub with_data: bool,
}

impl Caller {
    /// Connects, within the failure timeout for each step.
    ///
    /// # Errors
    /// The host cannot be reached.
    pub fn connect(&self, address: &Address) -> Result<Linked> {
        let session = self
            .connector
            .connect(address, &self.hello, FAILURE_TIMEOUT)?;
        let opened = self.with_data.then(|| session.endpoint(FAILURE_TIMEOUT));
        let endpoint = opened.transpose()?;
        Ok(Linked {
            session,
            endpoint,
            calls: None,
        })
    }

    fn connect_for_calls(&self, address: &Address) -> Result<Linked> {
        let session = self
            .connector
            .connect(address, &self.hello, FAILURE_TIMEOUT)?;
        let calls = session.caller_opener()(FAILURE_TIMEOUT)?;
        Ok(Linked {
            session,
            endpoint: None,
            calls: Some(calls),
        })
    }
}

/// A short-lived thread for each attempt: a silent host takes a second.
pub struct Threads {
    caller: Caller,
    sender: Sender<Arrival>,
    arrivals: Receiver<Arrival>,
    connect: fn(&Caller, &Address) -> Result<Linked>,
    /// Of whoever waits for arrivals.
    waker: Option<Waker>,
}

impl Threads {
    /// Connects as `caller`.
    #[must_use]
    pub fn new(caller: Caller) -> Self {
        let (sender, arrivals) = channel();
        Self {
            caller,
            sender,
            arrivals,
            connect: Caller::connect,
            waker: None,
        }
    }

    /// Connects to server threads, for calls, in place of data connections.
    #[must_use]
    pub fn for_calls(self) -> Self {
        let connect = Caller::connect_for_calls;
        Self { connect, ..self }
    }

    /// Has each arrival wake whoever waits for it.
    #[must_use]
    pub fn waking(self, waker: Waker) -> Self {
        let waker = Some(waker);
        Self { waker, ..self }
    }
}

impl Dial for Threads {
    fn dial(&mut self, host: HostIndex, address: &Address) {
        let (caller, at) = (self.caller.clone(), address.clone());
        let (sender, waker, connect) = (self.sender.clone(), self.waker.clone(), self.connect);
        let work = move || {
            let arrival = Arrival {
                host,
                linked: connect(&caller, &at),
                address: at,
            };
            // Nobody waits for it any more: then the connection ends with it.
            drop(sender.send(arrival));
            if let Some(waker) = waker {
                waker.wake();
            }
        };
        let builder = std::thread::Builder::new().name("cenote-connect".into());
        if let Err(error) = builder.spawn(work) {
            let error = cenote_fabric::Error::os("start a thread".to_owned(), error);
            drop(self.sender.send(Arrival {
                host,
                address: address.clone(),
                linked: Err(error),
            }));
        }
    }

    fn poll(&mut self) -> Option<Arrival> {
        self.arrivals.try_recv().ok()
    }
}

/// Connects within the call, where that takes no time: in a simulated network.
pub struct AtOnce {
    caller: Caller,
    connect: fn(&Caller, &Address) -> Result<Linked>,
    arrivals: std::collections::VecDeque<Arrival>,
}

impl AtOnce {
    /// Connects as `caller`.
    #[must_use]
    pub fn new(caller: Caller) -> Self {
        Self {
            caller,
            connect: Caller::connect,
            arrivals: std::collections::VecDeque::new(),
        }
    }

    /// Connects to server threads, for calls, in place of data connections.
    #[must_use]
    pub fn for_calls(self) -> Self {
        let connect = Caller::connect_for_calls;
        Self { connect, ..self }
    }
}

impl Dial for AtOnce {
    fn dial(&mut self, host: HostIndex, address: &Address) {
        self.arrivals.push_back(Arrival {
            host,
            address: address.clone(),
            linked: (self.connect)(&self.caller, address),
        });
    }

    fn poll(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }
}
