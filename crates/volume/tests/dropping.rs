//! Slabs that their host wants back while the disk is yet to end writes that they have.

mod support;

use cenote_pool::control::Drain;
use support::backed_volume::{Backed, PAGE, map_first, read};
use support::operator::Operator;
use support::{page, wait_for, wait_until};

/// What the slab acknowledged is on the disk before it goes; what the disk refuses keeps it where it is.
#[test]
fn a_slab_stays_where_the_disk_refuses_what_it_has() {
    let scene = Backed::new(1);
    let mut worker = scene.volume.worker().unwrap();
    map_first(&scene.volume, &mut worker);
    for index in 0..2 {
        let bytes = page(index, 1);
        worker.write(index * PAGE as u64, &bytes).unwrap();
    }
    wait_for(&scene.volume, |status| {
        status.backing.unwrap().pending_bytes == 0
    });
    scene.disk.hold_writes(true);
    worker.write(0, &page(0, 2)).expect("its host has it");
    let mut operator = Operator::of(&scene.cluster, 0);
    operator.drain(Drain::On);
    wait_for(&scene.volume, |status| status.mapped_bytes == 0);
    assert!(read(&mut worker, 0) == page(0, 2), "from the queue");
    assert!(
        operator.status().slabs.mapped > 0,
        "the disk has it not yet"
    );

    scene.disk.break_page(Some(0));
    scene.disk.hold_writes(false);
    wait_for(&scene.volume, |status| {
        status.backing.unwrap().stale_pages == 1 && status.mapped_bytes > 0
    });
    assert!(read(&mut worker, 0) == page(0, 2));
    assert!(read(&mut worker, 1) == page(1, 1));
    wait_until(
        || {
            let status = operator.status();
            status.clients.iter().any(|client| client.declined == 1)
        },
        || format!("{:#?}", scene.volume.status()),
    );

    scene.disk.break_page(None);
    worker.write(0, &page(0, 3)).unwrap();
    wait_until(
        || {
            let slabs = operator.status().slabs;
            slabs.free == slabs.total()
        },
        || format!("{:#?}", scene.volume.status()),
    );
    assert!(read(&mut worker, 0) == page(0, 3));
    assert!(read(&mut worker, 1) == page(1, 1));
}
