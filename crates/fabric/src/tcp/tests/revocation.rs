//! Windows revoked and landings gone while bytes are on their way.

use std::io::{Read, Write};
use std::os::fd::AsFd;

use super::*;
use crate::tcp::wire::{Request, Response, Verb};

#[test]
fn a_window_revoked_halfway_through_a_read_is_reported() {
    for rig in Rig::all(1) {
        const LEN: usize = 64 << 20;
        let (_region, window) = rig.window(LEN as u64, Rights::ALL);
        let mut client = rig.client();
        let mut landing = vec![0; LEN];
        client.read(&window, 0, &mut landing, 1);
        client.endpoint.flush(&mut client.queue);
        // The first bytes are here, and the rest does not fit the socket buffers.
        wait(&[client.endpoint.fd().unwrap()], None).unwrap();
        rig.table.revoke(window.descriptor.id).unwrap();
        client.read(&window, 0, &mut [0; 8], 2);
        assert_eq!(
            client.statuses(2),
            [Status::Revoked, Status::StaleGeneration]
        );
    }
}

#[test]
fn a_window_revoked_halfway_through_a_write_drains_the_rest() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(1 << 20, Rights::ALL);
    let (ours, theirs) = sockets();
    rig.agent.adopt(theirs, CLIENT, None);
    let mut stream = ours;
    let request = Request {
        verb: Verb::Write,
        len_bytes: 1 << 20,
        window: window.descriptor.id.0,
        immediate: None,
        generation: window.descriptor.generation.0,
        offset: 0,
        operand: 0,
        swap: 0,
    };
    let ping = Request {
        verb: Verb::Send,
        len_bytes: 0,
        ..request
    };
    stream.write_all(&ping.encode()).unwrap();
    stream.write_all(&request.encode()).unwrap();
    stream.write_all(&[5; 1000]).unwrap();
    let event = rig.events.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(
        event,
        AgentEvent::Message {
            client: CLIENT,
            bytes: vec![]
        }
    );
    rig.table.revoke(window.descriptor.id).unwrap();
    let (reused, _) = rig.window(1 << 20, Rights::ALL);
    stream.write_all(&vec![5; (1 << 20) - 1000]).unwrap();
    let mut answers = [0; 32];
    stream.read_exact(&mut answers).unwrap();
    let status = Response::decode(answers[16..].try_into().unwrap())
        .unwrap()
        .status;
    // Whether the first piece was in before the revoke is a race; both ends of it are refusals.
    assert!(
        matches!(status, Status::Revoked | Status::StaleGeneration),
        "{status:?}"
    );
    let mut bytes = vec![1; 1 << 20];
    reused.read(0, &mut bytes).unwrap();
    assert!(
        bytes.iter().all(|byte| *byte == 0),
        "late bytes landed in the next window"
    );
}

#[test]
fn late_bytes_miss_a_revoked_landing() {
    let rig = Rig::new(1);
    let (_region, window) = rig.window(1 << 20, Rights::ALL);
    let (ours, mut host) = sockets();
    let mut client = Client::new(ours);
    let mut landings = vec![0_u8; 3 * 40_000];
    for (i, part) in landings.chunks_mut(40_000).enumerate() {
        client.read(&window, 0, part, i as u64);
    }
    client.endpoint.flush(&mut client.queue);
    let trailer = Response {
        status: Status::Ok,
        len_bytes: 40_000,
        value: 0,
    }
    .encode();
    host.write_all(&[1; 40_000]).unwrap();
    host.write_all(&trailer).unwrap();
    assert_eq!(client.next().token, 0);
    // Half of the second answer arrives before its landing is revoked, half after.
    host.write_all(&[2; 20_000]).unwrap();
    while landings[59_999] != 2 {
        client.endpoint.poll(Time(1), &mut client.queue);
        // Keeps the compiler from assuming that `poll` cannot reach the landings.
        std::hint::black_box(landings.as_mut_ptr());
    }
    client.endpoint.revoke_landing(1);
    host.write_all(&[3; 20_000]).unwrap();
    host.write_all(&trailer).unwrap();
    host.write_all(&[4; 40_000]).unwrap();
    host.write_all(&trailer).unwrap();
    assert_eq!(client.statuses(2), [Status::Ok; 2]);
    let part = |range: std::ops::Range<usize>, value| landings[range].iter().all(|b| *b == value);
    assert!(part(0..40_000, 1) && part(40_000..60_000, 2) && part(80_000..120_000, 4));
    assert!(part(60_000..80_000, 0), "late bytes landed");
}

/// Takes a region's memory away as another process that has its file can.
fn cut(region: &Region) {
    let file = region.as_fd().try_clone_to_owned().unwrap();
    std::fs::File::from(file).set_len(0).unwrap();
}

#[test]
fn memory_that_is_lost_is_told_for_what_was_in_it_and_for_nothing_else() {
    // Short ones go in one piece, of which the kernel says that all failed; of long ones it sends some.
    let lengths = [512, 1 << 16].into_iter();
    for (len, rig) in lengths.flat_map(|len| Rig::all(1).map(move |rig| (len, rig))) {
        let (good, there) = rig.window(1 << 16, Rights::ALL);
        let (lost, gone) = rig.window(1 << 16, Rights::ALL);
        good.write(0, &[7; 1 << 16]).unwrap();
        cut(&lost);
        let mut client = rig.client();
        let mut landings = vec![0; 3 * len];
        let windows = [&there, &gone, &there];
        for ((landing, window), token) in landings.chunks_mut(len).zip(windows).zip(1..) {
            client.read(window, 0, landing, token);
        }
        let statuses = client.statuses(3);
        assert_eq!(statuses, [Status::Ok, Status::Revoked, Status::Ok]);
        for good in [&landings[..len], &landings[2 * len..]] {
            assert!(good.iter().all(|byte| *byte == 7));
        }
    }
}

#[test]
fn an_atomic_on_memory_that_is_lost_is_refused() {
    for rig in Rig::all(1) {
        let (lost, gone) = rig.window(1 << 16, Rights::ALL);
        cut(&lost);
        let mut client = rig.client();
        let add = crate::Verb::FetchAdd {
            window: &gone,
            offset: 0,
            addend: 1,
        };
        // SAFETY: it names no memory of this process.
        unsafe { client.endpoint.post(add, 1, &mut client.queue) }.unwrap();
        assert_eq!(client.next().status, Status::Revoked);
    }
}
