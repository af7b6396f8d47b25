//! First in, first out: what a later verb, and the host, see of an earlier one; atomics.

use super::client::pattern;
use super::{Backend, Client, HostEvent, Row, always};
use cenote_fabric::{ClientId, MESSAGE_BYTES_MAX, Rights, Status};

pub(super) const CASES: &[Row] = &[
    (
        "a_send_arrives_after_the_bytes_of_earlier_writes",
        send_after_writes,
        always,
    ),
    (
        "a_read_returns_an_earlier_write_and_no_later_one",
        read_between_writes,
        always,
    ),
    (
        "an_immediate_arrives_after_its_bytes",
        immediate_after_bytes,
        always,
    ),
    (
        "mixed_verbs_complete_in_posting_order",
        posting_order,
        always,
    ),
    (
        "messages_of_every_length_arrive_whole_and_in_order",
        messages,
        always,
    ),
    ("fetch_adds_of_two_clients_add_up", fetch_adds, always),
    (
        "compare_swap_changes_only_what_it_expects",
        compare_swap,
        always,
    ),
];

fn send_after_writes(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 1 << 20, Rights::ALL);
    for round in 0..20_u8 {
        let source = pattern(1 << 20, u64::from(round));
        for (i, part) in source.chunks(1 << 16).enumerate() {
            client.post_write(&window, (i << 16) as u64, part, None, i as u64);
        }
        client
            .endpoint
            .post_send(&[round], 99, &mut client.queue)
            .expect("room");
        client.endpoint.flush(&mut client.queue);
        let message = client.host_event(&mut *host, "the message", |event| match event {
            HostEvent::Message(_, bytes) => Some(bytes),
            _ => None,
        });
        assert_eq!(message, [round]);
        assert!(
            host.read(window.descriptor.id, 0, 1 << 20) == source,
            "round {round}"
        );
        assert_eq!(client.statuses(17), [Status::Ok; 17]);
    }
}

fn read_between_writes(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 1 << 20, Rights::ALL);
    let (before, after) = (pattern(300_000, 1), pattern(300_000, 2));
    let mut landing = vec![0; 300_000];
    client.post_write(&window, 77, &before, None, 1);
    client.post_read(&window, 77, &mut landing, 2);
    client.post_write(&window, 77, &after, None, 3);
    assert_eq!(client.statuses(3), [Status::Ok; 3]);
    assert!(
        landing == before,
        "the READ between two WRITEs does not hold the first"
    );
    assert!(
        client.read(&window, 77, 300_000) == Ok(after),
        "the second WRITE is not there"
    );
}

fn immediate_after_bytes(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 5);
    let window = client.window(&mut *host, 1 << 20, Rights::ALL);
    let source = pattern(200_000, 3);
    client.post_write(&window, 4096, &source, Some(0xDEAD_BEEF), 1);
    client.endpoint.flush(&mut client.queue);
    let seen = client.host_event(&mut *host, "the immediate", |event| match event {
        HostEvent::Immediate(client, window, offset, len_bytes, value) => {
            Some((client, window, offset, len_bytes, value))
        }
        _ => None,
    });
    assert_eq!(
        seen,
        (
            ClientId(5),
            window.descriptor.id,
            4096,
            200_000,
            0xDEAD_BEEF
        )
    );
    assert!(
        host.read(window.descriptor.id, 4096, 200_000) == source,
        "bytes after the event"
    );
    assert_eq!(client.completion().status, Status::Ok);
}

