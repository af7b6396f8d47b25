//! Whole regions of one host read or written by one-sided verbs, blocking, in order.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cenote_fabric::{Address, ClientId, FAILURE_TIMEOUT, Incoming, RemoteWindow, Session, Time};
use cenote_pool::control::Window;

use super::format::{self, CHUNK_BYTES_MAX};
use crate::links::{Caller, Linked};
use crate::path::{Failure, OneSided, Operation, Path, Token};

/// Chunks under way: what a connection carries in a round trip.
const DEPTH: usize = 4;
/// How long nothing may come before the host is given up. Verbs fail earlier by themselves.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks at whether the host is silent.
const LOOK: Duration = Duration::from_millis(50);

/// Why bytes were not copied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host cannot be reached, or has no such window.
    #[error("{0}")]
    Fabric(#[from] cenote_fabric::Error),
    /// A verb failed.
    #[error("{0}")]
    Verb(#[from] Failure),
    /// Nothing came for too long.
    #[error("the host is silent")]
    Silent,
    /// Who takes the bytes, or has them, does not go on.
    #[error("{0}")]
    File(#[from] super::format::Error),
}

impl Error {
    /// Whether it says that a checkpoint does not have a region whole, so that to try again is
    /// useless. A file that was taken away is none, and one that cannot be read now may be later.
    #[must_use]
    pub fn is_of_checkpoint(&self) -> bool {
        use std::io::ErrorKind::{NotFound, UnexpectedEof};
        match self {
            Self::File(format::Error::Damaged(_) | format::Error::Foreign) => true,
            Self::File(format::Error::Io(error)) => {
                matches!(error.kind(), NotFound | UnexpectedEof)
            }
            Self::Fabric(_) | Self::Verb(_) | Self::Silent => false,
        }
    }
}

/// A connection to one host.
pub struct Bulk {
    // Before the session: an endpoint of it.
    path: OneSided,
    session: Box<dyn Session>,
}

impl Bulk {
    /// Connects to a host, for data as well, as a client of its own: one client has one session.
    ///
    /// # Errors
    /// It cannot be reached, or the system has no randomness.
    pub fn connect(caller: &Caller, address: &Address) -> Result<Self, Error> {
        let mut number = [0; 16];
        getrandom::fill(&mut number).map_err(|error| super::format::Error::Io(error.into()))?;
        let mut caller = Caller {
            with_data: true,
            ..caller.clone()
        };
        caller.hello.client = ClientId(u128::from_ne_bytes(number));
        let Linked {
            session, endpoint, ..
        } = caller.connect(address)?;
        let endpoint = endpoint.expect("it was asked for");
        let path = OneSided::new(endpoint, DEPTH);
        Ok(Self { path, session })
    }

    /// Reads the region in `windows`, and gives its bytes to `take` in order, in chunks of at most
    /// [`CHUNK_BYTES_MAX`].
    ///
    /// # Errors
    /// The host is lost, a window is not to be had any more, or `take` fails.
    pub fn read(
        &mut self,
        windows: &[Window],
        mut take: impl FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let attached = self.attach(windows)?;
        let mut left = pieces(windows).enumerate();
        let (mut landed, mut next) = (BTreeMap::new(), 0);
        let mut heard_at = Time::now();
        loop {
            while self.path.outstanding() + landed.len() < DEPTH
                && let Some((number, piece)) = left.next()
            {
                let buffer = BytesMut::zeroed(piece.len_bytes);
                let window = &attached[piece.slab];
                self.submit(
                    window,
                    piece.offset,
                    Operation::Read(buffer),
                    number as Token,
                );
            }
            for (number, operation) in self.poll(&mut heard_at)? {
                if let Operation::Read(buffer) = operation {
                    landed.insert(number, buffer);
                }
            }
            while let Some(buffer) = landed.remove(&next) {
                take(&buffer)?;
                next += 1;
                heard_at = Time::now();
            }
            if self.path.outstanding() == 0 && landed.is_empty() && left.len() == 0 {
                return Ok(());
            }
        }
    }

    /// Begins to write the region in `windows`.
    ///
    /// # Errors
    /// The host is lost, or a window is not to be had any more.
    pub fn write(&mut self, windows: &[Window]) -> Result<Writing<'_>, Error> {
        let attached = self.attach(windows)?;
        let slab_bytes = windows.first().map_or(1, |window| window.len_bytes.max(1));
        Ok(Writing {
            bulk: self,
            attached,
            slab_bytes,
            heard_at: Time::now(),
        })
    }

    fn attach(&mut self, windows: &[Window]) -> Result<Vec<RemoteWindow>, Error> {
        let mut attached = Vec::with_capacity(windows.len());
        for &window in windows {
            self.session.attach(window.into())?;
            let begun = Time::now();
            let window = loop {
                match self.session.receive()? {
                    Some(Incoming::Attached(_, end)) => break end?,
                    Some(_) => {}
                    None if Time::now().since(begun) > FAILURE_TIMEOUT => {
                        return Err(Error::Silent);
                    }
                    None => self.wait(self.session.fd())?,
                }
            };
            attached.push(window);
        }
        Ok(attached)
    }

    fn submit(&mut self, window: &RemoteWindow, offset: u64, operation: Operation, token: Token) {
        let taken = self.path.submit(window, offset, operation, token);
        assert!(taken.is_ok(), "no more than its depth is under way");
    }

    /// What has ended, after a wait if nothing has.
    fn poll(&mut self, heard_at: &mut Time) -> Result<Vec<(Token, Operation)>, Error> {
        let mut completions = VecDeque::new();
        self.path.flush();
        self.path.poll(Time::now(), &mut completions);
        if completions.is_empty() && self.path.outstanding() > 0 {
            self.wait(self.path.fd())?;
            self.path.poll(Time::now(), &mut completions);
        }
        let now = Time::now();
        if !completions.is_empty() || self.path.outstanding() == 0 {
            *heard_at = now;
        } else if now.since(*heard_at) > PATIENCE {
            return Err(Error::Silent);
        }
        let mut ended = Vec::with_capacity(completions.len());
        for completion in completions {
            completion.result?;
            ended.push((completion.token, completion.operation));
        }
        Ok(ended)
    }

    fn wait(&self, fd: Option<std::os::fd::RawFd>) -> Result<(), Error> {
        cenote_fabric::wait(fd.as_slice(), Some(LOOK))?;
        Ok(())
    }
}

/// A region that is being written, from its first byte on.
pub struct Writing<'a> {
    bulk: &'a mut Bulk,
    attached: Vec<RemoteWindow>,
    slab_bytes: u64,
    heard_at: Time,
}

