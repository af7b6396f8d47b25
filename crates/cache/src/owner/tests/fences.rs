//! What becomes of writes that nobody ends, and of hosts that answer nothing.

use super::*;

/// Until a client that says nothing is forgotten.
fn forget_clients(world: &mut World) {
    world.pass(LEASE);
    world.pass(LEASE_MARGIN);
    world.run();
}

#[test]
fn a_client_that_stops_is_fenced_off_before_what_it_wrote_to_is_copied() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let from = host_of(&world, 0);
    let before = world.owner.entries()[0].copies[0].clone();
    world.stopped.push(1);
    world.owner.handle_notice(world.now, from, None);
    world.seen.clear();
    forget_clients(&mut world);
    let renewed = world.place_of(|action| matches!(action, Action::Renew { .. }));
    let told = world.place_of(|action| {
        matches!(action, Action::Fill { source_window, .. } if !before.windows.contains(source_window))
    });
    let copied = world.place_of(|action| matches!(action, Action::Fill { .. }));
    assert!(renewed < copied && copied == told, "the new name is read");
    assert!(world.owner.is_settled());
}

#[test]
fn a_region_that_stays_has_new_windows_once_a_client_that_may_write_is_gone() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let before = world.owner.entries()[0].clone();
    world.seen.clear();
    forget_clients(&mut world);
    let after = world.owner.entries()[0].clone();
    assert_eq!(after.access, Access::Open);
    assert_eq!(after.copies[0].host, before.copies[0].host);
    for (new, old) in after.copies[0]
        .windows
        .iter()
        .zip(&before.copies[0].windows)
    {
        assert_eq!(new.id, old.id);
        assert!(new.generation > old.generation);
    }
    let stops = |action: &Action| matches!(action, Action::Tell { entry, .. } if entry.access != Access::Open);
    assert!(!world.seen.iter().any(stops), "writes never stopped");
    assert!(world.owner.is_settled());
}

#[test]
fn a_client_that_says_goodbye_and_one_that_knew_of_the_stop_leave_nothing_to_fence() {
    let mut world = World::new(1, 1, 3);
    world.join(1);
    world.join(2);
    world.run();
    world.owner.handle_client_left(world.now, 1);
    // The other one stops after it said that its writes have ended.
    world.begin_move();
    world.stopped.push(2);
    world.seen.clear();
    forget_clients(&mut world);
    world.run();
    let renews = |action: &Action| matches!(action, Action::Renew { .. });
    assert!(!world.seen.iter().any(renews));
}

#[test]
fn two_copies_are_made_equal_once_a_client_is_gone_and_writes_wait_for_that() {
    let mut world = World::new(2, 1, 2);
    world.join(1);
    world.run();
    let entry = world.owner.entries()[0].clone();
    world.seen.clear();
    forget_clients(&mut world);
    let (first, second) = (entry.copies[0].host, entry.copies[1].host);
    let frozen = world.place_of(|action| matches!(action, Action::Renew { .. }));
    let filled = world.place_of(
        |action| matches!(action, Action::Fill { host, source, .. } if (*host, *source) == (second, first)),
    );
    assert!(frozen < filled);
    let renewed = |action: &&Action| matches!(action, Action::Renew { .. });
    assert_eq!(world.seen.iter().filter(renewed).count(), 4, "both copies");
    assert!(world.owner.is_settled());
    assert_eq!(world.owner.entries()[0].losses, 0);
}

#[test]
fn a_doubt_is_settled_once_and_an_older_one_is_settled_already() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let told = world.owner.entries()[0].generation;
    world.seen.clear();
    world.owner.handle_doubt(world.now, 1, 0, told);
    world.run();
    let renews = |world: &World| {
        let renews = |action: &&Action| matches!(action, Action::Renew { .. });
        world.seen.iter().filter(renews).count()
    };
    assert_eq!(renews(&world), 2);
    assert!(world.owner.entries()[0].generation > told);
    world.pass(Duration::from_secs(1));
    world.owner.handle_doubt(world.now, 1, 0, told);
    world.owner.handle_doubt(world.now, 77, 0, u64::MAX);
    world.owner.handle_doubt(world.now, 1, usize::MAX, u64::MAX);
    world.run();
    assert_eq!(renews(&world), 2, "and nobody else may doubt");
}

