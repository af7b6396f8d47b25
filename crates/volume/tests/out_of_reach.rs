//! Writes that are under way when the client's own link goes, for so long that requests fail: what their pages
//! held, and what was acknowledged of them, is there again when the link is.

mod support;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::{Address, Error, Incoming};
use cenote_volume::{
    Done, Health, IoError, Mode, Op, PAGE_BYTES, REQUESTS_MAX, Request, Resilience, Volume,
    VolumeConfig, VolumeError, Worker, Workers,
};
use support::guard::{Guard, Guarded};
use support::tardy::Tardy;
use support::{Cluster, Transport, in_mode, page, usual, wait_for, wait_until};

const SLAB: u64 = 1 << 20;
const PAGE: u64 = PAGE_BYTES as u64;
const SECTOR: usize = 512;
const HOSTS: usize = 3;
/// The first page that has the claim of page 0.
const SHARES_CLAIM: u64 = (16 << 10) + 1;
/// A page that nobody writes to while the link is cut.
const OTHER: u64 = 300 * PAGE;

/// While it is set connections break, and are refused when they are made again: nobody is waited for.
#[derive(Clone, Default)]
struct Cut(Arc<AtomicBool>);

impl Guard for Cut {
    fn connect(&self) -> Result<(), Error> {
        match self.0.load(Ordering::SeqCst) {
            true => Err(Error::os("connect", ErrorKind::ConnectionRefused.into())),
            false => Ok(()),
        }
    }

    fn breaks(&self, _incoming: &Incoming) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// As many hosts as the scheme has splits, of which the first few take writes when they are let.
struct Link {
    cluster: Cluster,
    resilience: Resilience,
    tardy_count: usize,
    cut: Cut,
    tardy: Tardy,
}

impl Link {
    fn new(resilience: Resilience, tardy_count: usize) -> Self {
        Self {
            cluster: Cluster::start(HOSTS, Transport::Tcp, 16 << 20, SLAB),
            resilience,
            tardy_count,
            cut: Cut::default(),
            tardy: Tardy::default(),
        }
    }

    fn config(&self) -> VolumeConfig {
        VolumeConfig {
            resilience: self.resilience,
            ..self.cluster.config("rs:2+1", 66 * SLAB)
        }
    }

    fn connector(&self) -> Arc<Guarded<Cut>> {
        let hosts = self.cluster.configs.iter();
        let addresses: Vec<Address> = hosts.map(|host| host.address.clone()).collect();
        let slow = Guarded {
            inner: self.cluster.connector(),
            addresses: addresses[..self.tardy_count].to_vec(),
            guard: self.tardy.clone(),
        };
        Arc::new(Guarded {
            inner: Arc::new(slow),
            addresses,
            guard: self.cut.clone(),
        })
    }

    fn open(&self) -> Volume {
        Volume::open(self.config(), self.connector()).unwrap()
    }

    fn open_kept(&self) -> Result<Volume, VolumeError> {
        Volume::open_kept(self.config(), self.cluster.kept(), self.connector())
    }

    /// Has a write be under way of which the tardy hosts have taken nothing; what is known of its end by then.
    fn begin_write(&self, worker: &mut Worker, offset: u64, bytes: Vec<u8>) -> Vec<Done> {
        self.tardy.holds_writes.store(true, Ordering::Release);
        let (tag, op) = (1, Op::Write(bytes));
        worker.submit(Request { tag, offset, op }).unwrap();
        let (mut done, is_acknowledged) = (Vec::new(), self.tardy_count < HOSTS);
        wait_until(
            || {
                worker.poll(&mut done);
                let held = self.tardy.held_writes.load(Ordering::Acquire);
                held == self.tardy_count && done.is_empty() != is_acknowledged
            },
            || "the write is not under way".into(),
        );
        done
    }

