//! What must hold when everything has become still.

use cenote_kv::group::view::Partition;

use super::client::{key_of, partition_of};
use super::linear::{Call, Kind, Value, is_linearizable};
use super::world::World;

pub(super) fn judge(world: &mut World) {
    read_all(world);
    for key in 0..world.mood.keys {
        // What was lost is no more than that.
        let partition = partition_of(key, world.options.k);
        if world.view().begun[partition] > 1 {
            continue;
        }
        let calls: Vec<Call> = world
            .clients
            .iter()
            .flat_map(|client| &client.calls)
            .filter(|(of, _)| *of == key)
            .map(|(_, call)| *call)
            .collect();
        if !is_linearizable(&calls, world.mood.evicts) {
            let mut calls = calls;
            calls.sort_by_key(|call| call.begun);
            world.violate(format!("what was seen of key {key} cannot be: {calls:?}"));
        }
    }
}

/// The last read of each key: nothing acknowledged may be missing.
fn read_all(world: &mut World) {
    for key in 0..world.mood.keys {
        let partition = partition_of(key, world.options.k);
        let Partition::Home(process) = world.view().partitions[partition] else {
            return;
        };
        let name = key_of(key);
        let owner = world
            .members
            .get_mut(&process)
            .and_then(|member| member.owner(partition));
        let Some(owner) = owner else {
            return world.violate(format!("{process} does not own partition {partition}"));
        };
        let found = owner.committed(owner.hash_of(&name), &name);
        let seen = found.map(|found| Value {
            number: found.entry.client_flags,
            expiry: found.entry.expiry,
        });
        let now = world.now;
        world.clients[0].calls.push((
            key,
            Call {
                kind: Kind::Read(seen),
                begun: now,
                ended: Some(now + 1),
            },
        ));
    }
}

/// All members have the same, and parities are the sums of the data.
pub(super) fn compare(world: &mut World) {
    let view = world.view().clone();
    let members: Vec<_> = view
        .processes()
        .into_iter()
        .filter_map(|process| world.members.get(&process))
        .collect();
    if let Err(what) = cenote_kv::group::audit::audit(&view, &members) {
        world.violate(what.to_string());
    }
}
