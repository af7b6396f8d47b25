//! The owner's decisions, with hosts and clients that do as they are asked.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, HeldSlab, Refusal, Window};
use proptest::prelude::*;

use super::*;

const MIB: u64 = 1 << 20;

fn settings(copies: usize) -> Settings {
    Settings {
        cache: 7,
        slab_bytes: 2 * MIB,
        slabs_per_region: 2,
        copies,
        give_up_after: Duration::from_secs(10),
    }
}

/// Hosts that lend and fill at once, and clients that answer at once unless they are stopped.
struct World {
    owner: Owner,
    now: Time,
    up: Vec<bool>,
    windows: u32,
    held: Vec<Vec<HeldSlab>>,
    stopped: Vec<ClientNumber>,
    seen: Vec<Action>,
}

impl World {
    fn new(copies: usize, regions: u32, hosts: usize) -> Self {
        let domains: Vec<u32> = (0..hosts).map(|host| host as u32).collect();
        let mut world = Self {
            owner: Owner::new(settings(copies), 0, &domains, Time(0)),
            now: Time(0),
            up: vec![true; hosts],
            windows: 0,
            held: vec![Vec::new(); hosts],
            stopped: Vec::new(),
            seen: Vec::new(),
        };
        for host in 0..hosts {
            world.owner.handle_host_up(world.now, host, 100, &[]);
        }
        world.owner.handle_resize(world.now, regions);
        world
    }

    fn pass(&mut self, time: Duration) {
        self.now = self.now.after(time);
        self.owner.handle_tick(self.now);
    }

    /// Carries out what the owner asks until it asks no more, or something is to be seen first.
    fn run_until(&mut self, stop: impl Fn(&Action) -> bool) -> bool {
        while let Some(action) = self.owner.poll_action() {
            self.seen.push(action.clone());
            if stop(&action) {
                return true;
            }
            self.carry_out(action);
        }
        false
    }

    fn run(&mut self) {
        self.run_until(|_| false);
    }

    fn carry_out(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Map {
                host,
                request,
                place,
            } if self.up[host] => {
                self.windows += 1;
                let window = Window {
                    id: self.windows,
                    generation: u64::from(self.windows),
                    len_bytes: 2 * MIB,
                    rights: 7,
                };
                self.held[host].push(HeldSlab {
                    volume: 7,
                    extent: place.region * 2 + place.slab,
                    member: 0,
                    window,
                });
                self.owner.handle_granted(now, host, request, window);
            }
            Action::Fill {
                host,
                request,
                source,
                ..
            } if self.up[host] => {
                let result = match self.up[source] {
                    true => FillResult::Done,
                    false => FillResult::SourceFailed { split: 1 },
                };
                self.owner.handle_filled(now, host, request, result);
            }
            Action::Unmap { host, window } => {
                self.held[host].retain(|slab| slab.window != window);
            }
            Action::Tell { client, entry } if !self.stopped.contains(&client) => {
                let region = entry.region as usize;
                self.owner
                    .handle_known(now, client, region, entry.generation);
            }
            _ => {}
        }
    }

    fn join(&mut self, client: ClientNumber) {
        assert!(self.owner.handle_client_joined(self.now, client));
        let renewal = self.owner.handle_client_alive(self.now, client);
        assert_eq!(renewal, Renewal::Granted);
    }

    fn kill(&mut self, host: usize) {
        self.up[host] = false;
        self.held[host].clear();
        self.owner.handle_host_ended(self.now, host);
    }

    fn start(&mut self, host: usize) {
        self.up[host] = true;
        let held = self.held[host].clone();
        self.owner.handle_host_up(self.now, host, 100, &held);
    }

    fn place_of(&self, what: impl Fn(&Action) -> bool) -> usize {
        self.seen.iter().position(what).expect("it was asked for")
    }
}

fn host_of(world: &World, region: usize) -> usize {
    world.owner.entries()[region].copies[0].host
}

