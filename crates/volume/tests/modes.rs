//! What each mode promises: when a write is acknowledged, and what it survives from then on.
//!
//! Some hosts take writes when a test lets them, and take the bytes only then.
//! Paper: \[hydra22\] 4.1, Table 1. Soundness Y3: early acknowledgement without holding the page.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_volume::{
    Done, Health, Kept, Mode, Op, Protection, Request, Resilience, SealKey, Volume, VolumeConfig,
    Worker,
};
use support::guard::Guarded;
use support::tardy::Tardy;
use support::{Cluster, Transport, page, wait_for_health, wait_until};

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;
const SIZE: u64 = 1 << 20;

/// A mode, with how many hosts a write does without.
struct Case {
    scheme: &'static str,
    mode: Mode,
    delta: usize,
    spare: usize,
}

const CASES: [Case; 5] = [
    case("rs:4+2", Mode::FailureRecovery, 1, 0),
    case("rs:4+2", Mode::Detection, 1, 1),
    case("rs:4+4", Mode::Correction, 1, 1),
    case("rs:4+2", Mode::EcOnly, 0, 2),
    case("mirror:2", Mode::EcOnly, 0, 1),
];

const fn case(scheme: &'static str, mode: Mode, delta: usize, spare: usize) -> Case {
    Case {
        scheme,
        mode,
        delta,
        spare,
    }
}

impl Case {
    fn members(&self) -> usize {
        let scheme: cenote_volume::Scheme = self.scheme.parse().unwrap();
        scheme.members()
    }

    fn config(&self, cluster: &Cluster) -> VolumeConfig {
        let scheme = self.scheme.parse().unwrap();
        VolumeConfig {
            resilience: Resilience::new(scheme, self.mode, self.delta).unwrap(),
            ..cluster.config(self.scheme, SIZE)
        }
    }

    /// Over hosts of which the first `tardy_count` take writes when they are let.
    fn connector(
        &self,
        cluster: &Cluster,
        tardy: &Tardy,
        tardy_count: usize,
    ) -> Arc<Guarded<Tardy>> {
        let slow = cluster.configs.iter().take(tardy_count);
        Arc::new(Guarded {
            inner: cluster.connector(),
            addresses: slow.map(|host| host.address.clone()).collect(),
            guard: tardy.clone(),
        })
    }

    fn open(&self, cluster: &Cluster, tardy: &Tardy, tardy_count: usize) -> Volume {
        let connector = self.connector(cluster, tardy, tardy_count);
        Volume::open(self.config(cluster), connector).unwrap()
    }

    fn kept(&self, cluster: &Cluster, kept: Kept, tardy: &Tardy) -> Volume {
        let connector = self.connector(cluster, tardy, self.spare.max(1));
        Volume::open_kept(self.config(cluster), kept, connector).unwrap()
    }
}

fn submit(worker: &mut Worker, op: Op) {
    let request = Request {
        tag: 1,
        offset: 0,
        op,
    };
    assert!(worker.submit(request).is_ok());
}

fn wait_for_one(worker: &mut Worker, what: &str) -> Done {
    let mut done = Vec::new();
    wait_until(
        || {
            worker.poll(&mut done);
            !done.is_empty()
        },
        || format!("not done: {what}"),
    );
    done.remove(0)
}

/// Polls long enough for anything that does not wait to have ended.
fn ends_without_waiting(worker: &mut Worker) -> bool {
    let mut done = Vec::new();
    for _ in 0..2_000 {
        worker.poll(&mut done);
        std::thread::yield_now();
    }
    !done.is_empty()
}

#[test]
fn a_write_does_without_as_many_hosts_as_its_mode_says_and_no_more() {
    for case in CASES {
        for tardy_count in 1..=case.members().min(case.spare + 1) {
            let cluster = Cluster::start(case.members(), Transport::Tcp, 16 << 20, SLAB);
            let tardy = Tardy::default();
            let volume = case.open(&cluster, &tardy, tardy_count);
            let mut worker = volume.worker().unwrap();
            worker.write(0, &page(0, 0)).unwrap();
            tardy.holds_writes.store(true, Ordering::Release);
            submit(&mut worker, Op::Write(page(0, 1)));
            if tardy_count <= case.spare {
                let done = wait_for_one(&mut worker, case.scheme);
                assert_eq!(done.result, Ok(()));
            } else {
                let name = (case.scheme, case.mode);
                assert!(!ends_without_waiting(&mut worker), "{name:?} {tardy_count}");
            }
            tardy.holds_writes.store(false, Ordering::Release);
        }
    }
}

