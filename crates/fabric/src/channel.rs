//! An established connection: encrypted frames over a socket, with bounded buffers either way.
//!
//! On the wire a frame is its sealed length (u16, little-endian) and the sealed bytes. A granted
//! window's descriptor rides on the first byte of its frame, so frames and descriptors arrive in
//! the same order. Never blocks.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::frame::{FRAME_BYTES_MAX, Frame};
use crate::memory::Region;
use crate::noise::{TAG_BYTES, Transport};
use crate::{Error, Result, socket};

/// Most bytes that wait for a socket.
pub(crate) const OUTBOX_BYTES_MAX: usize = 1 << 20;

/// One end of a connection after the handshake.
pub(crate) struct Channel {
    socket: OwnedFd,
    transport: Transport,
    /// Received bytes are `inbox[start..end]`.
    inbox: Box<[u8]>,
    start: usize,
    end: usize,
    /// The frame that was read last.
    plain: Box<[u8]>,
    outbox: VecDeque<Outgoing>,
    outbox_bytes: usize,
    /// Received with frames that are not read yet; `None` where no peer may send any.
    descriptors: Option<VecDeque<Option<OwnedFd>>>,
}

/// A sealed frame, partly sent.
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    grant: Option<Granting>,
}

/// A region that a frame grants, opened only when it is sent: queued grants hold no descriptor.
pub(crate) struct Granting {
    pub(crate) region: Arc<Region>,
    pub(crate) writable: bool,
}

impl Channel {
    /// Takes over a non-blocking socket after the handshake.
    pub(crate) fn new(socket: OwnedFd, transport: Transport, takes_descriptors: bool) -> Self {
        Self {
            socket,
            transport,
            inbox: vec![0; INBOX_BYTES].into(),
            start: 0,
            end: 0,
            plain: vec![0; SEALED_BYTES_MAX].into(),
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            descriptors: takes_descriptors.then(VecDeque::new),
        }
    }

    /// The protocol's version on this connection.
    pub(crate) fn version(&self) -> u16 {
        self.transport.version()
    }

    /// Seals a frame and queues it; [`Channel::flush`] sends.
    ///
    /// # Errors
    /// `Bound`: too much is queued already, or the message is too long.
    pub(crate) fn queue(&mut self, frame: &Frame<'_>, grant: Option<Granting>) -> Result<()> {
        let mut plain = Vec::with_capacity(64);
        frame.encode(&mut plain);
        if plain.len() > FRAME_BYTES_MAX {
            return Err(Error::Bound("message length"));
        }
        let sealed_bytes = plain.len() + TAG_BYTES;
        if self.outbox_bytes + LENGTH_BYTES + sealed_bytes > OUTBOX_BYTES_MAX {
            return Err(Error::Bound("messages waiting to be sent"));
        }
        let mut bytes = vec![0; LENGTH_BYTES + sealed_bytes];
        let length = u16::try_from(sealed_bytes).expect("FRAME_BYTES_MAX and a tag fit in 16 bits");
        bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
        self.transport.seal(&plain, &mut bytes[LENGTH_BYTES..]);
        self.outbox_bytes += bytes.len();
        self.outbox.push_back(Outgoing {
            bytes,
            sent: 0,
            grant,
        });
        Ok(())
    }

    /// Sends what the socket takes.
    ///
    /// # Errors
    /// `Closed`: the peer is gone; `Os`: a descriptor to grant cannot be opened.
    pub(crate) fn flush(&mut self) -> Result<()> {
        while let Some(front) = self.outbox.front_mut() {
            let grant = match &front.grant {
                Some(grant) => {
                    let opened = grant.region.grant(grant.writable);
                    Some(opened.map_err(|e| Error::os("open a window for its client", e))?)
                }
                None => None,
            };
            let descriptor = grant.as_ref().map(AsFd::as_fd);
            let sent = socket::send(self.socket.as_fd(), &front.bytes[front.sent..], descriptor);
            let Some(sent) = sent.map_err(|_| Error::Closed)? else {
                return Ok(());
            };
            drop(grant);
            front.grant = None;
            front.sent += sent;
            self.outbox_bytes -= sent;
            if front.sent == front.bytes.len() {
                self.outbox.pop_front();
            }
        }
        Ok(())
    }

