//! What connects a [`Client`] to hosts: a session and a path to each that it uses.
//!
//! Stepped from outside with the time, as the manager is. What passes between a client and its owner is the
//! caller's.

use cenote_fabric::{Incoming, Session, Time, WindowDescriptor};

use crate::client::Client;
use crate::links::{Arrival, Dial, HostConfig, Linked};
use crate::path::{Batched, OneSided, Path};

/// A client with its connections.
pub struct Attached {
    /// Reads and writes.
    pub client: Client,
    hosts: Vec<Link>,
    dial: Box<dyn Dial>,
    depth: usize,
    /// Of paths to server threads.
    batch_requests: usize,
}

struct Link {
    config: HostConfig,
    session: Option<Box<dyn Session>>,
    is_dialling: bool,
    retry_at: Time,
}

impl Link {
    fn new(config: HostConfig) -> Self {
        Self {
            config,
            session: None,
            is_dialling: false,
            retry_at: Time(0),
        }
    }
}

/// Pause between attempts to reach a host.
const RECONNECT: std::time::Duration = std::time::Duration::from_millis(200);

impl Attached {
    /// Connects `client` to hosts as it needs them, with up to `depth` requests under way to each.
    #[must_use]
    pub fn new(client: Client, hosts: Vec<HostConfig>, dial: Box<dyn Dial>, depth: usize) -> Self {
        let hosts = hosts.into_iter().map(Link::new).collect();
        Self {
            client,
            hosts,
            dial,
            depth,
            batch_requests: 1,
        }
    }

    /// Packs up to so many requests into a message, where `dial` connects to server threads; the depth counts
    /// messages then.
    #[must_use]
    pub fn with_batches(self, batch_requests: usize) -> Self {
        Self {
            batch_requests,
            ..self
        }
    }

    /// A host by its number: one that is reached elsewhere by now, or the next that is new. Others are left aside.
    pub fn set_host(&mut self, number: usize, config: HostConfig) {
        if let Some(link) = self.hosts.get_mut(number) {
            if link.config.address != config.address {
                link.is_dialling = false;
                if link.session.take().is_some() {
                    // What it is connected to is not that host any more.
                    self.client.handle_session_ended(number);
                }
            }
            link.config = config;
        } else if number == self.hosts.len() {
            self.client.add_host();
            self.hosts.push(Link::new(config));
        }
    }

    /// Descriptors to wait for: of sessions. Those of paths are the client's.
    pub fn fds(&self) -> impl Iterator<Item = std::os::fd::RawFd> {
        let sessions = self.hosts.iter().filter_map(|link| link.session.as_ref());
        sessions.filter_map(|session| session.fd())
    }

    /// Takes what has come of connections and windows, without blocking. [`Client::poll`] goes with it.
    pub fn step(&mut self, now: Time) {
        while let Some(arrival) = self.dial.poll() {
            self.take_link(now, arrival);
        }
        for host in 0..self.hosts.len() {
            self.receive(now, host);
            let link = &mut self.hosts[host];
            if self.client.lacks_path(host) && !link.is_dialling && now >= link.retry_at {
                link.is_dialling = true;
                link.session = None;
                let address = link.config.address.clone();
                self.dial.dial(host, &address);
            }
        }
        while let Some((host, window)) = self.client.take_wanted() {
            let link = &mut self.hosts[host];
            let session = link.session.as_mut();
            let window = WindowDescriptor::from(window);
            let asked = session.map(|session| session.attach(window));
            if !matches!(asked, Some(Ok(()))) {
                self.client.handle_no_window(now, host, window);
            }
        }
    }

    fn take_link(&mut self, now: Time, arrival: Arrival) {
        let Arrival {
            host,
            address,
            linked,
        } = arrival;
        let link = &mut self.hosts[host];
        if link.config.address != address {
            // It is elsewhere by now, and is connected there.
            return;
        }
        link.is_dialling = false;
        link.retry_at = now.after(RECONNECT);
        if self.client.has_path(host) {
            // Of two attempts, as after a move there and back, another one came first. In place of its path
            // this one would leave requests that never end. Where the host ended the other session for this
            // one, that path is lost, and the host is connected to once more.
            return;
        }
        match linked {
            Ok(Linked {
                session,
                endpoint,
                calls,
            }) => {
                let path: Box<dyn Path> = match (endpoint, calls) {
                    (Some(endpoint), _) => Box::new(OneSided::new(endpoint, self.depth)),
                    (None, Some(calls)) => {
                        Box::new(Batched::new(calls, self.batch_requests, self.depth))
                    }
                    (None, None) => return,
                };
                link.session = Some(session);
                self.client.handle_path(host, path);
            }
            Err(error) => tracing::debug!(host, %error, "no path"),
        }
    }

