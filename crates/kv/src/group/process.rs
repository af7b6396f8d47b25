//! Who takes part: a node's process, told from the one that had its name before.

use std::fmt;

/// One process of a node. A node that starts again is another process: what the former one
/// promised and held is gone.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Process {
    /// Number of the node in the cluster.
    pub node: u32,
    /// Random, or counted up: never the same twice.
    pub incarnation: u64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:x}", self.node, self.incarnation)
    }
}
