//! Where a cluster's documents are in etcd, and what is claimed there: numbers of nodes, and their incarnations.

use cenote_kv::group::view::View;
use cenote_kv::group::wire::{NoMessage, decode_view};

use super::{
    ClusterConfig, DocumentError, NODES_MAX, NodeState, Registration, check_name, malformed,
};
use crate::NodeId;
use crate::etcd::Etcd;
use crate::injected_faults::{InjectedFault, is_injected};
use crate::layout::GROUPS_MAX;
use crate::store::Store;
use crate::store::{Entry, EtcdError, Swap};

/// Where a cluster's documents are.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DocumentKeys {
    cluster: String,
}

impl DocumentKeys {
    /// Of the cluster of this name.
    ///
    /// # Errors
    /// `Name`.
    pub fn of(cluster: &str) -> Result<Self, DocumentError> {
        check_name(cluster)?;
        Ok(Self {
            cluster: cluster.to_owned(),
        })
    }

    /// The cluster's name.
    #[must_use]
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// What every key of the cluster starts with.
    #[must_use]
    pub fn prefix(&self) -> String {
        format!("/cenote/kv/{}/", self.cluster)
    }

    /// Key of the configuration.
    #[must_use]
    pub fn config(&self) -> String {
        self.prefix() + "config"
    }

    /// What the keys of registrations start with.
    #[must_use]
    pub fn nodes(&self) -> String {
        self.prefix() + "node/"
    }

    /// Key of a node's registration.
    #[must_use]
    pub fn node(&self, node: NodeId) -> String {
        format!("{}{node:05}", self.nodes())
    }

    /// The node whose registration has this key.
    #[must_use]
    pub fn node_of(&self, key: &str) -> Option<NodeId> {
        number_after(key, &self.nodes())
    }

