//! One operation on a small cluster, taken event by event, with hosts that end on the way.

use std::time::Duration;

use cenote_fabric::sim::Notice;
use cenote_volume::{Health, Mode, Op, PAGE_BYTES, Request, Resilience, Scheme, Worker};

use crate::latency::cluster::{Cluster, Setup};

/// How a volume is kept.
#[derive(Debug)]
pub struct Case {
    pub scheme: &'static str,
    pub mode: Mode,
    pub delta: usize,
}

impl Case {
    fn scheme(&self) -> Scheme {
        self.scheme.parse().expect("a scheme")
    }

    pub fn members(&self) -> usize {
        self.scheme().members()
    }

    pub fn k(&self) -> usize {
        self.scheme().k()
    }

    fn setup(&self) -> Setup {
        let scheme = self.scheme();
        Setup {
            resilience: Resilience::new(scheme, self.mode, self.delta).expect("enough parities"),
            hosts: Some(self.members() + 1),
            pages: PAGES,
            ..Setup::of(scheme)
        }
    }
}

/// What is taken step by step.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Doing {
    Write,
    WritePart,
    Read,
    /// One host is late.
    ReadLate,
    WriteLate,
    /// One host is late with a write that another worker reads.
    ReadInFlight,
    /// A write, and what follows until the volume is whole.
    WriteAndRebuild,
}

/// A host that ends.
#[derive(Clone, Copy, Debug)]
pub struct Kill {
    /// After so many steps.
    pub step: usize,
    /// Which member of the stripe; the one past the last: the host to spare.
    pub member: usize,
    pub notice: Notice,
}

impl Kill {
    pub fn now(step: usize, member: usize) -> Self {
        Self {
            step,
            member,
            notice: Notice::AtOnce,
        }
    }
}

/// One page that something is done with, and one that nothing is.
const PAGES: u64 = 2;
/// The part of a page that is written, where not all of it is.
const PART: std::ops::Range<usize> = 100..1100;
/// Long beside a page, short beside silence.
const LATE: Duration = Duration::from_micros(300);
/// How long two hosts do not reach each other: some pauses of a rebuild, fewer than have it look for
/// another host; ...
const PARTED: Duration = Duration::from_millis(700);
/// ... and between two writes meanwhile.
const BESIDES: Duration = Duration::from_millis(90);
/// Virtual time in which everything must end.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Scene {
    cluster: Cluster,
    // The one that writes, and another.
    workers: [Option<Worker>; 2],
    // By member; then the host to spare.
    hosts: Vec<usize>,
    doing: Doing,
    /// For people.
    name: String,
    steps: usize,
    kills: Vec<Kill>,
    // How many there were.
    asked: usize,
}

fn bytes(page: u64, version: u64) -> Vec<u8> {
    let word = |at: usize| (page + 1).wrapping_mul(0x9e37_79b9) ^ (version << 32) ^ at as u64;
    let words = (0..PAGE_BYTES / 8).flat_map(|at| word(at).to_le_bytes());
    words.collect()
}

impl Scene {
    /// A cluster whose pages are written, and a late host where what is done needs one.
    pub fn new(case: &Case, doing: Doing) -> Self {
        let mut cluster = Cluster::new(1, case.setup()).expect("it comes up");
        cluster.settle().expect("what it wrote lands");
        let first = cluster.take_worker();
        let second = cluster.volume().worker().expect("two are few");
        let workers = [first, Some(second)];
        let mut scene = Self {
            cluster,
            workers,
            hosts: Vec::new(),
            doing,
            name: format!("{case:?} {doing:?}"),
            steps: 0,
            kills: Vec::new(),
            asked: 0,
        };
        for page in 0..PAGES {
            let op = Op::Write(bytes(page, 0));
            scene.submit(0, page, 0, op);
            scene.finish(0);
        }
        scene.land();
        let seats = scene.cluster.volume().seats();
        scene.hosts = seats
            .iter()
            .filter(|seat| seat.extent == 0)
            .map(|seat| seat.host)
            .collect();
        let spare = (0..=scene.hosts.len()).find(|host| !scene.hosts.contains(host));
        scene.hosts.push(spare.expect("one more than members"));
        if matches!(
            doing,
            Doing::ReadLate | Doing::WriteLate | Doing::ReadInFlight
        ) {
            let late = scene.hosts[1];
            scene.cluster.slow_down(late, LATE);
        }
        scene
    }

