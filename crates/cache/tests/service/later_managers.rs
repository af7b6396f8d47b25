//! A journal of an earlier manager that is put back.

use super::*;

#[test]
fn a_manager_from_an_old_journal_does_not_begin_however_often_it_is_tried_and_changes_nothing() {
    let mut world = World::new(2);
    let mut cache = world.open();
    cache.write(REGION_BYTES, b"kept").unwrap();
    let path = world.folder.path().join("journal");
    let end = |world: &mut World| world.manager.as_mut().and_then(Running::end);
    end(&mut world);
    let old = std::fs::read(&path).unwrap();
    // Two managers later.
    for _ in 0..2 {
        world.start(configuration(0)).unwrap();
        cache.write(0, b"later").unwrap();
        end(&mut world);
    }
    let newest = std::fs::read(&path).unwrap();
    for absent in [false, true] {
        match absent {
            false => std::fs::write(&path, &old).unwrap(),
            true => std::fs::remove_file(&path).unwrap(),
        }
        for attempt in 0..5 {
            let started = world.start(configuration(0));
            assert!(
                matches!(started, Err(StartError::Superseded)),
                "attempt {attempt}, absent {absent}: {started:?}"
            );
        }
    }
    std::fs::write(&path, &newest).unwrap();
    world.start(configuration(0)).unwrap();
    let mut found = [0; 4];
    cache.read(REGION_BYTES, &mut found).unwrap();
    assert_eq!(&found, b"kept");
    assert!(cache.take_lost().is_none());
}
