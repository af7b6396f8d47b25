//! One connection for calls, whatever carries it: messages in, messages out, and sleep.

#[cfg(feature = "rdma")]
use std::cell::RefCell;
use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::ring::{self, Memory, Reader, Way, Writer};
use super::stream::Stream;
use super::{Broken, CALL_BYTES_MAX};
#[cfg(feature = "rdma")]
use crate::rdma::calls::PairedRings;
use crate::record::{RecordOpener, RecordSealer};
use crate::{Mapping, Region, socket};

/// One end of a connection.
pub(crate) struct Pipe {
    socket: OwnedFd,
    carrier: Carrier,
    system_calls: u64,
}

/// What a side sleeps for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Awaited {
    Messages,
    /// Room alone: messages stay where they are, however many come.
    Room,
    MessagesAndRoom,
}

enum Carrier {
    Ring {
        writer: Writer,
        reader: Reader,
        /// The message that was taken last.
        message: Box<[u8]>,
    },
    Stream(Box<Stream>),
    /// Borrowed for one call of this module at a time.
    #[cfg(feature = "rdma")]
    Paired(RefCell<Box<PairedRings>>),
}

impl Pipe {
    /// The client's end of rings that a host granted.
    pub(crate) fn of_client(socket: OwnedFd, mapping: Mapping) -> Self {
        Self::of_rings(socket, Memory::Client(Box::new(mapping)), Way::Calls)
    }

    /// The host's end of rings.
    pub(crate) fn of_host(socket: OwnedFd, region: Arc<Region>) -> Self {
        Self::of_rings(socket, Memory::Host(region), Way::Answers)
    }

    fn of_rings(socket: OwnedFd, memory: Memory, out: Way) -> Self {
        let (writer, reader) = ring::ends(memory, out);
        Self {
            socket,
            carrier: Carrier::Ring {
                writer,
                reader,
                message: vec![0; CALL_BYTES_MAX].into(),
            },
            system_calls: 0,
        }
    }

    /// Either end of a connection over a queue pair.
    ///
    /// # Errors
    /// `Os`: no descriptor is left.
    #[cfg(feature = "rdma")]
    pub(crate) fn of_pair(rings: PairedRings) -> crate::Result<Self> {
        let os = |e| crate::Error::os("watch a queue pair", e);
        Ok(Self {
            socket: rings.as_fd().try_clone_to_owned().map_err(os)?,
            carrier: Carrier::Paired(RefCell::new(Box::new(rings))),
            system_calls: 0,
        })
    }

    /// Either end of a connection over TCP; `records`: what protects it.
    pub(crate) fn of_stream(
        stream: TcpStream,
        records: Option<(RecordSealer, RecordOpener)>,
    ) -> Self {
        Self {
            socket: stream.into(),
            carrier: Carrier::Stream(Box::new(Stream::new(records))),
            system_calls: 0,
        }
    }

    /// Queues a message; [`Pipe::flush`] sends. False: there is no room for it now.
    pub(super) fn push(&mut self, id: u32, body: &[u8]) -> Result<bool, Broken> {
        match &mut self.carrier {
            Carrier::Ring { writer, .. } => writer.push(id, body),
            Carrier::Stream(stream) => Ok(stream.push(id, body)),
            #[cfg(feature = "rdma")]
            Carrier::Paired(rings) => rings.get_mut().push(id, body),
        }
    }

    /// Sends what is queued, as far as it goes without blocking.
    pub(super) fn flush(&mut self) -> Result<(), Broken> {
        match &mut self.carrier {
            Carrier::Ring { writer, .. } => {
                if writer.publish() {
                    self.wake_peer()?;
                }
            }
            Carrier::Stream(stream) => self.system_calls += stream.flush(self.socket.as_fd())?,
            #[cfg(feature = "rdma")]
            Carrier::Paired(rings) => rings.get_mut().flush()?,
        }
        Ok(())
    }

