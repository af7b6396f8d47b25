//! Bounds reached: full queues push back, lose nothing, and open again.

use super::{Backend, Client, HostEvent, Row, always};
use cenote_fabric::{QUEUE_DEPTH, QueueFull, Rights, Status};

pub(super) const CASES: &[Row] = &[
    (
        "full_queues_push_back_and_lose_no_accepted_message",
        back_pressure,
        always,
    ),
    (
        "a_full_endpoint_takes_verbs_again_after_a_poll",
        queue_depth,
        always,
    ),
    (
        "an_endpoint_closed_by_its_client_ends_alone",
        closing,
        always,
    ),
];

/// The host takes no events: messages pile up until somebody says no.
fn back_pressure(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    assert_eq!(client.send(b"hello"), Status::Ok);
    client.host_event(&mut *host, "the first message", |event| {
        matches!(event, HostEvent::Message(..)).then_some(())
    });
    host.set_deaf(true);
    let mut ends = Vec::new();
    let mut posted = 0_u32;
    let is_pushed_back = loop {
        // Far more than any bounded queue holds: 100,000 messages of 4 KiB.
        if posted == 100_000 {
            break false;
        }
        let mut message = vec![0; 4096];
        message[..4].copy_from_slice(&posted.to_le_bytes());
        let post = client
            .endpoint
            .post_send(&message, u64::from(posted), &mut client.queue);
        if post == Err(QueueFull) {
            break true;
        }
        posted += 1;
        client.endpoint.flush(&mut client.queue);
        client.endpoint.poll(backend.now(), &mut client.queue);
        while let Some(end) = client.queue.pop() {
            ends.push(end);
        }
        if ends
            .last()
            .is_some_and(|end| end.status == Status::ReceiverNotReady)
        {
            break true;
        }
    };
    assert!(
        is_pushed_back,
        "{posted} messages were taken by a host that takes none"
    );
    host.set_deaf(false);
    while ends.len() < posted as usize {
        ends.push(client.completion());
    }
    let accepted: Vec<u32> = ends
        .iter()
        .filter(|end| end.status == Status::Ok)
        .map(|end| end.token as u32)
        .collect();
    for end in &ends {
        let is_stated = matches!(end.status, Status::Ok | Status::ReceiverNotReady);
        assert!(is_stated, "message {}: {:?}", end.token, end.status);
    }
    let mut arrived = Vec::new();
    client.until("every accepted message", |_| {
        arrived.extend(host.events().into_iter().filter_map(|event| match event {
            HostEvent::Message(_, bytes) => bytes.first_chunk().map(|n| u32::from_le_bytes(*n)),
            _ => None,
        }));
        (arrived.len() >= accepted.len()).then_some(())
    });
    assert!(
        arrived == accepted,
        "{} arrived, {} accepted",
        arrived.len(),
        accepted.len()
    );
    client.until("room for a message", |client| {
        (client.send(b"again") == Status::Ok).then_some(())
    });
}

fn queue_depth(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 4096, Rights::ALL);
    let mut posted = 0;
    for round in 0..5 {
        let mut is_full = false;
        for _ in 0..QUEUE_DEPTH + 1 {
            let post = client
                .endpoint
                .post_fetch_add(&window, 0, 1, posted, &mut client.queue);
            match post {
                Ok(()) => posted += 1,
                Err(QueueFull) => is_full = true,
            }
        }
        let owed = client.endpoint.outstanding() + client.queue.len();
        assert!(
            client.endpoint.outstanding() <= QUEUE_DEPTH,
            "round {round}"
        );
        assert!(
            owed == QUEUE_DEPTH || !is_full,
            "round {round}: full with {owed} owed"
        );
        for _ in 0..owed {
            let end = client.completion();
            assert_eq!(
                (end.status, end.value),
                (Status::Ok, end.token),
                "round {round}"
            );
        }
    }
    assert_eq!(host.read(window.descriptor.id, 0, 8), posted.to_le_bytes());
}

fn closing(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 4096, Rights::ALL);
    for _ in 0..50 {
        let mut endpoint = client
            .session
            .endpoint(super::DEADLINE)
            .expect("one more endpoint");
        endpoint
            .post_send(b"left behind", 1, &mut client.queue)
            .expect("room");
        endpoint.flush(&mut client.queue);
        drop(endpoint);
        client.queue = cenote_fabric::CompletionQueue::default();
        assert_eq!(client.write(&window, 0, &[1; 8]), Status::Ok);
    }
    assert_eq!(client.send(b"still here"), Status::Ok);
}