    /// Marks a node that runs: others are to have its places. False: it does not run.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn drain(&self, etcd: &Etcd, node: NodeId) -> Result<bool, DocumentError> {
        let key = self.node(node);
        let mut found = etcd.read(&key)?;
        loop {
            let Some(entry) = found else {
                return Ok(false);
            };
            let mut registration = Registration::parse(&key, &entry.value)?;
            registration.state = NodeState::Draining;
            let bytes = registration.to_bytes();
            match etcd.swap_value(&key, entry.mod_revision, &bytes)? {
                Swap::Done(_) => return Ok(true),
                Swap::Changed(other) => found = other,
            }
        }
    }

    /// The views of all groups that have one.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn read_views(&self, etcd: &Etcd) -> Result<Vec<(usize, View)>, DocumentError> {
        let entries = etcd.list(&self.views())?.entries.into_iter();
        let view = |entry: Entry| {
            let group = self.group_of(&entry.key)?;
            let view = decode_view(entry.value.into());
            let malformed = |error: NoMessage| DocumentError::Malformed {
                key: entry.key,
                why: error.to_string(),
            };
            Some(view.map(|view| (group, view)).map_err(malformed))
        };
        entries.filter_map(view).collect()
    }

    /// What the keys of views start with.
    #[must_use]
    pub fn views(&self) -> String {
        self.prefix() + "view/"
    }

    /// Key of a group's view.
    #[must_use]
    pub fn view(&self, group: usize) -> String {
        format!("{}{group:05}", self.views())
    }

    /// The group whose view has this key.
    #[must_use]
    pub fn group_of(&self, key: &str) -> Option<usize> {
        let digits = key.strip_prefix(&self.views())?;
        let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        let group = plain.then(|| digits.parse().ok()).flatten()?;
        (group < GROUPS_MAX).then_some(group)
    }

    /// Key of the mark that this store was seeded again after it had lost its data: a random number.
    #[must_use]
    pub fn seed(&self) -> String {
        self.prefix() + "seed"
    }

    /// Key of the turn to hand a partition over for balance: its value is that of the last one. Who claims it by
    /// compare-and-swap begins one, and nobody else does meanwhile.
    #[must_use]
    pub fn turn(&self) -> String {
        self.prefix() + "turn"
    }

    /// Key of the name that a number was given to.
    #[must_use]
    pub fn id(&self, node: NodeId) -> String {
        format!("{}{node:05}", self.ids())
    }

    fn incarnation(&self, node: NodeId) -> String {
        format!("{}incarnation/{node:05}", self.prefix())
    }

    /// An incarnation for a process of a node that no other process has or had: greater than all before, and not less
    /// than `floor`, a time, which tells processes of one cluster from those of an earlier one of its name. `mark` is
    /// random.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn claim_incarnation(
        &self,
        store: &impl Store,
        node: NodeId,
        floor: u64,
        mark: u64,
    ) -> Result<u64, DocumentError> {
        let key = self.incarnation(node);
        let mut found = store.read(&key)?;
        loop {
            let (revision, last) = last_of(found)?;
            if is_injected(InjectedFault::BlindClaim) {
                return Ok(floor.max(last + 1));
            }
            let next = floor.max(last + 1);
            // With the mark it is nobody else's value, which the swap would take for its own.
            match store.swap(&key, revision, format!("{next} {mark:x}").as_bytes(), None)? {
                Swap::Done(_) => return Ok(next),
                Swap::Changed(other) => found = other,
            }
        }
    }

    /// No process of a node gets this incarnation, or a smaller one, from now on.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub(crate) fn raise_incarnation(
        &self,
        store: &impl Store,
        node: NodeId,
        least: u64,
    ) -> Result<(), EtcdError> {
        let key = self.incarnation(node);
        let mut found = store.read(&key)?;
        loop {
            // What cannot be read is written again.
            let revision = found.as_ref().map_or(0, |entry| entry.mod_revision);
            let last = last_of(found).map_or(0, |(_, last)| last);
            if last >= least {
                return Ok(());
            }
            match store.swap(&key, revision, format!("{least} 0").as_bytes(), None)? {
                Swap::Done(_) => return Ok(()),
                Swap::Changed(other) => found = other,
            }
        }
    }

    fn ids(&self) -> String {
        self.prefix() + "id/"
    }

    /// Reads the configuration.
    ///
    /// # Errors
    /// `NoCluster`, or it makes no sense.
    pub fn read_config(&self, etcd: &Etcd) -> Result<ClusterConfig, DocumentError> {
        let key = self.config();
        match etcd.read(&key)? {
            Some(entry) => ClusterConfig::parse(&key, &entry.value),
            None => Err(DocumentError::NoCluster(self.cluster.clone())),
        }
    }

    /// The nodes that are registered.
    ///
    /// # Errors
    /// etcd; a registration makes no sense.
    pub fn registrations(&self, etcd: &Etcd) -> Result<Vec<Registration>, DocumentError> {
        let listing = etcd.list(&self.nodes())?;
        let entries = listing.entries.iter();
        entries
            .map(|entry| Registration::parse(&entry.key, &entry.value))
            .collect()
    }

    /// Makes the cluster, unless it is there with the very same configuration.
    ///
    /// # Errors
    /// `Another`, or the configuration makes no sense.
    pub fn found(&self, etcd: &Etcd, config: &ClusterConfig) -> Result<(), DocumentError> {
        let key = self.config();
        config.check(&key)?;
        match etcd.swap(&key, 0, &config.to_bytes(), None)? {
            Swap::Done(_) => Ok(()),
            Swap::Changed(_) => Err(DocumentError::Another(self.cluster.clone())),
        }
    }

    /// The number of the node of this name: the one it was given before, or the next.
    ///
    /// # Errors
    /// `Full`, `Name`, or what is there makes no sense.
    pub fn claim_number(&self, etcd: &Etcd, name: &str) -> Result<NodeId, DocumentError> {
        check_name(name)?;
        loop {
            let names = self.numbers(etcd)?;
            if let Some((node, _)) = names.iter().find(|(_, given)| given == name) {
                return Ok(*node);
            }
            let next = names.iter().map(|(node, _)| node.0 + 1).max().unwrap_or(0);
            if next as usize >= NODES_MAX {
                return Err(DocumentError::Full);
            }
            let key = self.id(NodeId(next));
            if let Swap::Done(_) = etcd.swap(&key, 0, name.as_bytes(), None)? {
                return Ok(NodeId(next));
            }
            // Another node was faster: look again, since each failure is another's success.
        }
    }

    /// Every number that was given away, with its node's name.
    ///
    /// # Errors
    /// What is there makes no sense.
    pub fn numbers(&self, etcd: &Etcd) -> Result<Vec<(NodeId, String)>, DocumentError> {
        let entries = etcd.list(&self.ids())?.entries;
        entries.into_iter().map(|entry| self.given(entry)).collect()
    }

    fn given(&self, entry: Entry) -> Result<(NodeId, String), DocumentError> {
        let node = number_after(&entry.key, &self.ids())
            .ok_or_else(|| malformed(&entry.key, "not a node's number".into()))?;
        let name = String::from_utf8(entry.value)
            .map_err(|_| malformed(&entry.key, "a name that is not UTF-8".into()))?;
        check_name(&name)?;
        Ok((node, name))
    }
}

fn number_after(key: &str, prefix: &str) -> Option<NodeId> {
    let digits = key.strip_prefix(prefix)?;
    let plain = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| digits.parse().ok()).flatten()?;
    ((number as usize) < NODES_MAX).then_some(NodeId(number))
}

/// The revision of a claim and the incarnation that it names; none: 0 and 0.
fn last_of(found: Option<Entry>) -> Result<(i64, u64), DocumentError> {
    let Some(entry) = found else {
        return Ok((0, 0));
    };
    let text = std::str::from_utf8(&entry.value).ok();
    let number = text.and_then(|text| text.split(' ').next()?.parse().ok());
    // Later ones are to fit, too.
    let number = number.filter(|number| *number < u64::MAX / 2);
    let number = number.ok_or_else(|| malformed(&entry.key, "not an incarnation".into()))?;
    Ok((entry.mod_revision, number))
}
