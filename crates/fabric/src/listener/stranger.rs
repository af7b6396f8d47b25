//! A connection that has not proven the key yet: one small buffer, one deadline, exact reads.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::bound::DataPath;
use crate::noise::{HANDSHAKE_BYTES, HELLO_BYTES, Purpose, Refusal, Responder, Transport};
use crate::strangers::{Parting, Stage};
use crate::{ClusterKey, Hello, Versions, socket};

/// The host's half of a handshake under way.
pub(super) struct Stranger {
    socket: OwnedFd,
    pub(super) path: DataPath,
    /// Which of the listener's sockets it came by.
    pub(super) bound: usize,
    buffer: [u8; HELLO_BYTES],
    filled: usize,
    /// Set once the first message decrypted and the answer is sent.
    responder: Option<Responder>,
}

/// What a handshake came to.
pub(super) enum Progress {
    /// More bytes are needed.
    Waits,
    /// The peer is no client of ours; drop it without a word.
    Refused(Parting),
    /// The peer holds the key.
    Proven(Box<Proven>),
}

/// A peer that holds the key.
pub(super) struct Proven {
    pub(super) transport: Transport,
    pub(super) purpose: Purpose,
    pub(super) hello: Hello,
}

impl Stranger {
    pub(super) fn new(socket: OwnedFd, path: DataPath, bound: usize) -> Self {
        Self {
            socket,
            path,
            bound,
            buffer: [0; HELLO_BYTES],
            filled: 0,
            responder: None,
        }
    }

    /// Reads what is there, and never a byte past the hello: on `tcp` the next ones are verbs.
    pub(super) fn advance(&mut self, key: &ClusterKey) -> Progress {
        loop {
            let wanted = if self.responder.is_some() {
                HELLO_BYTES
            } else {
                HANDSHAKE_BYTES
            };
            match socket::receive(
                self.socket.as_fd(),
                &mut self.buffer[self.filled..wanted],
                None,
            ) {
                Ok(None) => return Progress::Waits,
                Ok(Some(0)) | Err(_) => return Progress::Refused(Parting::HungUp),
                Ok(Some(received)) => self.filled += received,
            }
            if self.filled < wanted {
                continue;
            }
            self.filled = 0;
            match self.responder.take() {
                None => match self.answer(key) {
                    Ok(responder) => self.responder = Some(responder),
                    Err(parting) => return Progress::Refused(parting),
                },
                Some(responder) => {
                    return match responder.finish(&self.buffer) {
                        Ok((transport, purpose, hello)) => Progress::Proven(Box::new(Proven {
                            transport,
                            purpose,
                            hello,
                        })),
                        Err(_) => Progress::Refused(Parting::WrongKey),
                    };
                }
            }
        }
    }

    fn answer(&self, key: &ClusterKey) -> Result<Responder, Parting> {
        let first = self.buffer[..HANDSHAKE_BYTES]
            .try_into()
            .expect("the slice has that length");
        let (responder, answer, refusal) =
            Responder::answer(key, first).map_err(|_| Parting::WrongKey)?;
        // An empty socket buffer takes so few bytes whole, or something is wrong with the peer.
        let sent = socket::send(self.socket.as_fd(), &answer, None);
        if let Some(Refusal::Version(theirs)) = refusal {
            let ours = Versions::OURS;
            tracing::warn!(%theirs, %ours, "refused a client: no version in common");
            return Err(Parting::WrongVersion);
        }
        match sent {
            Ok(Some(HANDSHAKE_BYTES)) => Ok(responder),
            _ => Err(Parting::HungUp),
        }
    }

    /// How far it has come.
    pub(super) fn stage(&self) -> Stage {
        match (&self.responder, self.filled) {
            (Some(_), _) => Stage::Answered,
            (None, 0) => Stage::Silent,
            (None, _) => Stage::Speaking,
        }
    }

    pub(super) fn into_socket(self) -> OwnedFd {
        self.socket
    }
}

impl AsFd for Stranger {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
