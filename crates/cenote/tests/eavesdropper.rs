//! What somebody hears who listens to the network beneath a cluster: nothing of what is stored,
//! unless it was told to go in the clear. Without network namespaces it is left out, and the
//! key-value store without etcd.

mod support;

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketFlags, SocketType, recv, socket_with};
use support::lab::{Lab, VOLUME};
use support::memcached::{connect, with_value};
use support::nbd::Client;
use support::net::Net;
use support::well::Well;

/// What nobody else is to hear.
const SECRET: &[u8] = b"what nobody else is to hear ";

/// So many bytes of it.
fn secret(len_bytes: usize) -> Vec<u8> {
    SECRET.iter().copied().cycle().take(len_bytes).collect()
}

/// Does something on a machine of its own, whose processes reach each other only over its network.
/// Where there cannot be one it says so and does nothing.
fn on_a_machine(what: impl FnOnce() + Send) {
    const MACHINE: &str = "alone";
    if let Some(net) = Net::of([(MACHINE, "10.77.0.2")]) {
        net.inside(MACHINE, what);
    }
}

/// Hears all that the machine sends to itself or to others.
struct Eavesdropper(OwnedFd);

impl Eavesdropper {
    /// More than any test sends, as the kernel counts it.
    const BUFFER_BYTES: usize = 256 << 20;

    /// From now on, on the machine of this thread.
    fn new() -> Self {
        let everything = u16::try_from(libc::ETH_P_ALL).expect("as in a frame");
        let everything = NonZeroU32::new(everything.to_be().into()).map(Protocol::from_raw);
        let socket = socket_with(
            AddressFamily::PACKET,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            everything,
        );
        let socket = socket.expect("root may listen");
        set_socket_recv_buffer_size_force(&socket, Self::BUFFER_BYTES).expect("root may");
        Self(socket)
    }

    /// What it has heard over TCP.
    fn heard(self) -> Vec<Segment> {
        let mut frame = vec![0; 1 << 17];
        let mut heard = Vec::new();
        loop {
            match recv(&self.0, &mut frame[..], RecvFlags::DONTWAIT) {
                Ok((length, _)) => heard.extend(Segment::of(&frame[..length])),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return heard,
                Err(error) => panic!("{error}"),
            }
        }
    }
}

/// A segment of TCP over IPv4.
struct Segment {
    ports: [u16; 2],
    bytes: Vec<u8>,
}

impl Segment {
    fn of(frame: &[u8]) -> Option<Self> {
        let (ethernet, packet) = frame.split_at_checked(14)?;
        if !ethernet.ends_with(&[8, 0]) || *packet.get(9)? != 6 {
            return None;
        }
        let bytes = packet.get(usize::from(packet[0] & 15) * 4..)?;
        let port = |at: usize| Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?));
        Some(Self {
            ports: [port(0)?, port(2)?],
            bytes: bytes.to_vec(),
        })
    }

    fn tells_the_secret(&self) -> bool {
        let mut parts = self.bytes.windows(SECRET.len());
        parts.any(|part| part == SECRET)
    }
}

#[test]
fn what_nodes_tell_each_other_is_heard_by_nobody_unless_it_is_to_be_readable() {
    const VALUES: usize = 100;
    const VALUE_BYTES: usize = 1000;
    const PORTS: [u16; 3] = [11_211, 11_212, 11_213];
    let shape = ["--nodes", "3", "--code", "2+1", "--memory", "64M"];
    for (flags, is_readable) in [
        (&[][..], false),
        (&["--link-traffic", "encrypted"], false),
        (&["--link-traffic", "authenticated"], true),
        (&["--link-traffic", "plain"], true),
    ] {
        on_a_machine(|| {
            let up = [&shape[..], &["--port", "11211"], flags].concat();
            let Some(well) = Well::up(&up) else { return };
            let clients = well.clients();
            assert_eq!(
                clients,
                PORTS.map(|port| SocketAddr::from(([127, 0, 0, 1], port)))
            );
            let eavesdropper = Eavesdropper::new();
            let mut client = connect(clients[0]).unwrap();
            for key in 0..VALUES {
                let set = with_value(&format!("set key{key}"), &secret(VALUE_BYTES), "");
                assert_eq!(client.ask(&set).unwrap(), "STORED");
            }
            let heard = eavesdropper.heard();
            let is_clients = |heard: &&Segment| heard.ports.iter().any(|of| PORTS.contains(of));
            let (clients, links): (Vec<_>, Vec<_>) = heard.iter().partition(is_clients);
            // Clients have not asked for TLS.
            assert!(clients.iter().any(|heard| heard.tells_the_secret()));
            let told: usize = links.iter().map(|heard| heard.bytes.len()).sum();
            assert!(told > VALUES * VALUE_BYTES, "links have told {told} bytes");
            let is_heard = links.iter().any(|heard| heard.tells_the_secret());
            assert_eq!(is_heard, is_readable, "{flags:?}");
        });
    }
}

#[test]
fn pages_on_their_way_to_hosts_are_heard_by_nobody_unless_they_are_to_be_readable() {
    const LEN_BYTES: usize = 1 << 20;
    for (flags, is_readable) in [
        (&[][..], false),
        (&["--page-traffic", "encrypted"], false),
        (&["--page-traffic", "authenticated"], true),
        (&["--page-traffic", "plain"], true),
    ] {
        on_a_machine(|| {
            let up = [&["--transport", "tcp"][..], flags].concat();
            let lab = Lab::with_cluster(4, "rs:2+1", &up);
            let eavesdropper = Eavesdropper::new();
            // Clients come by a unix socket.
            let mut client = Client::connect(&lab.socket(), VOLUME);
            assert_eq!(client.write(0, &secret(LEN_BYTES)), Ok(()));
            let heard = eavesdropper.heard();
            let told: usize = heard.iter().map(|heard| heard.bytes.len()).sum();
            assert!(told > LEN_BYTES, "hosts were told {told} bytes");
            let is_heard = heard.iter().any(Segment::tells_the_secret);
            assert_eq!(is_heard, is_readable, "{flags:?}");
        });
    }
}
