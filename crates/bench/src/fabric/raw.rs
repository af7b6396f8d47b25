//! The bare thing: requests and answers over loopback as one would write them by hand.
//!
//! A request is a header of [`HEADER_BYTES`] (kind, length, place; little-endian), for WRITE and
//! a message with as many bytes behind it. A READ is answered by its bytes and nothing else, the
//! others by [`ACK_BYTES`]. One thread, epoll, one receive per wake-up and one send for all that
//! it brought; no windows, no rights, no revocation, no failure detection. Messages go on to a
//! second thread, as they do in a host: all of a wake-up in one go.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::mpsc::{SyncSender, sync_channel};

use anyhow::{Context, bail, ensure};

use super::Buffer;

/// Kind (1 READ, 2 WRITE, 3 message), three zeros, length in 4 bytes, place in 8.
const HEADER_BYTES: usize = 16;
/// What a WRITE or a message is answered by.
const ACK_BYTES: usize = 8;
/// The server's memory; warm, as the window is.
pub(super) const MEMORY_BYTES: usize = 1 << 20;
/// Holds every request that a client has outstanding.
const INBOX_BYTES: usize = 512 << 10;
/// Where inboxes start in a page: clear of what slows down copies (see [`Buffer`]).
const INBOX_SKEW: usize = 1024;
/// Batches of messages that wait for the second thread.
const BATCHES: usize = 64;
/// Ranges per send.
const SLICES: usize = 512;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Kind {
    Read = 1,
    Write = 2,
    Message = 3,
}

/// Serves one client after the other, for ever.
pub(super) fn serve(announce: impl FnOnce(&str) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    announce(&listener.local_addr()?.to_string())?;
    let mut memory = vec![0x5a_u8; MEMORY_BYTES];
    let mut inbox = Buffer::new(INBOX_BYTES, INBOX_SKEW);
    let (outbox, messages) = sync_channel::<Vec<u8>>(BATCHES);
    std::thread::spawn(move || {
        for batch in messages {
            std::hint::black_box(batch);
        }
    });
    loop {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        serve_client(stream, &mut memory, inbox.bytes(), &outbox)?;
    }
}

fn serve_client(
    mut stream: TcpStream,
    memory: &mut [u8],
    inbox: &mut [u8],
    outbox: &SyncSender<Vec<u8>>,
) -> anyhow::Result<()> {
    let readable = Readable::new(&stream)?;
    let mut filled = 0;
    // Answers of one batch: ranges of the memory, or acknowledgements.
    let mut answers: Vec<Option<(usize, usize)>> = Vec::with_capacity(SLICES);
    loop {
        readable.wait()?;
        match stream.read(&mut inbox[filled..])? {
            0 => return Ok(()),
            received => filled += received,
        }
        let mut at = 0;
        let mut messages = Vec::new();
        while let Some((kind, len, place)) = header(&inbox[at..filled])? {
            let range = place..place + len;
            ensure!(range.end <= memory.len(), "a request outside");
            let payload = at + HEADER_BYTES..at + HEADER_BYTES + len;
            if kind == Kind::Read {
                answers.push(Some((place, len)));
                at += HEADER_BYTES;
                continue;
            }
            if payload.end > filled {
                break;
            }
            at = payload.end;
            if kind == Kind::Write {
                memory[range].copy_from_slice(&inbox[payload]);
            } else {
                messages.extend_from_slice(&inbox[payload]);
            }
            answers.push(None);
        }
        inbox.copy_within(at..filled, 0);
        filled -= at;
        if !messages.is_empty() {
            outbox.send(messages)?;
        }
        for batch in answers.chunks(SLICES) {
            let slices: Vec<IoSlice<'_>> = batch
                .iter()
                .map(|answer| match *answer {
                    Some((place, len)) => IoSlice::new(&memory[place..place + len]),
                    None => IoSlice::new(&[0; ACK_BYTES]),
                })
                .collect();
            send_all(&mut stream, slices)?;
        }
        answers.clear();
    }
}

