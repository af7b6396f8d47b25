//! Words to hosts about where the cache's slabs are, so that procedures there follow its moves.
//!
//! A listener of the owner's hears every entry; each host has a thread that says them, over the
//! manager's own session: hosts believe the owner of the slabs, and one with a higher epoch ends
//! that session. To the owner each host that runs procedures is one more client: it knows an entry
//! once all of its server threads go by it, and it has the cache for a lease, which words bring. So
//! the owner's own rules hold for procedures: a move waits until they have turned to it, or for the
//! lease of a host that does not answer, and what they may have been writing is fenced off then.
//! Decisions 97 and 110.
//!
//! A host's lease ends by its own clock: it is counted from what that clock showed before the owner
//! counted it, so that it is never longer than the owner's.

mod roll;
mod speaker;
mod writer;

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_fabric::{Address, Time, Waker};
use cenote_proc::service::{MACHINES_MAX, WriteState};

use super::{Life, Server};
use crate::owner::{Access, ClientNumber, Entry, Renewal, Settings};
use roll::Roll;
use speaker::{Asking, Report, Speaker};
use writer::{Connection, Next, Writer};

/// See the module's text.
pub(super) struct Herald {
    /// As the owner numbers it; none before it joined.
    listener: Option<ClientNumber>,
    table: Arc<Table>,
    hosts: Vec<Host>,
    reports: Receiver<Report>,
    /// Of those what came before the turn began.
    heard: Vec<Report>,
    reporter: Sender<Report>,
    waker: Waker,
    /// Speakers so far.
    lives: u64,
    /// There is something new to say.
    has_news: bool,
    /// Hosts that are up, and for which words have no number.
    unnamed: usize,
}

/// One that may run procedures.
struct Host {
    address: Address,
    /// None: its session is down.
    speaker: Option<Speaker>,
    /// As the owner numbers it; none before it asked for its lease.
    number: Option<ClientNumber>,
    renewed_at: Time,
    /// The generation of each region that it goes by.
    known: BTreeMap<u32, u64>,
    /// It was told all there is, and what its clock showed then.
    asking: Option<Asking>,
    writer: Writer,
}

/// What all speakers say.
pub(super) struct Table {
    pub settings: Settings,
    /// Addresses of hosts, by the numbers that words name them by.
    pub machines: Vec<String>,
    pub roll: Roll,
    pub rows: Arc<Mutex<Rows>>,
}

/// The newest entry of each region.
#[derive(Default)]
pub(super) struct Rows(pub BTreeMap<u32, Entry>);

impl Rows {
    /// Regions that there are: what was cut off is at the end.
    pub fn region_count(&self) -> u32 {
        let mut rows = self.0.values().rev();
        let last = rows.find(|entry| entry.access != Access::Cut);
        last.map_or(0, |entry| entry.region + 1)
    }

    /// Whether a copy of a region is on a host.
    fn has_bytes_at(&self, host: usize) -> bool {
        let mut copies = self.0.values().flat_map(|entry| &entry.copies);
        copies.any(|copy| copy.host == host)
    }
}

/// How often a host's lease is renewed at most.
const RENEW: Duration = Duration::from_millis(200);

impl Host {
    fn new(address: &Address) -> Self {
        Self {
            address: address.clone(),
            speaker: None,
            number: None,
            renewed_at: Time(0),
            known: BTreeMap::new(),
            asking: None,
            writer: Writer::default(),
        }
    }

    fn wants_lease(&self, now: Time) -> bool {
        let is_due = self.number.is_none() || now.since(self.renewed_at) >= RENEW;
        self.asking.is_some() && is_due
    }
}

impl Herald {
    pub(super) fn new(settings: Settings, waker: Waker) -> Self {
        let (reporter, reports) = channel();
        Self {
            listener: None,
            table: Arc::new(Table {
                settings,
                machines: Vec::new(),
                roll: Roll::default(),
                rows: Arc::default(),
            }),
            hosts: Vec::new(),
            reports,
            heard: Vec::new(),
            reporter,
            waker,
            lives: 0,
            has_news: false,
            unnamed: 0,
        }
    }

    /// Whether the owner means this one.
    pub(super) fn is(&self, client: ClientNumber) -> bool {
        self.listener == Some(client)
    }

    /// What the owner tells it.
    pub(super) fn tell(&mut self, entry: Entry) {
        let mut rows = self
            .table
            .rows
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        rows.0.insert(entry.region, entry);
        self.has_news = true;
    }

