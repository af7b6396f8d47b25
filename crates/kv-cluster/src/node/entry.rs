//! What a node learns from etcd before it is one: its cluster, its number and its incarnation.
//!
//! Nobody hears of the node by that, so it may be given up at any time. Calls to etcd block, and are
//! made again while etcd is silent: a thread makes them, which is left behind when the node is to stop.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, SystemTime};

use cenote_memcached::threads;

use super::super::NodeId;
use super::super::config::{ClusterConfig, DocumentError, DocumentKeys, KeyFingerprint};
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
