//! Hosts that move, that are replaced by their next process, and that are of no use.

use super::*;

/// Attempts to connect that end when a test says so.
#[derive(Clone, Default)]
struct Attempts {
    begun: Arc<Mutex<Vec<Address>>>,
    ended: Arc<Mutex<VecDeque<Arrival>>>,
}

impl Dial for Attempts {
    fn dial(&mut self, _: HostIndex, address: &Address) {
        self.begun.lock().unwrap().push(address.clone());
    }

    fn poll(&mut self) -> Option<Arrival> {
        self.ended.lock().unwrap().pop_front()
    }
}

#[test]
fn a_host_is_sent_more_once_it_has_heard_what_it_was_sent_before() {
    let unanswered = Arc::<Mutex<Vec<Request>>>::default();
    let host = Host {
        unanswered: Some(Arc::clone(&unanswered)),
        ..Host::default()
    };
    let mut link = HostLink::new(config());
    link.state = State::Up(Box::new(host));
    let message = |slab: u32| Request::Held { skip: slab };
    let all: Vec<Request> = (0..5000).map(message).collect();
    for request in &all {
        assert!(link.send(request));
    }
    assert!(!link.has_heard_all());
    let mut rounds = 0;
    while !link.has_heard_all() {
        // While more waits it is asked again at once.
        let pause = u64::from(rounds == 4);
        link.ping(Time(1).after(Duration::from_secs(pause)));
        let mut sent = unanswered.lock().unwrap();
        assert!(matches!(sent.pop(), Some(Request::Ping { .. })), "at once");
        let expected = all.iter().take(1024 * (rounds + 1));
        assert!(sent.iter().eq(expected), "in order, and no more than that");
        drop(sent);
        link.note_pong(0);
        rounds += 1;
        assert!(rounds < 10, "it hears all in the end");
    }
    assert_eq!(rounds, 5);
}

#[test]
fn nobody_at_the_address_that_a_host_had_says_nothing_of_the_host_where_it_is_now() {
    let (attempts, host) = (Attempts::default(), Host::default());
    let owner = Owner::new(settings(), 1, &[0], Time(1));
    let dial = Box::new(attempts.clone());
    let mut manager = Manager::new(owner, settings(), 1, vec![config()], dial);
    go_on(&mut manager);
    let moved = HostConfig {
        address: "tcp:127.0.0.1:2".parse().unwrap(),
        ..config()
    };
    assert_eq!(manager.add_host(Time(1), moved.clone()), Some(0));
    go_on(&mut manager);
    let begun = attempts.begun.lock().unwrap().clone();
    assert_eq!(begun, [config().address, moved.address.clone()]);
    let end = |address: &Address, linked| {
        let mut ended = attempts.ended.lock().unwrap();
        ended.push_back(Arrival {
            host: 0,
            address: address.clone(),
            linked,
        });
    };
    end(
        &moved.address,
        Ok(Linked {
            session: Box::new(host.clone()),
            endpoint: None,
            calls: None,
        }),
    );
    go_on(&mut manager);
    assert!(manager.owner.is_settled());
    // Only now the first attempt ends, at a machine that was started again meanwhile.
    let nobody = refused(std::io::ErrorKind::ConnectionRefused);
    end(&config().address, Err(nobody));
    go_on(&mut manager);
    assert_eq!(manager.owner.entries()[0].losses, 0);
    assert!(manager.owner.is_settled());
    assert!(manager.hosts().all(|(_, is_up)| is_up));
}

#[test]
fn a_host_that_is_replaced_loses_nothing() {
    let host = Host::default();
    let mut manager = running(&host);
    let entries = manager.owner.entries();
    let hands_over = Reply::HandsOver {
        back_within_ms: 5000,
    };
    host.answers.lock().unwrap().push_back(hands_over);
    go_on(&mut manager);
    assert_eq!(host.awaited.load(Ordering::Relaxed), 1, "it may go");
    host.is_ended.store(true, Ordering::Relaxed);
    let now = drive(&mut manager, Time(1), Duration::from_secs(4), true);
    let (dials, soon) = (host.dials.load(Ordering::Relaxed), manager.due(now));
    assert!(
        dials > 20 && soon.since(now) <= Duration::from_millis(25),
        "{dials}"
    );
    host.is_ended.store(false, Ordering::Relaxed);
    let now = drive(&mut manager, now, Duration::from_secs(1), true);
    assert!(manager.owner.is_settled());
    assert_eq!(manager.owner.entries(), entries, "nobody is told anything");
    // One that ends and said nothing of a next process has lost what it held.
    let now = drive(&mut manager, now, Duration::from_secs(10), true);
    host.held.lock().unwrap().clear();
    host.is_ended.store(true, Ordering::Relaxed);
    drive(&mut manager, now, Duration::from_secs(1), true);
    assert_eq!(manager.owner.entries()[0].losses, 1);
}

#[test]
fn a_host_whose_next_process_does_not_come_has_ended_whatever_it_said() {
    let host = Host::default();
    let mut manager = running(&host);
    let hands_over = Reply::HandsOver {
        back_within_ms: u32::MAX,
    };
    host.answers.lock().unwrap().push_back(hands_over);
    go_on(&mut manager);
    host.is_ended.store(true, Ordering::Relaxed);
    let now = drive(&mut manager, Time(1), Duration::from_secs(9), true);
    assert_eq!(manager.owner.entries()[0].losses, 0);
    drive(&mut manager, now, Duration::from_secs(2), true);
    assert_eq!(manager.owner.entries()[0].losses, 1);
}

#[test]
fn a_host_with_other_slabs_is_left_alone() {
    let host = Host::default();
    let mut manager = running(&host);
    let now = Time(1).after(Duration::from_secs(1));
    manager.step(now);
    // It says so while a ping is under way.
    let other = Reply::Free {
        slab_bytes: SLAB_BYTES * 2,
        slabs_total: 100,
        slabs_free: 100,
        domain: "d".to_owned(),
    };
    host.answers.lock().unwrap().push_front(other);
    let dials = || host.dials.load(Ordering::Relaxed);
    let before = dials();
    let now = drive(&mut manager, now, Duration::from_secs(29), true);
    assert!(manager.hosts().all(|(_, is_up)| !is_up));
    assert_eq!(dials(), before);
    drive(&mut manager, now, Duration::from_secs(2), true);
    assert_eq!(dials(), before + 1, "it may have others by now");
}