#[test]
fn what_is_noted_of_clients_is_concluded_by_the_next_tick() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let told = world.owner.entries()[0].generation;
    let renews = |world: &mut World| {
        let renews = |action| matches!(action, Action::Renew { .. });
        std::iter::from_fn(|| world.owner.poll_action()).any(renews)
    };
    world.owner.note_doubt(1, 0, told);
    world.owner.note_all_known(1, &[(0, told), (1, 1)]);
    assert!(!renews(&mut world));
    world.owner.handle_tick(world.now);
    assert!(renews(&mut world));
}

#[test]
fn windows_whose_renewal_was_not_heard_of_are_learned_with_the_next_session() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let host = host_of(&world, 0);
    world.owner.handle_doubt(world.now, 1, 0, u64::MAX - 1);
    while let Some(action) = world.owner.poll_action() {
        // The host does it, and its answer is lost with the connection.
        if let Action::Renew { window, .. } = action {
            let held = &mut world.held[host];
            let slab = held.iter_mut().find(|slab| slab.window == window).unwrap();
            slab.window.generation += 5000;
        }
    }
    world.owner.handle_host_silent(world.now, host);
    world.start(host);
    world.run();
    let entry = &world.owner.entries()[0];
    assert_eq!(entry.losses, 0, "it is the same slab");
    assert!(entry.copies[0].windows.iter().all(|w| w.generation > 5000));
    world.pass(Duration::from_secs(2));
    world.run();
    assert!(world.owner.is_settled());
}

#[test]
fn a_host_that_never_lends_what_it_was_asked_for_is_passed_over() {
    let mut world = World::settled(1, 1, 3);
    let from = host_of(&world, 0);
    world.mute = (0..3).filter(|&host| host != from).collect();
    world.owner.handle_notice(world.now, from, None);
    let Some(Action::Map { host, request, .. }) = map_of(&mut world) else {
        panic!("nothing was asked for");
    };
    world.run();
    world.mute.retain(|&mute| mute == host);
    world.pass(ANSWER_LIMIT);
    world.run();
    assert!(world.owner.is_settled());
    assert_ne!(host_of(&world, 0), host);
    // What it lends in the end goes back.
    let late = Window {
        id: 999,
        generation: 999,
        len_bytes: 2 * MIB,
        rights: 7,
    };
    world.owner.handle_granted(world.now, host, request, late);
    let back = Action::Unmap { host, window: late };
    assert!(world.run_until(|action| *action == back));
}

fn map_of(world: &mut World) -> Option<Action> {
    let is_found = world.run_until(|action| matches!(action, Action::Map { .. }));
    is_found.then(|| world.seen.last().cloned())?
}

#[test]
fn a_host_that_never_ends_a_copy_does_not_keep_writes_waiting() {
    let mut world = World::settled(1, 1, 3);
    let Filling { host, .. } = world.begin_move();
    world.mute.push(host);
    world.run();
    assert_eq!(world.owner.entries()[0].access, Access::Frozen);
    world.pass(ANSWER_LIMIT);
    world.run();
    world.pass(Duration::from_secs(1));
    world.run();
    assert!(world.owner.is_settled(), "on the third host");
    assert_ne!(host_of(&world, 0), host);
}

#[test]
fn a_slab_that_a_host_took_back_unasked_is_a_loss_as_soon_as_the_books_say_so() {
    let mut world = World::settled(1, 2, 2);
    let host = host_of(&world, 1);
    world.held[host].pop();
    world.tell_books(host);
    world.run();
    let losses: Vec<u32> = world.owner.entries().iter().map(|e| e.losses).collect();
    assert_eq!(losses.iter().sum::<u32>(), 1);
    assert!(world.owner.is_settled());
}

