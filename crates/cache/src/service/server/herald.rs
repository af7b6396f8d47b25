//! Words to hosts about where the cache's slabs are, so that procedures there follow its moves.
//!
//! To the owner the herald is one more client: it is told every entry, and knows one once each
//! host goes by it that can be reached. So a move does not count before procedures have turned to it, and
//! memory is given back after that. Each host has a thread, which speaks over the manager's own
//! session: hosts believe the owner of the slabs, and one with a higher epoch ends that session.
//!
//! A host that does not answer within the failure timeout is waited for no longer; it is told
//! everything when it can be reached again. Decision 97.

mod speaker;

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::{Address, Time, Waker};

use super::{Life, Server};
use crate::owner::{Access, ClientNumber, Entry, Renewal, Settings};
use speaker::{Report, Said, Speaker};

/// See the module's text.
pub(super) struct Herald {
    /// As the owner numbers it; none before it joined.
    number: Option<ClientNumber>,
    renewed_at: Time,
    table: Arc<Table>,
    /// Where each host is.
    machines: Vec<Address>,
    /// By host; none: its session is down.
    speakers: Vec<Option<Speaker>>,
    /// Entries that hosts do not go by yet, oldest first.
    unheard: VecDeque<Unheard>,
    reports: Receiver<Report>,
    reporter: Sender<Report>,
    waker: Waker,
    /// Speakers so far.
    lives: u64,
}

struct Unheard {
    word: u64,
    region: usize,
    generation: u64,
}

/// What all speakers say.
pub(super) struct Table {
    pub settings: Settings,
    /// Addresses of hosts, by their numbers.
    pub machines: Vec<String>,
    pub rows: Arc<Mutex<Rows>>,
}

/// The newest entry of each region.
#[derive(Default)]
pub(super) struct Rows {
    pub entries: BTreeMap<u32, Entry>,
    /// Counts changes.
    pub word: u64,
}

impl Rows {
    /// Regions that there are: what was cut off is at the end.
    pub fn region_count(&self) -> u32 {
        let mut rows = self.entries.values().rev();
        let last = rows.find(|entry| entry.access != Access::Cut);
        last.map_or(0, |entry| entry.region + 1)
    }
}

/// How often it asks for its lease.
const RENEW: Duration = Duration::from_millis(250);

impl Herald {
    pub(super) fn new(settings: Settings, waker: Waker) -> Self {
        let (reporter, reports) = channel();
        Self {
            number: None,
            renewed_at: Time(0),
            machines: Vec::new(),
            speakers: Vec::new(),
            table: Arc::new(Table {
                settings,
                machines: Vec::new(),
                rows: Arc::default(),
            }),
            unheard: VecDeque::new(),
            reports,
            reporter,
            waker,
            lives: 0,
        }
    }

    /// Whether the owner means this one.
    pub(super) fn is(&self, client: ClientNumber) -> bool {
        self.number == Some(client)
    }

    /// What the owner tells it.
    pub(super) fn tell(&mut self, entry: Entry) {
        let mut rows = self
            .table
            .rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        rows.word += 1;
        self.unheard.push_back(Unheard {
            word: rows.word,
            region: entry.region as usize,
            generation: entry.generation,
        });
        rows.entries.insert(entry.region, entry);
    }

    /// Takes the addresses of hosts. Where they are others, all hosts are told anew, as words name
    /// machines by their numbers.
    fn set_machines<'a>(&mut self, machines: impl Iterator<Item = &'a Address> + Clone) {
        if machines.clone().eq(&self.machines) {
            return;
        }
        self.machines = machines.cloned().collect();
        self.speakers = self.machines.iter().map(|_| None).collect();
        self.table = Arc::new(Table {
            settings: self.table.settings,
            machines: self.machines.iter().map(Address::to_string).collect(),
            rows: Arc::clone(&self.table.rows),
        });
    }

    fn wake(&self) {
        self.speakers.iter().flatten().for_each(Speaker::wake);
    }

    fn take_reports(&mut self) {
        while let Ok(report) = self.reports.try_recv() {
            // Not one of before: it spoke of other machines.
            let mut speakers = self.speakers.iter_mut().flatten();
            if let Some(speaker) = speakers.find(|speaker| speaker.life == report.life) {
                speaker.said = report.said;
            }
        }
    }

    /// The entries that every host that can be reached goes by.
    fn take_known(&mut self) -> Vec<(usize, u64)> {
        let heard = |said: Said| match said {
            Said::Nothing => None,
            Said::UpTo(word) => Some(word),
        };
        let speakers = self.speakers.iter().flatten();
        let least = speakers.filter_map(|speaker| heard(speaker.said)).min();
        let is_known = |unheard: &Unheard| least.is_none_or(|least| unheard.word <= least);
        let count = self.unheard.iter().take_while(|&one| is_known(one)).count();
        let known = self.unheard.drain(..count);
        known.map(|one| (one.region, one.generation)).collect()
    }
}

impl Server {
    /// Has hosts told, and the owner told what they go by.
    pub(super) fn proclaim(&mut self, now: Time) {
        let hosts = self.manager.hosts().map(|(host, _)| &host.address);
        if hosts.clone().count() > cenote_proc::service::MACHINES_MAX
            || matches!(self.life, Life::Founding { .. })
        {
            return;
        }
        self.herald.set_machines(hosts);
        self.link_speakers();
        self.herald.take_reports();
        for (region, generation) in self.herald.take_known() {
            if let Some(number) = self.herald.number {
                let owner = &mut self.manager.owner;
                owner.handle_known(now, number, region, generation);
            }
        }
        if self.herald.number.is_some() && now.since(self.herald.renewed_at) < RENEW {
            return;
        }
        self.herald.renewed_at = now;
        let alive = |number| self.manager.owner.handle_client_alive(now, number);
        if matches!(self.herald.number.map(alive), None | Some(Renewal::Unknown)) {
            self.clients_made += 1;
            self.herald.unheard.clear();
            let number = self.clients_made;
            let joined = self.manager.owner.handle_client_joined(now, number);
            self.herald.number = joined.then_some(number);
        }
    }

    /// One for each host whose session is up.
    fn link_speakers(&mut self) {
        let herald = &mut self.herald;
        for (host, (_, is_up)) in self.manager.hosts().enumerate() {
            match &herald.speakers[host] {
                Some(_) if !is_up => herald.speakers[host] = None,
                None if is_up => {
                    let Some(opener) = self.manager.caller_opener(host) else {
                        continue;
                    };
                    herald.lives += 1;
                    let to = (herald.reporter.clone(), herald.waker.clone());
                    let table = Arc::clone(&herald.table);
                    let started = Speaker::start((host, herald.lives), opener, table, to);
                    match started {
                        Ok(speaker) => herald.speakers[host] = Some(speaker),
                        Err(error) => tracing::warn!(host, %error, "start a thread"),
                    }
                }
                _ => {}
            }
        }
    }

    /// What was told in this turn goes out.
    pub(super) fn wake_speakers(&self) {
        if !self.herald.unheard.is_empty() {
            self.herald.wake();
        }
    }
}
