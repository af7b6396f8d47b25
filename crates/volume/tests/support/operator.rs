//! Tells real hosts to drain, over a connection of its own.

use std::time::{Duration, Instant};

use cenote_fabric::{ClientId, Connector, Hello, Incoming, Session, wait};
use cenote_pool::control::{Drain, HostStatus, Reply, Request};

use super::Cluster;

/// Somebody who tells a host to drain and looks at it.
pub struct Operator(Box<dyn Session>);

impl Operator {
    pub fn of(cluster: &Cluster, host: usize) -> Self {
        let hello = Hello {
            client: ClientId(99),
            name: "operator".into(),
        };
        let connector: std::sync::Arc<dyn Connector> = cluster.connector();
        let address = &cluster.configs[host].address;
        let limit = Duration::from_secs(10);
        Self(connector.connect(address, &hello, limit).unwrap())
    }

    fn ask(&mut self, request: &Request) -> HostStatus {
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.0.send(&bytes).unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            match self.0.receive().unwrap() {
                Some(Incoming::Message(bytes)) => match Reply::decode(&bytes).unwrap() {
                    Reply::Status(status) => return *status,
                    other => panic!("{other:?}"),
                },
                Some(other) => panic!("{other:?}"),
                None => {}
            }
            assert!(Instant::now() < deadline, "no answer");
            wait(self.0.fd().as_slice(), Some(Duration::from_millis(50))).unwrap();
        }
    }

    pub fn drain(&mut self, how: Drain) {
        self.ask(&Request::Drain(how));
    }

    pub fn status(&mut self) -> HostStatus {
        self.ask(&Request::Status)
    }
}
