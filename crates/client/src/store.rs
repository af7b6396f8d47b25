//! Objects that a store serves: each has a key of 1 to 250 bytes and a value of up to 1 MiB.
//!
//! ```no_run
//! # fn main() -> Result<(), cenote::store::Error> {
//! use cenote::store::{Condition, Store};
//! let store = Store::open(&["tcp:10.0.0.7:7100"], "cluster.key")?;
//! store.put(b"greeting", b"hello".to_vec(), Condition::Always, true)?;
//! assert_eq!(store.get(b"greeting")?.expect("it is there").value, b"hello");
//! # Ok(())
//! # }
//! ```

mod link;
mod row;

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::{Address, ClientId, ClusterKey, Status, connector};
use cenote_store::Refusal;
use cenote_store::client::{Client, ClientError, Command, Outcome};

use crate::driver::{Driver, Over, Pending, WAIT_MAX};
use link::Link;
use row::Row;

/// A connection to a store, or to several that have copies of the same objects. Any thread may use it. One
/// that breaks is made again by the next request.
pub struct Store {
    kind: Kind,
}

#[expect(clippy::large_enum_variant, reason = "a store has one of them")]
enum Kind {
    One {
        // Dropped first.
        driver: Driver<Link>,
        /// Keys are listed beside what is under way.
        lister: Mutex<Option<Client>>,
        place: StoreTarget,
    },
    Row(Mutex<Row>),
}

/// Where stores are, and how they are reached.
#[derive(Clone)]
struct StoreTarget {
    addresses: Vec<Address>,
    key: ClusterKey,
    limit: Duration,
}

/// A version of an object.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Version {
    /// Its number: larger than those of the object's earlier versions.
    pub number: u64,
    /// The object's bytes.
    pub value: Vec<u8>,
}

/// When a change is made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Condition {
    /// In any case.
    Always,
    /// If there is no such object.
    Absent,
    /// If its newest version is this one.
    Version(u64),
}

/// What is asked of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Request {
    /// Puts an object.
    Put {
        /// 1 to 250 bytes.
        key: Vec<u8>,
        /// Up to 1 MiB.
        value: Vec<u8>,
        /// On which version there is.
        condition: Condition,
        /// Whether it ends when a crash cannot take it any more. Copies always do.
        is_durable: bool,
    },
    /// Gets the newest version of one.
    Get {
        /// 1 to 250 bytes.
        key: Vec<u8>,
    },
    /// Has there be none, durably.
    Delete {
        /// 1 to 250 bytes.
        key: Vec<u8>,
        /// On which version there is.
        condition: Condition,
    },
    /// Ends when all is durable whose put had ended before.
    Sync,
}

/// What came of a request.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Done {
    /// The version that a put or a deletion made.
    Changed(u64),
    /// What a get found.
    Found(Version),
    /// There is no such object.
    Absent,
    /// All is durable but so many versions, whose values did not come.
    Synced(u64),
}

/// Why a request has no result.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The address, the key file, or the sizes of an object make no sense.
    #[error("{0}")]
    Options(String),
    /// No store answers. Nothing was done; trying again is sensible.
    #[error("{0}")]
    Unreachable(String),
    /// The connection ended. A change may have been made.
    #[error("{0}")]
    Lost(String),
    /// The store has no room. Nothing was changed.
    #[error("the store is full")]
    Full,
    /// It has too much to do. Nothing was changed; try again later.
    #[error("the store is busy")]
    Busy,
    /// The object's version is another one. Nothing was changed.
    #[error("the condition does not hold: {}", match found {
        Some(number) => format!("the object's version is {number}"),
        None => "there is no such object".to_owned(),
    })]
    Condition {
        /// The version that it has, if there is one.
        found: Option<u64>,
    },
    /// The store refuses, or says nonsense.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// Whether the same may succeed later, and nothing was done.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::Busy)
    }
}

/// How it ended.
pub type End = Result<Done, Error>;

/// How long it may take to connect, and to answer.
const LIMIT: Duration = Duration::from_secs(10);