#[test]
fn a_new_cache_is_open_everywhere_and_spread_over_hosts() {
    let mut world = World::new(1, 4, 4);
    world.run();
    assert!(world.owner.is_settled());
    let mut hosts: Vec<usize> = (0..4).map(|region| host_of(&world, region)).collect();
    hosts.sort_unstable();
    assert_eq!(hosts, [0, 1, 2, 3]);
}

#[test]
fn a_region_that_moves_is_frozen_then_copied_then_flipped_then_retired() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    let from = host_of(&world, 0);
    world.seen.clear();
    world.owner.handle_notice(world.now, from, None);
    world.run();
    assert_eq!(host_of(&world, 0), 1 - from);
    assert!(world.held[from].is_empty(), "the old copy is given back");
    let told = |access: Access, host: usize| move |action: &Action| matches!(action, Action::Tell { entry, .. } if entry.access == access && entry.copies[0].host == host);
    let frozen = world.place_of(told(Access::Frozen, from));
    let copied = world.place_of(|action| matches!(action, Action::Fill { .. }));
    let flipped = world.place_of(told(Access::Frozen, 1 - from));
    let retired = world.place_of(|action| matches!(action, Action::Unmap { .. }));
    let open = world.place_of(told(Access::Open, 1 - from));
    assert!(frozen < copied && copied < flipped && flipped < retired && retired < open);
}

#[test]
fn nothing_is_copied_while_a_client_may_still_write_and_all_once_its_lease_is_over() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    world.stopped.push(1);
    world
        .owner
        .handle_notice(world.now, host_of(&world, 0), None);
    world.seen.clear();
    world.run();
    world.pass(LEASE);
    world.run();
    let fills = |world: &World| {
        let is_fill = |action: &&Action| matches!(action, Action::Fill { .. });
        world.seen.iter().filter(is_fill).count()
    };
    assert_eq!(fills(&world), 0);
    world.pass(LEASE_MARGIN);
    world.run();
    assert_eq!(fills(&world), 4, "two slabs of 2 MiB in fills of 1 MiB");
}

#[test]
fn a_client_that_asks_for_its_lease_and_never_answers_does_not_get_it() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.run();
    world.stopped.push(1);
    world
        .owner
        .handle_notice(world.now, host_of(&world, 0), None);
    for _ in 0..20 {
        world.pass(Duration::from_millis(250));
        world.run();
        let _renewal = world.owner.handle_client_alive(world.now, 1);
    }
    assert!(world.owner.is_settled(), "the move went on without it");
}

#[test]
fn what_a_client_says_of_regions_that_are_not_there_is_left_aside() {
    let mut world = World::new(1, 1, 2);
    world.join(1);
    world.owner.handle_known(world.now, 1, usize::MAX, 7);
    world.run();
    assert!(world.owner.is_settled());
}

#[test]
fn a_region_that_was_cut_off_and_comes_again_says_that_its_bytes_are_lost() {
    let mut world = World::new(1, 2, 2);
    world.run();
    world.owner.handle_resize(world.now, 1);
    world.run();
    world.owner.handle_resize(world.now, 2);
    world.run();
    let losses: Vec<u32> = world.owner.entries().iter().map(|e| e.losses).collect();
    assert_eq!(losses, [0, 1]);
}

#[test]
fn clients_are_not_told_to_write_to_a_copy_that_is_lost() {
    let mut world = World::new(1, 1, 3);
    world.run();
    world.join(1);
    world.run();
    let from = host_of(&world, 0);
    world.owner.handle_notice(world.now, from, None);
    assert!(world.run_until(|action| matches!(action, Action::Fill { .. })));
    world.seen.clear();
    world.kill(from);
    world.run();
    let opens_lost = |action: &Action| matches!(action, Action::Tell { entry, .. } if entry.access == Access::Open && entry.copies[0].host == from);
    assert!(!world.seen.iter().any(opens_lost));
}

#[test]
fn the_death_of_a_host_is_told_by_region_and_only_where_bytes_are_gone() {
    let mut world = World::new(1, 4, 4);
    world.run();
    let gone = host_of(&world, 2);
    world.kill(gone);
    world.run();
    let losses: Vec<u32> = world.owner.entries().iter().map(|e| e.losses).collect();
    assert_eq!(losses, [0, 0, 1, 0]);
    assert!(world.owner.is_settled(), "it is whole again elsewhere");
}

