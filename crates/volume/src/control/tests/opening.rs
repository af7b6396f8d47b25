//! A volume is taken over from what a journal names.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, sync_channel};

use super::*;
use crate::VolumeError;
use crate::journal::{Held, Identity, Image};

/// Slabs of extent 0 that an earlier owner left: split and host. How the opening ends.
fn open(world: &mut World, slabs: &[(u8, HostIndex)]) -> Receiver<Result<(), VolumeError>> {
    let held = |&(split, host): &(u8, HostIndex)| {
        let host = format!("h{host}");
        ((0, split), Held { host, birth: 9 })
    };
    let image = Image {
        identity: Identity {
            volume: world::VOLUME,
            slab_bytes: PAGES * 2048,
            k: 2,
            r: 1,
        },
        layouts: [None; 2],
        epoch: 1,
        held: slabs.iter().map(held).collect::<BTreeMap<_, _>>(),
    };
    // Of an extent that holds nothing nothing would be kept.
    world.write(0..1);
    let (ended, opened) = sync_channel(1);
    let Control { owner, cx, .. } = &mut world.control;
    owner.inherit(cx, &image, Some(ended));
    for &(_, host) in slabs {
        owner.begin(cx, host);
    }
    opened
}

/// The slabs that hosts are asked to give again.
fn retaken(world: &mut World) -> Vec<(HostIndex, u64)> {
    let sent = world.take_sent().into_iter();
    sent.filter_map(|(host, request)| match request {
        Request::Retake { request, .. } => Some((host, request)),
        _ => None,
    })
    .collect()
}

/// A host with many slabs takes longer for all of them than it may take for one.
#[test]
fn slabs_are_waited_for_as_long_as_some_come_back() {
    let mut world = World::new("rs:2+1", 3);
    let opened = open(&mut world, &[(0, 0), (1, 1), (2, 2)]);
    for (host, request) in retaken(&mut world) {
        for _ in 0..36 {
            world.pass(Duration::from_millis(250));
        }
        assert!(opened.try_recv().is_err(), "it has ended already");
        world.grant(host, request);
    }
    world.pass(Duration::from_millis(250));
    assert!(matches!(opened.try_recv(), Ok(Ok(()))));
    assert_eq!(world.stripe(0).expect("mapped").readable(), 0b111);
}

#[test]
fn slabs_that_come_back_together_make_one_epoch() {
    let mut world = World::new("rs:2+1", 3);
    let opened = open(&mut world, &[(0, 0), (1, 0), (2, 0)]);
    let asked = retaken(&mut world);
    assert_eq!(asked.len(), 3);
    for (id, (host, request)) in (1..).zip(asked) {
        let window = world::window(id);
        world.say(host, &Reply::Mapped { request, window });
    }
    let before = world.control.core().directory.epoch();
    world.turn();
    assert_eq!(world.control.core().directory.epoch(), before + 1);
    world.pass(Duration::from_millis(250));
    assert!(matches!(opened.try_recv(), Ok(Ok(()))));
}