#[test]
fn books_that_are_as_they_should_be_end_no_move() {
    let mut world = World::settled(1, 1, 2);
    let Filling { from, .. } = world.begin_move();
    world.seen.clear();
    world.tell_books(from);
    world.tell_books(1 - from);
    assert_eq!(world.owner.stage(0), Stage::Filling);
    let gives_back = |action: &Action| matches!(action, Action::Unmap { .. });
    assert!(!world.run_until(gives_back));
}

#[test]
fn the_copy_is_read_from_a_host_that_is_there() {
    let mut world = World::settled(2, 1, 3);
    let (first, second) = {
        let copies = &world.owner.entries()[0].copies;
        (copies[0].host, copies[1].host)
    };
    world.owner.handle_host_silent(world.now, first);
    world.up[first] = false;
    world.owner.handle_notice(world.now, first, None);
    world.seen.clear();
    world.run();
    let reads =
        |action: &Action| matches!(action, Action::Fill { source, .. } if *source == second);
    assert!(world.seen.iter().any(reads));
    assert!(world.owner.is_settled());
}

#[test]
fn fills_that_were_asked_for_together_fail_together_however_slowly_they_are_answered() {
    let mut owner_settings = settings(1);
    owner_settings.slab_bytes = 16 * MIB;
    let mut owner = Owner::new(owner_settings, 0, &[0, 1], Time(0));
    for host in 0..2 {
        owner.handle_host_up(Time(0), host, 100, &[]);
    }
    owner.handle_resize(Time(0), 1);
    let mut windows = 0;
    let mut grant = |owner: &mut Owner, now| {
        let mut fills = Vec::new();
        while let Some(action) = owner.poll_action() {
            match action {
                Action::Map { host, request, .. } => {
                    windows += 1;
                    let window = Window {
                        id: windows,
                        generation: 1,
                        len_bytes: 16 * MIB,
                        rights: 7,
                    };
                    owner.handle_granted(now, host, request, window);
                }
                Action::Fill { host, request, .. } => fills.push((host, request)),
                _ => {}
            }
        }
        fills
    };
    assert!(grant(&mut owner, Time(0)).is_empty());
    let from = owner.entries()[0].copies[0].host;
    owner.handle_notice(Time(0), from, None);
    let fills = grant(&mut owner, Time(0));
    assert_eq!(fills.len(), FILLS_AHEAD);
    let mut now = Time(0);
    for (host, request) in fills {
        now = now.after(Duration::from_secs(1));
        let failed = FillResult::SourceFailed { split: 1 };
        owner.handle_filled(now, host, request, failed);
    }
    assert_eq!(owner.stage(0), Stage::Filling, "one failure of the source");
}

#[test]
fn a_host_that_lends_one_window_twice_is_not_believed_and_harms_no_region() {
    let mut world = World::settled(1, 1, 2);
    let lent = world.owner.entries()[0].copies[0].clone();
    world.mute = vec![0, 1];
    world.owner.handle_resize(world.now, 9);
    let mut asked = None;
    while let Some(action) = world.owner.poll_action() {
        if let Action::Map { host, request, .. } = action
            && host == lent.host
        {
            asked = Some(request);
        }
    }
    let request = asked.expect("it was asked for more");
    let twice = lent.windows[0];
    world
        .owner
        .handle_granted(world.now, lent.host, request, twice);
    world.seen.clear();
    world.mute.clear();
    world.run();
    let gives_back =
        |action: &Action| matches!(action, Action::Unmap { window, .. } if *window == twice);
    assert!(!world.seen.iter().any(gives_back));
    let reconnects = |action: &Action| matches!(action, Action::Reconnect { .. });
    assert!(world.seen.iter().any(reconnects));
}

