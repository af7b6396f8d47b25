//! Views that nobody of a group would ask for, since they take a loss for granted. An operator does.
//!
//! A process that is not registered may live, cut off from etcd: only whoever can see that it has ended may say
//! that what it has is lost. Then what is lost starts from scratch, empty; all of the group, if nobody is left of it.

use bytes::BytesMut;
use cenote_kv::group::process::Process;
use cenote_kv::group::view::View;
use cenote_kv::group::wire::{decode_view, encode_view};

use super::NodeId;
use super::config::{DocumentError, DocumentKeys, NodeState, Registration};
use super::etcd::Etcd;
use super::seeder::raised;
use super::store::{Entry, Store, Swap};

/// What came of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Reset {
    /// The group has lost nothing, or never began.
    Nothing,
    /// A node has this partition now, empty.
    Begun {
        /// Its number in the group.
        partition: usize,
        /// Who has it.
        process: Process,
    },
    /// Nobody was left of the group: it has started from scratch with these processes, data first.
    AllBegun(Vec<Process>),
    /// These processes count as ended: what only they had is lost.
    GivenUp(Vec<Process>),
    /// Etcd had lost the group's view: it has it again, by the word of those who are left.
    Restored(u32),
    /// This process is not registered, but others hear it.
    Lives(Process),
    /// Not enough nodes that run and are not drained, and have no place in the group already.
    NoNode,
    /// What is left of the group is on its way to other nodes, or still depends on what was lost.
    NotCalm,
}

/// What an operator's command knows besides what etcd has.
pub struct Sight<'a> {
    /// Nodes of the group's slots by the plan, data first.
    pub homes: &'a [u32],
    /// The latest view of the group that any node has.
    pub latest: Option<View>,
    /// A view of the group's shape in which nobody has anything.
    pub nothing: View,
    /// Whether any node hears a process.
    pub is_heard: &'a dyn Fn(Process) -> bool,
}

impl DocumentKeys {
    /// Takes one step towards a group in which nothing is lost.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn begin_reset(
        &self,
        store: &impl Store,
        group: usize,
        sight: &Sight<'_>,
    ) -> Result<Reset, DocumentError> {
        let key = self.view(group);
        let mut found = store.read(&key)?;
        loop {
            let view = found.as_ref().map(view_of).transpose()?;
            let revision = found.as_ref().map_or(0, |entry| entry.mod_revision);
            let nodes = self.registered(store)?;
            let step = match (&view, &sight.latest) {
                // Etcd came back from a backup: what it has is over.
                (Some(view), Some(latest)) if latest.number > view.number => restore(latest),
                (Some(view), _) => self.step(view, &nodes, sight),
                (None, Some(latest)) => restore(latest),
                // Its view was lost with etcd's data, and then all of its processes were.
                (None, None) if store.read(&self.seed())?.is_some() => {
                    reset_all(&sight.nothing, &spares(&nodes, None), sight.homes)
                }
                (None, None) => return Ok(Reset::Nothing),
            };
            let (done, next) = match step {
                Step::None(why) => return Ok(why),
                Step::To(done, next) => (done, next),
            };
            let mut bytes = BytesMut::new();
            encode_view(&next, &mut bytes);
            // Who is given up by this must not have registered since.
            let given_up = view.iter().flat_map(View::processes);
            let given_up = given_up.filter(|process| !next.has(*process));
            let others: Vec<(String, i64)> = given_up
                .map(|process| {
                    let key = self.node(NodeId(process.node));
                    let known = nodes.iter().find(|one| one.process.node == process.node);
                    (key, known.map_or(0, |one| one.revision))
                })
                .collect();
            match store.swap_with(&key, revision, &bytes, &others)? {
                Swap::Done(_) => return Ok(done),
                Swap::Changed(other) => found = other,
            }
        }
    }

    /// Processes that are registered, of nodes with these names.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn processes_of(&self, etcd: &Etcd, names: &[&str]) -> Result<Vec<Process>, DocumentError> {
        let numbers = self.numbers(etcd)?;
        let is_one = |process: &Process| {
            let mut all = numbers.iter();
            let name = all.find(|(node, _)| node.0 == process.node);
            name.is_some_and(|(_, name)| names.contains(&name.as_str()))
        };
        let registered = self.registered(etcd)?.into_iter();
        let processes = registered.map(|one| one.process);
        Ok(processes.filter(is_one).collect())
    }

    /// Forgets the views of groups of which every process has ended, as whoever ended them knows: these groups
    /// begin again when their nodes run. Where other processes run they would take a view that goes for a loss of
    /// etcd's data, and one that begins again for an older one: nothing is forgotten then, and the groups are returned.
    ///
    /// # Errors
    /// See [`DocumentError`].
    pub fn forget_ended(
        &self,
        etcd: &Etcd,
        ended: &[Process],
    ) -> Result<Vec<usize>, DocumentError> {
        let has_ended = |process: &Process| ended.contains(process);
        let views = self.read_views(etcd)?;
        let of_ended = |(group, view): &(usize, View)| {
            let is_over = view.processes().iter().all(has_ended);
            is_over.then_some(*group)
        };
        let groups: Vec<usize> = views.iter().filter_map(of_ended).collect();
        let nodes = self.registered(etcd)?;
        if !nodes.iter().all(|one| has_ended(&one.process)) {
            return Ok(groups);
        }
        for group in &groups {
            etcd.delete(&self.view(*group))?;
        }
        if groups.len() == views.len() && !views.is_empty() {
            etcd.delete(&self.seed())?;
        }
        Ok(Vec::new())
    }

    /// The view that is to follow this one.
    fn step(&self, view: &View, nodes: &[Registered], sight: &Sight<'_>) -> Step {
        let is_there = |process: &Process| nodes.iter().any(|one| one.process == *process);
        let (left, gone): (Vec<Process>, Vec<Process>) =
            view.processes().into_iter().partition(is_there);
        let after = view.without(|process| gone.contains(&process));
        let is_losing = |after: &View| after.lost() != view.lost();
        if let Some(next) = after.filter(is_losing) {
            if let Some(process) = gone.iter().find(|process| (sight.is_heard)(**process)) {
                return Step::None(Reset::Lives(*process));
            }
            if !left.is_empty() {
                return Step::To(Reset::GivenUp(gone), next);
            }
        }
        if left.is_empty() {
            return reset_all(view, &spares(nodes, None), sight.homes);
        }
        if view.lost() == 0 {
            return Step::None(Reset::Nothing);
        }
        let partition = view.lost().trailing_zeros() as usize;
        let spares = spares(nodes, Some(view));
        let of_plan = |process: &&Process| sight.homes.get(partition) == Some(&process.node);
        let Some(process) = spares.iter().find(of_plan).or(spares.first()).copied() else {
            return Step::None(Reset::NoNode);
        };
        match view.with_reset(partition, process) {
            Some(next) => Step::To(Reset::Begun { partition, process }, next),
            None => Step::None(Reset::NotCalm),
        }
    }

    /// Processes that run.
    fn registered(&self, store: &impl Store) -> Result<Vec<Registered>, DocumentError> {
        let mut all = Vec::new();
        for entry in store.list(&self.nodes())?.entries {
            let Some(node) = self.node_of(&entry.key) else {
                continue;
            };
            let found = Registration::parse(&entry.key, &entry.value)?;
            let process = Process {
                node: node.0,
                incarnation: found.incarnation,
            };
            all.push(Registered {
                process,
                state: found.state,
                revision: entry.mod_revision,
            });
        }
        Ok(all)
    }
}

