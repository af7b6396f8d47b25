//! The control thread's machines against hosts that say what a test has them say.

mod opening;
mod world;

use std::collections::BTreeSet;

use cenote_pool::control::{FillResult, Refusal, Reply, Request};

use super::*;
use crate::core::Mapping;
use crate::directory::MemberState;
use crate::extents::LayoutId;
use world::{PAGES, World};

/// The hosts that were asked for a slab, by the member that it was to be.
fn asked_for_slabs(world: &mut World) -> Vec<(u8, HostIndex, u64)> {
    let sent = world.take_sent();
    let mut asked: Vec<_> = sent
        .iter()
        .filter_map(|(host, request)| match request {
            Request::Map {
                request, member, ..
            } => Some((*member, *host, *request)),
            _ => None,
        })
        .collect();
    asked.sort_unstable();
    asked
}

fn unmapped(sent: &[(HostIndex, Request)]) -> Vec<HostIndex> {
    let unmaps = sent.iter();
    unmaps
        .filter(|(_, request)| matches!(request, Request::Unmap { .. }))
        .map(|&(host, _)| host)
        .collect()
}

#[test]
fn an_extent_is_mapped_on_a_host_for_each_split() {
    let mut world = World::new("rs:2+1", 5);
    world.control.core().want(0);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let hosts: BTreeSet<HostIndex> = asked.iter().map(|&(_, host, _)| host).collect();
    assert_eq!((asked.len(), hosts.len()), (3, 3), "{asked:?}");
    for &(_, host, request) in &asked {
        assert!(world.stripe(0).is_none(), "not before all are there");
        world.grant(host, request);
    }
    let stripe = world.stripe(0).expect("mapped");
    assert_eq!(stripe.readable(), 0b111);
    for (member, host, _) in asked {
        let placed = stripe.members[usize::from(member)].as_ref().expect("there");
        assert_eq!(placed.session.host, host);
    }
}

#[test]
fn an_extent_is_hot_already_exactly_if_the_sample_of_its_second_finds_it_hot() {
    let mut found = BTreeSet::new();
    for touches in [0, 1, 99, 100, 101, 4096] {
        let mut world = World::backed("plain", 1);
        let core = Arc::clone(world.control.core());
        core.demand.touched[0].fetch_add(touches, Ordering::Relaxed);
        let is_hot = core.is_hot_already(0);
        world.turn();
        assert!(asked_for_slabs(&mut world).is_empty(), "nobody asked yet");
        world.pass(Duration::from_secs(1));
        let is_asked = !asked_for_slabs(&mut world).is_empty();
        assert_eq!(is_hot, is_asked, "after {touches}");
        found.insert(is_hot);
    }
    assert_eq!(found.len(), 2, "some are and some are not");
}

#[test]
fn a_host_that_refuses_is_replaced_and_asked_no_more() {
    let mut world = World::new("rs:2+1", 5);
    world.control.core().want(0);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let (member, host, request) = asked[1];
    world.say(
        host,
        &Reply::Refused {
            request,
            reason: Refusal::NoMemory,
        },
    );
    world.turn();
    let again = asked_for_slabs(&mut world);
    let [(member_again, other, _)] = again[..] else {
        panic!("{again:?}");
    };
    assert_eq!(member_again, member);
    assert!(asked.iter().all(|&(_, host, _)| host != other));
}

#[test]
fn hosts_that_break_while_they_are_asked_have_each_split_asked_for_once_more() {
    let mut world = World::new("rs:2+1", 6);
    let broken = [0, 1, 2, 3];
    broken.iter().for_each(|&host| world.break_off(host));
    world.control.core().want(0);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let members: Vec<u8> = asked.iter().map(|&(member, ..)| member).collect();
    let mut distinct = members.clone();
    distinct.dedup();
    assert_eq!(members, distinct, "one host for each split: {asked:?}");
    assert!(asked.iter().all(|(_, host, _)| !broken.contains(host)));
    for (_, host, request) in asked {
        world.grant(host, request);
    }
    let stripe = world.stripe(0).expect("two are enough to be read");
    assert_eq!(stripe.readable().count_ones(), 2);
}

