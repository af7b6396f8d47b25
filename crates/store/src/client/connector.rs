//! A connection that is being made, step by step.

use std::collections::VecDeque;
use std::time::Duration;

use cenote_fabric::{
    Address, ClientId, Connector, Error, Hello, Incoming, RemoteWindow, Session, Time,
    WindowDescriptor,
};

use super::calls::Calls;
use super::silence::Silence;
use super::verbs::Verbs;
use super::{Client, Counts, RemoteShard};
use crate::protocol::{GREET, Greeting};
use crate::schemes::by_name;

/// What is known of a store so far. [`Client::connect`] waits for all of it.
pub struct Connecting {
    pub(super) session: Box<dyn Session>,
    address: Address,
    greeting: Option<Greeting>,
    /// The landing, then index and log of each shard.
    wanted: Vec<WindowDescriptor>,
    attached: Vec<RemoteWindow>,
}

impl Connecting {
    /// Begins.
    ///
    /// # Errors
    /// As [`Connector::connect`].
    pub fn begin(
        connector: &dyn Connector,
        address: &Address,
        client: ClientId,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let hello = Hello {
            client,
            name: "store".to_owned(),
        };
        let mut session = connector.connect(address, &hello, timeout)?;
        session.send(&[GREET])?;
        Ok(Self {
            session,
            address: address.clone(),
            greeting: None,
            wanted: Vec::new(),
            attached: Vec::new(),
        })
    }

    /// Goes on without waiting; whether all is there that [`finish`](Self::finish) needs.
    ///
    /// # Errors
    /// `Protocol`: what is there is no store; those of the session.
    pub fn advance(&mut self) -> Result<bool, Error> {
        while let Some(incoming) = self.session.receive()? {
            match (incoming, &self.greeting) {
                (Incoming::Message(bytes), None) => {
                    let greeting = Greeting::decode(&bytes);
                    let greeting = greeting.map_err(|_| Error::Protocol(NO_GREETING))?;
                    self.wanted.push(greeting.landing);
                    for shard in &greeting.shards {
                        self.wanted.extend([shard.index, shard.log]);
                    }
                    self.greeting = Some(greeting);
                }
                (Incoming::Attached(_, window), Some(_)) => self.attached.push(window?),
                (Incoming::Message(_), Some(_)) => continue,
                (_, None) => return Err(Error::Protocol(NO_GREETING)),
                (_, Some(_)) => return Err(Error::Protocol("no window was attached")),
            }
            if let Some(next) = self.wanted.get(self.attached.len()) {
                self.session.attach(*next)?;
            }
        }
        Ok(self.greeting.is_some() && self.attached.len() >= self.wanted.len())
    }

    /// The client, once all is there.
    ///
    /// # Errors
    /// `Protocol`: it is not there, or of a scheme that is not known; those of data connections.
    pub fn finish(self, timeout: Duration) -> Result<Client, Error> {
        let Self {
            session,
            address,
            greeting,
            ..
        } = self;
        let greeting = greeting.ok_or(Error::Protocol(NO_GREETING))?;
        let scheme = by_name(&greeting.scheme).ok_or(Error::Protocol("an unknown scheme"))?;
        let mut windows = self.attached.into_iter();
        let mut next = || {
            let window = windows.next();
            window.ok_or(Error::Protocol("no window was attached"))
        };
        let landing = next()?;
        let mut shards = Vec::new();
        for shard in &greeting.shards {
            shards.push(RemoteShard {
                entry_count: shard.entry_count,
                index: next()?,
                log: next()?,
            });
        }
        Ok(Client {
            verbs: Verbs::new(session.endpoint(timeout)?),
            caller: session.caller_opener()(timeout)?,
            session,
            address,
            scheme,
            seed: greeting.seed,
            shards,
            landing,
            operations: Vec::new(),
            free: Vec::new(),
            resting: VecDeque::new(),
            stalled: VecDeque::new(),
            ended: VecDeque::new(),
            calls: Calls::default(),
            silence: Silence::default(),
            request: Vec::new(),
            counts: Counts::default(),
            clock: Time::now,
            lost: 0,
            trace: None,
        })
    }
}

const NO_GREETING: &str = "no greeting of a store";
