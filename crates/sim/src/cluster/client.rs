//! One client: a volume, its workers, and a model of every byte that they may see.

mod buffers;
mod disk_errors;
mod losses;
mod observation;
mod ownership;
mod rot;
mod suspects;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::{ClientId, Connector, Time, sim};
use cenote_measure::random::Random;
use cenote_volume::{
    ChangeStatus, Done, ExtentStatus, Health, HostConfig, IoError, Op, PAGE_BYTES, Placement,
    Protection, Request, Resilience, Scheme, Seat, Stepped, Worker,
};

use super::dialer::Dialing;
use super::disk::{Disk, Mood};
use super::estate::Estate;
use super::model::{Excuse, Model, SECTOR_BYTES};
use buffers::Buffers;
use disk_errors::Failure;
use losses::LastWhole;
use ownership::Redo;
use suspects::Suspects;

pub use losses::Loss;

/// What a client is made of, and how it works.
#[derive(Clone, Debug)]
pub struct Plan {
    pub resilience: Resilience,
    pub protection: Protection,
    pub placement: Placement,
    /// Whether a disk is behind the volume.
    pub is_backed: bool,
    pub size_bytes: u64,
    pub slab_bytes: u64,
    pub worker_count: usize,
    /// Requests that a worker has under way at most.
    pub depth: usize,
    /// Mean pause of a worker between two requests.
    pub pause_ns: u64,
    pub hosts: Vec<HostConfig>,
}

/// A client's life, from the opening of its volume to its end.
pub struct Client {
    pub name: String,
    plan: Plan,
    /// Hosts that must be there before it begins.
    members: usize,
    dialing: Dialing,
    connector: Arc<dyn Connector>,
    volume: Option<Stepped>,
    workers: Vec<ClientWorker>,
    model: Model,
    random: Random,
    id: ClientId,
    /// The directory when it was looked at last.
    epoch: u64,
    seats: Vec<Seat>,
    /// Slabs that they named, by place, host and birth.
    known: BTreeSet<(usize, usize, usize, u64)>,
    pub tally: Tally,
    /// Turns in a row that waited for a drain.
    drain_turns: u32,
    /// No further requests; those under way end.
    is_resting: bool,
    /// What may be an error now.
    excuse: Excuse,
    /// Wrong splits that earlier owners named, and healed.
    errors_before: (u64, u64),
    /// Pages that they brought to another cut.
    moved_before: u64,
    pub page_ops: u64,
    /// The volume, whoever owns it.
    volume_id: u128,
    estate: Estate,
    disk: Disk,
    /// Requests that failed, to be judged when a write beside them has ended.
    suspects: Suspects,
    /// Extents and members without a slab that is read, and since which step.
    missing: BTreeMap<(usize, usize), u64>,
    missing_epoch: u64,
    /// The directory when it was looked for extents with few slabs.
    few_epoch: u64,
    /// Pages that are errors until they are written whole, when they were looked at last.
    torn: Option<BTreeSet<usize>>,
    /// Of each torn page its extent then, and when that was whole last.
    torn_of: BTreeMap<usize, (usize, Option<LastWhole>)>,
    /// Extents that were whole, and when the directory was looked at for them.
    whole: BTreeMap<usize, LastWhole>,
    whole_epoch: u64,
    /// Its pages were restriped, or are to be.
    is_restriped: bool,
    buffers: Buffers,
    /// Writes that the last owner did not end, to be redone before anything else, ...
    redoing: Vec<Redo>,
    /// ... and then pages of which it is not known what it was writing, to be mended.
    mending: Vec<u64>,
    /// Not taken over yet; tried again at this time, when it cannot be.
    is_opening: bool,
    reopen_at: Option<Time>,
}

/// What a client counts, over all owners of all its volumes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Slabs that were out of reach, and were taken back.
    pub slabs_returned: u64,
    /// Writes that an owner did not end, and the next one did.
    pub writes_redone: u64,
    /// Transfers that its disks refused, of those that are gone.
    disk_refusals: u64,
    /// Pages that owners that are gone read from disks and gave to hosts.
    pages_promoted: u64,
}

/// A worker and its requests.
struct ClientWorker {
    worker: Worker,
    running: Vec<Running>,
    next_at: Time,
    tags: u64,
}

/// A request under way.
struct Running {
    tag: u64,
    start: u64,
    began: Time,
    first: usize,
    count: usize,
    kind: Kind,
    /// Of a write of a volume with a disk behind it: which of its pages slabs had when it began, as a bit set.
    on_slabs: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Read,
    Write(u64),
    /// Reads a page that the last owner was writing, and writes it again as it is.
    Mend,
}

/// How often it is looked whether a page that is being mended is done. Arbitrary.
const MENDING: Duration = Duration::from_micros(50);

