//! Managers that are not those that a client wants.

use super::*;

#[test]
fn a_handle_takes_nothing_from_another_cache_at_its_address() {
    let mut world = World::new(2);
    let options = Options {
        patience: Duration::from_secs(5),
        timeout: DEADLINE,
        ..Options::default()
    };
    let mut cache = Cache::open(vec![world.address()], &world.key, &options).unwrap();
    cache.write(REGION_BYTES, &[1; 10]).unwrap();
    world.manager.as_mut().and_then(Running::end);
    // Another cache, whose regions have had more generations.
    world.cache += 1;
    let journal = JournalFile::new(&world.folder.path().join("journal of the other"));
    world
        .start_on(Box::new(journal), configuration(0), Claim::Lock)
        .unwrap();
    let mut other = world.open();
    for _ in 0..10 {
        other.reshape(1).unwrap();
        other.reshape(4).unwrap();
    }
    let deadline = Instant::now() + DEADLINE;
    while other.write(REGION_BYTES, &[7; 10]).is_err() {
        assert!(Instant::now() < deadline, "it is never whole");
    }
    // What the handle knew of its own cache is over by then.
    let over = Instant::now() + 2 * LEASE;
    let mut bytes = [0; 10];
    while Instant::now() < over {
        other.read(REGION_BYTES, &mut bytes).unwrap();
    }
    let written = Bytes::from_static(&[9; 10]);
    cache.submit_write(REGION_BYTES, written, 1).unwrap();
    let mut ended = Vec::new();
    while ended.is_empty() {
        cache.wait(Duration::from_millis(10)).unwrap();
        cache.poll(&mut ended);
        assert!(Instant::now() < deadline, "the write never ends");
    }
    assert!(ended[0].result.is_err(), "{:?}", ended[0].result);
    assert!(cache.is_gone());
    other.read(REGION_BYTES, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 10]);
}