#[test]
fn with_too_few_hosts_what_was_granted_goes_back_and_whoever_asked_is_refused() {
    let mut world = World::new("rs:2+1", 3);
    world.control.core().want(0);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let (_, first, request) = asked[0];
    world.grant(first, request);
    for &(_, host, request) in &asked[1..] {
        let reason = Refusal::NoMemory;
        world.say(host, &Reply::Refused { request, reason });
    }
    world.turn();
    assert!(world.control.core().is_refused(0));
    assert_eq!(unmapped(&world.take_sent()), [first]);
    world.pass(Duration::from_secs(2));
    assert_eq!(world.control.core().want(0), Mapping::Wanted, "asked again");
}

#[test]
fn a_slab_that_comes_when_nobody_waits_for_it_any_more_goes_back() {
    let mut world = World::new("rs:2+1", 3);
    world.say(
        1,
        &Reply::Mapped {
            request: 999,
            window: world::window(7),
        },
    );
    world.turn();
    assert_eq!(unmapped(&world.take_sent()), [1]);
}

/// The relocation that it was for has ended, and its layout has gone, before the host answers.
#[test]
fn a_slab_for_an_extent_that_is_no_more_goes_back() {
    let mut world = World::new("rs:2+1", 4);
    let holders = world.map(0);
    world.hang_up(holders[0]);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let [(0, host, request)] = asked[..] else {
        panic!("{asked:?}");
    };
    world.control.repairer.on_refused(0);
    world.control.core().directory.publish(|next| {
        next.extents.resize(LayoutId::First, 0, || None);
        true
    });
    world.grant(host, request);
    assert!(unmapped(&world.take_sent()).contains(&host));
}

/// A chunk under a low limit would have the next wait for years.
#[test]
fn a_relocation_goes_on_at_once_when_its_limit_is_lifted() {
    let mut world = World::new("rs:2+1", 4);
    let holders = world.map(0);
    world.write(0..PAGES);
    let limit = |world: &World, limit| {
        let pace = &world.control.core().limits.pace;
        pace.limit.store(limit, Ordering::Relaxed);
    };
    limit(&world, 1);
    world.hang_up(holders[0]);
    world.pass(Duration::from_secs(1));
    let asked = asked_for_slabs(&mut world);
    let [(0, host, request)] = asked[..] else {
        panic!("{asked:?}");
    };
    world.grant(host, request);
    let fill = |world: &mut World| {
        for _ in 0..1000 {
            for (to, request) in world.take_sent() {
                if let Request::Fill { request, .. } = request {
                    let result = FillResult::Done;
                    world.say(to, &Reply::Filled { request, result });
                }
            }
            world.pass(Duration::from_millis(1));
        }
        world.stripe(0).expect("mapped").readable() == 0b111
    };
    assert!(!fill(&mut world), "the limit holds");
    limit(&world, 0);
    assert!(fill(&mut world), "it waits for what it was told before");
}

#[test]
fn a_lost_slab_is_rebuilt_chunk_by_chunk_and_then_read() {
    let mut world = World::new("rs:2+1", 4);
    let holders = world.map(0);
    world.write(0..PAGES);
    let spare = (0..4).find(|host| !holders.contains(host)).expect("one");
    world.break_off(holders[0]);
    world.hang_up(holders[0]);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let [(0, host, request)] = asked[..] else {
        panic!("{asked:?}");
    };
    assert_eq!(host, spare);
    world.grant(host, request);
    let mut filled = 0;
    let mut watermarks = BTreeSet::new();
    for _ in 0..10_000 {
        let stripe = world.stripe(0).expect("mapped");
        let member = stripe.members[0].as_ref().expect("there");
        match member.state {
            MemberState::Live => break,
            MemberState::Filling { watermark } => {
                assert!(stripe.readable() & 1 == 0, "not read before it is whole");
                watermarks.insert(watermark);
            }
        }
        for (to, request) in world.take_sent() {
            if let Request::Fill {
                request,
                len_bytes,
                sources,
                k,
                ..
            } = request
            {
                assert_eq!((to, usize::from(k), sources.len()), (spare, 2, 2));
                filled += len_bytes;
                let result = FillResult::Done;
                world.say(spare, &Reply::Filled { request, result });
            }
        }
        world.pass(Duration::from_millis(1));
    }
    let stripe = world.stripe(0).expect("mapped");
    assert_eq!(stripe.readable(), 0b111);
    assert!(stripe.fence.is_empty(), "a fence outlived its relocation");
    assert!(watermarks.len() > 1, "in chunks: {watermarks:?}");
    let slab_bytes = PAGES * 2048;
    assert!(filled >= slab_bytes, "{filled} of {slab_bytes} bytes");
}