/// Patience below this is that of a volume that waits for a drain.
const LONG_DRAIN: Duration = Duration::from_millis(1);

/// What went wrong, or may have.
pub enum Trouble {
    /// Bytes that cannot be.
    Wrong(String),
    /// A request failed.
    Failed(IoError, String),
    /// A request failed of a page whose newest bytes the disk had refused, since this time at the earliest.
    Stale(Time, String),
    /// A page was lost.
    Lost(Loss),
    /// A volume that its last owner left could not be taken over, for want of hosts.
    Unreachable(String),
}

impl Client {
    pub fn new(name: String, plan: Plan, connector: Arc<dyn Connector>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let model = Model::new(random.next(), plan.size_bytes);
        let mut client = Self {
            name,
            members: plan.resilience.scheme().members(),
            dialing: Dialing::new(Arc::clone(&connector)),
            connector,
            volume: None,
            workers: Vec::new(),
            model,
            random,
            id: ClientId(0),
            epoch: 0,
            seats: Vec::new(),
            known: BTreeSet::new(),
            tally: Tally::default(),
            drain_turns: 0,
            is_resting: false,
            excuse: Excuse::Any,
            errors_before: (0, 0),
            moved_before: 0,
            page_ops: 0,
            volume_id: 0,
            estate: Estate::new(),
            disk: Disk::new(0),
            suspects: Suspects::default(),
            missing: BTreeMap::new(),
            missing_epoch: 0,
            few_epoch: 0,
            torn: None,
            torn_of: BTreeMap::new(),
            whole: BTreeMap::new(),
            whole_epoch: 0,
            is_restriped: false,
            buffers: Buffers::default(),
            redoing: Vec::new(),
            mending: Vec::new(),
            is_opening: false,
            reopen_at: None,
            plan,
        };
        client.renew();
        client.open();
        client
    }

    pub fn rest(&mut self, is_resting: bool) {
        self.is_resting = is_resting;
        if is_resting {
            self.estate.heal();
            self.disk.set_mood(Mood::Well);
        }
    }

    /// Requests under way.
    pub fn running(&self) -> usize {
        self.workers
            .iter()
            .map(|client_worker| client_worker.running.len())
            .sum()
    }

    /// Whether all hosts are connected and every extent is whole: one that was lost has been mapped again, or
    /// is as it was before it was first written.
    pub fn is_settled(&mut self) -> bool {
        if self.is_opening || self.reopen_at.is_some() || self.is_mending() {
            return false;
        }
        let Some(volume) = &mut self.volume else {
            return true;
        };
        let status = volume.status();
        status.hosts.iter().all(|host| host.connected) && are_whole(&status.extents)
    }

    /// Whether every extent is whole, on the hosts that there are.
    pub fn is_whole(&mut self) -> bool {
        let volume = self.volume.as_mut();
        volume.is_none_or(|volume| are_whole(&volume.status().extents))
    }

    /// Whether pages are errors until they are written whole.
    pub fn has_torn(&mut self) -> bool {
        let volume = self.volume.as_mut();
        volume.is_some_and(|volume| volume.status().torn_pages > 0)
    }

    /// Whether its volume's pages are on their way to another cut.
    pub fn is_changing(&mut self) -> bool {
        self.volume.as_mut().is_some_and(|volume| {
            let status = volume.status();
            let k = |scheme: &str| scheme.parse::<Scheme>().map(Scheme::k).ok();
            let is_restriped = |change: &ChangeStatus| k(&change.from) != k(&change.to);
            status.change.as_ref().is_some_and(is_restriped)
        })
    }

    /// Lets the client's process run; `steps` counts what happens in the simulation.
    pub fn turn(&mut self, steps: &mut u64, trouble: &mut Vec<Trouble>) {
        let now = sim::now();
        if self.reopen_at.is_some_and(|at| now >= at) {
            self.dialing = Dialing::new(Arc::clone(&self.connector));
            self.open();
        }
        let Some(volume) = &mut self.volume else {
            return;
        };
        self.dialing.step(now);
        volume.turn();
        let random = &mut self.random;
        self.dialing
            .take_orders(now, || random.between(20_000, 200_000));
        if !self.take_over(trouble) {
            return;
        }
        let volume = self.volume.as_mut().expect("it is taken over");
        if self.workers.len() < self.plan.worker_count && volume.connected_count() >= self.members {
            let worker = volume
                .worker()
                .expect("nothing in the simulator refuses it");
            self.workers.push(ClientWorker {
                worker,
                running: Vec::new(),
                next_at: now,
                tags: 0,
            });
        }
        // A slab that was rebuilt and a write that waited for the journal may be through at once.
        self.note_missing(*steps);
        self.note_few();
        self.note_losses(*steps, trouble);
        trouble.extend(self.buffers.check(now).map(Trouble::Wrong));
        for index in 0..self.workers.len() {
            self.reap(index, steps, trouble);
            self.submit(index, now, steps, trouble);
            // What completed or was refused at once.
            self.reap(index, steps, trouble);
        }
        if let Some(volume) = &mut self.volume {
            // Workers may have asked for extents or marked failures.
            volume.turn();
        }
        self.note_few();
        self.note_losses(*steps, trouble);
        self.note_missing(*steps);
    }

