//! Connections of a server that strangers reach: so many at once, so many of them from one address, and
//! the oldest goes for the newest. Refusing the newest would let whoever holds all places keep them.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};

use tokio::task::AbortHandle;

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

    /// Has a connection end if one more from `source` were too many; whether it had to.
    pub fn make_room(&mut self, source: IpAddr) -> bool {
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
    pub fn add(&mut self, source: IpAddr, task: AbortHandle) {
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