    /// Cuts the link under such a write: how it ended, once requests of others fail.
    fn cut_under(
        &self,
        (volume, worker): (&Volume, &mut Worker),
        (offset, bytes): (u64, Vec<u8>),
    ) -> Result<(), IoError> {
        let mut done = self.begin_write(worker, offset, bytes);
        self.cut.0.store(true, Ordering::SeqCst);
        let mut other = volume.worker().unwrap();
        wait_until(
            || {
                worker.poll(&mut done);
                let read = other.read(OTHER, &mut [0; PAGE_BYTES]);
                read == Err(IoError::Lost) && !done.is_empty()
            },
            || "requests wait".into(),
        );
        self.tardy.holds_writes.store(false, Ordering::Release);
        done.remove(0).result
    }

    /// The link is there again.
    fn reconnect(&self, volume: &Volume, worker: &mut Worker) {
        self.cut.0.store(false, Ordering::SeqCst);
        wait_for(volume, |status| {
            worker.poll(&mut Vec::new());
            status.health == Health::Healthy
        });
    }
}

fn read(worker: &mut Worker, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0xa5; PAGE_BYTES];
    worker.read(offset, &mut bytes).unwrap();
    bytes
}

#[test]
fn sectors_beside_a_write_that_failed_are_back_when_hosts_are() {
    let link = Link::new(usual("rs:2+1"), HOSTS);
    let volume = link.open();
    let mut worker = volume.worker().unwrap();
    worker.write(OTHER, &page(300, 1)).unwrap();
    for index in 0..2 {
        worker.write(index * PAGE, &page(index, 1)).unwrap();
    }
    let (from, new) = (2 * SECTOR, page(7, 7)[..SECTOR].to_vec());
    let write = (PAGE + from as u64, new.clone());
    let result = link.cut_under((&volume, &mut worker), write);
    assert_eq!(result, Err(IoError::Lost));
    // And as long as that lasts whatever meets the write.
    let result = worker.write(PAGE, &[9; SECTOR]);
    assert_eq!(result, Err(IoError::Lost));
    assert_eq!(worker.discard(PAGE, PAGE), Err(IoError::Lost));
    link.reconnect(&volume, &mut worker);
    let mut expected = page(1, 1);
    expected[from..from + SECTOR].copy_from_slice(&new);
    assert!(read(&mut worker, PAGE) == expected);
    assert!(read(&mut worker, 0) == page(0, 1), "its neighbour");
    assert_eq!(volume.status().unwrap().torn_pages, 0);
}

#[test]
fn what_was_acknowledged_early_is_back_when_hosts_are() {
    let link = Link::new(in_mode("rs:2+1", Mode::EcOnly, 0), 1);
    let volume = link.open();
    let mut worker = volume.worker().unwrap();
    worker.write(OTHER, &page(300, 1)).unwrap();
    worker.write(0, &page(0, 1)).unwrap();
    let result = link.cut_under((&volume, &mut worker), (0, page(0, 2)));
    assert_eq!(result, Ok(()));
    // A call does not wait for it to land.
    assert_eq!(worker.write(0, &page(0, 3)), Err(IoError::Lost));
    link.reconnect(&volume, &mut worker);
    assert!(read(&mut worker, 0) == page(0, 2));
    assert_eq!(volume.status().unwrap().torn_pages, 0);
}

/// More requests than a worker has operations for writes: those that wait for one do not wait for hosts.
#[test]
fn writes_behind_writes_that_hosts_keep_waiting_are_errors_too() {
    let link = Link::new(usual("rs:2+1"), HOSTS);
    let volume = link.open();
    let (mut worker, mut other) = (volume.worker().unwrap(), volume.worker().unwrap());
    worker.write(OTHER, &page(300, 1)).unwrap();
    link.tardy.holds_writes.store(true, Ordering::Release);
    let count = REQUESTS_MAX as u64;
    for tag in 0..count {
        let (offset, op) = (tag * PAGE, Op::Write(page(tag, 2)));
        worker.submit(Request { tag, offset, op }).unwrap();
    }
    link.cut.0.store(true, Ordering::SeqCst);
    let mut done = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            done.len() == REQUESTS_MAX
        },
        || "writes wait".into(),
    );
    let mut results = done.iter().map(|done| done.result);
    assert!(results.all(|result| result == Err(IoError::Lost)));
    assert_eq!(other.write(OTHER, &page(300, 2)), Err(IoError::Lost));
    link.tardy.holds_writes.store(false, Ordering::Release);
    link.reconnect(&volume, &mut worker);
    for index in 0..count {
        let now = read(&mut worker, index * PAGE);
        assert!(
            now == page(index, 2) || now == vec![0; PAGE_BYTES],
            "{index}"
        );
    }
    worker.write(0, &page(0, 3)).unwrap();
    assert!(read(&mut worker, 0) == page(0, 3));
}

