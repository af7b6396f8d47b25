//! Giving a store that has lost its data what live nodes know of it.
//!
//! Documents come first: a mark that this was done, the numbers and incarnations that were given away, the
//! configuration. Then the view of each group, but only when every process of it says that it has this very view,
//! and has heard of the mark: nobody has gone on by a later one that the store has lost, or ever will. The number is
//! raised by much, so that nothing of such a view can be mistaken for one of those that follow. Where a process is
//! missing the group waits for it, or for an operator.
//!
//! Invariants: a loss is believed when the store itself confirms it, not by what a watch told; each node that notices
//! one writes a new mark, so that nobody's word of an earlier loss counts.

use std::collections::BTreeMap;

use bytes::BytesMut;
use cenote_kv::group::process::Process;
use cenote_kv::group::view::View;
use cenote_kv::group::wire::encode_view;

use super::seeding::{State, Testimony};
use super::steward::{Ask, Notice, Steward};
use super::store::{EtcdError, Store, Swap};

/// How much greater the number of a view is that is written into a seeded store.
const STEP: u32 = 1 << 16;
/// How long each process of a view leaves the seeding of it to the one before, and how long between two tries.
const PAUSE_NS: u64 = 1_000_000_000;

impl Steward {
    /// Writes what the store lacks, as far as this node may.
    pub(super) fn seed(&mut self, store: &impl Store, ask: Ask<'_>, now: u64) {
        if self.seeding.is_foreign() {
            return;
        }
        if self.seeding.state == State::Doubted {
            match self.has_lost(store) {
                Ok(true) => {
                    tracing::warn!("etcd has lost what it had of this cluster: seed it again");
                    self.seeding.state = State::Lost;
                    self.seeding.losses += 1;
                }
                Ok(false) => self.seeding.state = State::Kept,
                Err(error) => return tracing::warn!(%error, "see whether etcd has lost its data"),
            }
        }
        if self.seeding.state == State::Lost {
            if let Err(error) = self.seed_documents(store) {
                return tracing::warn!(%error, "seed etcd");
            }
            self.seeding.state = State::Kept;
            self.seeding.due = now;
        }
        let me = self.me;
        let missing: Vec<usize> = self
            .views
            .iter()
            .filter(|(_, known)| known.revision.is_none() && known.view.has(me))
            .map(|(group, _)| *group)
            .collect();
        self.seeding.has_views_to_write = !missing.is_empty();
        if missing.is_empty() || now < self.seeding.due {
            return;
        }
        self.seeding.due = now + PAUSE_NS;
        let mut said = BTreeMap::new();
        for group in missing {
            if let Err(error) = self.seed_view(store, ask, group, &mut said) {
                return tracing::warn!(%error, group, "seed a view");
            }
        }
    }

    /// Asks the store whether it lacks what it seemed to lack. What it has is taken.
    fn has_lost(&mut self, store: &impl Store) -> Result<bool, EtcdError> {
        let mut has_lost = store.read(&self.keys.config())?.is_none();
        let missing = self
            .views
            .iter()
            .filter(|(_, known)| known.revision.is_none());
        for group in missing.map(|(group, _)| *group).collect::<Vec<_>>() {
            if let Some(entry) = store.read(&self.keys.view(group))? {
                self.take_view(group, &entry);
            }
            has_lost |= self.views[&group].revision.is_none();
        }
        Ok(has_lost)
    }

    fn seed_documents(&mut self, store: &impl Store) -> Result<(), EtcdError> {
        // The mark first: whoever finds the configuration finds it, too. One that is there may be older than this
        // loss, and who has heard of that need not have heard of this.
        let key = self.keys.seed();
        let mark = self.seeding.mark().to_string();
        let revision = store.read(&key)?.map_or(0, |entry| entry.mod_revision);
        let entry = match store.swap(&key, revision, mark.as_bytes(), None)? {
            Swap::Done(_) => store.read(&key)?,
            // Another's, of this moment.
            Swap::Changed(found) => found,
        };
        // What others have written, or this node before an answer was lost, is not to be written again.
        let there = store.list(&self.keys.prefix())?.entries;
        let has = |key: &str| there.iter().any(|entry| entry.key == key);
        for (node, name) in &self.names {
            let key = self.keys.id(*node);
            if !has(&key) {
                store.swap(&key, 0, name.as_bytes(), None)?;
            }
        }
        for (node, incarnation) in &self.seeding.incarnations {
            self.keys.raise_incarnation(store, *node, *incarnation)?;
        }
        if !has(&self.keys.config()) {
            store.swap(&self.keys.config(), 0, &self.config.to_bytes(), None)?;
        }
        if let Some(entry) = entry
            && let Some(seed) = self.seeding.take(&entry.value)
        {
            self.notices.push(Notice::Seeded(seed));
        }
        Ok(())
    }

    fn seed_view(
        &mut self,
        store: &impl Store,
        ask: Ask<'_>,
        group: usize,
        said: &mut BTreeMap<Process, Option<Testimony>>,
    ) -> Result<(), EtcdError> {
        let known = self.views[&group].clone();
        let view = known.view;
        for process in view.processes() {
            let testimony = said.entry(process).or_insert_with(|| ask(self, process));
            let is_the_same = testimony.as_ref().is_some_and(|testimony| {
                Some(testimony.seed) == self.seeding.seed
                    && testimony.views.get(&group) == Some(&view.number)
            });
            if !is_the_same {
                tracing::warn!(group, %process, ?testimony, view = view.number,
                    "its view is not written into the new etcd before this process has it, too");
                return Ok(());
            }
        }
        let raised = raised(&view);
        let mut bytes = BytesMut::new();
        encode_view(&raised, &mut bytes);
        match store.swap(&self.keys.view(group), known.instead, &bytes, None)? {
            Swap::Done(revision) => {
                tracing::warn!(
                    group,
                    view = raised.number,
                    "wrote its view into the new etcd"
                );
                self.stand(group, revision, raised, true);
            }
            Swap::Changed(Some(entry)) => self.take_view(group, &entry),
            Swap::Changed(None) => self.view_is_gone(group),
        }
        Ok(())
    }
}

/// A view as it is written into a store that has lost it.
pub(super) fn raised(view: &View) -> View {
    View {
        number: view.number + STEP,
        let_go: 0,
        ..view.clone()
    }
}

#[cfg(test)]
mod tests;