#[test]
fn with_two_copies_a_death_loses_nothing_and_another_copy_is_made() {
    let mut world = World::new(2, 4, 4);
    world.run();
    assert!(world.owner.is_settled());
    world.kill(1);
    world.run();
    assert!(world.owner.entries().iter().all(|entry| entry.losses == 0));
    assert!(world.owner.is_settled());
}

#[test]
fn a_target_that_dies_while_it_is_filled_costs_nothing() {
    let mut world = World::new(1, 1, 3);
    world.run();
    let from = host_of(&world, 0);
    world.owner.handle_notice(world.now, from, None);
    assert!(world.run_until(|action| matches!(action, Action::Fill { .. })));
    let Some(Action::Fill { host, .. }) = world.seen.last().cloned() else {
        unreachable!("it was seen")
    };
    world.kill(host);
    world.run();
    assert_eq!(world.owner.entries()[0].losses, 0);
    assert_ne!(host_of(&world, 0), from);
    assert!(world.owner.is_settled());
}

#[test]
fn a_source_that_dies_while_it_is_read_is_a_loss_and_nothing_half_filled_is_served() {
    let mut world = World::new(1, 1, 3);
    world.run();
    let from = host_of(&world, 0);
    world.owner.handle_notice(world.now, from, None);
    assert!(world.run_until(|action| matches!(action, Action::Fill { .. })));
    let Some(Action::Fill { target, .. }) = world.seen.last().cloned() else {
        unreachable!("it was seen")
    };
    world.kill(from);
    world.run();
    let entry = &world.owner.entries()[0];
    assert_eq!(entry.losses, 1);
    assert!(!entry.copies[0].windows.contains(&target));
}

#[test]
fn silence_destroys_nothing_until_the_host_is_given_up() {
    let mut world = World::new(1, 1, 2);
    world.run();
    let host = host_of(&world, 0);
    world.owner.handle_host_silent(world.now, host);
    world.pass(Duration::from_secs(9));
    world.run();
    assert_eq!(world.owner.entries()[0].losses, 0);
    world.pass(Duration::from_secs(1));
    world.run();
    assert_eq!(world.owner.entries()[0].losses, 1);
    // It returns: what it holds is not used again.
    world.start(host);
    world.run();
    assert!(world.held[host].is_empty());
}

#[test]
fn the_next_owner_opens_nothing_before_leases_are_over_and_learns_windows_anew() {
    let mut world = World::new(1, 2, 2);
    world.run();
    let entries = world.owner.entries();
    world.owner = Owner::recover(settings(1), entries.clone(), &[0, 1], world.now);
    let is_next = |(new, old): (&Entry, &Entry)| new.generation > old.generation;
    assert!(world.owner.entries().iter().zip(&entries).all(is_next));
    for held in &mut world.held {
        for slab in held {
            slab.window.generation += 1000;
        }
    }
    world.start(0);
    world.start(1);
    world.run();
    assert!(
        world
            .owner
            .entries()
            .iter()
            .all(|e| e.access == Access::Frozen)
    );
    world.pass(LEASE + LEASE_MARGIN);
    world.run();
    for entry in world.owner.entries() {
        assert_eq!((entry.access, entry.losses), (Access::Open, 0));
        assert!(entry.copies[0].windows.iter().all(|w| w.generation > 1000));
    }
}

#[test]
fn what_is_cut_off_is_given_back_and_may_come_again() {
    let mut world = World::new(1, 4, 2);
    world.run();
    world.owner.handle_resize(world.now, 1);
    world.run();
    assert_eq!(world.held.iter().map(Vec::len).sum::<usize>(), 2);
    world.owner.handle_resize(world.now, 3);
    world.run();
    assert!(world.owner.is_settled());
    assert_eq!(world.held.iter().map(Vec::len).sum::<usize>(), 6);
}

