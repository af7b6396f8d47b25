//! What one owner leaves to the next.

use super::*;

fn window(id: u32) -> Window {
    Window {
        id,
        generation: 1,
        len_bytes: 2 * MIB,
        rights: 7,
    }
}

fn entry(region: u32, hosts: &[usize]) -> Entry {
    let copy = |&host: &usize| Copy::new(host, vec![window(2 * region), window(2 * region + 1)]);
    Entry {
        region,
        generation: 3,
        access: Access::Open,
        copies: hosts.iter().map(copy).collect(),
        losses: 0,
        fell_back_ms: 0,
        next: Vec::new(),
    }
}

#[test]
fn hosts_are_known_by_name_whatever_their_order_is() {
    let mut world = World::settled(1, 2, 3);
    let host = host_of(&world, 0);
    world.owner.handle_notice(world.now, host, None);
    let record = world.owner.record(&names(3));
    let held = world.held[host].clone();
    // The next cluster file has them the other way round, and one more in front.
    let reversed: Vec<String> = ["new", "h2", "h1", "h0"].map(String::from).to_vec();
    let record = record.for_hosts(&reversed).unwrap();
    let there = 3 - host;
    assert_eq!(record.leaving, [there], "it is still to go");
    let owner = Owner::recover(settings(1), record, &[9, 2, 1, 0], world.now).unwrap();
    world.owner = owner;
    assert_eq!(host_of(&world, 0), there);
    world.owner.handle_host_up(world.now, there, 100, &held);
    assert_eq!(world.owner.entries()[0].losses, 0);
}

#[test]
fn a_host_that_the_list_lacks_is_silent_and_given_up_in_its_time() {
    let mut world = World::settled(1, 2, 2);
    let lost = host_of(&world, 0);
    let kept = 1 - lost;
    let record = world.owner.record(&names(2));
    let left = vec![format!("h{kept}")];
    let record = record.for_hosts(&left).unwrap();
    let held = world.held[kept].clone();
    let mut owner = Owner::recover(settings(1), record, &[0], world.now).unwrap();
    owner.handle_host_up(world.now, 0, 100, &held);
    let losses = |owner: &Owner| -> Vec<u32> { owner.entries().iter().map(|e| e.losses).collect() };
    assert_eq!(losses(&owner), [0, 0]);
    // An owner after this one finds the name still.
    let again = owner.record(&left);
    assert!(again.hosts.contains(&format!("h{lost}")));
    world.owner = owner;
    world.pass(Duration::from_secs(10));
    let owner = world.owner;
    assert_eq!(losses(&owner).iter().sum::<u32>(), 1);
}

#[test]
fn two_copies_that_the_next_list_has_in_one_domain_are_parted() {
    let mut world = World::settled(2, 1, 3);
    let record = world.owner.record(&names(3));
    let hosts: Vec<usize> = record.entries[0].copies.iter().map(|c| c.host).collect();
    let mut domains = [0, 1, 2];
    domains[hosts[1]] = domains[hosts[0]];
    world.owner = Owner::recover(settings(2), record, &domains, world.now).unwrap();
    for host in 0..3 {
        world.start(host);
    }
    world.run();
    world.pass(LEASE + LEASE_MARGIN);
    world.run();
    world.pass(Duration::from_secs(2));
    world.run();
    assert!(world.owner.is_settled());
    let entry = &world.owner.entries()[0];
    let mut used: Vec<u32> = entry.copies.iter().map(|copy| domains[copy.host]).collect();
    used.sort_unstable();
    used.dedup();
    assert_eq!(used.len(), 2);
    assert_eq!(entry.losses, 0);
}

#[test]
fn a_record_of_something_else_is_refused() {
    let good = Record {
        hosts: names(2),
        entries: vec![entry(0, &[0]), entry(1, &[1])],
        ..Record::default()
    };
    let take = |record: Record| Owner::recover(settings(2), record, &[0, 1], Time(0)).map(drop);
    assert_eq!(take(good.clone()), Ok(()));
    let damage: [fn(&mut Record); 8] = [
        |record| record.entries.swap(0, 1),
        |record| record.entries[0].generation = u64::MAX,
        |record| record.entries[0].generation = 0,
        |record| record.entries[0].losses = u32::MAX,
        |record| record.entries[0].copies[0].windows.truncate(1),
        |record| record.entries[0].copies[0].host = 2,
        |record| record.entries[0] = entry(0, &[1, 1]),
        |record| record.leaving.push(7),
    ];
    for damage in damage {
        let mut record = good.clone();
        damage(&mut record);
        assert!(take(record.clone()).is_err(), "{record:?}");
    }
}