/// A process that runs.
struct Registered {
    process: Process,
    /// Whether it takes new roles.
    state: NodeState,
    /// Of its key.
    revision: i64,
}

/// What is to be done.
enum Step {
    /// Nothing, and why.
    None(Reset),
    /// This view is to be agreed on.
    To(Reset, View),
}

/// Processes that may take a place in a group and have none in its view.
fn spares(nodes: &[Registered], view: Option<&View>) -> Vec<Process> {
    let inside = view.map(View::processes).unwrap_or_default();
    let is_inside = |node: u32| inside.iter().any(|process| process.node == node);
    nodes
        .iter()
        .filter(|one| one.state == NodeState::Up && !is_inside(one.process.node))
        .map(|one| one.process)
        .collect()
}

/// All of a group from scratch: on the nodes of the plan that are there, and others in place of those that are not.
fn reset_all(before: &View, spares: &[Process], homes: &[u32]) -> Step {
    let mut others: Vec<Process> = spares.to_vec();
    others.retain(|process| !homes.contains(&process.node));
    let mut others = others.into_iter();
    let count = before.partitions.len() + before.parities.len();
    let slots = (0..count).map(|slot| {
        let home = homes.get(slot);
        let home = spares.iter().find(|process| Some(&process.node) == home);
        home.copied().or_else(|| others.next())
    });
    let Some(players) = slots.collect::<Option<Vec<Process>>>() else {
        return Step::None(Reset::NoNode);
    };
    let (data, parities) = players.split_at(before.partitions.len());
    let next = View::beginning(before.number + 1, before.scheme, data, parities);
    Step::To(Reset::AllBegun(players), next)
}

/// The view that an entry has.
fn view_of(entry: &Entry) -> Result<View, DocumentError> {
    decode_view(entry.value.clone().into()).map_err(|error| DocumentError::Malformed {
        key: entry.key.clone(),
        why: error.to_string(),
    })
}

/// The view that those who are left of a group have.
fn restore(latest: &View) -> Step {
    let view = raised(latest);
    Step::To(Reset::Restored(view.number), view)
}

#[cfg(test)]
mod tests;