fn header(bytes: &[u8]) -> anyhow::Result<Option<(Kind, usize, usize)>> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let kind = match header[0] {
        1 => Kind::Read,
        2 => Kind::Write,
        3 => Kind::Message,
        _ => bail!("unknown kind"),
    };
    let len = u32::from_le_bytes(header[4..8].try_into().expect("4 bytes"));
    let place = u64::from_le_bytes(header[8..].try_into().expect("8 bytes"));
    Ok(Some((kind, len as usize, usize::try_from(place)?)))
}

fn send_all(stream: &mut TcpStream, mut slices: Vec<IoSlice<'_>>) -> io::Result<()> {
    let mut left = slices.as_mut_slice();
    while !left.is_empty() {
        match stream.write_vectored(left)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            sent => IoSlice::advance_slices(&mut left, sent),
        }
    }
    Ok(())
}

/// The other end of it.
pub(super) struct Client {
    stream: TcpStream,
    readable: Readable,
    /// Answers land here.
    inbox: Buffer,
    /// Bytes of the next answer that have arrived.
    arrived: usize,
    headers: Vec<[u8; HEADER_BYTES]>,
}

impl Client {
    pub(super) fn connect(address: SocketAddr) -> anyhow::Result<Self> {
        let stream = TcpStream::connect(address).context("reach the raw server")?;
        stream.set_nodelay(true)?;
        let readable = Readable::new(&stream)?;
        Ok(Self {
            stream,
            readable,
            inbox: Buffer::new(INBOX_BYTES, INBOX_SKEW),
            arrived: 0,
            headers: Vec::with_capacity(SLICES),
        })
    }

    /// Sends a request for each place, all at once.
    pub(super) fn send(&mut self, kind: Kind, local: &[u8], places: &[u64]) -> io::Result<()> {
        let len = u32::try_from(local.len()).expect("sizes are small");
        self.headers.clear();
        self.headers.extend(places.iter().map(|place| {
            let mut header = [0; HEADER_BYTES];
            header[0] = kind as u8;
            header[4..8].copy_from_slice(&len.to_le_bytes());
            header[8..].copy_from_slice(&place.to_le_bytes());
            header
        }));
        let mut slices = Vec::with_capacity(2 * places.len());
        if kind == Kind::Read {
            slices.push(IoSlice::new(self.headers.as_flattened()));
        } else {
            for header in &self.headers {
                slices.extend([IoSlice::new(header), IoSlice::new(local)]);
            }
        }
        send_all(&mut self.stream, slices)
    }

    /// Waits for answers; returns how many became whole.
    pub(super) fn receive(&mut self, kind: Kind, len: usize) -> anyhow::Result<usize> {
        let whole = if kind == Kind::Read { len } else { ACK_BYTES };
        loop {
            self.readable.wait()?;
            match self.stream.read(self.inbox.bytes())? {
                0 => bail!("the raw server hung up"),
                received => self.arrived += received,
            }
            let answers = self.arrived / whole;
            self.arrived %= whole;
            if answers > 0 {
                return Ok(answers);
            }
        }
    }
}

/// An epoll set of one socket.
struct Readable(OwnedFd);

impl Readable {
    fn new(stream: &TcpStream) -> io::Result<Self> {
        // SAFETY: no pointers; the result is checked before it is owned.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just created, owned by nobody else.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: 0,
        };
        let (set, socket) = (epoll.as_raw_fd(), stream.as_raw_fd());
        // SAFETY: `event` is valid for the call.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, socket, &raw mut event) } {
            0 => Ok(Self(epoll)),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn wait(&self) -> io::Result<()> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        loop {
            // SAFETY: room for the one event that is asked for.
            if unsafe { libc::epoll_wait(self.0.as_raw_fd(), &raw mut event, 1, -1) } == 1 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
