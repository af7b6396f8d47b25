//! What a node learns from etcd before it is one: its cluster, its number and its incarnation.
//!
//! Nobody hears of the node by that, so it may be given up at any time. Calls to etcd block, and are
//! made again while etcd is silent: a thread makes them, which is left behind when the node is to stop.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use cenote_memcached::threads;

use super::super::NodeId;
use super::super::config::{
    ClusterConfig, DocumentError, DocumentKeys, KeyFingerprint, Registration,
};
use super::super::etcd::Etcd;
use super::{NodeConfig, NodeError, Stop, os, random};

/// How long etcd may be silent when a node starts: less than who starts it waits for.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How often a node that waits looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// See the module's text.
pub(super) struct Entry {
    pub(super) etcd: Etcd,
    pub(super) keys: DocumentKeys,
    pub(super) cluster: Arc<ClusterConfig>,
    pub(super) id: NodeId,
    /// The nodes that have numbers.
    pub(super) names: Vec<(NodeId, String)>,
    /// By group: the nodes of the plan, data first.
    pub(super) plan: Vec<Vec<NodeId>>,
    pub(super) incarnation: u64,
}

impl Entry {
    /// Asks etcd; `None`: the node is to stop, and has no answer yet.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub(super) fn ask(config: &NodeConfig, stop: &Stop) -> Result<Option<Self>, NodeError> {
        let (tell, told) = mpsc::channel();
        let config = config.clone();
        // Nobody listens any more once the node is to stop.
        let ask = move || drop(tell.send(Self::of(&config)));
        threads::spawn("entry", ask).map_err(os("start a thread"))?;
        loop {
            match told.recv_timeout(LOOK) {
                Ok(entry) => return entry.map(Some),
                Err(RecvTimeoutError::Timeout) if stop.is_asked() => return Ok(None),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => unreachable!("its panic ends the process"),
            }
        }
    }

    fn of(config: &NodeConfig) -> Result<Self, NodeError> {
        let etcd = Etcd::with(
            &config.etcd,
            config.credentials.clone(),
            config.tls.as_ref(),
        )?;
        // Without these answers there is nothing that it could do.
        let asked = etcd.patient(START_PATIENCE);
        let keys = DocumentKeys::of(&config.cluster)?;
        let cluster = Arc::new(keys.read_config(&asked)?);
        if KeyFingerprint::of(&config.key, &config.cluster) != cluster.key {
            return Err(NodeError::Key(config.cluster.clone()));
        }
        let id = keys.claim_number(&asked, &config.name)?;
        let names = keys.numbers(&asked)?;
        let plan = plan(&names, &keys, &cluster)?;
        let peers = keys.registrations(&asked)?;
        let others = peers.iter().filter(|peer| peer.name != config.name);
        check_listen(config.listen, others)?;
        let floor = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let floor = floor.map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(0));
        let incarnation = keys.claim_incarnation(&asked, id, floor, random()?)?;
        Ok(Self {
            etcd,
            keys,
            cluster,
            id,
            names,
            plan,
            incarnation,
        })
    }
}

/// Peers connect to the address that a node listens at: it has to be one that leads here from where
/// they are.
fn check_listen<'a>(
    listen: IpAddr,
    mut peers: impl Iterator<Item = &'a Registration>,
) -> Result<(), NodeError> {
    if listen.is_unspecified() {
        return Err(NodeError::Listen(
            listen,
            "is no address to connect to".to_owned(),
        ));
    }
    let is_elsewhere = |at: &&SocketAddr| !at.ip().is_loopback();
    let elsewhere =
        peers.find_map(|peer| Some((&peer.name, peer.peers.iter().find(is_elsewhere)?)));
    match elsewhere {
        Some((name, at)) if listen.is_loopback() => Err(NodeError::Listen(
            listen,
            format!("leads to this machine alone, and node {name} is at {at}"),
        )),
        _ => Ok(()),
    }
}

/// By group: the nodes of the plan, data first.
fn plan(
    numbers: &[(NodeId, String)],
    keys: &DocumentKeys,
    config: &ClusterConfig,
) -> Result<Vec<Vec<NodeId>>, NodeError> {
    let malformed = || DocumentError::Malformed {
        key: keys.config(),
        why: "a node of the plan has no number".to_owned(),
    };
    let seats = config.plan(numbers).ok_or_else(malformed)?;
    let group = |group| seats.group(group).to_vec();
    Ok((0..config.groups).map(group).collect())
}

#[cfg(test)]
mod tests {
    use super::super::super::config::{NodeState, VERSION};
    use super::*;

    #[test]
    fn a_node_that_peers_cannot_connect_to_does_not_begin() {
        let peer = |at: &str| Registration {
            version: VERSION,
            name: "n01".to_owned(),
            clients: Vec::new(),
            peers: vec![at.parse().expect("an address")],
            incarnation: 1,
            state: NodeState::Up,
        };
        let (here, away) = (peer("127.0.0.1:7"), peer("10.0.0.2:7"));
        let judged = |listen: &str, peers: &[&Registration]| {
            let listen = listen.parse().expect("an address");
            let judged = check_listen(listen, peers.iter().copied());
            judged.err().map(|error| error.to_string())
        };
        for (listen, peers) in [
            ("127.0.0.1", &[][..]),
            ("127.0.0.1", &[&here]),
            ("::1", &[&here]),
            ("10.0.0.1", &[&here, &away]),
        ] {
            assert_eq!(judged(listen, peers), None, "{listen}");
        }
        let said = judged("127.0.0.1", &[&here, &away]).expect("it cannot be reached");
        assert!(said.contains("node n01 is at 10.0.0.2:7"), "{said}");
        for listen in ["0.0.0.0", "::"] {
            let said = judged(listen, &[]).expect("it cannot be reached");
            assert!(said.contains("is no address to connect to"), "{said}");
        }
    }
}
