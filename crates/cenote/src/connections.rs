//! Connections of a server that strangers reach: so many at once, so many of them from one address, and
//! the oldest goes for the newest. Refusing the newest would let whoever holds all places keep them.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Pause after an accept failed for want of descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Those that are open, the oldest first.
#[derive(Debug)]
pub struct Connections {
    open: VecDeque<(IpAddr, AbortHandle)>,
    count_max: usize,
    /// From one address, so that one address cannot push out all others.
    source_max: usize,
}

impl Connections {
    /// None yet.
    pub fn new(count_max: usize, source_max: usize) -> Self {
        Self {
            open: VecDeque::new(),
            count_max,
            source_max,
        }
    }

    /// Takes connections for ever, each of which `converse` serves as a task; `dropped` is called for
    /// each that goes for another one.
    ///
    /// # Errors
    /// The listener is of no use.
    pub async fn accept<C: Future<Output = ()> + Send + 'static>(
        mut self,
        listener: std::net::TcpListener,
        page: &'static str,
        mut converse: impl FnMut(TcpStream, SocketAddr) -> C,
        dropped: impl Fn(),
    ) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, page, "accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let source = peer.ip().to_canonical();
            if self.make_room(source) {
                tracing::debug!(%source, page, "close the oldest connection: there are too many");
                dropped();
            }
            let task = tokio::spawn(converse(stream, peer));
            self.add(source, task.abort_handle());
        }
    }

    /// Has a connection end if one more from `source` were too many; whether it had to.
    fn make_room(&mut self, source: IpAddr) -> bool {
        let source = network_of(source);
        self.open.retain(|(_, task)| !task.is_finished());
        let alike = self.open.iter().filter(|(from, _)| *from == source);
        let victim = if alike.count() >= self.source_max {
            self.open.iter().position(|(from, _)| *from == source)
        } else if self.open.len() >= self.count_max {
            Some(0)
        } else {
            None
        };
        let victim = victim.and_then(|index| self.open.remove(index));
        if let Some((_, task)) = &victim {
            task.abort();
        }
        victim.is_some()
    }

    /// One more, after [`Connections::make_room`].
    fn add(&mut self, source: IpAddr, task: AbortHandle) {
        self.open.push_back((network_of(source), task));
    }
}

/// What one machine has of addresses: of IPv6 it takes as many as it likes within 64 bits.
fn network_of(source: IpAddr) -> IpAddr {
    match source.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_of_ipv6_are_one_source() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1:2:3"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("::ffff:192.0.2.1"), network("::ffff:192.0.2.2"));
    }
}
