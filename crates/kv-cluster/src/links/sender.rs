//! Frames for peers and observers, up to the bounds of their links.

use std::slice;

use bytes::Bytes;

use super::super::NodeId;
use super::super::frame::{FrameError, pieces};
use super::super::link::{Full, NotTaken};
use super::peer::Peer;
use super::{Connection, LinkError, Links, Observer, Role};

/// A frame was not taken.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// Too much waits to be written: hold back until there is room.
    #[error(transparent)]
    Full(#[from] Full),
    /// There is no open link.
    #[error("no link to node {0}")]
    Down(NodeId),
    /// No link ever takes it.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

impl From<NotTaken> for SendError {
    fn from(why: NotTaken) -> Self {
        match why {
            NotTaken::Full(full) => full.into(),
            NotTaken::Frame(error) => error.into(),
        }
    }
}

impl Links {
    /// Takes a frame for a peer; it leaves with the next [`Links::flush`].
    ///
    /// # Errors
    /// `Full`, `Down`, `Frame`.
    pub fn send(&mut self, node: NodeId, kind: u8, parts: &[Bytes]) -> Result<(), SendError> {
        self.send_behind(node, kind, &[], parts)
    }

    /// As [`Links::send`], of a payload that begins with a copy of `head`.
    pub(in super::super) fn send_behind(
        &mut self,
        node: NodeId,
        kind: u8,
        head: &[u8],
        parts: &[Bytes],
    ) -> Result<(), SendError> {
        let open = self.peers.get(&node).filter(|peer| peer.is_open());
        let connection = open.and_then(Peer::connection);
        let connection = connection.and_then(|token| self.connections.get_mut(&token));
        let link = &mut connection.ok_or(SendError::Down(node))?.link;
        Ok(link.send(kind, head, parts)?)
    }

    /// Bytes that a peer's link takes before it is full; 0 without a link.
    #[must_use]
    pub fn room_bytes(&self, node: NodeId) -> usize {
        let open = self.peers.get(&node).filter(|peer| peer.is_open());
        let connection = open.and_then(|peer| self.connections.get(&peer.connection()?));
        connection.map_or(0, |connection| connection.link.room_bytes())
    }

    /// Answers an observer, in [`pieces`]; one that is gone is no error.
    pub fn answer(&mut self, observer: Observer, kind: u8, whole: &Bytes) {
        let connection = self.connections.get_mut(&observer.0);
        if let Some(connection) = connection.filter(|connection| connection.role == Role::Observer)
        {
            if !connection.answers.is_empty() {
                return tracing::debug!("an observer does not read");
            }
            connection.answers = pieces(whole).map(|piece| (kind, piece)).collect();
        }
    }
}

impl Connection {
    /// Writes what waits, as far as the socket takes it.
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        while let Some((kind, piece)) = self.answers.front() {
            let parts = slice::from_ref(piece);
            if self.link.send(*kind, &[], parts).is_err() {
                self.link.flush()?;
                if self.link.send(*kind, &[], parts).is_err() {
                    return Ok(());
                }
            }
            self.answers.pop_front();
        }
        self.link.flush()
    }
}
