//! What hosts and a volume believe of each other's slabs, after messages were lost.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_fabric::{Error, Incoming, Result};
use cenote_pool::control::{Drain, Reply, Request};
use cenote_volume::{PAGE_BYTES, Volume};
use support::guard::{Guard, Guarded};
use support::operator::Operator;
use support::{Cluster, Transport, wait_for, wait_until};

const SLAB: u64 = 1 << 20;

/// Breaks the connection in front of the first grant that arrives, once it is armed; and makes no new
/// one while it is told not to.
#[derive(Clone, Default)]
struct LosesAGrant {
    armed: Arc<AtomicBool>,
    has_lost: Arc<AtomicBool>,
    is_away: Arc<AtomicBool>,
}

impl Guard for LosesAGrant {
    fn connect(&self) -> Result<()> {
        match self.has_lost.load(Ordering::SeqCst) && self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::Closed),
            false => Ok(()),
        }
    }

    fn breaks(&self, incoming: &Incoming) -> bool {
        let Incoming::Message(bytes) = incoming else {
            return false;
        };
        let is_grant = matches!(Reply::decode(bytes), Ok(Reply::Mapped { .. }));
        is_grant && self.armed.load(Ordering::SeqCst) && !self.has_lost.swap(true, Ordering::SeqCst)
    }
}

/// Slabs that each host lends.
fn lent(operators: &mut [Operator]) -> Vec<u32> {
    let slabs = operators.iter_mut().map(|host| host.status().slabs);
    slabs.map(|slabs| slabs.mapped + slabs.orphaned).collect()
}

/// Waits until hosts lend what the volume uses and no slab more.
fn wait_for_agreement(cluster: &Cluster, volume: &Volume) {
    let hosts = 0..cluster.configs.len();
    let mut operators: Vec<Operator> = hosts.map(|host| Operator::of(cluster, host)).collect();
    let used = || (volume.status().unwrap().lent_bytes / SLAB) as u32;
    let is_connected = || {
        let status = volume.status().unwrap();
        status.hosts.iter().all(|host| host.connected)
    };
    let last = std::cell::RefCell::new(Vec::new());
    wait_until(
        || {
            *last.borrow_mut() = lent(&mut operators);
            is_connected() && last.borrow().iter().sum::<u32>() == used()
        },
        || format!("used {}, lent {:?}", used(), last.borrow()),
    );
}

#[test]
fn a_slab_that_was_granted_and_never_heard_of_goes_back() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let cluster = Cluster::start(4, transport, 16 << 20, SLAB);
        let guard = LosesAGrant::default();
        guard.armed.store(true, Ordering::SeqCst);
        let hosts = cluster.configs.iter();
        let addresses = hosts.map(|host| host.address.clone()).collect();
        let volume = cluster.guarded_volume("plain", SLAB, addresses, guard.clone());
        volume.worker().unwrap().write(0, &[1; PAGE_BYTES]).unwrap();
        assert!(guard.has_lost.load(Ordering::SeqCst));
        wait_for_agreement(&cluster, &volume);
        // So a host that is drained does not wait for it.
        for host in 0..cluster.configs.len() {
            let mut operator = Operator::of(&cluster, host);
            operator.drain(Drain::On);
            let slabs = || operator.status().slabs;
            let slabs = std::cell::RefCell::new(slabs);
            wait_until(
                || slabs.borrow_mut()().mapped == 0,
                || format!("host {host}: {:?}", slabs.borrow_mut()()),
            );
            Operator::of(&cluster, host).drain(Drain::Off);
        }
        assert_eq!(read(&volume), [1; PAGE_BYTES]);
    }
}

fn read(volume: &Volume) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    volume.worker().unwrap().read(0, &mut page).unwrap();
    page
}

#[test]
fn a_slab_whose_return_was_lost_goes_back_once_it_is_given_up() {
    let cluster = Cluster::start(4, Transport::Tcp, 16 << 20, SLAB);
    let scheme = "rs:2+1";
    let volume = cluster.kept_volume(scheme, 2 * SLAB).unwrap();
    volume.worker().unwrap().write(0, &[7; PAGE_BYTES]).unwrap();
    let holder = volume.status().unwrap().extents[0].hosts[0].clone();
    volume.detach();
    drop(volume);

    let guard = LosesAGrant::default();
    guard.armed.store(true, Ordering::SeqCst);
    guard.is_away.store(true, Ordering::SeqCst);
    let holder = cluster
        .configs
        .iter()
        .find(|host| Some(&host.name) == holder.as_ref());
    let connector = Guarded {
        inner: cluster.connector(),
        addresses: vec![holder.unwrap().address.clone()],
        guard: guard.clone(),
    };
    let config = cluster.config(scheme, 2 * SLAB);
    let volume = Volume::open_kept(config, cluster.kept(), Arc::new(connector)).unwrap();
    assert!(guard.has_lost.load(Ordering::SeqCst));
    assert_eq!(read(&volume), [7; PAGE_BYTES]);
    guard.is_away.store(false, Ordering::SeqCst);
    wait_for_agreement(&cluster, &volume);
    assert_eq!(read(&volume), [7; PAGE_BYTES]);
}

/// Swallows the word that a slab is given back, while it is told to.
#[derive(Clone, Default)]
struct LosesAReturn(LosesAGrant);

impl Guard for LosesAReturn {
    fn sending(&self, message: &[u8]) {
        if matches!(Request::decode(message), Ok(Request::Unmap { .. })) {
            self.0.has_lost.store(true, Ordering::SeqCst);
        }
    }

    fn breaks(&self, _: &Incoming) -> bool {
        // Whatever comes next.
        self.0.has_lost.load(Ordering::SeqCst) && self.0.armed.swap(false, Ordering::SeqCst)
    }

    fn swallows(&self, message: &[u8]) -> bool {
        let is_return = matches!(Request::decode(message), Ok(Request::Unmap { .. }));
        is_return && self.0.armed.load(Ordering::SeqCst)
    }
}

#[test]
fn a_slab_whose_giving_back_was_lost_goes_back_all_the_same() {
    let cluster = Cluster::start(2, Transport::Tcp, 16 << 20, SLAB);
    let guard = LosesAReturn::default();
    let addresses = vec![cluster.configs[0].address.clone()];
    let volume = cluster.guarded_volume("mirror:2", SLAB, addresses, guard.clone());
    let mut worker = volume.worker().unwrap();
    worker.write(0, &[1; PAGE_BYTES]).unwrap();
    guard.0.armed.store(true, Ordering::SeqCst);
    worker.discard(0, SLAB).unwrap();
    wait_for(&volume, |_| {
        guard.0.has_lost.load(Ordering::SeqCst) && !guard.0.armed.load(Ordering::SeqCst)
    });
    wait_for_agreement(&cluster, &volume);
}
