//! What a member waits for that others owe it: without their word it commits nothing, or serves nothing.
//!
//! Nothing here knows the time. Whoever drives the member looks now and then: what is still the same
//! after long is not going to come, though the other may live.

use super::member::{Member, Service};
use super::process::Process;
use super::replica::Xid;

/// Something that a process owes an owner. It is another one as soon as any of it has come.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Awaited {
    /// Who owes it.
    pub process: Process,
    /// Of which partition.
    pub partition: usize,
    /// What.
    pub what: Word,
}

/// A word of a backup.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Word {
    /// What it has, in this view.
    Have,
    /// That it has dropped what is not kept.
    Settled,
    /// That it has more than these operations.
    Ack(Xid),
    /// Another answer after the one to what was asked then, in nanoseconds: leave to serve reads.
    Answer(Option<u64>),
}

impl Member {
    /// All that others owe it in the present view. Where changes wait for recoveries by intention,
    /// acknowledgements are not counted.
    pub fn awaited(&self) -> Vec<Awaited> {
        let mut all = Vec::new();
        for (partition, owned) in &self.owners {
            let mut owes = |process, what| {
                all.push(Awaited {
                    process,
                    partition: *partition,
                    what,
                });
            };
            if let Some(settling) = &owned.settling {
                for (process, word) in settling.awaited() {
                    owes(process, word);
                }
                continue;
            }
            let last = owned.owner.last_xid();
            for backup in &owned.owner.backups {
                if !backup.is_heard {
                    owes(backup.process, Word::Have);
                    continue;
                }
                if backup.acked < last && self.shape.service == Service::Online {
                    owes(backup.process, Word::Ack(backup.acked));
                }
                if !backup.probes.is_empty() {
                    owes(backup.process, Word::Answer(backup.answered));
                }
            }
        }
        all
    }
}