#[test]
fn a_target_that_goes_takes_its_slab_and_the_fence_with_it() {
    let mut world = World::new("rs:2+1", 5);
    let holders = world.map(0);
    world.write(0..PAGES);
    world.hang_up(holders[2]);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let (_, target, request) = asked[0];
    world.grant(target, request);
    world.pass(Duration::from_millis(1));
    assert!(world.stripe(0).expect("mapped").members[2].is_some());
    world.hang_up(target);
    world.turn();
    let stripe = world.stripe(0).expect("mapped");
    assert!(stripe.members[2].is_none() && stripe.fence.is_empty());
    world.pass(Duration::from_secs(1));
    let asked = asked_for_slabs(&mut world);
    assert!(
        matches!(asked[..], [(2, host, _)] if host != target),
        "the next host: {asked:?}"
    );
}

#[test]
fn a_slab_that_is_wanted_back_is_copied_and_only_then_given_back() {
    let mut world = World::new("rs:2+1", 4);
    let holders = world.map(0);
    world.write(0..8);
    let leaves = holders[1];
    let window = world.window_of(0, 1);
    world.say(
        leaves,
        &Reply::Evict {
            windows: vec![window],
        },
    );
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let [(1, target, request)] = asked[..] else {
        panic!("{asked:?}");
    };
    assert!(!holders.contains(&target));
    world.grant(target, request);
    for _ in 0..10_000 {
        let sent = world.take_sent();
        let is_moved = world.host_of(0, 1) == target;
        if unmapped(&sent).contains(&leaves) {
            assert!(is_moved, "given back before its copy is read");
            return;
        }
        for (to, request) in sent {
            if let Request::Fill { request, k, .. } = request {
                assert_eq!((to, k), (target, 1), "read from the slab alone");
                let result = FillResult::Done;
                world.say(target, &Reply::Filled { request, result });
            }
        }
        world.pass(Duration::from_millis(1));
    }
    panic!("it was not given back");
}

#[test]
fn a_slab_with_nowhere_to_go_is_declined_once_each_time_that_it_is_wanted() {
    let mut world = World::new("rs:2+1", 3);
    let holders = world.map(0);
    let window = world.window_of(0, 0);
    for _ in 0..2 {
        let windows = vec![window];
        world.say(holders[0], &Reply::Evict { windows });
        for _ in 0..5 {
            world.pass(Duration::from_millis(300));
        }
        assert_eq!(declined(&world.take_sent()), [holders[0]]);
    }
    assert_eq!(world.stripe(0).expect("mapped").readable(), 0b111);
}

/// The hosts that were told that a slab has nowhere to go.
fn declined(sent: &[(HostIndex, Request)]) -> Vec<HostIndex> {
    let declines = sent.iter();
    declines
        .filter(|(_, request)| matches!(request, Request::Decline { .. }))
        .map(|&(host, _)| host)
        .collect()
}

#[test]
fn each_slab_of_a_stripe_with_nowhere_to_go_is_declined() {
    let mut world = World::new("rs:2+1", 3);
    let holders = world.map(0);
    for split in [0, 2] {
        let windows = vec![world.window_of(0, split)];
        world.say(holders[split], &Reply::Evict { windows });
    }
    world.pass(Duration::from_millis(300));
    let mut told = declined(&world.take_sent());
    told.sort_unstable();
    let mut wanted = [holders[0], holders[2]];
    wanted.sort_unstable();
    assert_eq!(told, wanted);
}

/// Both hosts of a rack want their memory back, and one of another rack.
#[test]
fn a_slab_that_has_a_place_moves_though_the_one_before_it_has_none() {
    let mut world = World::in_racks("rs:2+1", 6, 2);
    let holders = world.map(0);
    let (stuck, leaves) = (holders[0], holders[1]);
    let neighbor = stuck ^ 1;
    let windows = vec![world::window(77)];
    world.say(neighbor, &Reply::Evict { windows });
    for split in [0, 1] {
        let windows = vec![world.window_of(0, split)];
        world.say(holders[split], &Reply::Evict { windows });
    }
    world.pass(Duration::from_millis(300));
    let sent = world.take_sent();
    assert_eq!(declined(&sent), [stuck]);
    let asked = sent.iter().find_map(|(host, request)| match request {
        Request::Map { member, .. } => Some((*member, *host)),
        _ => None,
    });
    assert_eq!(asked, Some((1, leaves ^ 1)), "in its own rack");
}