    /// When it wants a turn although nothing arrives.
    pub fn due(&mut self) -> Time {
        let now = sim::now();
        let Some(volume) = &self.volume else {
            return self.reopen_at.unwrap_or(Time(u64::MAX));
        };
        // A drain that lasts is looked at less and less often, up to every millisecond or so.
        let patience = volume.patience();
        self.drain_turns = if patience < LONG_DRAIN {
            (self.drain_turns + 1).min(6)
        } else {
            0
        };
        let mut due = now.after(patience * (1 << self.drain_turns));
        for client_worker in &self.workers {
            if let Some(patience) = client_worker.worker.deadline() {
                due = due.min(now.after(patience));
            }
            let has_time = client_worker.running.len() < self.plan.depth;
            if self.is_mending() {
                due = due.min(now.after(MENDING));
            } else if !self.is_resting && has_time {
                due = due.min(client_worker.next_at);
            }
        }
        due.min(self.dialing.due(now).unwrap_or(due))
            .min(self.disk.due())
            .max(Time(now.0 + 1))
    }

    /// Whether something that the last owner left is to be made whole before all else.
    fn is_mending(&self) -> bool {
        !(self.redoing.is_empty() && self.mending.is_empty())
    }

    /// Reads everything, piece by piece, in turns of its own; call until it says true.
    pub fn read_back(&mut self, at: &mut usize, steps: &mut u64) -> bool {
        let sectors = usize::try_from(self.plan.size_bytes).expect("small") / SECTOR_BYTES;
        let Some(client_worker) = self.workers.first_mut() else {
            return true;
        };
        /// Sectors per request.
        const PIECE: usize = 8 * PAGE_BYTES / SECTOR_BYTES;
        while *at < sectors && client_worker.running.len() < self.plan.depth {
            let count = PIECE.min(sectors - *at);
            *steps += 1;
            client_worker.read(&mut self.model, *at, count, *steps);
            *at += count;
        }
        *at >= sectors && client_worker.running.is_empty()
    }

    fn reap(&mut self, index: usize, steps: &mut u64, trouble: &mut Vec<Trouble>) {
        let mut done = Vec::new();
        self.workers[index].worker.poll(&mut done);
        for done in done {
            *steps += 1;
            self.end(index, done, *steps, trouble);
        }
    }

    fn end(&mut self, index: usize, done: Done, step: u64, trouble: &mut Vec<Trouble>) {
        let client_worker = &mut self.workers[index];
        let at = client_worker
            .running
            .iter()
            .position(|running| running.tag == done.tag)
            .expect("only what was submitted ends");
        let Running {
            start,
            began,
            first,
            count,
            kind,
            on_slabs,
            ..
        } = client_worker.running.swap_remove(at);
        self.page_ops += (count * SECTOR_BYTES).div_ceil(PAGE_BYTES) as u64;
        let place = format!("{} sectors {first}..{}", self.name, first + count);
        // A page whose write ended unknown may be an error until it is written whole.
        let is_excused =
            kind == Kind::Mend || self.model.may_fail(first, count, start, self.excuse);
        if let Err(error) = done.result
            && !is_excused
        {
            let what = format!("{place}: {kind:?}: {error}");
            let failure = Failure {
                error,
                sectors: (first, count),
                began,
                what,
            };
            trouble.extend(self.accuse(failure));
        }
        match (kind, done.op) {
            (Kind::Mend, Op::Read(bytes)) if done.result.is_ok() => {
                if let Err(wrong) = self.model.end_read(first, &bytes, start) {
                    let what = format!("{place}, being mended: {}", wrong.detail);
                    trouble.push(Trouble::Wrong(what));
                }
                self.workers[index].start(first, count, step, Kind::Mend, Op::Write(bytes));
            }
            (Kind::Mend, op) => {
                if matches!(op, Op::Read(_)) {
                    self.model.forget_read(start);
                }
                self.mending.pop();
            }
            (Kind::Read, Op::Read(bytes)) if done.result.is_ok() => {
                if let Err(wrong) = self.model.end_read(first, &bytes, start) {
                    let page = wrong.sector * SECTOR_BYTES / PAGE_BYTES;
                    trouble.push(Trouble::Wrong(format!(
                        "{} page {page} sector {}: {}",
                        self.name, wrong.sector, wrong.detail
                    )));
                }
                self.buffers.keep(place, bytes);
            }
            (Kind::Read, _) => self.model.forget_read(start),
            (Kind::Write(content), _) => {
                // A discard touches no slab.
                if done.result.is_ok()
                    && content != 0
                    && let Some(what) = self.check_journal((first, count), start)
                {
                    trouble.push(Trouble::Wrong(what));
                }
                self.model
                    .end_write(content, (first, count), start, step, done.result.is_ok());
                if done.result.is_err() {
                    for page in pages_of(first, count) {
                        if on_slabs >> (page - pages_of(first, count).start) & 1 == 1 {
                            self.model.note_on_slabs(content, page, start);
                        }
                    }
                }
                trouble.extend(self.judge_suspects(start));
            }
        }
    }

