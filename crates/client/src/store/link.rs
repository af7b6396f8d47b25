//! A connection to one store, on its thread: made anew after it broke, when something is asked.

use std::collections::BTreeMap;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use cenote_fabric::{Status, Time, Waker, wait};
use cenote_store::client::{Client, ClientError};

use super::{End, Error, Place, Request, command, done, explain};
use crate::driver::Connection;

pub struct Link {
    place: Place,
    waker: Waker,
    client: Option<Client>,
    /// Under way, and when that has lasted too long. Tokens grow, so the first is the oldest.
    until: BTreeMap<u64, Time>,
    /// Ended without the store.
    refused: Vec<(u64, End)>,
    /// Before this nobody tries to connect: what is asked meanwhile has failed with the last try.
    deaf: Option<(Time, Error)>,
    /// What was put since the last `Sync`, and is not known to be durable.
    unsettled: Unsettled,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Unsettled {
    Nothing,
    Something,
    /// The connection ended: the next one knows nothing of it.
    Forgotten,
}

/// Rest after a connection that could not be made. Those who wait behind one another do not wait for a try
/// each.
const DEAF: Duration = Duration::from_millis(100);

impl Link {
    /// Connects.
    pub fn open(place: Place) -> Result<Self, Error> {
        let waker = Waker::new().map_err(|error| Error::Refused(error.to_string()))?;
        let client = Some(place.connect(0)?);
        Ok(Self {
            place,
            waker,
            client,
            until: BTreeMap::new(),
            refused: Vec::new(),
            deaf: None,
            unsettled: Unsettled::Nothing,
        })
    }

    fn connected(&mut self, now: Time) -> Result<&mut Client, Error> {
        if self.client.is_none() {
            if let Some((until, error)) = &self.deaf
                && now < *until
            {
                return Err(error.clone());
            }
            match self.place.connect(0) {
                Ok(client) => self.client = Some(client),
                Err(error) => {
                    self.deaf = Some((Time::now().after(DEAF), error.clone()));
                    return Err(error);
                }
            }
        }
        Ok(self.client.as_mut().expect("just made"))
    }

    /// Gives the connection up, and with it what is under way.
    fn fail(&mut self, status: Status) {
        self.client = None;
        if self.unsettled == Unsettled::Something {
            self.unsettled = Unsettled::Forgotten;
        }
        let tokens = std::mem::take(&mut self.until).into_keys();
        let error = explain(ClientError::Lost(status));
        self.refused
            .extend(tokens.map(|token| (token, Err(error.clone()))));
    }
}

impl Connection for Link {
    type Request = Request;
    type End = End;

    fn begin(&mut self, request: Request, token: u64) {
        let now = Time::now();
        match (&request, self.unsettled) {
            (Request::Sync, Unsettled::Forgotten) => {
                self.unsettled = Unsettled::Nothing;
                let why = "the connection ended before what was put was durable; a crash may have taken it";
                self.refused.push((token, Err(Error::Lost(why.to_owned()))));
                return;
            }
            (Request::Sync, _) => self.unsettled = Unsettled::Nothing,
            (Request::Put { is_durable, .. }, Unsettled::Nothing) if !is_durable => {
                self.unsettled = Unsettled::Something;
            }
            _ => {}
        }
        match self.connected(now) {
            Ok(client) => {
                client.submit(command(request), token, now);
                self.until.insert(token, now.after(self.place.limit));
            }
            Err(error) => self.refused.push((token, Err(error))),
        }
    }

    fn poll(&mut self, ended: &mut Vec<(u64, End)>) {
        let now = Time::now();
        let mut broken = None;
        while let Some(client) = &mut self.client
            && let Some((token, end)) = client.poll(now)
        {
            self.until.remove(&token);
            if let Err(ClientError::Lost(status)) = end {
                broken = Some(status);
            }
            ended.push((token, end.map(done).map_err(explain)));
        }
        let oldest = self.until.first_key_value();
        if oldest.is_some_and(|(_, until)| *until < now) {
            broken = Some(Status::Timeout);
        }
        if let Some(status) = broken {
            self.fail(status);
        }
        ended.append(&mut self.refused);
    }

    fn wait(&mut self, timeout: Duration) {
        let fd = self.waker.as_fd().as_raw_fd();
        let waited = match &mut self.client {
            // Without work an end of the connection is found by what is asked next.
            Some(client) if !self.until.is_empty() => client.wait_beside(fd, timeout),
            _ => wait(&[fd], Some(IDLE)).map(drop),
        };
        if waited.is_err() {
            self.fail(Status::Disconnected);
        }
        self.waker.clear();
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }
}

/// Sleep without work.
const IDLE: Duration = Duration::from_secs(60);