#[test]
fn slabs_that_a_host_lists_and_nobody_knows_go_back_and_those_that_it_lacks_are_dropped() {
    let mut world = World::new("rs:2+1", 3);
    let holders = world.map(0);
    let (strange, held) = (world::window(77), world.window_of(0, 2));
    let slab = |window, member| HeldSlab {
        volume: world::VOLUME,
        extent: 0,
        member,
        window,
    };
    // It has another slab of the volume, and not the one that it is thought to have.
    world.list(holders[1], vec![slab(strange, 1)]);
    world.list(holders[2], vec![slab(held, 2)]);
    let sent = world.take_sent();
    let returned = sent.iter().any(|(host, request)| {
        *host == holders[1] && *request == Request::Unmap { window: strange }
    });
    assert!(returned, "{sent:?}");
    assert!(!unmapped(&sent).contains(&holders[2]), "{sent:?}");
    let stripe = world.stripe(0).expect("mapped");
    assert_eq!(stripe.readable(), 0b101);
}

#[test]
fn a_host_that_answers_pings_and_grants_nothing_is_replaced_in_the_end() {
    let mut world = World::new("rs:2+1", 4);
    world.control.core().want(0);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let (stalls, others) = asked.split_first().expect("three");
    for &(_, host, request) in others {
        world.grant(host, request);
    }
    for _ in 0..100 {
        world.pass(Duration::from_millis(250));
    }
    assert!(asked_for_slabs(&mut world).is_empty(), "it has its time");
    for _ in 0..40 {
        world.pass(Duration::from_millis(250));
    }
    let again = asked_for_slabs(&mut world);
    let [(member, host, request)] = again[..] else {
        panic!("{again:?}");
    };
    assert!(member == stalls.0 && host != stalls.1);
    world.grant(host, request);
    assert_eq!(world.stripe(0).expect("mapped").readable(), 0b111);
    // What it grants after all goes back.
    world.grant(stalls.1, stalls.2);
    assert_eq!(unmapped(&world.take_sent()), [stalls.1]);
}

#[test]
fn a_target_that_answers_pings_and_fills_nothing_is_replaced_in_the_end() {
    let mut world = World::new("rs:2+1", 5);
    let holders = world.map(0);
    world.write(0..PAGES);
    world.hang_up(holders[1]);
    world.turn();
    let asked = asked_for_slabs(&mut world);
    let (_, target, request) = asked[0];
    world.grant(target, request);
    let mut again = Vec::new();
    for _ in 0..48 {
        world.pass(Duration::from_millis(250));
        again.extend(asked_for_slabs(&mut world));
    }
    assert!(
        matches!(again[..], [(1, host, _), ..] if host != holders[1]),
        "{again:?}"
    );
    let stripe = world.stripe(0).expect("mapped");
    assert!(stripe.fence.is_empty() && stripe.is_there());
}

#[test]
fn a_host_that_talks_nonsense_is_lost_and_nobody_else() {
    let mut world = World::new("rs:2+1", 4);
    let holders = world.map(0);
    world.say_bytes(holders[2], vec![0xff; 300]);
    world.turn();
    let connected = world.control.connected();
    assert!(!connected.contains(&holders[2]) && connected.len() == 3);
    let stripe = world.stripe(0).expect("mapped");
    assert_eq!(stripe.readable(), 0b011);
}

/// The slot of a worker is free as soon as the worker has said that it goes, which is heard later.
#[test]
fn a_mender_with_the_number_of_a_worker_that_just_went_is_not_taken_for_it() {
    let mut world = World::new("rs:2+1", 3);
    let id = 0;
    world.commands.send(Command::RemoveWorker { id }).unwrap();
    let mut mender = Mender::new(world.commands.clone());
    mender.ask(0, 0..1);
    mender.tend(&mut world.control.cx);
    let (taken, _epoch) = world.control.core().directory.register().expect("room");
    assert_ne!(taken, id, "the mender has it");
    world.turn();
    mender.tend(&mut world.control.cx);
    assert!(mender.has(0), "its endpoints are still on their way");
}