    /// Starts what the worker has time for.
    fn submit(&mut self, index: usize, now: Time, steps: &mut u64, trouble: &mut Vec<Trouble>) {
        if !self.redoing.is_empty() {
            return self.redo(trouble);
        }
        if !self.mending.is_empty() {
            return self.mend(steps);
        }
        while !self.is_resting
            && self.workers[index].next_at <= now
            && self.workers[index].running.len() < self.plan.depth
        {
            let pause_ns = 1 + self.random.below(2 * self.plan.pause_ns);
            self.workers[index].next_at = Time(now.0 + pause_ns);
            *steps += 1;
            self.submit_one(index, *steps);
        }
    }

    fn submit_one(&mut self, index: usize, step: u64) {
        const SECTORS: u64 = (PAGE_BYTES / SECTOR_BYTES) as u64;
        let pages = self.plan.size_bytes / PAGE_BYTES as u64;
        // Many go to a few pages, where they meet each other.
        let page = match self.random.below(10) {
            0..3 => self.random.below(2),
            3..6 => self.random.below((pages / 16).max(1)),
            _ => self.random.below(pages),
        };
        let (first, count) = if self.random.percent(20) {
            let start = self.random.below(SECTORS);
            (
                page * SECTORS + start,
                1 + self.random.below(SECTORS - start),
            )
        } else {
            let span = (1 + self.random.below(4)).min(pages - page);
            (page * SECTORS, span * SECTORS)
        };
        let (first, count) = (to_index(first), to_index(count));
        let what = self.random.below(100);
        let on_slabs = self.on_slabs(first, count);
        let client_worker = &mut self.workers[index];
        match what {
            0..48 => return client_worker.read(&mut self.model, first, count, step),
            48..95 => client_worker.write(&mut self.model, first, count, step),
            _ => client_worker.discard(&mut self.model, first, count, step),
        }
        let running = client_worker.running.last_mut().expect("just begun");
        running.on_slabs = on_slabs;
    }
}

impl Drop for Client {
    /// A worker that is dropped waits for what is on its way, and no time passes any more.
    fn drop(&mut self) {
        self.crash(u64::MAX - 1);
    }
}

impl ClientWorker {
    fn read(&mut self, model: &mut Model, first: usize, count: usize, step: u64) {
        model.begin_read(step);
        let op = Op::Read(vec![0xa5; count * SECTOR_BYTES]);
        self.start(first, count, step, Kind::Read, op);
    }

    fn write(&mut self, model: &mut Model, first: usize, count: usize, step: u64) {
        let content = model.fresh_content();
        let mut bytes = vec![0; count * SECTOR_BYTES];
        model.fill(content, first, &mut bytes);
        model.begin_write(content, first, count, step);
        self.start(first, count, step, Kind::Write(content), Op::Write(bytes));
    }

    fn discard(&mut self, model: &mut Model, first: usize, count: usize, step: u64) {
        model.begin_write(0, first, count, step);
        let len_bytes = (count * SECTOR_BYTES) as u64;
        self.start(
            first,
            count,
            step,
            Kind::Write(0),
            Op::Discard { len_bytes },
        );
    }

    fn start(&mut self, first: usize, count: usize, start: u64, kind: Kind, op: Op) {
        self.tags += 1;
        let tag = self.tags;
        self.running.push(Running {
            tag,
            start,
            began: sim::now(),
            first,
            count,
            kind,
            on_slabs: 0,
        });
        let request = Request {
            tag,
            offset: (first * SECTOR_BYTES) as u64,
            op,
        };
        let submitted = self.worker.submit(request);
        assert!(submitted.is_ok(), "the depth is below a worker's bound");
    }
}

/// The pages of some sectors.
fn pages_of(first: usize, count: usize) -> Range<usize> {
    const SECTORS: usize = PAGE_BYTES / SECTOR_BYTES;
    first / SECTORS..(first + count).div_ceil(SECTORS)
}

fn to_index(value: u64) -> usize {
    usize::try_from(value).expect("simulated volumes are small")
}

fn are_whole(extents: &[ExtentStatus]) -> bool {
    extents
        .iter()
        .all(|extent| extent.health == Health::Healthy)
}