fn posting_order(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 1 << 20, Rights::ALL);
    let source = pattern(9000, 4);
    let mut landings = vec![vec![0; 5000]; 200];
    for (i, landing) in landings.iter_mut().enumerate() {
        let token = 10 * i as u64;
        client.post_write(&window, 0, &source[..1 + i * 40], None, token);
        client
            .endpoint
            .post_fetch_add(&window, 65_536, 1, token + 1, &mut client.queue)
            .unwrap();
        client.post_read(&window, 100, landing, token + 2);
        // Refused, in its turn like the rest.
        client.post_read(&window, 1 << 20, &mut [0; 8], token + 3);
        if i % 8 == 0 {
            client.endpoint.flush(&mut client.queue);
        }
    }
    for i in 0..200 {
        let ends: Vec<_> = (0..4).map(|_| client.completion()).collect();
        let tokens: Vec<u64> = ends.iter().map(|end| end.token).collect();
        assert_eq!(tokens, [10 * i, 10 * i + 1, 10 * i + 2, 10 * i + 3]);
        assert_eq!(ends[1].value, i, "atomics take effect in posting order");
        assert_eq!(ends[3].status, Status::OutOfBounds);
    }
}

fn messages(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    for len_bytes in [
        0,
        1,
        2,
        4095,
        4096,
        10_000,
        MESSAGE_BYTES_MAX - 1,
        MESSAGE_BYTES_MAX,
    ] {
        let message = pattern(len_bytes, 5);
        assert_eq!(client.send(&message), Status::Ok);
        let by_endpoint = client.host_event(&mut *host, "a SEND", |event| match event {
            HostEvent::Message(ClientId(1), bytes) => Some(bytes),
            _ => None,
        });
        assert!(by_endpoint == message, "a SEND of {len_bytes} bytes");
        client.session.send(&message).expect("room for a message");
        let by_session = client.until("a control message", |client| {
            // Also flushes what the socket did not take at once.
            assert!(
                matches!(client.session.receive(), Ok(None)),
                "the host said something"
            );
            host.events().into_iter().find_map(|event| match event {
                HostEvent::Message(ClientId(1), bytes) => Some(bytes),
                _ => None,
            })
        });
        assert!(
            by_session == message,
            "a control message of {len_bytes} bytes"
        );
    }
    let long = vec![0; MESSAGE_BYTES_MAX + 1];
    assert!(
        client.session.send(&long).is_err(),
        "a message over the bound was taken"
    );
    assert_eq!(client.send(b"still here"), Status::Ok);
}

fn fetch_adds(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut clients = [1, 2].map(|number| Client::connect(backend, &*host, number));
    let descriptor = host.register(4096, Rights::ALL);
    let windows = clients
        .each_mut()
        .map(|client| client.try_attach(descriptor).expect("attach twice"));
    let mut seen = Vec::new();
    for _ in 0..50 {
        for (client, window) in clients.iter_mut().zip(&windows) {
            for token in 0..20 {
                client
                    .endpoint
                    .post_fetch_add(window, 64, 3, token, &mut client.queue)
                    .unwrap();
            }
            client.endpoint.flush(&mut client.queue);
        }
        for client in &mut clients {
            for _ in 0..20 {
                let end = client.completion();
                assert_eq!(end.status, Status::Ok);
                seen.push(end.value);
            }
        }
    }
    seen.sort_unstable();
    let expected: Vec<u64> = (0..2000).map(|i| 3 * i).collect();
    assert_eq!(seen, expected, "every value before is seen exactly once");
    assert_eq!(host.read(descriptor.id, 64, 8), 6000_u64.to_le_bytes());
}

fn compare_swap(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 4096, Rights::ALL);
    host.write(window.descriptor.id, 8, &7_u64.to_le_bytes());
    let mut swap = |expected, new| {
        let queue = &mut client.queue;
        client
            .endpoint
            .post_compare_swap(&window, 8, expected, new, 1, queue)
            .expect("room");
        let end = client.completion();
        (end.status, end.value)
    };
    assert_eq!(swap(6, 1), (Status::Ok, 7));
    assert_eq!(swap(7, u64::MAX - 1), (Status::Ok, 7));
    assert_eq!(swap(7, 2), (Status::Ok, u64::MAX - 1));
    let expected = (u64::MAX - 1).to_le_bytes();
    assert_eq!(host.read(window.descriptor.id, 8, 8), expected);
    assert_eq!(
        host.read(window.descriptor.id, 0, 8),
        [0; 8],
        "a neighbour changed"
    );
}
