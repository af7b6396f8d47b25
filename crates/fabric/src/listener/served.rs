//! Connections of clients that proved the key: control ones, and data ones on `shm`.

use std::os::fd::AsFd;

use super::{Event, PeerId};
use crate::channel::{Channel, Granting};
use crate::frame::Frame;
use crate::socket::{Epoll, Interest, Ready};
use crate::windows::WindowTable;
use crate::{ClientId, Error, Result, Rights, WindowDescriptor};

/// A client's control connection.
pub(super) struct Peer {
    pub(super) channel: Channel,
    pub(super) client: ClientId,
    is_shm: bool,
    /// Its data connections on `shm`.
    pub(super) data: Vec<u64>,
    /// Its data connections that the agent serves.
    pub(super) adopted: usize,
    interest: Interest,
}

impl Peer {
    pub(super) fn new(channel: Channel, client: ClientId, is_shm: bool) -> Self {
        Self {
            channel,
            client,
            is_shm,
            data: Vec::new(),
            adopted: 0,
            interest: Interest::READ,
        }
    }

    /// Answers what was asked and passes on what was said; an error ends the peer.
    pub(super) fn serve(
        &mut self,
        id: PeerId,
        ready: &Ready,
        epoll: &Epoll,
        table: &WindowTable,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        if ready.writable {
            self.channel.flush()?;
        }
        // Frames that congestion left behind come first; then one receive per round, for fairness.
        self.take_frames(id, table, events)?;
        if ready.readable && !self.channel.is_congested() {
            let received = self.channel.fill();
            self.take_frames(id, table, events)?;
            received?;
        }
        self.channel.flush()?;
        self.watch(epoll, id)
    }

    fn take_frames(
        &mut self,
        id: PeerId,
        table: &WindowTable,
        events: &mut Vec<Event>,
    ) -> Result<()> {
        // A peer that does not take its answers is not asked for more questions.
        while !self.channel.is_congested() {
            match self.channel.next()? {
                Some(Frame::Message(bytes)) => events.push(Event::Message {
                    peer: id,
                    bytes: bytes.to_vec(),
                }),
                Some(Frame::Attach {
                    id: window,
                    generation,
                }) => {
                    let (descriptor, region) = match table.attach(window, generation) {
                        Ok((region, descriptor)) => (descriptor, Some(region)),
                        Err(_) => (
                            WindowDescriptor {
                                id: window,
                                generation,
                                len_bytes: 0,
                                rights: Rights(0),
                            },
                            None,
                        ),
                    };
                    let frame = Frame::Attached {
                        descriptor,
                        granted: region.is_some(),
                    };
                    let writable = descriptor.rights.contains(Rights::WRITE);
                    let grant = region
                        .filter(|_| self.is_shm)
                        .map(|region| Granting { region, writable });
                    self.channel.queue(&frame, grant)?;
                }
                Some(_) => return Err(Error::Protocol("not for a host")),
                None => return Ok(()),
            }
        }
        Ok(())
    }

    /// Tells the kernel what to wait for.
    pub(super) fn watch(&mut self, epoll: &Epoll, id: PeerId) -> Result<()> {
        let interest = Interest {
            read: !self.channel.is_congested(),
            write: self.channel.wants_write(),
        };
        if interest != self.interest {
            epoll
                .change(self.channel.as_fd(), id.0, interest)
                .map_err(|e| Error::os("watch a client", e))?;
            self.interest = interest;
        }
        Ok(())
    }
}

/// A data connection on `shm`: SEND and immediates; the rest of its verbs never come here.
pub(super) struct Data {
    pub(super) channel: Channel,
    pub(super) peer: PeerId,
}

impl Data {
    /// Passes on what was said; an error ends the connection.
    pub(super) fn serve(&mut self, table: &WindowTable, events: &mut Vec<Event>) -> Result<()> {
        let peer = self.peer;
        let received = self.channel.fill();
        while let Some(frame) = self.channel.next()? {
            match frame {
                Frame::Message(bytes) => events.push(Event::Message {
                    peer,
                    bytes: bytes.to_vec(),
                }),
                Frame::Immediate {
                    id,
                    generation,
                    offset,
                    len_bytes,
                    value,
                } => {
                    // The window may have gone meanwhile, or the client may be wrong: no event then.
                    if table
                        .enter(id, generation, Rights::WRITE, offset, u64::from(len_bytes))
                        .is_ok()
                    {
                        events.push(Event::Immediate {
                            peer,
                            window: id,
                            offset,
                            len_bytes,
                            value,
                        });
                    }
                }
                _ => return Err(Error::Protocol("not on a data connection")),
            }
        }
        received.map(|_| ())
    }
}