impl Writing<'_> {
    /// Writes bytes at a place of the region.
    ///
    /// # Errors
    /// The host is lost, or its window is.
    ///
    /// # Panics
    /// If they pass the region's end: a caller's bug.
    pub fn put(&mut self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let (mut at, mut left) = (at, bytes);
        while !left.is_empty() {
            let slab = usize::try_from(at / self.slab_bytes).expect("an index");
            let offset = at % self.slab_bytes;
            let room = usize::try_from(self.slab_bytes - offset).unwrap_or(usize::MAX);
            let (now, later) = left.split_at(left.len().min(room));
            while self.bulk.path.outstanding() == DEPTH {
                self.bulk.poll(&mut self.heard_at)?;
            }
            let operation = Operation::Write(Bytes::copy_from_slice(now));
            let window = self.attached[slab].clone();
            self.bulk.submit(&window, offset, operation, 0);
            at += now.len() as u64;
            left = later;
        }
        Ok(())
    }

    /// Waits until all of it is there.
    ///
    /// # Errors
    /// As [`Writing::put`].
    pub fn finish(mut self) -> Result<(), Error> {
        while self.bulk.path.outstanding() > 0 {
            self.bulk.poll(&mut self.heard_at)?;
        }
        Ok(())
    }
}

struct Piece {
    slab: usize,
    offset: u64,
    len_bytes: usize,
}

/// A region in chunks, each in one slab.
fn pieces(windows: &[Window]) -> impl ExactSizeIterator<Item = Piece> {
    let of = |(slab, window): (usize, &Window)| {
        let len_bytes = window.len_bytes;
        let starts = (0..len_bytes).step_by(CHUNK_BYTES_MAX);
        let piece = move |offset: u64| Piece {
            slab,
            offset,
            len_bytes: usize::try_from(len_bytes - offset)
                .unwrap_or(usize::MAX)
                .min(CHUNK_BYTES_MAX),
        };
        starts.map(piece).collect::<Vec<_>>()
    };
    let pieces: Vec<Piece> = windows.iter().enumerate().flat_map(of).collect();
    pieces.into_iter()
}
