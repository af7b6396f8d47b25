//! Verbs that must be refused, and change nothing: rights, bounds, old generations.

use super::client::pattern;
use super::{Backend, Client, Row, always};
use cenote_fabric::{Generation, Rights, Status, WindowId};

pub(super) const CASES: &[Row] = &[
    ("a_verb_without_its_right_is_refused", rights, always),
    ("a_verb_past_the_end_is_refused", bounds, always),
    ("an_atomic_off_its_alignment_is_refused", alignment, always),
    (
        "an_old_generation_is_refused_and_changes_nothing",
        stale_generation,
        always,
    ),
    (
        "a_renewed_window_keeps_its_bytes_and_not_its_name",
        renewed,
        always,
    ),
    (
        "a_window_that_is_not_there_cannot_be_attached",
        attach_refusals,
        always,
    ),
    (
        "ten_thousand_windows_work_at_once",
        ten_thousand_windows,
        always,
    ),
];

fn rights(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    for allowed in 0..8 {
        let granted = Rights(allowed);
        let window = client.window(&mut *host, 4096, granted);
        host.write(window.descriptor.id, 0, &[3; 4096]);
        let expect = |ok| if ok { Status::Ok } else { Status::NoRights };
        let source = [4; 100];
        let mut landing = [0; 100];
        client.post_write(&window, 200, &source, None, 1);
        client.post_read(&window, 0, &mut landing, 2);
        client
            .endpoint
            .post_fetch_add(&window, 8, 1, 3, &mut client.queue)
            .unwrap();
        let can_write = granted.contains(Rights::WRITE);
        let can_read = granted.contains(Rights::READ);
        let ends = client.statuses(3);
        assert_eq!(
            ends[..2],
            [expect(can_write), expect(can_read)],
            "rights {allowed:03b}"
        );
        let mapped = window.in_place(0, 100).map(|bytes| bytes.err());
        assert!(
            mapped.is_none_or(|refused| refused.unwrap_or(Status::Ok) == ends[1]),
            "in place, rights {allowed:03b}"
        );
        let can_add = ends[2] == Status::Ok;
        // Where memory is mapped an atomic needs WRITE as well.
        assert!(
            !can_add || granted.contains(Rights::ATOMIC),
            "rights {allowed:03b}"
        );
        assert!(
            can_add || !granted.contains(Rights::ALL),
            "an atomic refused with all rights"
        );
        let bytes = host.read(window.descriptor.id, 0, 4096);
        assert_eq!(bytes[8] != 3, can_add, "rights {allowed:03b}");
        assert_eq!(bytes[200] != 3, can_write, "rights {allowed:03b}");
    }
}

fn bounds(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 8192, Rights::ALL);
    let beyond = client.window(&mut *host, 8192, Rights::ALL);
    let source = vec![1; 8193];
    let cases: [(u64, usize, bool); 9] = [
        (0, 8192, true),
        (8191, 1, true),
        (8192, 0, true),
        (0, 8193, false),
        (8191, 2, false),
        (8192, 1, false),
        (8193, 0, false),
        (u64::MAX, 1, false),
        (u64::MAX - 4095, 4096, false),
    ];
    for (offset, len_bytes, is_inside) in cases {
        let expected = if is_inside {
            Status::Ok
        } else {
            Status::OutOfBounds
        };
        let write = client.write(&window, offset, &source[..len_bytes]);
        assert_eq!(write, expected, "WRITE at {offset} of {len_bytes}");
        let read = client
            .read(&window, offset, len_bytes)
            .err()
            .unwrap_or(Status::Ok);
        assert_eq!(read, expected, "READ at {offset} of {len_bytes}");
        if let Some(mapped) = window.in_place(offset, len_bytes) {
            let ended = mapped.err().unwrap_or(Status::Ok);
            assert_eq!(ended, expected, "in place at {offset}, {len_bytes} bytes");
        }
    }
    client
        .endpoint
        .post_fetch_add(&window, 8192, 1, 1, &mut client.queue)
        .unwrap();
    assert_eq!(client.completion().status, Status::OutOfBounds);
    assert!(
        host.read(beyond.descriptor.id, 0, 8192) == [0; 8192],
        "a neighbour changed"
    );
}

fn alignment(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let window = client.window(&mut *host, 4096, Rights::ALL);
    for offset in 1..8 {
        client
            .endpoint
            .post_fetch_add(&window, offset, 1, 1, &mut client.queue)
            .unwrap();
        client
            .endpoint
            .post_compare_swap(&window, offset, 0, 9, 2, &mut client.queue)
            .unwrap();
        assert_eq!(
            client.statuses(2),
            [Status::OutOfBounds; 2],
            "offset {offset}"
        );
    }
    assert_eq!(host.read(window.descriptor.id, 0, 16), [0; 16]);
}