impl Store {
    /// Connects to a store, or to several with copies in the order that all clients agree on, by the
    /// cluster's key.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open(addresses: &[&str], key_file: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_within(addresses, key_file, LIMIT)
    }

    /// The same; a store counts as gone when for `limit` neither its oldest request ends nor
    /// another that was begun within `limit` after that.
    ///
    /// # Errors
    /// [`Error`].
    pub fn open_within(
        addresses: &[&str],
        key_file: impl AsRef<Path>,
        limit: Duration,
    ) -> Result<Self, Error> {
        let parsed = addresses.iter().map(|address| {
            let refused = |error| Error::Options(format!("store {address}: {error}"));
            address.parse::<Address>().map_err(refused)
        });
        let place = StoreTarget {
            addresses: parsed.collect::<Result<_, _>>()?,
            key: ClusterKey::load(key_file.as_ref())
                .map_err(|error| Error::Options(error.to_string()))?,
            limit,
        };
        let kind = match place.addresses.len() {
            0 => return Err(Error::Options("no address of a store".to_owned())),
            1 => {
                let of = place.clone();
                let driver = Driver::start("cenote store", move || Link::open(of));
                let driver = driver.map_err(|error| Error::Refused(error.to_string()))??;
                Kind::One {
                    driver,
                    lister: Mutex::new(None),
                    place,
                }
            }
            _ => Kind::Row(Mutex::new(Row::open(place)?)),
        };
        Ok(Self { kind })
    }

    /// Asks for many things at a time. A row of copies does them one after the other.
    #[must_use]
    pub fn begin(&self, requests: Vec<Request>) -> Pending<End> {
        match &self.kind {
            Kind::One { driver, .. } => driver.begin(requests),
            Kind::Row(row) => {
                let mut row = row.lock().unwrap_or_else(PoisonError::into_inner);
                Pending::ended(requests.into_iter().map(|request| row.ask(request)))
            }
        }
    }

    /// Puts an object; its version. One that is not durable may be lost by a crash, until [`Store::sync`].
    ///
    /// # Errors
    /// [`Error`].
    pub fn put(
        &self,
        key: &[u8],
        value: Vec<u8>,
        condition: Condition,
        is_durable: bool,
    ) -> Result<u64, Error> {
        let key = key.to_vec();
        let put = Request::Put {
            key,
            value,
            condition,
            is_durable,
        };
        changed(self.ask(put)?)
    }

    /// Its newest version.
    ///
    /// # Errors
    /// [`Error`].
    pub fn get(&self, key: &[u8]) -> Result<Option<Version>, Error> {
        match self.ask(Request::Get { key: key.to_vec() })? {
            Done::Found(version) => Ok(Some(version)),
            _ => Ok(None),
        }
    }

    /// Has there be no such object, durably; the version that says so.
    ///
    /// # Errors
    /// [`Error`].
    pub fn delete(&self, key: &[u8], condition: Condition) -> Result<u64, Error> {
        let key = key.to_vec();
        changed(self.ask(Request::Delete { key, condition })?)
    }

    /// Waits until all is durable whose put had ended before; how many versions were given up,
    /// since their values did not come.
    ///
    /// What was given up, or may be lost with a connection, is told once, to whoever asks next. So
    /// of the threads that share a store one asks for all of them; a thread that must know of its
    /// own puts has a store of its own, or puts durably. A call whose own connection ends tells
    /// nothing of them: the next one does.
    ///
    /// # Errors
    /// [`Error`].
    pub fn sync(&self) -> Result<u64, Error> {
        match self.ask(Request::Sync)? {
            Done::Synced(lost) => Ok(lost),
            _ => Ok(0),
        }
    }

    /// All keys that begin with `prefix` and have a durable value, in order.
    ///
    /// # Errors
    /// [`Error`].
    pub fn keys(&self, prefix: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        match &self.kind {
            Kind::Row(row) => {
                let mut row = row.lock().unwrap_or_else(PoisonError::into_inner);
                row.keys(prefix)
            }
            Kind::One { lister, place, .. } => {
                let mut lister = lister.lock().unwrap_or_else(PoisonError::into_inner);
                let mut client = match lister.take() {
                    Some(client) => client,
                    None => place.connect(0)?,
                };
                let keys = client.keys(prefix, place.limit);
                let keys = match keys {
                    // It was left alone for a time in which the store may have been started again.
                    Err(ClientError::Lost(_)) => {
                        client = place.connect(0)?;
                        client.keys(prefix, place.limit)
                    }
                    keys => keys,
                };
                if !matches!(keys, Err(ClientError::Lost(_))) {
                    *lister = Some(client);
                }
                keys.map_err(explain)
            }
        }
    }

    /// Has the store clean its log in the background, which makes room of what was deleted. A store does
    /// that by itself as well, once its log has grown or many keys were deleted: a few large objects are
    /// not many. Nothing is done where cleaning would leave out next to nothing.
    ///
    /// # Errors
    /// [`Error`].
    pub fn clean(&self) -> Result<(), Error> {
        let place = match &self.kind {
            Kind::One { place, .. } => place.clone(),
            Kind::Row(row) => {
                let row = row.lock().unwrap_or_else(PoisonError::into_inner);
                row.place().clone()
            }
        };
        for at in 0..place.addresses.len() {
            place.connect(at)?.clean(place.limit).map_err(explain)?;
        }
        Ok(())
    }

    fn ask(&self, request: Request) -> End {
        let ends = self.begin(vec![request]).ends()?;
        ends.into_iter().next().expect("one was asked for")
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

impl From<Over> for Error {
    fn from(over: Over) -> Self {
        Self::Refused(over.to_string())
    }
}

impl StoreTarget {
    fn connect(&self, at: usize) -> Result<Client, Error> {
        let mut id = [0; 16];
        getrandom::fill(&mut id)
            .map_err(|error| Error::Refused(format!("read random bytes: {error}")))?;
        let id = ClientId(u128::from_ne_bytes(id));
        let address = &self.addresses[at];
        let limit = self.limit.min(WAIT_MAX);
        Client::connect(&connector(self.key.clone()), address, id, limit)
            .map_err(|error| Error::Unreachable(format!("store {address}: {error}")))
    }
}

impl From<Condition> for cenote_store::Condition {
    fn from(condition: Condition) -> Self {
        match condition {
            Condition::Always => Self::Always,
            Condition::Absent => Self::Absent,
            Condition::Version(number) => Self::Sequence(number),
        }
    }
}

fn command(request: Request) -> Command {
    match request {
        Request::Put {
            key,
            value,
            condition,
            is_durable,
        } => Command::Put {
            key,
            value,
            condition: condition.into(),
            is_durable,
        },
        Request::Get { key } => Command::Get { key },
        Request::Delete { key, condition } => Command::Delete {
            key,
            condition: condition.into(),
        },
        Request::Sync => Command::Sync,
    }
}

fn done(outcome: Outcome) -> Done {
    match outcome {
        Outcome::Done { sequence } => Done::Changed(sequence),
        Outcome::Value { sequence, value } => Done::Found(Version {
            number: sequence,
            value,
        }),
        Outcome::Absent => Done::Absent,
        Outcome::Synced { lost } => Done::Synced(lost),
    }
}

fn changed(done: Done) -> Result<u64, Error> {
    match done {
        Done::Changed(version) => Ok(version),
        _ => Err(Error::Refused("an answer to another request".to_owned())),
    }
}

fn explain(error: ClientError) -> Error {
    match error {
        ClientError::Refused(Refusal::Full) => Error::Full,
        ClientError::Refused(Refusal::Busy) => Error::Busy,
        ClientError::Refused(Refusal::Condition(found)) => Error::Condition { found },
        ClientError::Size { .. } => Error::Options(error.to_string()),
        ClientError::Refused(Refusal::Key | Refusal::Value) => Error::Options(format!(
            "{error}: keys have 1 to 250 bytes, values up to 1 MiB"
        )),
        ClientError::Lost(Status::Timeout) => {
            Error::Lost("the store does not answer; a change may have been made".to_owned())
        }
        ClientError::Lost(_) => Error::Lost(format!("{error}; a change may have been made")),
        other => Error::Refused(other.to_string()),
    }
}