    fn receive(&mut self, now: Time, host: usize) {
        let link = &mut self.hosts[host];
        let Some(session) = &mut link.session else {
            return;
        };
        loop {
            match session.receive() {
                Ok(Some(Incoming::Attached(_, Ok(window)))) => {
                    self.client.handle_window(host, window);
                }
                Ok(Some(Incoming::Attached(window, Err(error)))) => {
                    tracing::debug!(host, %error, "no window");
                    self.client.handle_no_window(now, host, window);
                }
                Ok(Some(_)) => {}
                Ok(None) => return,
                Err(_) => {
                    link.session = None;
                    link.retry_at = now.after(RECONNECT);
                    return self.client.handle_session_ended(host);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use bytes::BytesMut;
    use cenote_fabric::{Address, ClientId, Error, Hello, Listen, sim};
    use cenote_fabric::{Region, RegionOptions, Rights};
    use cenote_pool::control::Window;

    use super::*;
    use crate::client::Geometry;
    use crate::links::Caller;
    use crate::owner::{Access, Copy, Entry};

    /// Attempts to connect that end when a test says so.
    #[derive(Clone, Default)]
    struct Attempts {
        begun: Arc<Mutex<Vec<Address>>>,
        ended: Arc<Mutex<VecDeque<Arrival>>>,
    }

    impl Dial for Attempts {
        fn dial(&mut self, _: usize, address: &Address) {
            self.begun.lock().unwrap().push(address.clone());
        }

        fn poll(&mut self) -> Option<Arrival> {
            self.ended.lock().unwrap().pop_front()
        }
    }

    const GEOMETRY: Geometry = Geometry {
        slab_bytes: 1 << 20,
        slabs_per_region: 1,
    };
    const NOW: Time = Time(1);

    fn at(port: u16) -> HostConfig {
        HostConfig {
            name: "h".to_owned(),
            address: format!("tcp:127.0.0.1:{port}").parse().unwrap(),
            domain: "d".to_owned(),
        }
    }

    /// A client of one region, whose host is at the first port at first.
    fn attached(window: Window, attempts: &Attempts) -> Attached {
        let client = Client::new(GEOMETRY, 1, Duration::from_secs(1));
        let mut client = client.with_clock(|| NOW);
        client.handle_lease(NOW, NOW);
        client.handle_entry(Entry {
            region: 0,
            generation: 1,
            access: Access::Open,
            copies: vec![Copy::new(0, vec![window])],
            losses: 0,
            fell_back_ms: 0,
            next: Vec::new(),
        });
        Attached::new(client, vec![at(1)], Box::new(attempts.clone()), 1)
    }

    #[test]
    fn a_host_that_moved_is_connected_where_it_is_whatever_comes_of_where_it_was() {
        let window = Window {
            id: 1,
            generation: 1,
            len_bytes: 1 << 20,
            rights: 7,
        };
        let attempts = Attempts::default();
        let mut attached = attached(window, &attempts);
        attached.step(NOW);
        attached.set_host(0, at(2));
        attached.step(NOW);
        let begun = || attempts.begun.lock().unwrap().clone();
        assert_eq!(begun(), [at(1).address, at(2).address]);
        let nobody = std::io::ErrorKind::TimedOut.into();
        attempts.ended.lock().unwrap().push_back(Arrival {
            host: 0,
            address: at(1).address,
            linked: Err(Error::os("connect".to_owned(), nobody)),
        });
        // The attempt that counts is under way still.
        attached.step(NOW.after(RECONNECT * 2));
        assert_eq!(begun().len(), 2);
    }

    #[test]
    fn a_host_that_moved_there_and_back_is_connected_and_requests_end() {
        let net = sim::Net::new(1, sim::Config::default());
        let mut listener = net.host(at(1).address, "h");
        let options = RegionOptions::default();
        let slab = Arc::new(Region::create("slab", GEOMETRY.slab_bytes, options).unwrap());
        let window = listener.register(slab, Rights::ALL).unwrap();
        let hello = Hello {
            client: ClientId(1),
            name: "c".to_owned(),
        };
        let caller = Caller {
            connector: Arc::new(net.client("c")),
            hello,
            with_data: true,
        };
        let attempts = Attempts::default();
        let mut attached = attached(window.into(), &attempts);
        attached.step(NOW);
        for port in [2, 1] {
            attached.set_host(0, at(port));
            attached.step(NOW);
        }
        assert_eq!(attempts.begun.lock().unwrap().len(), 3);
        let arrive = || {
            attempts.ended.lock().unwrap().push_back(Arrival {
                host: 0,
                address: at(1).address,
                linked: caller.connect(&at(1).address),
            });
        };
        let mut answered = 3;
        let mut read = |token, attached: &mut Attached| {
            let buffer = BytesMut::zeroed(8);
            attached.client.submit_read(NOW, 0, buffer, token).unwrap();
            arrive();
            let mut ended = Vec::new();
            for round in 0..50 {
                let now = NOW.after(Duration::from_millis(10) * round);
                attached.step(now);
                attached.client.poll(now, &mut ended);
                while net.step() {}
                listener
                    .poll(Some(Duration::ZERO), &mut Vec::new())
                    .unwrap();
                if attempts.begun.lock().unwrap().len() > answered {
                    answered += 1;
                    arrive();
                }
            }
            ended.iter().map(|one| one.token).collect::<Vec<_>>()
        };
        assert_eq!(read(1, &mut attached), [1]);
        // It is under way when the other attempt ends well, which ends the session of the first one.
        assert_eq!(read(2, &mut attached), [2]);
    }
}