/// The writer's worker has the page; others read the splits that have landed, and no others. Old
/// splits and new ones are out there, and the writer's buffer has other bytes again.
#[test]
fn what_was_acknowledged_early_is_read_before_it_has_landed() {
    let sealed = Protection::Sealed(SealKey::new([7; SealKey::BYTES]));
    for protection in [Protection::None, Protection::Checksum, sealed] {
        for case in CASES.iter().filter(|case| case.spare > 0) {
            let mut cluster = Cluster::start(case.members(), Transport::Tcp, 16 << 20, SLAB);
            let tardy = Tardy::default();
            let connector = case.connector(&cluster, &tardy, case.spare);
            let config = VolumeConfig {
                protection: protection.clone(),
                ..case.config(&cluster)
            };
            let volume = Volume::open(config, connector).unwrap();
            read_in_flight(case, &volume, &tardy);
            // All k+r have it: any k will do.
            let r = case.members() - if case.scheme == "mirror:2" { 1 } else { 4 };
            for host in 0..r {
                cluster.stop(case.members() - 1 - host);
            }
            let (mut worker, mut now) = (volume.worker().unwrap(), vec![0; PAGE]);
            worker.read(0, &mut now).unwrap();
            assert!(now == page(0, 1), "{} after {r} losses", case.scheme);
        }
    }
}

/// Writes a page that some hosts do not take, and reads it; then they take it.
fn read_in_flight(case: &Case, volume: &Volume, tardy: &Tardy) {
    let (mut writer, mut reader) = (volume.worker().unwrap(), volume.worker().unwrap());
    writer.write(0, &page(0, 0)).unwrap();
    tardy.holds_writes.store(true, Ordering::Release);
    submit(&mut writer, Op::Write(page(0, 1)));
    let Op::Write(mut buffer) = wait_for_one(&mut writer, case.scheme).op else {
        panic!("another operation came back");
    };
    buffer.fill(0xdb);
    assert!(tardy.held_writes.load(Ordering::Acquire) > 0);
    for (who, worker) in [("the writer", &mut writer), ("another", &mut reader)] {
        let (mut whole, mut part) = (vec![0; PAGE], vec![0; 1000]);
        worker.read(0, &mut whole).unwrap();
        assert!(whole == page(0, 1), "{}: {who} reads it", case.scheme);
        worker.read(100, &mut part).unwrap();
        assert!(
            part == page(0, 1)[100..1100],
            "{}: {who}, part",
            case.scheme
        );
    }
    let mut second = volume.worker().unwrap();
    submit(&mut second, Op::Write(page(0, 2)));
    let is_written = ends_without_waiting(&mut second);
    assert!(!is_written, "{}: written over in flight", case.scheme);
    second.abandon();
    assert!(writer.landing_pages().eq([0]), "still in flight");
    tardy.holds_writes.store(false, Ordering::Release);
    wait_until(
        || {
            writer.poll(&mut Vec::new());
            writer.deadline().is_none()
        },
        || "the write does not land".into(),
    );
    drop(buffer);
}

