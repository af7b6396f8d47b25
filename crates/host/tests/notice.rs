//! A host whose machine is taken back tells its clients, over real connections.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use cenote_fabric::{Address, Waker};
use cenote_host::{Daemon, End};
use cenote_pool::control::{Refusal, Reply, Request};
use support::{Client, Fabric, Lab};

/// A host that can be told to stop, as by SIGTERM.
struct Stoppable {
    stop: Arc<AtomicBool>,
    waker: Waker,
    thread: JoinHandle<End>,
    clients: Vec<Client>,
    lab: Lab,
    address: Address,
}

impl Stoppable {
    fn start(grace: Duration, clients: u128) -> Self {
        let lab = Lab::new(Fabric::Tcp);
        let mut daemon = Daemon::start(lab.config("h", 4)).unwrap();
        daemon.set_grace(grace);
        let (address, waker) = (daemon.addresses()[0].clone(), daemon.waker());
        let stop: Arc<AtomicBool> = Arc::default();
        let told = Arc::clone(&stop);
        let thread = std::thread::spawn(move || daemon.run(&told).unwrap());
        let connect = |id| Client::connect(&lab.key, &address, id).unwrap();
        Self {
            stop,
            waker,
            thread,
            clients: (1..=clients).map(connect).collect(),
            lab,
            address,
        }
    }

    fn tell_to_stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}

/// The time that a notice leaves, past whatever else the host says.
fn next_notice(client: &mut Client) -> u32 {
    loop {
        if let Reply::Notice { within_ms } = client.reply() {
            return within_ms;
        }
    }
}

#[test]
fn a_host_with_a_grace_period_tells_its_clients_and_ends_once_they_gave_everything_back() {
    let mut host = Stoppable::start(Duration::from_secs(3600), 1);
    let window = host.clients[0].map(7, 0);
    host.tell_to_stop();
    let owner = &mut host.clients[0];
    let Reply::Notice { within_ms } = owner.reply() else {
        panic!("the notice comes before anything is asked for");
    };
    assert!((3_500_000..=3_600_000).contains(&within_ms), "{within_ms}");
    let windows = vec![window];
    assert_eq!(owner.reply(), Reply::Evict { windows });
    assert!(
        next_notice(owner) < within_ms,
        "it is said again, with less"
    );
    owner.send(&Request::Unmap { window });
    assert_eq!(host.thread.join().unwrap(), End::Stopped);
}

#[test]
fn a_host_ends_at_the_end_of_its_notice_whatever_is_lent() {
    let mut host = Stoppable::start(Duration::from_millis(300), 1);
    host.clients[0].map(7, 0);
    host.tell_to_stop();
    assert!(next_notice(&mut host.clients[0]) <= 300);
    assert_eq!(host.thread.join().unwrap(), End::Stopped);
}

/// Its caller would look for slabs to leave behind, and there are none.
#[test]
fn the_end_of_a_notice_is_told_from_a_stop_also_on_a_host_that_keeps_its_memory() {
    let lab = Lab::new(Fabric::Tcp);
    let mut daemon = Daemon::start(lab.config("h", 4)).unwrap();
    daemon.keep_memory_at_stop(true);
    let address = daemon.addresses()[0].clone();
    let thread = std::thread::spawn(move || daemon.run(&AtomicBool::new(false)).unwrap());
    let mut client = Client::connect(&lab.key, &address, 1).unwrap();
    client.map(7, 0);
    client.send(&Request::Notice { within_ms: 1 });
    assert_eq!(thread.join().unwrap(), End::NoticeOver);
}

#[test]
fn a_notice_by_request_is_withdrawn_and_the_host_lends_again() {
    for withdraws in [
        Request::Notice { within_ms: 0 },
        Request::Drain(cenote_pool::control::Drain::Off),
    ] {
        let mut host = Stoppable::start(Duration::ZERO, 3);
        let mut operator = host.clients.pop().unwrap();
        let mut other = host.clients.pop().unwrap();
        let owner = &mut host.clients[0];
        owner.map(7, 0);
        let notice = Request::Notice {
            within_ms: 3_600_000,
        };
        operator.send(&notice);
        assert!(next_notice(owner) > 3_500_000);
        assert!(next_notice(&mut operator) > 3_500_000, "who asked as well");
        operator.status_when(|status| status.draining);
        assert_eq!(other.try_map(9, 1), Err(Refusal::ShuttingDown));
        operator.send(&withdraws);
        loop {
            if next_notice(owner) == 0 {
                break;
            }
        }
        operator.status_when(|status| !status.draining);
        owner.map(7, 1);
        host.tell_to_stop();
        assert_eq!(host.thread.join().unwrap(), End::Stopped);
    }
}

#[test]
fn an_owner_that_was_away_when_a_notice_was_withdrawn_hears_of_it_when_it_is_back() {
    let mut host = Stoppable::start(Duration::ZERO, 2);
    let mut operator = host.clients.pop().unwrap();
    let own = |epoch| Request::Own {
        request: epoch,
        volume: 7,
        epoch,
    };
    host.clients[0].send(&own(1));
    assert_eq!(next_notice(&mut host.clients[0]), 0);
    operator.send(&Request::Notice {
        within_ms: 3_600_000,
    });
    assert!(next_notice(&mut host.clients[0]) > 3_500_000);
    host.clients.clear();
    operator.send(&Request::Notice { within_ms: 0 });
    operator.status_when(|status| !status.draining);
    let mut owner = Client::connect(&host.lab.key, &host.address, 1).unwrap();
    owner.send(&own(1));
    assert_eq!(next_notice(&mut owner), 0);
    host.tell_to_stop();
    assert_eq!(host.thread.join().unwrap(), End::Stopped);
}

#[test]
fn a_client_of_an_earlier_version_is_asked_for_its_slabs_alone() {
    let mut host = Stoppable::start(Duration::from_secs(3600), 1);
    let earlier = &mut host.clients[0];
    let mut map = vec![5, 2, 7, 0, 0, 0, 0, 0, 0, 0];
    map.extend([8; 16]);
    map.extend([0, 0, 0, 0, 0]);
    earlier.session.send(&map).unwrap();
    let mapped = earlier.raw_reply();
    assert_eq!(mapped[..2], [5, 2]);
    host.tell_to_stop();
    let earlier = &mut host.clients[0];
    assert_eq!(earlier.raw_reply()[..2], [5, 8]);
    let mut unmap = vec![5, 3];
    unmap.extend(&mapped[10..]);
    earlier.session.send(&unmap).unwrap();
    assert_eq!(host.thread.join().unwrap(), End::Stopped);
}