    /// Takes the hosts, and which are up. Where others are named, or the same by other addresses, all
    /// hosts are told again, as words name machines by their numbers. Gives what the owner called
    /// those that are at another address.
    fn set_machines<'a>(
        &mut self,
        hosts: impl Iterator<Item = (&'a Address, bool)> + Clone,
    ) -> Vec<ClientNumber> {
        let addresses = || hosts.clone().map(|(address, _)| address);
        // While there is room all are named at once, and not told again for each that comes up.
        let has_room = addresses().count() <= MACHINES_MAX;
        let wanted = (0..).zip(hosts.clone());
        let wanted = wanted.filter_map(|(host, (_, is_up))| (has_room || is_up).then_some(host));
        let roll = self.table.roll.admitting(wanted.clone(), |host| {
            let rows = self.table.rows.lock();
            rows.unwrap_or_else(PoisonError::into_inner)
                .has_bytes_at(host)
        });
        let known = roll.as_ref().unwrap_or(&self.table.roll);
        let unnamed = wanted.filter(|&host| known.number(host).is_none()).count();
        if unnamed > self.unnamed {
            tracing::warn!(
                unnamed,
                "procedures run on no more than {MACHINES_MAX} hosts of a cache"
            );
        }
        self.unnamed = unnamed;
        if roll.is_none() && addresses().eq(self.hosts.iter().map(|host| &host.address)) {
            return Vec::new();
        }
        let roll = roll.unwrap_or_else(|| self.table.roll.clone());
        let mut before = std::mem::take(&mut self.hosts).into_iter();
        let mut replaced = Vec::new();
        let host = |address: &'a Address| match before.next() {
            // It keeps what lease it has.
            Some(host) if host.address == *address => Host {
                speaker: None,
                asking: None,
                ..host
            },
            other => {
                replaced.extend(other.and_then(|host| host.number));
                Host::new(address)
            }
        };
        self.hosts = addresses().map(host).collect();
        let address = |&host: &usize| self.hosts[host].address.to_string();
        self.table = Arc::new(Table {
            settings: self.table.settings,
            machines: roll.hosts().iter().map(address).collect(),
            roll,
            rows: Arc::clone(&self.table.rows),
        });
        replaced
    }

    /// Takes what speakers have done, between turns: a turn may stand still after its clock was looked
    /// at, and what a host said meanwhile would begin its lease there later than here.
    pub(super) fn hear(&mut self) {
        self.heard.extend(self.reports.try_iter());
    }

    /// What speakers had done before the turn, by host.
    fn take_reports(&mut self) -> Vec<(usize, Report)> {
        let mut taken = Vec::new();
        for report in std::mem::take(&mut self.heard) {
            // Not one of before: it spoke of other machines.
            let is_of = |host: &Host| {
                let speaker = host.speaker.as_ref();
                speaker.is_some_and(|speaker| speaker.life == report.life)
            };
            if let Some(host) = self.hosts.iter().position(is_of) {
                taken.push((host, report));
            }
        }
        taken
    }
}

impl Server {
    /// Has hosts told, and the owner told what they go by.
    pub(super) fn proclaim(&mut self, now: Time) {
        if matches!(self.life, Life::Founding { .. }) {
            return;
        }
        let hosts = self.manager.hosts();
        let hosts = hosts.map(|(host, is_up)| (&host.address, is_up));
        for number in self.herald.set_machines(hosts) {
            self.manager.owner.note_host_restarted(number);
        }
        self.link_speakers();
        if self.herald.listener.is_none() {
            let number = self.next_client();
            let joined = self.manager.owner.handle_listener_joined(now, number);
            self.herald.listener = joined.then_some(number);
        }
        for (host, report) in self.herald.take_reports() {
            self.note_known(host, report);
        }
        self.lease_hosts(now);
    }

    fn next_client(&mut self) -> ClientNumber {
        self.clients_made += 1;
        self.clients_made
    }

    fn note_known(&mut self, host: usize, report: Report) {
        if let Some(state) = report.state {
            self.note_writing(host, (report.life, report.connection), state);
        }
        self.herald.hosts[host].asking = report.asking;
        let per_region = self.herald.table.settings.slabs_per_region;
        let host = &mut self.herald.hosts[host];
        for doubt in &report.doubts {
            // Before what it goes by: a region that is doubtful is fenced before it is copied.
            let region = (doubt.slab / per_region) as usize;
            let owner = &mut self.manager.owner;
            owner.note_host_doubt(region, doubt.generation);
        }
        if let (Some(speaker), false) = (&host.speaker, report.doubts.is_empty()) {
            speaker.tell_heard(&report.doubts);
        }
        if report.known.is_empty() {
            return;
        }
        if let Some(number) = host.number {
            let known = report
                .known
                .iter()
                .map(|&(region, at)| (region as usize, at));
            let known: Vec<_> = known.collect();
            self.manager.owner.note_all_known(number, &known);
        }
        host.known.extend(report.known);
    }

