//! One epoch: work under faults, healing, reading everything back, and once more with r hosts gone.
//! Where stripes are in groups of hosts, they have to become whole without these, too.

use std::time::Duration;

use cenote_fabric::sim::{Late, Memory, Notice};
use cenote_volume::Placement;

use super::Options;
use super::client::Client;
use super::faults::Faults;
use super::world::{Actor, World};

/// Virtual time of healing at most.
const HEALING_MAX: Duration = Duration::from_secs(120);
/// And of a request, from the end of the last fault on: silence is noticed, hosts are reached
/// again, and a repair that waits lets writers in, all well below it.
const REQUEST_MAX: Duration = Duration::from_secs(20);
/// Writes whose connection breaks: half land, some torn, after the slab may be another's.
const LATE: Late = Late {
    chance_ppm: 500_000,
    torn_ppm: 300_000,
    delay_ns_max: 3_000_000_000,
};
/// How long word of a closed connection takes at most: longer than it takes to reach a host again.
const NOTICE_MAX: Duration = Duration::from_secs(2);
/// Grain of faults and of healing.
const TICK: Duration = Duration::from_millis(100);

/// Has one epoch happen, up to its end or the first violation.
pub fn epoch(world: &mut World, options: &Options) {
    world.is_gentle = world.random.percent(options.gentle_percent);
    let mut faults = Faults::new(options);
    world.net.set_late(Some(LATE));
    world.net.set_notice_delay(NOTICE_MAX);
    let end = world.net.now().after(options.epoch);
    while world.net.now() < end && world.violations.is_empty() {
        world.run_until(world.net.now().after(TICK));
        faults.tick(world);
    }
    faults.heal(world);
    world.net.set_late(None);
    world.net.set_notice_delay(Duration::ZERO);
    heal(world);
    world.compare_books();
    world.expect_right(0);
    read_back(world);
    lose_and_read_back(world, options);
    world.excuse_errors();
    if !world.is_gentle {
        // What was lost for good stays an error: its owner starts again.
        for client in 0..world.clients.len() {
            if world.clients[client].has_torn() {
                world.replace_client(client, true);
            }
        }
    }
    rest(world, false);
}

/// Has clients stop or go on to ask for things.
fn rest(world: &mut World, is_resting: bool) {
    for index in 0..world.clients.len() {
        world.clients[index].rest(is_resting);
        let node = world.node(Actor::Client(index));
        world.wake(node, world.net.now());
    }
}

/// Lets requests end and volumes become whole.
fn heal(world: &mut World) {
    rest(world, true);
    let start = world.net.now();
    while world.violations.is_empty() {
        world.run_until(world.net.now().after(TICK));
        let is_idle = world.clients.iter().all(|client| client.running() == 0);
        let is_changing = |client: &mut Client| client.is_changing();
        let is_settled = world.clients.iter_mut().all(Client::is_settled);
        if is_idle && is_settled && !world.clients.iter_mut().any(is_changing) {
            return;
        }
        let healing = world.net.now().since(start);
        let broken = if !is_idle && healing > REQUEST_MAX {
            format!("requests run {REQUEST_MAX:?} after the last fault")
        } else if healing > HEALING_MAX {
            format!("does not heal in {HEALING_MAX:?}")
        } else {
            continue;
        };
        let clients = world.clients.iter_mut();
        let stuck: Vec<String> = clients.map(Client::state).collect();
        world.violate(format!("{broken}: {}", stuck.join("; ")));
    }
}

/// Every acknowledged byte is readable.
fn read_back(world: &mut World) {
    for client in 0..world.clients.len() {
        let mut at = 0;
        let start = world.net.now();
        while world.violations.is_empty() {
            let mut steps = world.steps;
            let done = world.clients[client].read_back(&mut at, &mut steps);
            world.steps = steps;
            if done {
                break;
            }
            let node = world.node(Actor::Client(client));
            world.wake(node, world.net.now());
            world.run_until(world.net.now().after(Duration::from_millis(1)));
            if world.net.now().since(start) > HEALING_MAX {
                let state = world.clients[client].state();
                world.violate(format!("reads do not end in {HEALING_MAX:?}: {state}"));
            }
        }
    }
}

/// And still is when r hosts are gone: parities are what the data says, on hosts of their own. Mostly one
/// fewer where splits rot and tags tell, with one split more than k: then nothing is to be an error.
fn lose_and_read_back(world: &mut World, options: &Options) {
    let was_gentle = world.is_gentle;
    let has_lost = |client: &mut Client| !was_gentle && client.has_torn();
    if !world.violations.is_empty() || world.clients.iter_mut().any(has_lost) {
        return;
    }
    let mut r = options.spare_hosts();
    if options.rots_under_tags() && world.random.percent(70) {
        r -= 1;
    }
    world.expect_right(r);
    let mut gone = Vec::new();
    while gone.len() < r {
        let host = world.random.below(options.hosts as u64);
        let host = usize::try_from(host).expect("an index");
        if !gone.contains(&host) {
            gone.push(host);
        }
    }
    world.is_gentle = true;
    let net = world.net.clone();
    world.note(format!("hosts {gone:?} are gone; everything is read"));
    world.note_loss();
    for &host in &gone {
        world.hosts[host].crash(&net, Memory::Lost, Notice::AtOnce);
    }
    read_back(world);
    if has_room_without(options, r) {
        heal_without(world, &gone);
    }
    world.note_loss();
    for &host in &gone {
        world.hosts[host].restart(&net);
        let node = world.hosts[host].node;
        world.wake(node, net.now());
    }
    world.note(format!("hosts {gone:?} are back"));
    heal(world);
    world.compare_books();
    world.is_gentle = was_gentle;
}

/// Whether stripes have to become whole on the hosts that are left, though groups may have none left.
fn has_room_without(options: &Options, gone: usize) -> bool {
    let has_groups = matches!(options.placement, Some(Placement::CodingSets { .. }));
    has_groups && !options.is_backed && options.hosts - gone >= options.scheme.members()
}

/// Waits until every extent is whole while these hosts are gone.
fn heal_without(world: &mut World, gone: &[usize]) {
    let start = world.net.now();
    while world.violations.is_empty() && !world.clients.iter_mut().all(Client::is_whole) {
        world.run_until(world.net.now().after(TICK));
        if world.net.now().since(start) > HEALING_MAX {
            let clients = world.clients.iter_mut();
            let stuck: Vec<String> = clients.map(Client::state).collect();
            let stuck = stuck.join("; ");
            world.violate(format!(
                "does not heal in {HEALING_MAX:?} without hosts {gone:?}: {stuck}"
            ));
        }
    }
}