#[test]
fn an_owner_that_is_superseded_decides_grants_and_records_nothing_more() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    world.owner.handle_superseded();
    assert!(world.owner.is_superseded());
    world.owner.handle_resize(world.now, 5);
    world.kill(0);
    world.kill(1);
    world.pass(Duration::from_secs(60));
    assert_eq!(world.owner.poll_action(), None);
    let renewal = world.owner.handle_client_alive(world.now, 1);
    assert_eq!(renewal, Renewal::Superseded);
}

#[test]
fn an_owner_that_another_may_have_followed_grants_no_lease() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    world.owner.handle_reign(world.now.after(LEASE));
    let grant = |world: &mut World| world.owner.handle_client_alive(world.now, 1);
    world.pass(LEASE / 2);
    assert_eq!(grant(&mut world), Renewal::Granted);
    world.pass(LEASE / 2);
    assert_eq!(grant(&mut world), Renewal::Withheld);
    world.owner.handle_reign(world.now.after(LEASE));
    assert_eq!(grant(&mut world), Renewal::Granted);
}

#[test]
fn a_cache_that_nobody_renews_gives_everything_back_and_one_whose_owner_was_away_does_not() {
    let mut world = World::new(1, 2, 2);
    let hour = Duration::from_secs(3600);
    world.owner.handle_life_renewed(world.now, Some(hour));
    world.run();
    world.pass(hour / 2);
    world.run();
    world.owner.handle_life_renewed(world.now, Some(hour));
    world.pass(hour / 2);
    world.run();
    assert!(world.owner.is_settled() && !world.owner.has_ended());
    // Another owner comes a day later: the time without one does not count.
    let record = world.owner.record(&names(2));
    world.now = world.now.after(24 * hour);
    world.owner = Owner::recover(settings(1), record, &[0, 1], world.now).unwrap();
    world.start(0);
    world.start(1);
    world.pass(LEASE + LEASE_MARGIN);
    world.run();
    assert_eq!(world.owner.entries()[0].access, Access::Open);
    assert_eq!(world.owner.entries()[0].losses, 0);
    world.pass(hour);
    world.run();
    world.pass(LEASE + LEASE_MARGIN);
    world.run();
    assert!(world.owner.has_ended());
    assert!(world.held.iter().all(Vec::is_empty), "all is given back");
    world.owner.handle_life_renewed(world.now, None);
    assert!(world.owner.has_ended(), "what is over stays over");
}

#[test]
fn a_fill_that_an_ended_session_left_keeps_writes_waiting_and_nobody_from_the_host() {
    let mut world = World::new(2, 1, 2);
    world.join(1);
    world.run();
    let told = world.owner.entries()[0].generation;
    world.owner.handle_doubt(world.now, 1, 0, told);
    assert!(world.run_until(|action| matches!(action, Action::Fill { .. })));
    let Some(Action::Fill { host, .. }) = world.seen.last().cloned() else {
        unreachable!("it was seen")
    };
    world.up[host] = false;
    world.owner.handle_host_silent(world.now, host);
    world.seen.clear();
    for _ in 0..3 {
        world.pass(ANSWER_LIMIT / 2);
        world.run();
    }
    let reconnects = |action: &Action| matches!(action, Action::Reconnect { .. });
    assert!(!world.seen.iter().any(reconnects));
    // It may land yet, over what would be written there now.
    assert_eq!(world.owner.entries()[0].access, Access::Frozen);
    world.start(host);
    world.run();
    world.pass(Duration::from_secs(2));
    world.run();
    assert!(world.owner.is_settled());
    assert_eq!(world.owner.entries()[0].losses, 0);
}