    /// Does it to the end, with hosts that end on the way, and looks at what is read then. How many
    /// steps it took.
    pub fn run(mut self, kills: &[Kill]) -> usize {
        self.name += &format!(" {kills:?}");
        (self.kills, self.asked) = (kills.to_vec(), kills.len());
        let mut now = bytes(0, 1);
        match self.doing {
            Doing::Write | Doing::WriteLate => {
                self.submit(0, 0, 0, Op::Write(now.clone()));
                self.finish(0);
            }
            Doing::WritePart => {
                let part = now[PART].to_vec();
                now = bytes(0, 0);
                now[PART].copy_from_slice(&part);
                self.submit(0, 0, PART.start, Op::Write(part));
                self.finish(0);
            }
            Doing::Read | Doing::ReadLate => {
                now = bytes(0, 0);
                self.submit(0, 0, 0, Op::Read(vec![0; PAGE_BYTES]));
                assert!(self.finish(0) == now, "{}: other bytes", self.name);
            }
            Doing::ReadInFlight => {
                // Nobody goes until it is acknowledged.
                let kills = std::mem::take(&mut self.kills);
                self.submit(0, 0, 0, Op::Write(now.clone()));
                self.finish(0);
                (self.kills, self.steps) = (kills, 0);
                self.submit(1, 0, 0, Op::Read(vec![0; PAGE_BYTES]));
                assert!(self.finish(1) == now, "{}: other bytes", self.name);
            }
            Doing::WriteAndRebuild => {
                self.submit(0, 0, 0, Op::Write(now.clone()));
                self.finish(0);
                self.rebuild();
            }
        }
        if matches!(self.doing, Doing::WriteLate | Doing::ReadInFlight) {
            self.land();
        }
        let steps = self.steps;
        self.kill_all();
        self.check([&now, &bytes(1, 0)]);
        steps
    }

    /// A slab is lost, and at some step of its rebuild the new one's host does not reach a source any
    /// more, while pages are written; in the end it does, and the slab is believed.
    /// How many steps that took.
    pub fn run_parted(mut self, part_at: usize) -> usize {
        self.name += &format!(" parted at step {part_at}");
        let [lost, source, spare] = [0, 1, self.hosts.len() - 1].map(|at| self.hosts[at]);
        // Nobody's until it is written.
        let len_bytes = PAGE_BYTES as u64;
        self.submit(0, 0, 0, Op::Discard { len_bytes });
        self.finish(0);
        self.cluster.kill(lost, Notice::AtOnce);
        while self.is_whole() {
            self.step_idle();
        }
        let mut texts = [vec![0; PAGE_BYTES], bytes(1, 0)];
        self.steps = 0;
        while self.steps < part_at && !self.is_whole() {
            self.step_idle();
        }
        let steps = self.steps;
        self.cluster.part(spare, source, true);
        let end = self.cluster.now().after(PARTED);
        let mut version = 0;
        while self.cluster.now() < end {
            version += 1;
            let until = self.cluster.now().after(BESIDES);
            while self.cluster.now() < until {
                self.step_idle();
            }
            // Once, in this pause of the rebuild or that; the other over and over.
            let is_due = version == 1 + part_at as u64 % 4;
            for page in (0..2).filter(|&page| page == 1 || is_due) {
                let text = bytes(page, version);
                self.submit(0, page, 0, Op::Write(text.clone()));
                self.finish(0);
                texts[page as usize] = text;
            }
        }
        self.cluster.part(spare, source, false);
        self.rebuild();
        self.cluster.kill(source, Notice::AtOnce);
        self.check([&texts[0], &texts[1]]);
        steps
    }

