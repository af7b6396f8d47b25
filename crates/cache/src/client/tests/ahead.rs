//! What a client does ahead of a move.

use super::*;

#[test]
fn a_copy_to_come_is_connected_to_and_not_used_before_it_counts() {
    let mut windows = attached(2);
    let (new, new_window) = windows.pop().unwrap();
    let (old, old_window) = windows.pop().unwrap();
    let submitted: Vec<Submitted> = vec![Submitted::default(), Submitted::default()];
    let path = |host: usize| {
        Box::new(Scripted {
            submitted: Arc::clone(&submitted[host]),
            room: Arc::new(AtomicUsize::new(16)),
            ended: Arc::default(),
        })
    };
    let mut client = Client::new(GEOMETRY, 2, Duration::from_secs(30)).with_clock(|| CLOCK.get());
    let now = Time(1);
    client.handle_lease(now, now);
    let entry = Entry {
        region: 0,
        generation: 1,
        access: Access::Frozen,
        copies: vec![Copy::new(0, vec![old])],
        losses: 0,
        fell_back_ms: 0,
        next: Vec::new(),
    };
    client.handle_entry(entry.clone());
    assert!(client.lacks_path(0) && !client.lacks_path(1));
    let entry = Entry {
        next: vec![Copy::new(1, vec![new])],
        ..entry
    };
    client.handle_entry(entry.clone());
    assert!(client.lacks_path(1), "told again, of the copy to come");
    client.handle_path(0, path(0));
    client.handle_path(1, path(1));
    let wanted: Vec<_> = std::iter::from_fn(|| client.take_wanted()).collect();
    assert_eq!(wanted, [(0, old), (1, new)]);
    client.handle_window(0, old_window);
    client.handle_window(1, new_window);

    let read = |client: &mut Client, token| {
        let buffer = BytesMut::zeroed(8);
        client.submit_read(now, 0, buffer, token).unwrap();
        client.poll(now, &mut Vec::new());
        let under_way = |host: usize| submitted[host].lock().unwrap().len();
        [under_way(0), under_way(1)]
    };
    assert_eq!(read(&mut client, 1), [1, 0], "only what counts is read");
    client.handle_entry(Entry {
        generation: 2,
        copies: entry.next,
        next: Vec::new(),
        ..entry
    });
    assert_eq!(read(&mut client, 2), [1, 1], "nothing is waited for");
    assert_eq!(client.take_wanted(), None);
}
