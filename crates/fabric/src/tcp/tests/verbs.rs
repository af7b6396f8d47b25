//! Verbs end in order, cheaply, within the queue's bound, and change nothing when refused.

use super::*;
use crate::{Generation, QUEUE_DEPTH, QueueFull, WindowId};

#[test]
fn long_verbs_cross_full_sockets_both_ways() {
    for rig in Rig::all(1) {
        const LEN: usize = 24 << 20;
        let (_region, window) = rig.window(LEN as u64, Rights::ALL);
        let mut client = rig.client();
        let written = pattern(LEN, 1);
        let mut read = vec![0; LEN];
        client.write(&window, 0, &written, 1);
        client.read(&window, 0, &mut read, 2);
        assert_eq!(client.statuses(2), [Status::Ok; 2]);
        assert!(read == written, "the bytes differ");
    }
}

#[test]
fn a_read_does_not_see_a_write_posted_after_it() {
    for rig in Rig::all(1) {
        let (region, window) = rig.window(1 << 20, Rights::ALL);
        region.write(0, &[1; 8192]).unwrap();
        let mut client = rig.client();
        let mut landing = vec![0; 4096];
        client.read(&window, 100, &mut landing, 1);
        client.write(&window, 4195, &[2], 2);
        client
            .endpoint
            .post_fetch_add(&window, 4184, 9, 3, &mut client.queue)
            .unwrap();
        let mut after = vec![0; 4096];
        client.read(&window, 100, &mut after, 4);
        assert_eq!(client.statuses(4), [Status::Ok; 4]);
        assert_eq!(landing, [1; 4096]);
        assert_eq!((after[4095], after[4084]), (2, 10));
    }
}

#[test]
fn many_verbs_posted_together_cost_few_system_calls() {
    for rig in Rig::all(1) {
        let (_region, window) = rig.window(1 << 20, Rights::ALL);
        let mut client = rig.client();
        client.write(&window, 0, &[1], 0);
        client.next();
        let before = client.endpoint.system_calls();
        let mut landing = vec![0; 64 * 512];
        for (i, part) in landing.chunks_mut(512).enumerate() {
            client.read(&window, i as u64 * 4096, part, i as u64);
        }
        client.endpoint.flush(&mut client.queue);
        assert_eq!(
            client.endpoint.system_calls() - before,
            1,
            "one call sends 64 requests"
        );
        assert_eq!(client.statuses(64), [Status::Ok; 64]);
    }
}

#[test]
fn refused_verbs_change_nothing_and_keep_the_stream_in_step() {
    for rig in Rig::all(1) {
        let (region, window) = rig.window(64 * 1024, Rights::READ);
        let mut stale = window.clone();
        stale.descriptor.generation = Generation(window.descriptor.generation.0 ^ 1 << 40);
        let mut unknown = window.clone();
        unknown.descriptor.id = WindowId(999_999);
        let mut client = rig.client();
        let source = vec![9; 100_000];
        let mut landing = vec![0; 100_000];
        client.write(&window, 0, &source[..4096], 1);
        client.write(&stale, 0, &source, 2);
        client.read(&unknown, 0, &mut landing, 3);
        client.read(&window, 65_000, &mut landing[..1000], 4);
        client.read(&window, u64::MAX, &mut landing[..1], 5);
        client
            .endpoint
            .post_fetch_add(&window, 0, 1, 6, &mut client.queue)
            .unwrap();
        client.read(&window, 65_536, &mut [], 7);
        client.read(&window, 65_537, &mut [], 8);
        client.read(&window, 0, &mut landing[..8], 9);
        use Status::{NoRights, Ok, OutOfBounds, StaleGeneration};
        let expected = [
            NoRights,
            StaleGeneration,
            StaleGeneration,
            OutOfBounds,
            OutOfBounds,
            NoRights,
            Ok,
            OutOfBounds,
            Ok,
        ];
        assert_eq!(client.statuses(9), expected);
        let mut bytes = vec![1; 64 * 1024];
        region.read(0, &mut bytes).unwrap();
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "a refused write changed the window"
        );
    }
}

#[test]
fn the_queue_bound_refuses_and_posts_nothing() {
    for rig in Rig::all(1) {
        let (_region, window) = rig.window(4096, Rights::ALL);
        let mut client = rig.client();
        let post = |client: &mut Client, token| {
            client
                .endpoint
                .post_fetch_add(&window, 8, 1, token, &mut client.queue)
        };
        for token in 0..QUEUE_DEPTH as u64 {
            post(&mut client, token).unwrap();
        }
        assert_eq!(post(&mut client, 0), Err(QueueFull));
        for before in 0..QUEUE_DEPTH as u64 {
            let expected = Completion {
                token: before,
                status: Status::Ok,
                value: before,
            };
            assert_eq!(client.next(), expected);
        }
        post(&mut client, 1).unwrap();
        assert_eq!(client.next().value, QUEUE_DEPTH as u64);
    }
}