/// The record has a window of its slab 0, and the host says that this is the window of slab 1, and that
/// it has no other.
#[test]
fn a_window_that_a_host_names_for_another_slab_is_not_that_of_both() {
    let record = Record {
        hosts: names(2),
        entries: vec![entry(0, &[1])],
        ..Record::default()
    };
    let window = record.entries[0].copies[0].windows[0];
    let mut owner = Owner::recover(settings(2), record, &[0, 1], Time(0)).unwrap();
    let slab = HeldSlab {
        volume: 7,
        extent: 1,
        member: 0,
        window,
    };
    owner.handle_host_up(Time(0), 1, 5, &[slab]);
    owner.audit();
    assert!(!owner.uses(1, window), "half of a copy");
}

proptest! {
    /// Whatever a file or hosts say, nothing but an error comes of it.
    #[test]
    fn no_record_and_no_books_panic(
        entries in proptest::collection::vec(
            (0_u32..4, any::<u64>(), 0_u8..4, proptest::collection::vec(0_usize..5, 0..4), any::<u32>()),
            0..5,
        ),
        leaving in proptest::collection::vec(0_usize..5, 0..3),
        listed in proptest::collection::vec(0_u8..4, 0..5),
        books in proptest::collection::vec(
            (0_usize..3, proptest::collection::vec((0_u32..12, 0_u8..2, 0_u32..6, 0_u64..3, any::<bool>()), 0..12)),
            0..12,
        ),
        grants in proptest::collection::vec((0_usize..3, 0_u64..40, 0_u32..6, 0_u64..3), 0..20),
    ) {
        let entries = (0..).zip(entries).map(|(at, (region, generation, access, hosts, losses))| Entry {
            generation: generation >> 2,
            losses: losses >> 2,
            access: [Access::Absent, Access::Frozen, Access::Open, Access::Cut][usize::from(access)],
            ..entry(if region == 0 { region } else { at }, &hosts)
        });
        let record = Record {
            hosts: listed.into_iter().map(|name| format!("h{name}")).collect(),
            leaving,
            duration: None,
            outdated: BTreeMap::new(),
            entries: entries.collect(),
        };
        let owner = record
            .for_hosts(&names(3))
            .and_then(|record| Owner::recover(settings(2), record, &[0, 1, 1], Time(0)));
        let mut owner = match owner {
            Ok(owner) => owner,
            Err(_) => Owner::new(settings(2), 3, &[0, 1, 1], Time(0)),
        };
        let mut now = Time(0);
        for (host, held) in books {
            now = now.after(Duration::from_secs(1));
            let slab = |(extent, member, id, generation, is_long): (u32, u8, u32, u64, bool)| HeldSlab {
                volume: 7,
                extent,
                member,
                window: Window { id, generation, len_bytes: if is_long { 2 * MIB } else { 5 }, rights: 7 },
            };
            let held: Vec<HeldSlab> = held.into_iter().map(slab).collect();
            owner.handle_host_up(now, host, 5, &held);
            owner.handle_books(now, host, &held[held.len() / 2..]);
        }
        for (host, request, id, generation) in grants {
            now = now.after(Duration::from_millis(300));
            let window = Window { id, generation, len_bytes: 2 * MIB, rights: 7 };
            owner.handle_granted(now, host, request, window);
            owner.handle_evict(now, host, &[window]);
            owner.handle_filled(now, host, request + 3, FillResult::Done);
            while owner.poll_action().is_some() {}
        }
    }
}

#[test]
fn what_a_host_said_of_its_end_is_for_it_to_say_again_and_what_others_said_is_kept() {
    let mut world = World::settled(1, 1, 1);
    let deadline = Some(world.now.after(Duration::from_secs(60)));
    world.owner.handle_host_notice(world.now, 0, deadline);
    assert!(!world.owner.is_settled(), "it is to leave");
    world.succeed();
    world.pass(LEASE + LEASE_MARGIN);
    world.run();
    assert!(world.owner.is_settled(), "nobody said so any more");
    world.owner.handle_notice(world.now, 0, None);
    world.succeed();
    world.owner.handle_host_notice(world.now, 0, None);
    world.pass(LEASE + LEASE_MARGIN);
    world.run();
    assert!(!world.owner.is_settled(), "an operator said so");
    world.owner.handle_notice_withdrawn(world.now, 0);
    world.run();
    assert!(world.owner.is_settled());
}

