//! Connections of clients that proved the key: control ones, and data ones on `shm`.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use super::bound::DataPath;
use super::{Event, PeerId};
use crate::calls::Membership;
use crate::channel::{Channel, Granting};
use crate::frame::Frame;
use crate::socket::{Epoll, Interest, Ready};
use crate::windows::WindowTable;
use crate::{ClientId, Error, Region, Result, Rights, WindowDescriptor};

/// A client's control connection.
pub(super) struct Peer {
    pub(super) channel: Channel,
    pub(super) client: ClientId,
    path: DataPath,
    /// Its data connections that the control thread serves.
    pub(super) data: Vec<u64>,
    /// Its data connections that the agent serves.
    pub(super) adopted: usize,
    /// Shared with its connections for calls, which server threads have.
    pub(super) calls: Membership,
    interest: Interest,
    heard_at: Instant,
}

impl Peer {
    pub(super) fn new(channel: Channel, client: ClientId, path: DataPath) -> Self {
        Self {
            channel,
            client,
            path,
            data: Vec::new(),
            adopted: 0,
            calls: Membership::new(client),
            interest: Interest::READ,
            heard_at: Instant::now(),
        }
    }

    /// Since when it has said nothing; `None` of one that has connections besides this.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        let others = self.data.len() + self.adopted + self.calls.connections();
        (others == 0).then_some(self.heard_at)
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
        self.answer(id, table, events)?;
        if ready.readable && !self.channel.is_congested() {
            let received = self.channel.fill();
            self.answer(id, table, events)?;
            received?;
        }
        self.watch(epoll, id)
    }

    /// Goes on until no whole frame is left, or the socket takes no more answers: whatever stays
    /// in the inbox then is taken up when the socket becomes writable.
    fn answer(&mut self, id: PeerId, table: &WindowTable, events: &mut Vec<Event>) -> Result<()> {
        loop {
            let held_back = self.take_frames(id, table, events)?;
            self.channel.flush()?;
            if !held_back || self.channel.is_congested() {
                return Ok(());
            }
        }
    }

    /// Whether frames are left because answers wait: a peer that does not take its answers is not
    /// asked for more questions.
    fn take_frames(
        &mut self,
        id: PeerId,
        table: &WindowTable,
        events: &mut Vec<Event>,
    ) -> Result<bool> {
        while !self.channel.is_congested() {
            let frame = self.channel.next()?;
            if frame.is_some() {
                self.heard_at = Instant::now();
            }
            match frame {
                Some(Frame::Message(bytes)) => {
                    let bytes = bytes.to_vec();
                    events.push(Event::Message { peer: id, bytes });
                }
                Some(Frame::Attach {
                    id: window,
                    generation,
                }) => {
                    let refused = WindowDescriptor {
                        id: window,
                        generation,
                        len_bytes: 0,
                        rights: Rights(0),
                    };
                    let (descriptor, region) = table
                        .attach(window, generation)
                        .map_or((refused, None), |(region, descriptor)| {
                            (descriptor, Some(region))
                        });
                    let (frame, grant) = self.grant(descriptor, region);
                    self.channel.queue(&frame, grant)?;
                }
                Some(_) => return Err(Error::Protocol("not for a host")),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// The answer to an attach: how this client reaches the window, or that it does not.
    fn grant(
        &self,
        descriptor: WindowDescriptor,
        region: Option<Arc<Region>>,
    ) -> (Frame<'static>, Option<Granting>) {
        let answer = |granted| Frame::Attached {
            descriptor,
            granted,
        };
        match (&self.path, region) {
            (_, None) => (answer(false), None),
            (DataPath::Tcp, Some(_)) => (answer(true), None),
            (DataPath::Shm, Some(region)) => {
                let writable = descriptor.rights.contains(Rights::WRITE);
                // Tried before it is promised: one that may only read gets a descriptor of its own.
                match region.grant(writable) {
                    Ok(_) => (answer(true), Some(Granting { region, writable })),
                    Err(error) => {
                        tracing::warn!(%error, "open a window for its client");
                        (answer(false), None)
                    }
                }
            }
            #[cfg(feature = "rdma")]
            (DataPath::Rdma(device), Some(_)) => match device.grant(descriptor.id) {
                Some((address, key)) => {
                    let frame = Frame::Keyed {
                        descriptor,
                        address,
                        key,
                    };
                    (frame, None)
                }
                None => (answer(false), None),
            },
        }
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
            pass_on(&frame, peer, table, events)?;
        }
        received.map(|_| ())
    }
}

/// Makes an event of what a client said on a data connection.
pub(crate) fn pass_on(
    frame: &Frame<'_>,
    peer: PeerId,
    table: &WindowTable,
    events: &mut Vec<Event>,
) -> Result<()> {
    match *frame {
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
    Ok(())
}
