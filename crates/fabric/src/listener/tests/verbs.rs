//! Windows on both backends: what verbs reach, and what is refused.

use super::*;
use crate::Status;

#[test]
fn a_client_attaches_reads_and_writes_and_loses_a_window() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&both(&dir));
    for (client, address) in (1..).zip(&host.addresses) {
        let mut session = connect(address, client);
        assert_eq!(host.next_connected().1, hello(client));
        let descriptor = host.window(8192, Rights::ALL);
        let window = attach(&mut *session, descriptor).unwrap();
        assert_eq!(window.descriptor, descriptor);
        let mut endpoint = session.endpoint(PATIENCE).unwrap();
        let (mut queue, source, mut landing) =
            (CompletionQueue::default(), [7_u8; 4096], [0_u8; 4096]);
        let (to, from) = (source.as_ptr(), landing.as_mut_ptr());
        // SAFETY: both buffers outlive their verbs, whose completions are awaited.
        unsafe { endpoint.post_write(&window, 100, to, 4096, Some(9), 1, &mut queue) }.unwrap();
        assert_eq!(
            completion(&mut *endpoint, &mut queue),
            Completion {
                token: 1,
                status: Status::Ok,
                value: 0
            }
        );
        // SAFETY: as above.
        unsafe { endpoint.post_read(&window, 100, from, 4096, 2, &mut queue) }.unwrap();
        assert_eq!(
            completion(&mut *endpoint, &mut queue),
            Completion {
                token: 2,
                status: Status::Ok,
                value: 0
            }
        );
        assert_eq!(landing, source);
        match host.next() {
            Event::Immediate {
                window,
                offset: 100,
                len_bytes: 4096,
                value: 9,
                ..
            } => assert_eq!(window, descriptor.id),
            other => panic!("expected the immediate, got {other:?}"),
        }
        host.table.revoke(descriptor.id).unwrap();
        // SAFETY: as above.
        unsafe { endpoint.post_read(&window, 0, from, 8, 3, &mut queue) }.unwrap();
        let status = completion(&mut *endpoint, &mut queue).status;
        assert!(
            matches!(status, Status::Revoked | Status::StaleGeneration),
            "{status:?}"
        );
        assert!(matches!(
            attach(&mut *session, descriptor),
            Err(Error::StaleWindow)
        ));
        drop((session, endpoint));
        assert!(matches!(host.next(), Event::Disconnected { .. }));
    }
}

#[test]
fn shm_verbs_are_checked_before_they_touch_anything() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::start(&[shm_address(&dir)]);
    let mut session = connect(&host.addresses[0], 5);
    let readable = attach(&mut *session, host.window(4096, Rights::READ)).unwrap();
    let writable = attach(&mut *session, host.window(4096, Rights::ALL)).unwrap();
    let mut endpoint = session.endpoint(PATIENCE).unwrap();
    let mut queue = CompletionQueue::default();
    let mut buffer = [0_u8; 16];
    let at = buffer.as_mut_ptr();
    let mut old = writable.clone();
    old.descriptor.generation = crate::Generation(old.descriptor.generation.0 ^ 1);
    // SAFETY: the buffer outlives the verbs, which complete at once.
    unsafe {
        endpoint
            .post_write(&readable, 0, at, 8, None, 1, &mut queue)
            .unwrap();
        endpoint
            .post_read(&readable, 4089, at, 8, 2, &mut queue)
            .unwrap();
        endpoint
            .post_read(&readable, u64::MAX, at, 8, 3, &mut queue)
            .unwrap();
        endpoint.post_read(&old, 0, at, 8, 4, &mut queue).unwrap();
    }
    endpoint
        .post_fetch_add(&readable, 0, 1, 5, &mut queue)
        .unwrap();
    endpoint
        .post_fetch_add(&writable, 4, 1, 6, &mut queue)
        .unwrap();
    endpoint
        .post_fetch_add(&writable, 8, 3, 7, &mut queue)
        .unwrap();
    endpoint
        .post_compare_swap(&writable, 8, 3, 4, 8, &mut queue)
        .unwrap();
    endpoint
        .post_compare_swap(&writable, 8, 3, 5, 9, &mut queue)
        .unwrap();
    let ended: Vec<_> = std::iter::from_fn(|| queue.pop())
        .map(|c| (c.status, c.value))
        .collect();
    use Status::{NoRights, Ok, OutOfBounds, StaleGeneration};
    let expected = [
        (NoRights, 0),
        (OutOfBounds, 0),
        (OutOfBounds, 0),
        (StaleGeneration, 0),
        (NoRights, 0),
        (OutOfBounds, 0),
        (Ok, 0),
        (Ok, 3),
        (Ok, 4),
    ];
    assert_eq!(ended, expected);
}
