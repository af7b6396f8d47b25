//! Asking a node how it is, as an observer: one question, one answer in pieces, blocking.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use cenote_fabric::{ClusterKey, WireProtection};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::frame::{Frame, PAYLOAD_BYTES_MAX, kind};
use super::handshake::{Handshake, Hello, OBSERVER};
use super::link::{Link, LinkError, OUT_BYTES_MAX, READ_BYTES, Received};

/// Far more than the report of as many groups as there may be.
const REPORT_BYTES_MAX: usize = 64 << 20;

/// Asks the node at `address` for its report.
///
/// # Errors
/// It cannot be reached, is no node of this cluster, says too much, or does not answer within `limit`.
pub fn report(
    address: SocketAddr,
    key: &ClusterKey,
    cluster: &str,
    limit: Duration,
) -> Result<Bytes, LinkError> {
    let deadline = Instant::now() + limit;
    let hello = Hello {
        cluster: cluster.to_owned(),
        node: OBSERVER,
        incarnation: 0,
        lane: 0,
        // As the node wants it.
        protection: WireProtection::Plain,
    };
    let mut poll = Poll::new()?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let both = Interest::READABLE | Interest::WRITABLE;
    poll.registry().register(&mut stream, Token(0), both)?;
    let (handshake, first) = Handshake::call(key, hello);
    let mut link = Link::new(stream, handshake, &first, OUT_BYTES_MAX);
    let mut events = Events::with_capacity(4);
    let mut scratch = vec![0; READ_BYTES];
    let mut answer = BytesMut::new();
    let mut is_whole = false;
    let mut asked = false;
    // What the socket does not say again.
    let mut is_unread = false;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(LinkError::Late);
        }
        let wait = if is_unread { Duration::ZERO } else { left };
        match poll.poll(&mut events, Some(wait)) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        if !link.check_connected()? {
            continue;
        }
        let received = link.receive(&mut scratch, true, |what| {
            if let Received::Frame(Frame { kind, payload }) = what
                && kind == kind::REPORT
            {
                answer.extend_from_slice(&payload);
                is_whole = payload.len() < PAYLOAD_BYTES_MAX;
            }
        });
        if answer.len() > REPORT_BYTES_MAX {
            let said = format!("a report of more than {REPORT_BYTES_MAX} bytes");
            return Err(io::Error::other(said).into());
        }
        if is_whole {
            return Ok(answer.freeze());
        }
        is_unread = received?;
        if link.is_open() && !asked {
            asked = true;
            link.send(kind::QUESTION, &[], &[])
                .map_err(|full| io::Error::other(full.to_string()))?;
        }
        link.flush()?;
    }
}