    /// Receives once; false when nothing is there.
    ///
    /// # Errors
    /// `Closed` at the end of the stream, `Protocol` for descriptors that nobody asked for.
    pub(crate) fn fill(&mut self) -> Result<bool> {
        self.inbox.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let received = socket::receive(
            self.socket.as_fd(),
            &mut self.inbox[self.end..],
            self.descriptors.as_mut(),
        );
        match received {
            Ok(Some(0)) => Err(Error::Closed),
            Ok(Some(received)) => {
                self.end += received;
                let waiting = self.descriptors.as_ref().map_or(0, VecDeque::len);
                if waiting > DESCRIPTOR_COUNT_MAX {
                    Err(Error::Protocol("too many descriptors"))
                } else {
                    Ok(true)
                }
            }
            Ok(None) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Error::Protocol("too many descriptors with one frame"))
            }
            Err(_) => Err(Error::Closed),
        }
    }

    /// Takes the next whole frame that was received.
    ///
    /// # Errors
    /// `Protocol`: the length or content is not what the protocol allows.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>> {
        let received = &self.inbox[self.start..self.end];
        let Some((length, rest)) = received.split_first_chunk() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes(*length));
        if !(TAG_BYTES + 1..=SEALED_BYTES_MAX).contains(&length) {
            return Err(Error::Protocol("frame length"));
        }
        let Some(sealed) = rest.get(..length) else {
            return Ok(None);
        };
        let opened = self.transport.open(sealed, &mut self.plain);
        self.start += LENGTH_BYTES + length;
        let len = opened.ok_or(Error::Protocol("frame does not decrypt"))?;
        Frame::decode(&self.plain[..len]).map(Some)
    }

    /// The descriptor that came with the frame read last; ask once per granting frame.
    ///
    /// # Errors
    /// `Protocol`: none came. The inner one, `Os`: this process has no place for it.
    pub(crate) fn take_descriptor(&mut self) -> Result<Result<OwnedFd>> {
        let descriptors = self.descriptors.as_mut();
        let descriptor = descriptors.and_then(VecDeque::pop_front);
        let descriptor = descriptor.ok_or(Error::Protocol("a grant without its memory"))?;
        let no_place = || {
            Error::os(
                "open a window's memory",
                io::Error::from_raw_os_error(libc::EMFILE),
            )
        };
        Ok(descriptor.ok_or_else(no_place))
    }

    /// Whether queued frames wait for the socket.
    pub(crate) fn wants_write(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether so much is queued that no more answers should be produced.
    pub(crate) fn is_congested(&self) -> bool {
        self.outbox_bytes > OUTBOX_BYTES_MAX / 2
    }

    /// The bare socket, when frames end here, and what other keys come from.
    pub(crate) fn into_parts(self) -> (OwnedFd, Transport) {
        debug_assert!(
            self.outbox.is_empty() && self.start == self.end,
            "no byte is lost"
        );
        (self.socket, self.transport)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Channel {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

const LENGTH_BYTES: usize = 2;
const SEALED_BYTES_MAX: usize = FRAME_BYTES_MAX + TAG_BYTES;
/// Room for the longest frame and as much again, so that a receive is seldom cut short.
const INBOX_BYTES: usize = 2 * (LENGTH_BYTES + SEALED_BYTES_MAX);
/// More granting frames than an inbox holds.
const DESCRIPTOR_COUNT_MAX: usize = 1024;
const _: () = assert!(SEALED_BYTES_MAX <= u16::MAX as usize);
