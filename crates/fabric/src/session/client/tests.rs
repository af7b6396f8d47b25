use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::channel::Granting;
use crate::memory::{Region, RegionOptions};
use crate::noise::{HELLO_BYTES, NAME_BYTES_MAX, Responder};
use crate::{ClientId, Generation, Rights, WindowId};

const PATIENCE: Duration = Duration::from_secs(20);

fn key() -> ClusterKey {
    ClusterKey::from_hex(&"17".repeat(32)).unwrap()
}

fn hello() -> Hello {
    Hello {
        client: ClientId(1),
        name: String::new(),
    }
}

/// Connects to a host that is played by `play`, which gets the accepted connection.
fn against<T: Send>(
    timeout: Duration,
    play: impl FnOnce(UnixStream) -> T + Send,
) -> (Result<Box<dyn Session>>, T) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("host.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::scope(|scope| {
        let host = scope.spawn(move || {
            let (stream, _) = listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            play(stream)
        });
        let session = connector(key()).connect(&Address::Shm(path), &hello(), timeout);
        (session, host.join().unwrap())
    })
}

/// A host up to its welcome.
fn welcomed(stream: UnixStream) -> Channel {
    let socket = stream.try_clone().unwrap().into();
    let mut channel = Channel::new(socket, welcomed_transport(stream), false);
    channel
        .queue(&Frame::Welcome(Welcome::Served), None)
        .unwrap();
    channel.flush().unwrap();
    channel
}

/// A host's handshake.
fn welcomed_transport(mut stream: UnixStream) -> crate::noise::Transport {
    let (mut first, mut said) = ([0; HANDSHAKE_BYTES], [0; HELLO_BYTES]);
    stream.read_exact(&mut first).unwrap();
    let (responder, answer, _) = Responder::answer(&key(), &first).unwrap();
    stream.write_all(&answer).unwrap();
    stream.read_exact(&mut said).unwrap();
    let (transport, _, heard) = responder.finish(&said).unwrap();
    assert_eq!(heard, hello());
    transport
}

fn failure(session: &mut dyn Session) -> Error {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match session.receive() {
            Ok(_) => assert!(Instant::now() < deadline, "the session stays open"),
            Err(error) => return error,
        }
        crate::wait(session.fd().as_slice(), Some(Duration::from_millis(100))).unwrap();
    }
}

fn descriptor() -> WindowDescriptor {
    WindowDescriptor {
        id: WindowId(1),
        generation: Generation(2),
        len_bytes: 4096,
        rights: Rights::ALL,
    }
}

#[test]
fn a_silent_host_is_a_timeout_and_a_talking_stranger_is_not_believed() {
    let (silent, _) = against(Duration::from_millis(50), |stream| stream);
    assert!(matches!(silent.err(), Some(Error::Timeout(t)) if t == Duration::from_millis(50)));
    // It stays there: the end of its connection would be heard first now and then.
    let (garbage, _stranger) = against(PATIENCE, |mut stream| {
        stream.write_all(&[7; 500]).unwrap();
        stream
    });
    assert!(matches!(garbage.err(), Some(Error::Unauthenticated { .. })));
}

#[test]
fn nobody_at_the_address_is_an_error_of_the_system() {
    let dir = tempfile::tempdir().unwrap();
    let address = Address::Shm(dir.path().join("none"));
    let refused = connector(key()).connect(&address, &hello(), PATIENCE);
    assert!(matches!(refused.err(), Some(Error::Os { .. })));
    for name in ["x".repeat(NAME_BYTES_MAX + 1), "two\nlines".to_owned()] {
        let hello = Hello { name, ..hello() };
        assert!(matches!(
            connector(key()).connect(&address, &hello, PATIENCE).err(),
            Some(Error::ClientName(name)) if name == hello.name
        ));
    }
}

