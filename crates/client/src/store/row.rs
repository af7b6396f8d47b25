//! Stores that have copies of the same objects: one request after the other.

use cenote_store::client::ClientError;
use cenote_store::copies::{Copies, CopiesError, CopyError, named_twice};

use super::{Done, End, Error, Request, StoreTarget, Version, explain};

pub struct Row {
    place: StoreTarget,
    copies: Option<Copies>,
}

impl Row {
    /// Connects to all of them.
    pub fn open(place: StoreTarget) -> Result<Self, Error> {
        if let Some(address) = named_twice(&place.addresses) {
            return Err(Error::Options(format!("store {address} is named twice")));
        }
        let mut row = Self {
            place,
            copies: None,
        };
        row.connected()?;
        Ok(row)
    }

    /// Where they are.
    pub fn place(&self) -> &StoreTarget {
        &self.place
    }

    fn connected(&mut self) -> Result<&mut Copies, Error> {
        let copies = match self.copies.take() {
            Some(copies) => copies,
            None => {
                let all = 0..self.place.addresses.len();
                let clients = all.map(|at| self.place.connect(at));
                let clients = clients.collect::<Result<_, _>>()?;
                Copies::new(clients, self.place.limit).map_err(|error| self.explain(error))?
            }
        };
        Ok(self.copies.insert(copies))
    }

    /// Does one thing to its end.
    pub fn ask(&mut self, request: Request) -> End {
        let copies = self.connected()?;
        let said = match request {
            Request::Put {
                key,
                value,
                condition,
                ..
            } => copies
                .put(&key, &value, condition.into())
                .map(Done::Changed),
            Request::Get { key } => copies.get(&key).map(|found| match found {
                Some(found) => Done::Found(Version {
                    number: found.sequence,
                    value: found.value,
                }),
                None => Done::Absent,
            }),
            Request::Delete { key, condition } => {
                copies.delete(&key, condition.into()).map(Done::Changed)
            }
            // Each put was durable.
            Request::Sync => Ok(Done::Synced(0)),
        };
        said.map_err(|error| self.failed(error))
    }

    /// All keys that begin with `prefix`.
    pub fn keys(&mut self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let keys = self.connected()?.keys(prefix);
        keys.map_err(|error| self.failed(error))
    }

    /// A connection that ended is made again by the next request.
    fn failed(&mut self, error: CopiesError) -> Error {
        if matches!(error.error, CopyError::Client(ClientError::Lost(_))) {
            self.copies = None;
        }
        self.explain(error)
    }

    fn explain(&self, error: CopiesError) -> Error {
        let address = &self.place.addresses[error.store];
        match error.error {
            CopyError::Client(client) => match explain(client) {
                Error::Lost(why) => Error::Lost(format!("store {address}: {why}")),
                other => other,
            },
            other => Error::Refused(format!("store {address}: {other}")),
        }
    }
}
