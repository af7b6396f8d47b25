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

#[test]
fn copies_of_each_host_are_counted_as_entries_change() {
    let mut client = Client::new(GEOMETRY, 4, Duration::from_secs(30));
    let window = |id: u32| Window {
        id,
        generation: 1,
        len_bytes: SLAB,
        rights: 7,
    };
    let mut told = 0;
    let mut tell = |client: &mut Client, region: u32, hosts: &[usize], next: &[usize]| {
        told += 1;
        let copies = |hosts: &[usize]| {
            let copy = |&host: &usize| Copy::new(host, vec![window(region)]);
            hosts.iter().map(copy).collect()
        };
        client.handle_entry(Entry {
            region,
            generation: told,
            access: Access::Open,
            copies: copies(hosts),
            losses: 0,
            fell_back_ms: 0,
            next: copies(next),
        });
    };
    // As it is asked at each step, and as a walk over all regions has it.
    let counted = |client: &Client| -> Vec<usize> {
        let counted: Vec<usize> = client.links.iter().map(|link| link.copies).collect();
        for (host, &count) in counted.iter().enumerate() {
            let places = client.regions.iter().flat_map(RegionView::places);
            assert_eq!(places.filter(|copy| copy.host == host).count(), count);
            assert_eq!(client.lacks_path(host), count > 0, "none has a path");
        }
        counted
    };
    tell(&mut client, 0, &[0, 1], &[]);
    tell(&mut client, 5, &[0], &[2]);
    assert_eq!(counted(&client), [2, 1, 1, 0]);
    tell(&mut client, 0, &[1, 3], &[]);
    tell(&mut client, 5, &[2], &[]);
    assert_eq!(counted(&client), [0, 1, 1, 1], "host 0 is left");
    tell(&mut client, 5, &[7], &[]);
    assert_eq!(counted(&client), [0, 1, 1, 1], "no host of that number");
    // A copy to come whose window is not to be had.
    tell(&mut client, 5, &[2], &[3]);
    assert_eq!(counted(&client), [0, 1, 1, 2]);
    client.links[3].asked.insert((5, 1), (5, 0));
    let name = cenote_fabric::WindowDescriptor::from(window(5));
    client.handle_no_window(Time(1), 3, name);
    assert_eq!(counted(&client), [0, 1, 1, 1]);
    tell(&mut client, 0, &[], &[]);
    tell(&mut client, 5, &[], &[]);
    assert_eq!(counted(&client), [0; 4]);
}
