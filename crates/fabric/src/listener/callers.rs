//! Connections for calls: proven here, and given to a server thread.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::bound::DataPath;
use super::{CLIENT_SILENCE, Connection, Listener};
use crate::calls::{Adopted, Pipe, create_rings};
use crate::channel::{Channel, Granting};
use crate::frame::Frame;
use crate::listen::PeerId;
#[cfg(feature = "rdma")]
use crate::rdma::calls::PairedRings;
use crate::record::CALL_RECORDS;
use crate::{
    Error, Generation, Result, Rights, WindowDescriptor, WindowId, WireProtection, socket,
};

impl Listener {
    pub(super) fn caller_count(&self, peer: Option<PeerId>) -> usize {
        match peer.and_then(|peer| self.connections.get(&peer.0)) {
            Some(Connection::Peer(peer)) => peer.calls.connections(),
            _ => 0,
        }
    }

    pub(super) fn answers_calls(&self) -> bool {
        !self.answerers.is_empty()
    }

    /// Gives a connection for calls to a server thread; one that breaks on the way is closed.
    pub(super) fn adopt_caller(
        &mut self,
        id: u64,
        channel: Channel,
        peer: PeerId,
        path: &DataPath,
        protection: WireProtection,
    ) {
        let Some(Connection::Peer(owner)) = self.connections.get(&peer.0) else {
            return;
        };
        let member = owner.calls.clone();
        let os = |e| Error::os("hand over a connection for calls", e);
        let removed = self.epoll.remove(channel.as_fd()).map_err(os);
        let pipe = removed.and_then(|()| match path {
            DataPath::Shm => grant_rings(channel),
            #[cfg(feature = "rdma")]
            DataPath::Rdma(device) => {
                // The client says the name of its pair next, to the server thread.
                PairedRings::of_host(device.device(), channel).and_then(Pipe::of_pair)
            }
            DataPath::Tcp => {
                let (socket, transport) = channel.into_parts();
                let records = transport.records(CALL_RECORDS, protection);
                let stream = TcpStream::from(socket);
                socket::end_when_unreachable(stream.as_fd(), CLIENT_SILENCE)
                    .map(|()| Pipe::of_stream(stream, records))
                    .map_err(os)
            }
        });
        match pipe {
            Ok(pipe) => self.answerers.adopt(Adopted { pipe, member }),
            Err(error) => tracing::debug!(%error, connection = id, "a connection ended"),
        }
    }
}

/// Makes the rings of a connection over `shm` and grants them to its client.
fn grant_rings(mut channel: Channel) -> Result<Pipe> {
    let region = Arc::new(create_rings()?);
    let descriptor = WindowDescriptor {
        id: WindowId(0),
        generation: Generation(0),
        len_bytes: region.len_bytes(),
        rights: Rights::ALL,
    };
    let frame = Frame::Attached {
        descriptor,
        granted: true,
    };
    let grant = Granting {
        region: Arc::clone(&region),
        writable: true,
    };
    channel.queue(&frame, Some(grant))?;
    channel.flush()?;
    if channel.wants_write() {
        // A fresh socket has room, or its client does something else with it.
        return Err(Error::Bound("a grant of rings"));
    }
    let (socket, _) = channel.into_parts();
    Ok(Pipe::of_host(socket, region))
}

/// Most connections for calls of one client, each with a megabyte of this host's memory on `shm`
/// and `rdma`.
pub(super) const CALLER_COUNT_MAX: usize = 64;
