//! Taking memory back while verbs run: windows on the host, landings on the client.

use super::client::pattern;
use super::{Backend, Client, Row, always};
use cenote_fabric::{Rights, Status};

pub(super) const CASES: &[Row] = &[
    ("no_late_byte_lands_after_a_revoke", late_writes, always),
    (
        "a_window_freed_under_load_harms_no_other",
        freed_under_load,
        always,
    ),
    ("a_revoked_landing_stays_as_it_is", revoked_landing, always),
];

/// The host revokes and uses its memory again while a client streams writes.
fn late_writes(backend: &dyn Backend) {
    const LEN: usize = 1 << 20;
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let source = vec![0xAA; LEN / 2];
    for round in 0..15 {
        let old = client.window(&mut *host, LEN as u64, Rights::ALL);
        let mut refused = 0;
        let mut is_begun = false;
        let mut next = None;
        while refused < 64 || next.is_none() {
            while client.endpoint.outstanding() < 16 && client.queue.is_empty() {
                client.post_write(&old, 0, &source, None, 1);
                client.post_write(&old, LEN as u64 - 4096, &source[..4096], None, 2);
            }
            client.endpoint.flush(&mut client.queue);
            if !is_begun && !client.queue.is_empty() {
                host.begin_revoke(old.descriptor.id);
                is_begun = true;
            }
            if is_begun && next.is_none() && host.is_revoked() {
                let window = host.register(LEN as u64, Rights::ALL);
                host.write(window.id, 0, &[0x55; LEN]);
                next = Some(window);
            }
            match client.completion().status {
                Status::Ok => assert_eq!(refused, 0, "round {round}: taken after a refusal"),
                Status::Revoked | Status::StaleGeneration => refused += 1,
                status => panic!("round {round}: {status:?}"),
            }
        }
        let left = client.endpoint.outstanding() + client.queue.len();
        client.statuses(left);
        let window = next.expect("the loop ends with it");
        let bytes = host.read(window.id, 0, LEN);
        assert!(
            bytes.iter().all(|byte| *byte == 0x55),
            "round {round}: a late byte landed"
        );
        host.revoke(window.id);
    }
}

fn freed_under_load(backend: &dyn Backend) {
    const LEN: usize = 4 << 20;
    let mut host = backend.start_host();
    let mut clients = [1, 2].map(|number| Client::connect(backend, &*host, number));
    let kept = host.register(LEN as u64, Rights::ALL);
    let content = pattern(LEN, 9);
    host.write(kept.id, 0, &content);
    for round in 0..8 {
        let freed = host.register(LEN as u64, Rights::ALL);
        let windows = clients.each_mut().map(|client| {
            (
                client.try_attach(freed).expect("attach"),
                client.try_attach(kept).expect("attach"),
            )
        });
        let mut landings = vec![vec![0; 65_536]; 2];
        let mut refused = 0;
        let mut is_begun = false;
        for step in 0.. {
            let offset = (step * 65_536) % LEN;
            for ((client, (gone, kept)), landing) in
                clients.iter_mut().zip(&windows).zip(&mut landings)
            {
                client.post_write(gone, offset as u64, &content[..65_536], None, 1);
                client.post_read(gone, offset as u64, &mut landing[..4096], 2);
                client.post_read(kept, offset as u64, landing, 3);
                client.endpoint.flush(&mut client.queue);
            }
            for (client, landing) in clients.iter_mut().zip(&landings) {
                let ends = client.statuses(3);
                for status in &ends[..2] {
                    let is_refusal = matches!(status, Status::Revoked | Status::StaleGeneration);
                    assert!(
                        is_refusal || *status == Status::Ok,
                        "round {round}: {status:?}"
                    );
                    refused += usize::from(is_refusal);
                }
                assert_eq!(ends[2], Status::Ok, "round {round}: the other window");
                assert!(
                    landing[..] == content[offset..offset + 65_536],
                    "round {round}: bytes"
                );
            }
            if !is_begun && step == 10 {
                host.begin_revoke(freed.id);
                is_begun = true;
            }
            if refused >= 40 && host.is_revoked() {
                break;
            }
            assert!(
                step < 1_000_000,
                "round {round}: {refused} refusals, revoke begun {is_begun}"
            );
        }
    }
}

fn revoked_landing(backend: &dyn Backend) {
    const LEN: usize = 1 << 20;
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, LEN as u64, Rights::ALL);
    let content = vec![0xAA; LEN];
    host.write(window.descriptor.id, 0, &content);
    for round in 0..20 {
        let mut taken = vec![0; LEN];
        let mut kept = vec![0; LEN];
        client.post_read(&window, 0, &mut taken, 1);
        client.post_read(&window, 0, &mut kept, 2);
        client.endpoint.flush(&mut client.queue);
        // Earlier in some rounds than in others: nothing, a part or all has arrived.
        for _ in 0..round {
            client.endpoint.poll(backend.now(), &mut client.queue);
        }
        client.endpoint.revoke_landing(1);
        std::hint::black_box(taken.as_mut_ptr());
        taken.fill(0x11);
        let tokens = [client.completion().token, client.completion().token];
        assert_eq!(
            tokens,
            [1, 2],
            "a verb with a revoked landing still completes in its turn"
        );
        std::hint::black_box(taken.as_mut_ptr());
        assert!(
            taken.iter().all(|byte| *byte == 0x11),
            "round {round}: a late byte landed"
        );
        assert!(kept == content, "round {round}: the other landing");
    }
}
