//! Beginning lost partitions anew: a view that nobody of the group would ask for, since it takes a loss
//! for granted. An operator does.

use bytes::BytesMut;

use super::config::{DocumentError, NodeState, Place, Registration};
use super::etcd::{Etcd, Swap};
use crate::group::process::Process;
use crate::group::view::View;
use crate::group::wire::{decode_view, encode_view};

/// What came of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Anew {
    /// The group has lost nothing, or has no view.
    Nothing,
    /// A node has this partition now, empty.
    Begun {
        /// Its number in the group.
        partition: usize,
        /// Who has it.
        process: Process,
    },
    /// Every node that runs and is not drained has a place in the group already.
    NoNode,
    /// What is left of the group is on its way to other nodes, or still depends on what was lost.
    NotCalm,
}

impl Place {
    /// Has a node begin the first lost partition of a group anew, empty: the one of the plan (`homes`, nodes of
    /// the group's slots, data first) where it has no other place in the group.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn begin_anew(
        &self,
        etcd: &Etcd,
        group: usize,
        homes: &[u32],
    ) -> Result<Anew, DocumentError> {
        let key = self.view(group);
        let mut found = etcd.read(&key)?;
        loop {
            let Some(entry) = found else {
                return Ok(Anew::Nothing);
            };
            let malformed = |why: String| DocumentError::Malformed {
                key: key.clone(),
                why,
            };
            let view =
                decode_view(entry.value.into()).map_err(|error| malformed(error.to_string()))?;
            if view.lost() == 0 {
                return Ok(Anew::Nothing);
            }
            let partition = view.lost().trailing_zeros() as usize;
            let spares = self.spares(etcd, &view)?;
            let of_plan = |process: &&Process| homes.get(partition) == Some(&process.node);
            let spare = spares.iter().find(of_plan).or(spares.first()).copied();
            let Some(process) = spare else {
                return Ok(Anew::NoNode);
            };
            let Some(next) = view.with_anew(partition, process) else {
                return Ok(Anew::NotCalm);
            };
            let mut bytes = BytesMut::new();
            encode_view(&next, &mut bytes);
            match etcd.swap(&key, entry.mod_revision, &bytes, None)? {
                Swap::Done(_) => return Ok(Anew::Begun { partition, process }),
                Swap::Changed(other) => found = other,
            }
        }
    }

    /// Processes that may take a place in a group.
    fn spares(&self, etcd: &Etcd, view: &View) -> Result<Vec<Process>, DocumentError> {
        let inside = view.processes();
        let mut spares = Vec::new();
        for entry in etcd.list(&self.nodes())?.entries {
            let Some(node) = self.node_of(&entry.key) else {
                continue;
            };
            let registration = Registration::parse(&entry.key, &entry.value)?;
            let is_inside = inside.iter().any(|process| process.node == node.0);
            if registration.state == NodeState::Up && !is_inside {
                spares.push(Process {
                    node: node.0,
                    incarnation: registration.incarnation,
                });
            }
        }
        Ok(spares)
    }
}