    /// What is read of both pages, by both workers.
    fn check(&mut self, expected: [&[u8]; 2]) {
        for worker in 0..2 {
            for (page, expected) in (0..).zip(expected) {
                self.submit(worker, page, 0, Op::Read(vec![0; PAGE_BYTES]));
                let read = self.finish(worker);
                assert!(
                    read == expected,
                    "{}: page {page}, read by {worker}",
                    self.name
                );
            }
        }
    }

    fn worker(&mut self, at: usize) -> &mut Worker {
        self.workers[at].as_mut().expect("until the scene ends")
    }

    fn submit(&mut self, worker: usize, page: u64, start: usize, op: Op) {
        let offset = page * PAGE_BYTES as u64 + start as u64;
        let request = Request {
            tag: page,
            offset,
            op,
        };
        assert!(self.worker(worker).submit(request).is_ok(), "one is few");
    }

    /// Goes on until the worker's request has ended, as it must; its buffer.
    fn finish(&mut self, worker: usize) -> Vec<u8> {
        let mut done = Vec::new();
        let end = self.cluster.now().after(PATIENCE);
        loop {
            self.kill_due();
            for at in 0..2 {
                self.worker(at).poll(&mut done);
            }
            if let Some(done) = done.pop() {
                assert_eq!(done.result, Ok(()), "{}", self.name);
                match done.op {
                    Op::Read(bytes) | Op::Write(bytes) => return bytes,
                    Op::Discard { .. } => return Vec::new(),
                }
            }
            let is_late = self.cluster.now() > end;
            assert!(!is_late, "{}: worker {worker}'s does not end", self.name);
            self.step();
        }
    }

    /// Goes on until what was acknowledged has landed everywhere.
    fn land(&mut self) {
        let end = self.cluster.now().after(PATIENCE);
        loop {
            self.kill_due();
            for at in 0..2 {
                let mut none = Vec::new();
                self.worker(at).poll(&mut none);
                assert!(none.is_empty(), "{}: ended again", self.name);
            }
            if self.worker(0).landing_pages().next().is_none() {
                return;
            }
            let is_late = self.cluster.now() > end;
            assert!(!is_late, "{}: it does not land", self.name);
            self.step();
        }
    }

    /// Goes on until no slab is missing, or none can be made.
    fn rebuild(&mut self) {
        let end = self.cluster.now().after(PATIENCE);
        loop {
            self.kill_due();
            // With two gone, fewer are left than members.
            let is_hopeless = self.asked > 1 && self.kills.is_empty();
            if self.is_whole() || is_hopeless {
                return;
            }
            assert!(self.cluster.now() < end, "{}: not rebuilt", self.name);
            self.step_idle();
        }
    }

    fn is_whole(&mut self) -> bool {
        let status = self.cluster.volume().status();
        status.extents.iter().all(|it| it.health == Health::Healthy)
    }

    /// A step in which nobody asks for anything.
    fn step_idle(&mut self) {
        for at in 0..2 {
            self.worker(at).poll(&mut Vec::new());
        }
        self.step();
    }

    fn step(&mut self) {
        self.cluster.step();
        self.steps += 1;
    }

    /// Ends the hosts whose step has come.
    fn kill_due(&mut self) {
        let steps = self.steps;
        let due = self.kills.iter().filter(|kill| kill.step == steps);
        let due: Vec<Kill> = due.copied().collect();
        self.kills.retain(|kill| kill.step != steps);
        for kill in due {
            let host = self.hosts[kill.member];
            self.cluster.kill(host, kill.notice);
        }
    }

    /// Ends those whose step did not come: what was done is done.
    fn kill_all(&mut self) {
        for kill in std::mem::take(&mut self.kills) {
            let host = self.hosts[kill.member];
            self.cluster.kill(host, kill.notice);
        }
    }
}

impl Drop for Scene {
    /// Workers that are dropped wait for what is on its way, and no time passes any more.
    fn drop(&mut self) {
        for worker in &mut self.workers {
            worker.take().into_iter().for_each(Worker::abandon);
        }
    }
}
