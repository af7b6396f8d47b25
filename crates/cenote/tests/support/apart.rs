//! A cluster of key-value nodes that are each on a machine of its own in the sense of [`super::net`],
//! as are etcd and the test.

use std::net::SocketAddr;
use std::ops::Deref;

use cenote_kv_cluster::etcd::{EtcdServer, ServerError};

use super::net::Net;
use super::well::Well;

pub const NODES: [&str; 5] = ["n00", "n01", "n02", "n03", "n04"];
pub const ETCD: &str = "etcd";
const TEST: &str = "test";

/// Five nodes with five groups of 3+2, an etcd and a test.
pub struct Apart {
    // Ended in this order.
    well: Well,
    _etcd: EtcdServer,
    pub net: Net,
}

impl Deref for Apart {
    type Target = Well;

    fn deref(&self) -> &Well {
        &self.well
    }
}

impl Apart {
    /// Does something where all nodes are reached. Without namespaces or etcd it says so and does nothing.
    pub fn with(what: impl FnOnce(&Self) + Send) {
        match Self::up() {
            Ok(apart) => apart.net.inside(TEST, || what(&apart)),
            Err(reason) => println!("skipped: {reason}"),
        }
    }

    fn up() -> Result<Self, String> {
        let mut net = Net::new().map_err(|reason| format!("network namespaces: {reason}"))?;
        for name in NODES.into_iter().chain([ETCD, TEST]) {
            net.add(name, &address_of(name))?;
        }
        let well = Well::empty();
        let url = format!("http://{}:2379", address_of(ETCD));
        let etcd = net.inside(ETCD, || {
            let etcd = match EtcdServer::start_at(&well.path("etcd"), &url, |_| ()) {
                Err(error @ ServerError::Missing) => return Err(error.to_string()),
                other => other.expect("etcd starts"),
            };
            // Made here, and then run where its nodes belong.
            let made = ["up", "--memory", "256M", "--etcd", &url];
            well.run(&made).expect(0);
            well.run(&["down"]).expect(0);
            Ok(etcd)
        })?;
        let apart = Self {
            well,
            _etcd: etcd,
            net,
        };
        for name in NODES {
            let (listen, clients) = (address_of(name), clients_of(name).to_string());
            let arguments = ["join", "--name", name, "--etcd", &url, "--listen", &listen];
            let program = apart.net.cenote(name);
            let arguments = [&arguments[..], &["--clients", &clients]].concat();
            apart.well.run_by(program, &arguments).expect(0);
        }
        apart.net.inside(TEST, || apart.until_whole());
        Ok(apart)
    }

    /// Nothing goes between a machine and others any more, either way.
    pub fn part(&self, one: &str, others: &[&str]) {
        for other in others {
            self.net.mute(one, &address_of(other));
            self.net.mute(other, &address_of(one));
        }
    }

    /// Ends [`Apart::part`].
    pub fn unite(&self, one: &str, others: &[&str]) {
        for other in others {
            self.net.unmute(one, &address_of(other));
            self.net.unmute(other, &address_of(one));
        }
    }
}

pub fn address_of(name: &str) -> String {
    let number = match name {
        TEST => 2,
        ETCD => 3,
        node => 10 + node[1..].parse::<u8>().expect("as in n03"),
    };
    format!("10.77.0.{number}")
}

/// Where clients connect.
pub fn clients_of(name: &str) -> SocketAddr {
    let address = format!("{}:11211", address_of(name));
    address.parse().expect("an address")
}
