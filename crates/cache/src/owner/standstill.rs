//! Time that does not count: while nothing that was decided could be carried out, or heard of.
//!
//! A record that the disk refuses keeps back all that follows it, so nobody can answer; a process that
//! was stopped has heard nothing. Neither is a host's silence or a client's. Until such a time is over
//! nothing is given up, and what waits does not grow with the messages that come: entries are told
//! when it ends, as they are then. Decision 102.

use std::collections::BTreeSet;
use std::time::Duration;

use cenote_fabric::Time;

use super::clients::{ClientNumber, Role};
use super::host::HostIndex;
use super::region::Task;
use super::{Action, Entry, Life, Owner, Recording};

/// An owner that was not driven for longer stood still. Ten times its tick.
const STANDSTILL: Duration = Duration::from_secs(1);

impl Owner {
    /// The driver took [`Action::Record`] and takes no other action before it is kept, however long
    /// that lasts; or it takes none for another reason. Events may come.
    pub fn handle_recording(&mut self, now: Time) {
        self.recording.get_or_insert(Recording {
            since: now,
            untold: BTreeSet::new(),
            newcomers: BTreeSet::new(),
            is_behind: false,
            kept: None,
        });
    }

    /// The driver takes no action for a while, as another owner may have followed: as
    /// [`Owner::handle_recording`]. Where all that was decided is carried out the table is the one that is
    /// recorded, and clients that come may go by it as the others do.
    pub fn handle_suspended(&mut self, now: Time) {
        let is_kept = self.recording.is_none() && self.actions.is_empty();
        let kept = is_kept.then(|| self.entries());
        self.handle_recording(now);
        if let Some(recording) = &mut self.recording {
            recording.kept = kept;
        }
    }

    /// Whether the driver may soon take no action for a while, and still does: no writes are stopped
    /// any more that could not be let go on then, and those that a checkpoint holds go on.
    pub fn handle_wary(&mut self, now: Time, is_wary: bool) {
        if std::mem::replace(&mut self.is_wary, is_wary) != is_wary {
            self.advance(now);
        }
    }

    /// What the driver tells a client that comes while it carries nothing out; nothing where what is
    /// recorded is not known, and the client waits.
    #[must_use]
    pub fn kept_entries(&self) -> &[Entry] {
        let recording = self.recording.as_ref();
        let kept = recording.and_then(|recording| recording.kept.as_deref());
        kept.unwrap_or_default()
    }

    /// The record is kept: time goes on.
    pub fn handle_recorded(&mut self, now: Time) {
        let Some(recording) = self.recording.take() else {
            return;
        };
        self.shift(now, now.since(recording.since));
        self.looked_at = self.looked_at.max(now);
        for client in self.clients.numbers() {
            let all = 0..self.regions.len();
            let is_new = recording.newcomers.contains(&client);
            for region in all.filter(|region| is_new || recording.untold.contains(region)) {
                let entry = self.entry(region);
                self.actions.push_back(Action::Tell { client, entry });
            }
        }
        if recording.is_behind {
            self.advance(now);
        }
    }

    /// Whether nothing is to be concluded yet: it would not be carried out.
    pub(super) fn is_put_off(&mut self) -> bool {
        let recording = self.recording.as_mut();
        recording.is_some_and(|recording| {
            recording.is_behind = true;
            true
        })
    }

    /// Whether a client came that is to be told of everything yet.
    #[must_use]
    pub fn is_untold(&self, client: ClientNumber) -> bool {
        let recording = self.recording.as_ref();
        recording.is_some_and(|recording| recording.newcomers.contains(&client))
    }

    /// Notices that it was not driven: what others said meanwhile comes only now.
    pub(super) fn note_time(&mut self, now: Time) {
        let gap = now.since(self.looked_at);
        self.looked_at = self.looked_at.max(now);
        if gap > STANDSTILL && self.recording.is_none() {
            self.shift(now, gap);
        }
    }

    /// Nobody is late by what passed of `pause`. Leases that end later than their clients believe are
    /// only waited for longer. Nobody could renew the cache either: it has as long left as before.
    fn shift(&mut self, now: Time, pause: Duration) {
        if pause.is_zero() {
            return;
        }
        if let Life::Leased { duration, until } = &mut self.life {
            // Who renewed it meanwhile has it for no longer than from now on, and one that is being
            // deleted, which has no time left, ends at once.
            *until = until.after(pause).min(now.after(*duration)).max(*until);
        }
        let shift = |at: &mut Time| *at = at.after(pause).min(now).max(*at);
        for host in &mut self.hosts {
            host.shift_silence(shift);
        }
        shift(&mut self.cut_off_until);
        self.clients.shift(shift);
        for renewing in self.renewing.values_mut() {
            shift(&mut renewing.asked_at);
        }
        for region in &mut self.regions {
            region.told_at.iter_mut().for_each(shift);
            match &mut region.task {
                Task::Placing(placing) => shift(&mut placing.heard_at),
                Task::Filling(filling) => shift(&mut filling.heard_at),
                Task::Switching(switching) => switching.heard_at.iter_mut().for_each(shift),
                Task::None
                | Task::Ready(_)
                | Task::Draining(_)
                | Task::Fencing(_)
                | Task::Held(_)
                | Task::Restoring(_) => {}
            }
        }
    }

    /// Has what is known now kept before anything that follows. A record that waits already is made when
    /// it is taken, and has this as well.
    pub(super) fn push_record(&mut self) {
        if !std::mem::replace(&mut self.is_record_queued, true) {
            self.actions.push_back(Action::Record);
        }
    }

    /// Tells every client of a region.
    pub(super) fn tell_all(&mut self, region: usize) {
        if let Some(recording) = &mut self.recording {
            recording.untold.insert(region);
            return;
        }
        let entry = self.entry(region);
        for client in self.clients.numbers() {
            let entry = entry.clone();
            self.actions.push_back(Action::Tell { client, entry });
        }
    }

    /// Tells a client that came of every region.
    pub(super) fn tell_newcomer(&mut self, client: ClientNumber, role: Role) {
        if let Some(recording) = &mut self.recording {
            // The driver tells what is kept to those who ask for a lease next.
            if recording.kept.is_none() || role == Role::Listener {
                recording.newcomers.insert(client);
            }
            return;
        }
        for region in 0..self.regions.len() {
            let entry = self.entry(region);
            self.actions.push_back(Action::Tell { client, entry });
        }
    }

    /// Leaves what a host was still to be asked: its session is over, and in the next one its books say
    /// what is so.
    pub(super) fn drop_actions_for(&mut self, host: HostIndex) {
        self.actions.retain(|action| action.host() != Some(host));
    }
}