#[test]
fn of_a_host_that_goes_regions_without_another_copy_go_first() {
    let mut world = World::new(2, 2, 4);
    world.run();
    let from = world.owner.entries()[1].copies[0].host;
    let spare: Vec<usize> = world.owner.entries()[1]
        .copies
        .iter()
        .map(|c| c.host)
        .collect();
    // Region 1 loses its other copy and no host can take one, so that it hangs on `from`.
    for host in 0..4 {
        world.owner.handle_room(world.now, host, 0);
    }
    let other = spare
        .into_iter()
        .find(|&host| host != from)
        .expect("two copies");
    world.kill(other);
    world.owner.handle_notice(world.now, from, None);
    world.run();
    world.seen.clear();
    for host in 0..4 {
        if host != from && host != other {
            world.owner.handle_room(world.now, host, 100);
        }
    }
    let first = world.run_until(|action| matches!(action, Action::Map { .. }));
    assert!(first);
    let Some(Action::Map { place, .. }) = world.seen.last() else {
        unreachable!("it was seen")
    };
    assert_eq!(place.region, 1);
}

#[derive(Clone, Debug)]
enum Step {
    Kill(usize),
    Start(usize),
    Silence(usize),
    Notice(usize, bool),
    Refuse,
    Obey(u8),
    Pass(u16),
    Resize(u32),
    Join,
    Stop(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_usize..4).prop_map(Step::Kill),
        (0_usize..4).prop_map(Step::Start),
        (0_usize..4).prop_map(Step::Silence),
        (0_usize..4, any::<bool>()).prop_map(|(host, on)| Step::Notice(host, on)),
        Just(Step::Refuse),
        (1_u8..40).prop_map(Step::Obey),
        (1_u16..5000).prop_map(Step::Pass),
        (0_u32..6).prop_map(Step::Resize),
        Just(Step::Join),
        (0_u64..4).prop_map(Step::Stop),
    ]
}

impl World {
    fn take(&mut self, step: Step, joined: &mut u64) {
        let now = self.now;
        match step {
            Step::Kill(host) => self.kill(host),
            Step::Start(host) if !self.up[host] => self.start(host),
            Step::Start(_) => {}
            Step::Silence(host) => {
                self.owner.handle_host_silent(now, host);
                self.up[host] = false;
            }
            Step::Notice(host, true) => self.owner.handle_notice(now, host, Some(now)),
            Step::Notice(host, false) => self.owner.handle_notice_withdrawn(now, host),
            Step::Refuse => match self.owner.poll_action() {
                Some(Action::Map { host, request, .. }) => {
                    let reason = Refusal::NoMemory;
                    self.owner.handle_refused(now, host, request, reason);
                }
                other => other.into_iter().for_each(|action| self.carry_out(action)),
            },
            Step::Obey(count) => {
                for _ in 0..count {
                    let Some(action) = self.owner.poll_action() else {
                        return;
                    };
                    self.carry_out(action);
                }
            }
            Step::Pass(millis) => self.pass(Duration::from_millis(millis.into())),
            Step::Resize(regions) => self.owner.handle_resize(now, regions),
            Step::Join => {
                *joined += 1;
                self.join(*joined);
            }
            Step::Stop(client) => self.stopped.push(client),
        }
    }
}

proptest! {
    /// The audit runs after each event; and whatever happened, it is whole once hosts are there.
    #[test]
    fn any_order_of_events_keeps_the_invariants_and_ends_whole(
        copies in 1_usize..3,
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut world = World::new(copies, 3, 4);
        let mut joined = 0;
        for step in steps {
            world.take(step, &mut joined);
        }
        for host in 0..4 {
            world.owner.handle_notice_withdrawn(world.now, host);
            if !world.up[host] {
                world.start(host);
            }
        }
        for _ in 0..200 {
            world.run();
            world.pass(Duration::from_millis(500));
            for host in 0..4 {
                world.owner.handle_room(world.now, host, 100);
            }
        }
        world.run();
        prop_assert!(world.owner.is_settled(), "{:?}", world.owner);
    }
}