#[test]
fn a_doubtful_region_that_has_to_leave_its_host_is_not_fenced_where_it_is() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let from = host_of(&world, 0);
    assert_eq!(world.owner.handle_hold(world.now, 0), Hold::Begun);
    world.run();
    world.owner.handle_notice(world.now, from, None);
    let told = world.owner.entries()[0].generation;
    // The hold ends with it, so that the region lacks both at once.
    world.owner.handle_doubt(world.now, 1, 0, told);
    assert_eq!(world.owner.stage(0), Stage::Placing);
    world.seen.clear();
    world.run();
    assert!(world.owner.is_settled());
    assert_eq!(host_of(&world, 0), 1 - from);
    let wastes =
        |action: &Action| matches!(action, Action::Unmap { host, .. } if *host == 1 - from);
    assert!(!world.seen.iter().any(wastes), "what was granted is used");
}

#[test]
fn a_renewal_that_is_never_answered_keeps_no_region_from_memory_for_ever() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let host = host_of(&world, 0);
    world.mute.push(host);
    let told = world.owner.entries()[0].generation;
    world.owner.handle_doubt(world.now, 1, 0, told);
    world.run();
    // The region is not fenced any more, and its windows are still being renewed.
    world.owner.handle_resize(world.now, 0);
    world.run();
    world.owner.handle_resize(world.now, 1);
    world.run();
    world.pass(ANSWER_LIMIT);
    world.run();
    world.pass(Duration::from_secs(3));
    world.run();
    assert!(world.owner.is_settled());
}

#[test]
fn who_comes_while_windows_are_renewed_is_told_of_none_of_the_new_ones() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let before = world.owner.entries()[0].clone();
    let told = before.generation;
    world.owner.handle_doubt(world.now, 1, 0, told);
    let mut renewals = Vec::new();
    while let Some(action) = world.owner.poll_action() {
        match action {
            Action::Renew { .. } => renewals.push(action),
            other => world.carry_out(other),
        }
    }
    assert_eq!(renewals.len(), 2);
    world.carry_out(renewals.remove(0));
    world.join(2);
    assert_eq!(world.owner.entries()[0], before, "also if it is kept so");
    let is_told =
        |action: &Action| matches!(action, Action::Tell { client: 2, entry } if *entry == before);
    assert!(world.run_until(is_told));
    // The host's books have the new name.
    let host = before.copies[0].host;
    world.tell_books(host);
    world.carry_out(renewals.remove(0));
    world.run();
    let after = world.owner.entries()[0].clone();
    assert_eq!((after.access, after.losses), (Access::Open, 0));
    let windows = |entry: &Entry| entry.copies[0].windows.clone();
    for (new, old) in windows(&after).iter().zip(&windows(&before)) {
        assert!(new.id == old.id && new.generation > old.generation);
    }
    assert!(world.owner.is_settled());
}

#[test]
fn clients_go_on_with_the_first_copy_while_the_second_is_copied_and_turn_to_that_at_the_end() {
    let mut world = World::new(2, 1, 3);
    world.join(1);
    world.run();
    let entry = world.owner.entries()[0].clone();
    let (first, second) = (entry.copies[0].host, entry.copies[1].host);
    world.owner.note_doubt(1, 0, entry.generation);
    world.owner.handle_notice(world.now, first, None);
    world.seen.clear();
    world.run();
    let sources = world.seen.iter().filter_map(|action| match action {
        Action::Fill { source, .. } => Some(*source),
        _ => None,
    });
    assert_eq!(
        sources.collect::<Vec<_>>(),
        [second; 4],
        "what stays is copied"
    );
    let copied = world
        .seen
        .iter()
        .rposition(|action| matches!(action, Action::Fill { .. }));
    let read = |actions: &[Action]| {
        let told = actions.iter().filter_map(|action| match action {
            Action::Tell { entry, .. } => Some(entry.copies[0].host),
            _ => None,
        });
        told.collect::<Vec<_>>()
    };
    let (before, after) = world.seen.split_at(copied.expect("it was copied"));
    assert!(read(before).iter().all(|&host| host == first));
    assert!(!read(after).is_empty() && read(after).iter().all(|&host| host == second));
    assert!(world.owner.is_settled());
}