#[test]
fn a_host_lost_before_the_rest_has_landed_costs_nothing_while_the_owner_lives() {
    for case in CASES.iter().filter(|case| case.spare > 0) {
        for victim in [0, case.members() - 1] {
            let hosts = case.members() + 1;
            let mut cluster = Cluster::start(hosts, Transport::Tcp, 16 << 20, SLAB);
            let tardy = Tardy::default();
            let volume = case.open(&cluster, &tardy, case.spare);
            let mut worker = volume.worker().unwrap();
            worker.write(0, &page(0, 0)).unwrap();
            tardy.holds_writes.store(true, Ordering::Release);
            submit(&mut worker, Op::Write(page(0, 1)));
            assert_eq!(wait_for_one(&mut worker, case.scheme).result, Ok(()));
            // One that has the new split, or one that has the old.
            cluster.stop(victim);
            tardy.holds_writes.store(false, Ordering::Release);
            wait_until(
                || {
                    worker.poll(&mut Vec::new());
                    worker.deadline().is_none()
                },
                || format!("{}: the write does not end", case.scheme),
            );
            wait_for_health(&volume, Health::Healthy);
            let mut now = vec![0; PAGE];
            worker.read(0, &mut now).unwrap();
            assert!(now == page(0, 1), "{} without host {victim}", case.scheme);
        }
    }
}

#[test]
fn what_an_owner_acknowledged_and_did_not_finish_the_next_one_finishes() {
    for case in CASES.iter().filter(|case| case.spare > 0) {
        let mut cluster = Cluster::start(case.members(), Transport::Tcp, 16 << 20, SLAB);
        let tardy = Tardy::default();
        let volume = case.kept(&cluster, cluster.kept(), &tardy);
        let mut worker = volume.worker().unwrap();
        // One that was written before, and one that was not.
        worker.write(0, &page(0, 0)).unwrap();
        tardy.holds_writes.store(true, Ordering::Release);
        submit(&mut worker, Op::Write([page(0, 1), page(1, 1)].concat()));
        assert_eq!(wait_for_one(&mut worker, case.scheme).result, Ok(()));
        worker.abandon();
        volume.detach();
        tardy.holds_writes.store(false, Ordering::Release);
        // One that had landed, of those that count: what is left of the pages is less than k splits.
        cluster.stop(case.members() - 1);
        let volume = case.kept(&cluster, cluster.kept(), &tardy);
        assert_eq!(volume.status().unwrap().torn_pages, 0);
        let mut worker = volume.worker().unwrap();
        for index in 0..2 {
            let mut now = vec![0; PAGE];
            worker.read(index * PAGE as u64, &mut now).unwrap();
            assert!(now == page(index, 1), "{} page {index}", case.scheme);
            worker.write(index * PAGE as u64, &page(index, 2)).unwrap();
            worker.read(index * PAGE as u64, &mut now).unwrap();
            assert!(now == page(index, 2));
        }
    }
}

/// Paper 4.3: the write goes on with those that are left, what is read after it is what it wrote,
/// and the slab in the lost one's place counts only when it has every page (soundness Y8).
#[test]
fn a_write_that_loses_a_host_is_read_at_once_and_from_the_new_slab_when_that_is_whole() {
    let case = &CASES[0];
    let mut cluster = Cluster::start(case.members() + 1, Transport::Tcp, 16 << 20, SLAB);
    let tardy = Tardy::default();
    let volume = case.open(&cluster, &tardy, case.members() + 1);
    let mut worker = volume.worker().unwrap();
    for index in 0..16 {
        worker.write(index * PAGE as u64, &page(index, 0)).unwrap();
    }
    let first = volume.status().unwrap().extents[0].hosts[0]
        .clone()
        .unwrap();
    tardy.holds_writes.store(true, Ordering::Release);
    submit(&mut worker, Op::Write(page(0, 1)));
    cluster.stop(first[1..].parse().unwrap());
    tardy.holds_writes.store(false, Ordering::Release);
    assert_eq!(wait_for_one(&mut worker, "a host is lost").result, Ok(()));
    let mut now = vec![0; PAGE];
    worker.read(0, &mut now).unwrap();
    assert!(now == page(0, 1), "right after the write");
    wait_for_health(&volume, Health::Healthy);
    // Without two of the old ones the new slab's splits are needed.
    let hosts = volume.status().unwrap().extents[0].hosts.clone();
    for host in hosts.iter().skip(1).take(2) {
        cluster.stop(host.as_ref().unwrap()[1..].parse().unwrap());
    }
    for index in 0..16 {
        worker.read(index * PAGE as u64, &mut now).unwrap();
        let expected = page(index, u64::from(index == 0));
        assert!(now == expected, "page {index} from the new slab");
    }
}