fn stale_generation(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    for round in 0..10 {
        let old = client.window(&mut *host, 65_536, Rights::ALL);
        assert_eq!(client.write(&old, 0, &[1; 100]), Status::Ok);
        host.revoke(old.descriptor.id);
        let new = client.window(&mut *host, 65_536, Rights::ALL);
        assert_ne!(new.descriptor.generation, old.descriptor.generation);
        let source = pattern(65_536, round);
        let mut landing = vec![0; 100];
        client.post_write(&old, 0, &source, None, 1);
        client.post_write(&old, 0, &source, Some(1), 2);
        client.post_read(&old, 0, &mut landing, 3);
        client
            .endpoint
            .post_fetch_add(&old, 0, 1, 4, &mut client.queue)
            .unwrap();
        client
            .endpoint
            .post_compare_swap(&old, 0, 0, 1, 5, &mut client.queue)
            .unwrap();
        for status in client.statuses(5) {
            let is_refused = matches!(status, Status::StaleGeneration | Status::Revoked);
            assert!(is_refused, "round {round}: {status:?}");
        }
        let bytes = host.read(new.descriptor.id, 0, 65_536);
        assert!(
            bytes.iter().all(|byte| *byte == 0),
            "round {round}: the new window changed"
        );
        assert!(
            client.try_attach(old.descriptor).is_err(),
            "an old generation was attached"
        );
        assert_eq!(client.write(&new, 0, &source), Status::Ok);
    }
}

fn renewed(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    for round in 0..10 {
        let old = client.window(&mut *host, 65_536, Rights::ALL);
        let bytes = pattern(65_536, round);
        assert_eq!(client.write(&old, 0, &bytes), Status::Ok);
        let descriptor = host.renew(old.descriptor.id);
        assert_ne!(descriptor.generation, old.descriptor.generation);
        assert_eq!(
            (descriptor.id, descriptor.len_bytes, descriptor.rights),
            (old.descriptor.id, 65_536, Rights::ALL)
        );
        assert!(
            client.try_attach(old.descriptor).is_err(),
            "an old generation was attached"
        );
        // Who has mapped the memory keeps it.
        if old.in_place(0, 1).is_none() {
            let mut landing = [0; 100];
            client.post_write(&old, 0, &[7; 100], None, 1);
            client.post_read(&old, 0, &mut landing, 2);
            for status in client.statuses(2) {
                let is_refused = matches!(status, Status::StaleGeneration | Status::Revoked);
                assert!(is_refused, "round {round}: {status:?}");
            }
        }
        let new = client.try_attach(descriptor).expect("attach");
        assert_eq!(client.read(&new, 0, 65_536).expect("read"), bytes);
        assert_eq!(client.write(&new, 4096, &[9; 10]), Status::Ok);
        assert_eq!(host.read(descriptor.id, 4096, 10), [9; 10]);
        host.revoke(descriptor.id);
    }
}

fn attach_refusals(backend: &dyn Backend) {
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let good = host.register(4096, Rights::ALL);
    let mut other = good;
    other.generation = Generation(good.generation.0 ^ 1);
    assert!(
        client.try_attach(other).is_err(),
        "a guessed generation was attached"
    );
    let mut absent = good;
    absent.id = WindowId(u32::MAX);
    assert!(
        client.try_attach(absent).is_err(),
        "a window that never was was attached"
    );
    let window = client.try_attach(good).expect("attach what is there");
    assert_eq!(client.write(&window, 0, &[1]), Status::Ok);
}

fn ten_thousand_windows(backend: &dyn Backend) {
    const COUNT: usize = 10_000;
    let mut host = backend.start_host();
    let mut client = Client::connect(backend, &*host, 1);
    let descriptors = host.register_many(COUNT, 4096, Rights::ALL);
    let windows = client.attach_many(&descriptors);
    let marks: Vec<[u8; 8]> = (0..COUNT as u64)
        .map(|i| (i * 0x0101_0101_0101).to_le_bytes())
        .collect();
    // Many at a time, because each wait is a turn of a scheduler, and those add up.
    const TOGETHER: usize = 256;
    for (windows, marks) in windows.chunks(TOGETHER).zip(marks.chunks(TOGETHER)) {
        for (window, mark) in windows.iter().zip(marks) {
            client.post_write(window, 4088, mark, None, 0);
        }
        assert_eq!(
            client.statuses(windows.len()),
            vec![Status::Ok; windows.len()]
        );
    }
    for (window, mark) in windows.iter().zip(&marks).step_by(997) {
        assert_eq!(host.read(window.descriptor.id, 4088, 8), mark);
    }
    let (gone, kept): (Vec<usize>, Vec<usize>) = (0..COUNT).partition(|i| i % 2 == 0);
    let ids: Vec<WindowId> = gone.iter().map(|&i| windows[i].descriptor.id).collect();
    host.revoke_many(&ids);
    let mut landings = vec![[0; 8]; COUNT];
    for part in kept.chunks(TOGETHER) {
        for &i in part {
            client.post_read(&windows[i], 4088, &mut landings[i], i as u64);
        }
        assert_eq!(client.statuses(part.len()), vec![Status::Ok; part.len()]);
    }
    for &i in &kept {
        assert_eq!(landings[i], marks[i], "window {i} beside two that are gone");
    }
    // A sample: a refusal may cost the client a connection.
    for &i in gone.iter().step_by(31) {
        assert!(
            client.read(&windows[i], 4088, 8).is_err(),
            "window {i} is gone"
        );
    }
}
