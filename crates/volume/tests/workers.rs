//! Workers that come while hosts are slow to open their data connections, and workers in each other's way.

mod support;

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use cenote_fabric::{Error, Result};
use cenote_volume::{Done, Health, Op, Request, Volume, Worker};
use support::guard::Guard;
use support::{Cluster, Transport, wait_for_health, wait_until};

const SLAB: u64 = 1 << 20;
const PAGE: usize = 4096;
const HOSTS: usize = 3;

/// How one host treats those who ask for a data connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Mood {
    Open,
    /// Leaves them waiting until it changes.
    Silent,
    /// Lets them run into their timeout, at once.
    TimedOut,
}

/// The mood, and how many wait for it to change.
#[derive(Clone)]
struct Door(Arc<(Mutex<(Mood, usize)>, Condvar)>);

impl Door {
    fn new() -> Self {
        Self(Arc::new((Mutex::new((Mood::Open, 0)), Condvar::new())))
    }

    fn set(&self, mood: Mood) {
        self.0.0.lock().unwrap().0 = mood;
        self.0.1.notify_all();
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().1
    }
}

impl Guard for Door {
    fn open(&self) -> Result<()> {
        let mut state = self.0.0.lock().unwrap();
        state.1 += 1;
        let changed = &self.0.1;
        state = changed
            .wait_while(state, |(mood, _)| *mood == Mood::Silent)
            .unwrap();
        state.1 -= 1;
        match state.0 {
            Mood::TimedOut => Err(Error::Timeout(Duration::from_secs(1))),
            Mood::Open | Mood::Silent => Ok(()),
        }
    }
}

fn open(cluster: &Cluster, door: &Door) -> Volume {
    let addresses = vec![cluster.configs[0].address.clone()];
    cluster.guarded_volume("rs:2+1", 16 << 20, addresses, door.clone())
}

#[test]
fn a_worker_that_waits_for_a_silent_host_holds_up_nobody_else() {
    let cluster = Cluster::start(HOSTS, Transport::Shm, 32 << 20, SLAB);
    let door = Door::new();
    let volume = Arc::new(open(&cluster, &door));
    let mut first = volume.worker().unwrap();
    first.write(0, &[1; PAGE]).unwrap();
    door.set(Mood::Silent);
    let newcomer = std::thread::spawn({
        let volume = Arc::clone(&volume);
        move || volume.worker().unwrap()
    });
    wait_until(|| door.waiting() == 1, || "no opening".into());

    // A new extent takes the control thread and all three hosts.
    first.write(volume.extent_bytes(), &[2; PAGE]).unwrap();

    assert_eq!(volume.status().unwrap().health, Health::Healthy);
    assert!(!newcomer.is_finished(), "it lacks an endpoint");
    door.set(Mood::Open);
    let mut second = newcomer.join().unwrap();
    let mut page = [0; PAGE];
    second.read(volume.extent_bytes(), &mut page).unwrap();
    assert_eq!(page, [2; PAGE]);
    second.write(0, &[3; PAGE]).unwrap();
    let status = volume.status().unwrap();
    assert_eq!(status.health, Health::Healthy, "no session failed");
    assert!(status.hosts.iter().all(|host| host.connected));
}

#[test]
fn a_host_that_opens_nothing_is_given_up_and_the_worker_comes_without_it() {
    let cluster = Cluster::start(HOSTS, Transport::Shm, 32 << 20, SLAB);
    let door = Door::new();
    let volume = open(&cluster, &door);
    let mut first = volume.worker().unwrap();
    first.write(0, &[1; PAGE]).unwrap();
    door.set(Mood::TimedOut);

    let mut second = volume.worker().unwrap();

    let mut page = [0; PAGE];
    second.read(0, &mut page).unwrap();
    assert_eq!(page, [1; PAGE]);
    assert_eq!(volume.status().unwrap().health, Health::Degraded);
    door.set(Mood::Open);
    wait_for_health(&volume, Health::Healthy);
    second.read(0, &mut page).unwrap();
    assert_eq!(page, [1; PAGE]);
}

#[test]
fn a_worker_that_comes_while_a_host_returns_gets_its_endpoint_before_its_slabs() {
    let mut cluster = Cluster::start(HOSTS, Transport::Shm, 32 << 20, SLAB);
    let door = Door::new();
    let volume = open(&cluster, &door);
    let mut first = volume.worker().unwrap();
    first.write(0, &[1; PAGE]).unwrap();
    cluster.stop(0);
    wait_for_health(&volume, Health::Degraded);
    door.set(Mood::Silent);
    cluster.restart(0);
    wait_until(|| door.waiting() == 1, || "no opening".into());

    let mut second = volume.worker().unwrap();

    let status = volume.status().unwrap();
    assert!(!status.hosts[0].connected, "not before all have endpoints");
    door.set(Mood::Open);
    wait_for_health(&volume, Health::Healthy);
    for worker in [&mut first, &mut second] {
        worker.write(0, &[2; PAGE]).unwrap();
    }
    assert_eq!(volume.status().unwrap().health, Health::Healthy);
}

fn submit(worker: &mut Worker, tag: u64, page: u64, op: Op) {
    let offset = page * PAGE as u64;
    worker.submit(Request { tag, offset, op }).unwrap();
}

/// Polls until the request with this tag has ended; the tags of all that ended, in order.
fn poll_until(worker: &mut Worker, tag: u64) -> Vec<u64> {
    let (mut done, mut ended) = (Vec::new(), Vec::new());
    wait_until(
        || {
            worker.poll(&mut done);
            for Done { tag, result, .. } in done.drain(..) {
                result.unwrap();
                ended.push(tag);
            }
            ended.contains(&tag)
        },
        || format!("request {tag} has not ended"),
    );
    ended
}

#[test]
fn a_discard_that_waits_for_another_workers_write_holds_nobody_else_up() {
    let cluster = Cluster::start(HOSTS, Transport::Tcp, 32 << 20, SLAB);
    let volume = open(&cluster, &Door::new());
    let (mut writer, mut other) = (volume.worker().unwrap(), volume.worker().unwrap());
    for page in 0..8 {
        writer.write(page * PAGE as u64, &[1; PAGE]).unwrap();
    }
    other.read(0, &mut [0; PAGE]).unwrap();
    // Over TCP a write ends when its worker is polled: until then the page is claimed.
    submit(&mut writer, 1, 2, Op::Write(vec![2; PAGE]));

    let len_bytes = 8 * PAGE as u64;
    submit(&mut other, 1, 0, Op::Discard { len_bytes });
    submit(&mut other, 2, 7, Op::Read(vec![0; PAGE]));
    submit(&mut other, 3, 9, Op::Write(vec![3; PAGE]));

    let mut ended = poll_until(&mut other, 2);
    if !ended.contains(&3) {
        ended.extend(poll_until(&mut other, 3));
    }
    assert!(!ended.contains(&1), "the page is still claimed: {ended:?}");
    poll_until(&mut writer, 1);
    poll_until(&mut other, 1);
    let mut page = [9; PAGE];
    for at in 0..8 {
        other.read(at * PAGE as u64, &mut page).unwrap();
        assert_eq!(page, [0; PAGE], "page {at}");
    }
    other.read(9 * PAGE as u64, &mut page).unwrap();
    assert_eq!(page, [3; PAGE]);
}