/// The thread whose write failed never asks for anything again, and nobody else uses its worker.
#[test]
fn a_write_of_a_pool_that_failed_ends_though_its_thread_is_gone() {
    let link = Link::new(usual("rs:2+1"), HOSTS);
    let volume = link.open();
    let workers = Workers::new(&volume, 2).unwrap();
    workers.get().write(OTHER, &page(300, 1)).unwrap();
    for index in [0, SHARES_CLAIM] {
        workers.get().write(index * PAGE, &page(index, 1)).unwrap();
    }
    link.tardy.holds_writes.store(true, Ordering::Release);
    let (mut other, failed) = std::thread::scope(|scope| {
        let gone = scope.spawn(|| workers.get().write(0, &page(0, 2)));
        let held = || link.tardy.held_writes.load(Ordering::Acquire);
        wait_until(|| held() == HOSTS, || format!("{} writes held", held()));
        let other = workers.get();
        link.cut.0.store(true, Ordering::SeqCst);
        (other, gone.join().unwrap())
    });
    assert_eq!(failed, Err(IoError::Lost));
    link.tardy.holds_writes.store(false, Ordering::Release);
    let lost = other.read(SHARES_CLAIM * PAGE, &mut [0; PAGE_BYTES]);
    assert_eq!(lost, Err(IoError::Lost), "it has the claim of the page");
    link.reconnect(&volume, &mut other);
    let mut bytes = vec![0; PAGE_BYTES];
    wait_until(
        || other.read(0, &mut bytes).is_ok(),
        || "the page is lost for the other worker".into(),
    );
    assert!(bytes == page(0, 2));
    assert!(read(&mut other, SHARES_CLAIM * PAGE) == page(SHARES_CLAIM, 1));
    for index in [0, SHARES_CLAIM] {
        other.write(index * PAGE, &page(index, 3)).unwrap();
        assert!(read(&mut other, index * PAGE) == page(index, 3));
    }
}

#[test]
fn a_write_that_could_not_be_redone_yet_is_redone_by_the_next_owner() {
    let link = Link::new(in_mode("rs:2+1", Mode::EcOnly, 0), 1);
    let volume = link.open_kept().unwrap();
    let mut worker = volume.worker().unwrap();
    worker.write(0, &page(0, 1)).unwrap();
    let done = link.begin_write(&mut worker, 0, page(0, 2));
    assert_eq!(done[0].result, Ok(()));
    worker.abandon();
    volume.detach();
    // The link goes while the next owner is at it.
    let opened = std::thread::scope(|scope| {
        let opening = scope.spawn(|| link.open_kept().map(|_| ()));
        let held = || link.tardy.held_writes.load(Ordering::Acquire);
        wait_until(|| held() == 2, || format!("{} writes held", held()));
        link.cut.0.store(true, Ordering::SeqCst);
        opening.join().unwrap()
    });
    assert!(
        matches!(opened, Err(VolumeError::Unfinished { left: 1, .. })),
        "{opened:?}"
    );
    link.cut.0.store(false, Ordering::SeqCst);
    link.tardy.holds_writes.store(false, Ordering::Release);
    let volume = link.open_kept().unwrap();
    assert_eq!(volume.status().unwrap().torn_pages, 0);
    assert!(read(&mut volume.worker().unwrap(), 0) == page(0, 2));
}
