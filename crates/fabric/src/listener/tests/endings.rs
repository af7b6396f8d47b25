//! The end of sessions, endpoints and hosts, and what comes after.

use super::*;
use crate::Status;

#[test]
fn a_later_session_of_a_client_ends_the_earlier_one_first() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for address in &host.addresses {
        let mut first = connect(address, 5);
        let (peer, _) = host.next_connected();
        let mut endpoint = first.endpoint(PATIENCE).unwrap();
        let mut second = connect(address, 5);
        assert!(matches!(host.next(), Event::Disconnected { peer: p } if p == peer));
        let (second_peer, _) = host.next_connected();
        assert_ne!(peer, second_peer);
        assert!(matches!(until_closed(&mut *first), Error::Closed));
        let mut queue = CompletionQueue::default();
        // The agent ends data connections by itself; what it still takes until then is not heard.
        let deadline = Instant::now() + PATIENCE;
        loop {
            endpoint.post_send(b"late", 1, &mut queue).unwrap();
            match completion(&mut *endpoint, &mut queue).status {
                Status::Disconnected => break,
                status => assert_eq!(status, Status::Ok),
            }
            assert!(
                Instant::now() < deadline,
                "the data connection outlives its session"
            );
        }
        second.send(b"served").unwrap();
        assert!(matches!(receive(&mut *second), Incoming::Message(bytes) if bytes == b"served"));
        assert!(matches!(host.next(), Event::Message { peer: p, .. } if p == second_peer));
        drop(second);
        assert!(matches!(host.next(), Event::Disconnected { .. }));
    }
}

#[test]
fn a_host_that_goes_takes_everything_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let mut session = connect(&host.addresses[0], 5);
    let window = attach(&mut *session, host.window(4096, Rights::ALL)).unwrap();
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    drop(host);
    assert!(matches!(until_closed(&mut *session), Error::Closed));
    assert!(
        endpoint.is_dead(),
        "the session's news reach the endpoint without a poll"
    );
    let (mut queue, mut landing) = (CompletionQueue::default(), [0_u8; 8]);
    // SAFETY: the landing outlives the verb, which completes at once.
    unsafe { endpoint.post_read(&window, 0, landing.as_mut_ptr(), 8, 1, &mut queue) }.unwrap();
    assert_eq!(queue.pop().unwrap().status, Status::Disconnected);
    assert!(!dir.path().join("host.sock").exists() && !dir.path().join("host.sock.lock").exists());
}

#[test]
fn an_endpoint_notices_the_end_by_itself() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let session = connect(&host.addresses[0], 5);
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    drop(host);
    let mut queue = CompletionQueue::default();
    for _ in 0..64 {
        endpoint.poll(Time(0), &mut queue);
    }
    assert!(endpoint.is_dead());
}

#[test]
fn a_file_that_is_no_socket_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, "somebody's").unwrap();
    let refused = Listener::bind(&[Address::Shm(path.clone())], &key());
    assert!(matches!(refused.err(), Some(Error::NoSocket { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), b"somebody's");
    assert!(!dir.path().join("data.lock").exists());
}

#[test]
fn an_address_is_served_once_and_again_after_its_host_died() {
    let dir = tempfile::tempdir().unwrap();
    let address = shm_address(&dir);
    let host = Host::start(std::slice::from_ref(&address));
    let again = Listener::bind(std::slice::from_ref(&address), &key())
        .err()
        .expect("refused");
    assert!(matches!(&again, Error::AddressInUse { .. }), "{again}");
    connect(&address, 1)
        .send(b"the first host is unharmed")
        .unwrap();
    drop(host);
    // What a killed host leaves: a socket file that nobody serves.
    let Address::Shm(path) = &address else {
        unreachable!("made above")
    };
    drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    assert!(path.exists());
    let host = Host::start(std::slice::from_ref(&address));
    connect(&address, 1).send(b"served").unwrap();
    drop(host);
    // A listener of some other program is left alone.
    let _foreign = std::os::unix::net::UnixListener::bind(path).unwrap();
    let refused = Listener::bind(&[address], &key()).err().expect("refused");
    assert!(matches!(refused, Error::AddressInUse { .. }));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = Address::Tcp(taken.local_addr().unwrap().into());
    assert!(matches!(
        Listener::bind(&[tcp], &key()).err(),
        Some(Error::AddressInUse { .. })
    ));
}

#[test]
fn what_a_host_said_last_is_heard_by_who_has_something_to_send() {
    let dir = tempfile::tempdir().unwrap();
    let mut listener = Listener::bind(&[shm_address(&dir)], &key()).unwrap();
    let address = listener.addresses()[0].clone();
    let client = thread::spawn(move || connect(&address, 5));
    let (mut events, mut peer) = (Vec::new(), None);
    while peer.is_none() {
        listener.poll(None, &mut events).unwrap();
        peer = events.drain(..).find_map(|event| match event {
            Event::Connected { peer, .. } => Some(peer),
            _ => None,
        });
    }
    let mut session = client.join().unwrap();
    listener.send(peer.unwrap(), b"farewell").unwrap();
    drop(listener);
    assert!(matches!(session.send(b"ping"), Err(Error::Closed)));
    assert!(matches!(receive(&mut *session), Incoming::Message(bytes) if bytes == b"farewell"));
    assert!(matches!(until_closed(&mut *session), Error::Closed));
}