    /// A host's process says how far it is with writing to two copies.
    fn note_writing(&mut self, host: usize, connection: Connection, state: WriteState) {
        let owner = &mut self.manager.owner;
        let known = &mut self.herald.hosts[host];
        let doubtful = || owner.doubtful_on(host);
        let are_fenced = |regions: &[_]| owner.are_fenced(regions);
        match known.writer.note(connection, state, doubtful, are_fenced) {
            Next::Nothing => {}
            Next::Permit => {
                owner.note_hosts_write();
                if let Some(speaker) = &known.speaker {
                    speaker.permit(connection.1);
                }
            }
            Next::Fence => {
                if let Some(number) = known.number.take() {
                    owner.note_host_restarted(number);
                }
                known.writer.wait_for(owner.doubtful_on(host));
            }
        }
    }

    /// Gives hosts their leases that were told everything, once what the owner decided before is
    /// kept.
    fn lease_hosts(&mut self, now: Time) {
        let mut granted = Vec::new();
        for host in 0..self.herald.hosts.len() {
            let wanting = &mut self.herald.hosts[host];
            if wanting.wants_lease(now)
                && let Some(asking) = wanting.asking.take()
                && self.renew(now, host)
            {
                granted.push((host, asking));
            }
        }
        if granted.is_empty() {
            return;
        }
        self.manager.flush(now);
        self.pass_on(now);
        if !self.is_kept() {
            return;
        }
        for (host, asking) in granted {
            if let Some(speaker) = &self.herald.hosts[host].speaker {
                speaker.grant(asking);
            }
        }
    }

    /// Has the owner count a host's lease from now on; whether it does.
    fn renew(&mut self, now: Time, host: usize) -> bool {
        if let Some(number) = self.herald.hosts[host].number {
            match self.manager.owner.handle_client_alive(now, number) {
                Renewal::Granted => {
                    self.herald.hosts[host].renewed_at = now;
                    return true;
                }
                Renewal::Withheld | Renewal::Superseded => return false,
                Renewal::Unknown => self.herald.hosts[host].number = None,
            }
        }
        // Its lease was over, or it had none.
        let number = self.next_client();
        let owner = &mut self.manager.owner;
        if !owner.handle_host_joined(now, number, host) {
            return false;
        }
        let joined = &mut self.herald.hosts[host];
        let known = joined
            .known
            .iter()
            .map(|(&region, &at)| (region as usize, at));
        owner.handle_all_known(now, number, &known.collect::<Vec<_>>());
        let renewal = owner.handle_client_alive(now, number);
        (joined.number, joined.renewed_at) = (Some(number), now);
        renewal == Renewal::Granted
    }

    /// One for each host whose session is up.
    fn link_speakers(&mut self) {
        let herald = &mut self.herald;
        for (host, (_, is_up)) in self.manager.hosts().enumerate() {
            match &herald.hosts[host].speaker {
                Some(_) if !is_up => {
                    herald.hosts[host].speaker = None;
                    herald.hosts[host].asking = None;
                }
                None if is_up && herald.table.roll.number(host).is_some() => {
                    let Some(opener) = self.manager.caller_opener(host) else {
                        continue;
                    };
                    herald.lives += 1;
                    let to = (herald.reporter.clone(), herald.waker.clone());
                    let table = Arc::clone(&herald.table);
                    let started = Speaker::start((host, herald.lives), opener, table, to);
                    match started {
                        Ok(speaker) => herald.hosts[host].speaker = Some(speaker),
                        Err(error) => tracing::warn!(host, %error, "start a thread"),
                    }
                }
                _ => {}
            }
        }
    }

    /// What was told in this turn goes out.
    pub(super) fn wake_speakers(&mut self) {
        if std::mem::take(&mut self.herald.has_news) {
            let speakers = self
                .herald
                .hosts
                .iter()
                .filter_map(|host| host.speaker.as_ref());
            speakers.for_each(Speaker::wake);
        }
    }
}