    /// Takes the next message that is here; [`Pipe::fill`] looks for more.
    pub(super) fn next(&mut self) -> Result<Option<(u32, &[u8])>, Broken> {
        match &mut self.carrier {
            Carrier::Ring {
                reader, message, ..
            } => {
                let taken = reader.next(message)?;
                Ok(taken.map(|(id, len)| (id, &message[..len])))
            }
            Carrier::Stream(stream) => stream.next(),
            #[cfg(feature = "rdma")]
            Carrier::Paired(rings) => rings.get_mut().next(),
        }
    }

    /// Gives the places of messages back that were taken. Once for a batch of them is enough.
    pub(super) fn release(&mut self) -> Result<(), Broken> {
        match &mut self.carrier {
            Carrier::Ring { reader, .. } => {
                if reader.release() {
                    self.wake_peer()?;
                }
            }
            Carrier::Stream(_) => {}
            #[cfg(feature = "rdma")]
            Carrier::Paired(rings) => rings.get_mut().release()?,
        }
        Ok(())
    }

    /// Looks at the socket: for messages, for wakes, for the peer's end. False: nothing was there.
    pub(super) fn fill(&mut self) -> Result<bool, Broken> {
        self.system_calls += 1;
        match &mut self.carrier {
            Carrier::Ring { .. } => {
                // A peer that floods with wakes costs one system call per look.
                let mut wakes = [0; 256];
                match socket::receive(self.socket.as_fd(), &mut wakes, None) {
                    Ok(Some(0)) | Err(_) => Err(Broken::Closed),
                    Ok(received) => Ok(received.is_some()),
                }
            }
            Carrier::Stream(stream) => stream.fill(self.socket.as_fd()),
            // Messages come without it.
            #[cfg(feature = "rdma")]
            Carrier::Paired(rings) => rings.get_mut().fill().map(|()| false),
        }
    }

    /// Whether new messages are seen without the socket.
    pub(super) fn is_ring(&self) -> bool {
        !matches!(self.carrier, Carrier::Stream(_))
    }

    /// Whether [`Pipe::flush`] is a store to memory that the peer shares, and a wake if it sleeps.
    pub(super) fn shares_memory(&self) -> bool {
        matches!(self.carrier, Carrier::Ring { .. })
    }

    /// Whether something queued waits for the socket to take it.
    pub(super) fn wants_write(&self) -> bool {
        match &self.carrier {
            Carrier::Stream(stream) => stream.wants_write(),
            _ => false,
        }
    }

    /// Has the peer make the socket ready with what is awaited. False: there is something to do
    /// already. Messages are awaited when [`Pipe::next`] has given all and, over a stream,
    /// [`Pipe::fill`] found nothing; room, when [`Pipe::push`] was refused after a flush.
    pub(super) fn sleep(&self, awaited: Awaited) -> bool {
        match &self.carrier {
            Carrier::Ring { writer, reader, .. } => {
                // Both flags are raised whatever the first look says.
                let has_room_come = awaited != Awaited::Messages && !writer.sleep();
                let has_message_come = awaited != Awaited::Room && !reader.sleep();
                !has_room_come && !has_message_come
            }
            // The kernel tells of room only while something waits for it.
            Carrier::Stream(stream) => awaited != Awaited::Room || stream.wants_write(),
            // A notice tells of messages and of room alike.
            #[cfg(feature = "rdma")]
            Carrier::Paired(rings) => rings.borrow_mut().sleep(),
        }
    }

    /// Takes the wish to be woken back: this side looks by itself from here on. Whether wakes may
    /// lie in the socket, which [`Pipe::fill`] takes.
    pub(super) fn wake(&self) -> bool {
        match &self.carrier {
            Carrier::Ring { reader, .. } => reader.wake(),
            _ => false,
        }
    }

    pub(super) fn system_calls(&self) -> u64 {
        #[cfg(feature = "rdma")]
        if let Carrier::Paired(rings) = &self.carrier {
            return self.system_calls + rings.borrow().system_calls();
        }
        self.system_calls
    }

    /// A peer whose socket is full of wakes has enough of them.
    fn wake_peer(&mut self) -> Result<(), Broken> {
        self.system_calls += 1;
        let woken = socket::send(self.socket.as_fd(), &[0], None);
        woken.map(drop).map_err(|_| Broken::Closed)
    }
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Pipe {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