#[test]
fn the_cluster_s_file_says_by_itself_which_hosts_it_has_and_withdraws_nobody_else_s_notice() {
    let mut world = World::settled(1, 1, 1);
    world.owner.handle_unlisted(world.now, 0, true);
    assert!(!world.owner.is_settled(), "it is to leave");
    assert_eq!(world.owner.record(&names(1)).leaving, [0; 0]);
    world.owner.handle_notice_withdrawn(world.now, 0);
    assert!(!world.owner.is_settled(), "it is in the file no more");
    world.owner.handle_unlisted(world.now, 0, false);
    assert!(world.owner.is_settled());
    world.owner.handle_notice(world.now, 0, None);
    for is_unlisted in [true, false] {
        world.owner.handle_unlisted(world.now, 0, is_unlisted);
    }
    assert!(!world.owner.is_settled(), "an operator said so");
    assert_eq!(world.owner.record(&names(1)).leaving, [0]);
}

/// An owner of 1000 regions on two hosts, as its predecessor left it, and what these hold.
fn recovered_large() -> (Owner, Vec<Vec<HeldSlab>>, Time) {
    let mut world = World::new(1, 0, 2);
    for host in 0..2 {
        let now = world.now;
        world.owner.handle_room(now, host, 2000);
    }
    world.owner.handle_resize(world.now, 1000);
    world.run();
    assert!(world.owner.is_settled());
    let record = world.owner.record(&names(2));
    let owner = Owner::recover(settings(1), record, &[0, 1], world.now).unwrap();
    (owner, world.held, world.now)
}

#[test]
fn a_host_with_many_regions_comes_back_at_the_price_of_two_records() {
    let (mut owner, held, now) = recovered_large();
    owner.handle_host_up(now, 0, 100, &held[0]);
    let actions = std::iter::from_fn(|| owner.poll_action());
    let records = actions.filter(|it| *it == Action::Record).count();
    assert!((1..=2).contains(&records), "{records}");
    // What changes behind a record that was taken is in none so far.
    owner.handle_host_up(now, 1, 100, &held[1]);
    assert_eq!(owner.poll_action(), Some(Action::Record));
}

#[test]
fn what_a_client_knows_of_many_regions_is_concluded_from_once() {
    let (mut owner, held, now) = recovered_large();
    assert!(owner.handle_client_joined(now, 1));
    for (host, held) in held.iter().enumerate() {
        owner.handle_host_up(now, host, 100, held);
    }
    let entries = owner.entries().into_iter().zip(0..);
    let known: Vec<(usize, u64)> = entries.map(|(e, region)| (region, e.generation)).collect();
    let before = audit::AUDITS.get();
    owner.handle_all_known(now, 1, &known);
    assert_eq!(audit::AUDITS.get() - before, 1);
}

#[test]
fn nothing_is_placed_on_a_host_that_is_kept_out() {
    let mut world = World::new(1, 0, 2);
    world.owner.handle_kept_out(0, true);
    world.owner.handle_resize(world.now, 4);
    world.run();
    assert!(world.owner.is_settled());
    let on = |region| host_of(&world, region);
    assert_eq!((0..4).map(on).collect::<Vec<_>>(), [1; 4]);
}

#[test]
fn a_host_that_ended_is_not_one_that_leaves_for_the_next_owner_either() {
    let mut world = World::settled(1, 1, 2);
    let host = 1 - host_of(&world, 0);
    let mut kept = Record::default();
    let mut keep = |owner: &mut Owner| {
        while let Some(action) = owner.poll_action() {
            if action == Action::Record {
                kept = owner.record(&names(2));
            }
        }
        kept.clone()
    };
    for has_ended in [false, true] {
        world.owner.handle_notice(world.now, host, None);
        assert_eq!(keep(&mut world.owner).leaving, [host]);
        match has_ended {
            true => world.owner.handle_host_ended(world.now, host),
            // It is given up once it was silent for too long.
            false => {
                world.owner.handle_host_silent(world.now, host);
                world.pass(Duration::from_secs(11));
            }
        }
        let record = world.owner.record(&names(2));
        assert_eq!(record.leaving, [0; 0]);
        assert_eq!(keep(&mut world.owner), record, "ended: {has_ended}");
        world.owner.handle_host_up(world.now, host, 100, &[]);
    }
}