#[test]
fn a_host_that_is_silent_at_one_of_its_addresses_is_not_taken_for_ended() {
    // As one that is stopped: nobody takes the connections that fill its backlog.
    let stopped = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = stopped.local_addr().unwrap();
    let mut waiting = Vec::new();
    while let Ok(one) = TcpStream::connect_timeout(&silent, Duration::from_millis(200)) {
        waiting.push(one);
    }
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refusing = nobody.local_addr().unwrap();
    drop(nobody);
    let address = Address::Tcp("both.example:1".parse().unwrap());
    let failure = |found: &[SocketAddr]| {
        let dialog = Dialog::new(&address, Duration::from_millis(400));
        dialog.connect_any(found).expect_err("nobody answers")
    };
    for found in [[silent, refusing], [refusing, silent]] {
        let error = failure(&found);
        assert!(matches!(error, Error::Timeout(_)), "{found:?}: {error}");
    }
    let error = failure(&[refusing, refusing]);
    assert!(
        matches!(&error, Error::Os { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused),
        "{error}"
    );
}

#[test]
fn a_host_that_is_full_says_so() {
    let (session, _) = against(PATIENCE, |stream| {
        let socket = stream.try_clone().unwrap().into();
        let mut channel = Channel::new(socket, welcomed_transport(stream), false);
        channel.queue(&Frame::Welcome(Welcome::Full), None).unwrap();
        channel.flush().unwrap();
    });
    assert!(matches!(session.err(), Some(Error::Bound(_))));
}

#[test]
fn a_host_that_breaks_the_protocol_is_lost() {
    let granted = Frame::Attached {
        descriptor: descriptor(),
        granted: true,
    };
    let question = Frame::Attach {
        id: WindowId(1),
        generation: Generation(2),
    };
    for (asked, frame) in [(false, granted), (true, granted), (true, question)] {
        let (session, mut host) = against(PATIENCE, welcomed);
        let mut session = session.unwrap();
        if asked {
            session.attach(descriptor()).unwrap();
        }
        // A grant without its memory, an answer to no question, a host's question.
        host.queue(&frame, None).unwrap();
        host.flush().unwrap();
        assert!(matches!(failure(&mut *session), Error::Protocol(_)));
        assert!(matches!(session.send(b"anything"), Err(Error::Closed)));
    }
}

#[test]
fn a_grant_of_less_memory_than_was_said_is_refused_and_the_session_lives() {
    let (session, mut host) = against(PATIENCE, welcomed);
    let mut session = session.unwrap();
    session.attach(descriptor()).unwrap();
    let region = Arc::new(Region::create("short", 1024, RegionOptions::default()).unwrap());
    let grant = Granting {
        region,
        writable: true,
    };
    host.queue(
        &Frame::Attached {
            descriptor: descriptor(),
            granted: true,
        },
        Some(grant),
    )
    .unwrap();
    host.flush().unwrap();
    let deadline = Instant::now() + PATIENCE;
    let attached = loop {
        match session.receive().unwrap() {
            Some(incoming) => break incoming,
            None => assert!(Instant::now() < deadline, "no answer"),
        }
    };
    assert!(matches!(
        attached,
        Incoming::Attached(_, Err(Error::StaleWindow))
    ));
    session.send(b"still here").unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_host_sends_a_client_only_ends_its_session(
        edits in proptest::collection::vec((0..80_usize, 1..=255_u8), 1..4),
    ) {
        let (session, host) = against(PATIENCE, |stream| {
            // A man in the middle: the host talks into a pair of sockets, damage goes to the client.
            let mut client = stream.try_clone().unwrap();
            let (host_end, mut tap) = UnixStream::pair().unwrap();
            let mut channel = Channel::new(host_end.into(), welcomed_transport(stream), false);
            channel.queue(&Frame::Welcome(Welcome::Served), None).unwrap();
            for body in [&b"one"[..], b"two", b"three"] {
                channel.queue(&Frame::Message(body), None).unwrap();
            }
            channel.flush().unwrap();
            drop(channel);
            let mut bytes = Vec::new();
            tap.read_to_end(&mut bytes).unwrap();
            let (welcome, rest) = bytes.split_at_mut(WELCOME_BYTES);
            for (place, value) in edits {
                let place = place % rest.len();
                rest[place] ^= value;
            }
            client.write_all(welcome).unwrap();
            client.write_all(rest).unwrap();
            client.shutdown(std::net::Shutdown::Write).unwrap();
        });
        let ((), mut session) = (host, session.unwrap());
        let error = failure(&mut *session);
        prop_assert!(matches!(error, Error::Protocol(_) | Error::Closed), "{}", error);
        prop_assert!(matches!(session.attach(descriptor()), Err(Error::Closed)));
    }
}
