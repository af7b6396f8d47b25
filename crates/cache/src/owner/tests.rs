//! The owner's decisions, with hosts and clients that do as they are asked.

use std::time::Duration;

use cenote_fabric::Time;
use cenote_pool::control::{FillResult, HeldSlab, Refusal, Window};
use proptest::prelude::*;

use super::*;

mod apart;
mod fences;
mod memory;
mod orders;
mod procedures;
mod records;
mod standstill;

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
    /// Hosts that are connected and answer nothing.
    mute: Vec<usize>,
    /// Hosts that do not reach each other.
    cut: Vec<[usize; 2]>,
    /// How long a copy between them takes to fail, and those that will.
    fails_after: Duration,
    failing: Vec<(Time, usize, u64)>,
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
            mute: Vec::new(),
            cut: Vec::new(),
            fails_after: Duration::ZERO,
            failing: Vec::new(),
            seen: Vec::new(),
        };
        for host in 0..hosts {
            world.owner.handle_host_up(world.now, host, 100, &[]);
        }
        world.owner.handle_resize(world.now, regions);
        world
    }

    /// One that asks nothing more.
    fn settled(copies: usize, regions: u32, hosts: usize) -> Self {
        let mut world = Self::new(copies, regions, hosts);
        world.run();
        world
    }

    /// As its driver has it: tick after tick.
    fn pass(&mut self, time: Duration) {
        let end = self.now.after(time);
        while self.now < end {
            self.now = self.owner.due(self.now).min(end);
            self.owner.handle_tick(self.now);
        }
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

    /// Has region 0 leave its host, and stops when the first slab is about to be copied.
    fn begin_move(&mut self) -> Filling {
        let from = host_of(self, 0);
        self.owner.handle_notice(self.now, from, None);
        assert!(self.run_until(|action| matches!(action, Action::Fill { .. })));
        match self.seen.last() {
            Some(&Action::Fill { host, target, .. }) => Filling { from, host, target },
            other => unreachable!("{other:?} was seen last"),
        }
    }

    fn carry_out(&mut self, action: Action) {
        let now = self.now;
        match action {
            Action::Map { host, .. } | Action::Fill { host, .. } | Action::Renew { host, .. }
                if self.mute.contains(&host) => {}
            Action::Renew {
                host,
                request,
                window,
            } if self.up[host] => {
                self.windows += 1;
                let generation = 1_000_000 + u64::from(self.windows);
                let held = self.held[host].iter_mut().find(|s| s.window == window);
                match held {
                    Some(slab) => {
                        slab.window.generation = generation;
                        let window = slab.window;
                        self.owner.handle_granted(now, host, request, window);
                    }
                    None => {
                        let reason = Refusal::NotHeld;
                        self.owner.handle_refused(now, host, request, reason);
                    }
                }
            }
            Action::Reconnect { host } if self.up[host] => self.start(host),
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
                let is_cut = |pair: &[usize; 2]| pair.contains(&host) && pair.contains(&source);
                if self.up[source] && !self.cut.iter().any(is_cut) {
                    return self
                        .owner
                        .handle_filled(now, host, request, FillResult::Done);
                }
                self.failing
                    .push((now.after(self.fails_after), host, request));
                self.end_failing();
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

    /// Copies that fail do so in their time.
    fn end_failing(&mut self) {
        let now = self.now;
        let due = self.failing.extract_if(.., |(at, ..)| *at <= now);
        let failed = FillResult::SourceFailed { split: 1 };
        for (_, host, request) in due.collect::<Vec<_>>() {
            self.owner.handle_filled(now, host, request, failed);
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

    /// It says once more what it holds.
    fn tell_books(&mut self, host: usize) {
        let held = self.held[host].clone();
        self.owner.handle_books(self.now, host, &held);
    }

    /// Another owner comes: windows have other names then.
    fn succeed(&mut self) {
        let hosts = self.held.len();
        let record = self.owner.record(&names(hosts));
        let domains: Vec<u32> = (0..hosts).map(|host| host as u32).collect();
        let settings = self.owner.settings;
        self.owner = Owner::recover(settings, record, &domains, self.now).unwrap();
        for host in 0..hosts {
            for slab in &mut self.held[host] {
                slab.window.generation += 10_000_000;
            }
            if self.up[host] {
                self.start(host);
            }
        }
    }

    fn place_of(&self, what: impl Fn(&Action) -> bool) -> usize {
        self.seen.iter().position(what).expect("it was asked for")
    }
}

fn names(hosts: usize) -> Vec<String> {
    (0..hosts).map(|host| format!("h{host}")).collect()
}

/// A copy that begins.
struct Filling {
    from: usize,
    host: usize,
    target: Window,
}

fn host_of(world: &World, region: usize) -> usize {
    world.owner.entries()[region].copies[0].host
}

#[test]
fn a_new_cache_is_open_everywhere_and_spread_over_hosts() {
    let world = World::settled(1, 4, 4);
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
    let next = |place: usize| match &world.seen[place] {
        Action::Tell { entry, .. } => entry.next.iter().map(|copy| copy.host).collect(),
        _ => vec![],
    };
    assert_eq!(next(frozen), [1 - from], "clients connect to it meanwhile");
    let ahead = world.place_of(told(Access::Open, from));
    assert!(
        ahead < frozen && next(ahead) == [1 - from],
        "and before that"
    );
    assert!(next(flipped).is_empty() && next(open).is_empty());
}

#[test]
fn no_region_is_stopped_beside_the_making_of_memory_and_none_is_freed_before_the_last_copy() {
    let mut world = World::new(1, 20, 2);
    world.join(1);
    world.owner.handle_notice(world.now, 1, None);
    world.run();
    world.owner.handle_notice_withdrawn(world.now, 1);
    world.seen.clear();
    world.owner.handle_notice(world.now, 0, None);
    world.run();
    assert!(world.owner.is_settled() && world.held[0].is_empty());
    let (mut asked, mut copied, mut stops) = (0, 0, 0);
    for action in &world.seen {
        match action {
            Action::Map { .. } => {
                assert_eq!(copied % 4, 0, "memory is asked for in the middle of a copy");
                asked += 1;
            }
            Action::Fill { .. } => copied += 1,
            Action::Tell { entry, .. }
                if entry.access == Access::Frozen && entry.copies[0].host == 0 =>
            {
                let ready = if stops < 16 { 32 } else { 40 };
                assert_eq!(asked, ready, "the memory of 16 regions comes first");
                stops += 1;
            }
            Action::Unmap { .. } => assert_eq!(copied, 80, "freed beside a copy"),
            _ => {}
        }
    }
    assert_eq!((asked, copied, stops), (40, 80, 20));
}

#[test]
fn a_host_that_wants_slabs_back_and_stays_gets_each_at_once() {
    let mut world = World::new(1, 2, 2);
    world.join(1);
    world.owner.handle_notice(world.now, 1, None);
    world.run();
    world.owner.handle_notice_withdrawn(world.now, 1);
    world.seen.clear();
    let windows: Vec<Window> = world.held[0].iter().map(|slab| slab.window).collect();
    world.owner.handle_evict(world.now, 0, &windows);
    world.run();
    let last = |is_it: fn(&Action) -> bool| world.seen.iter().rposition(is_it);
    let first_freed = world.place_of(|action| matches!(action, Action::Unmap { .. }));
    assert!(Some(first_freed) < last(|action| matches!(action, Action::Fill { .. })));
    assert!(world.held[0].is_empty());
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
    let mut world = World::settled(1, 2, 2);
    world.owner.handle_resize(world.now, 1);
    world.run();
    world.owner.handle_resize(world.now, 2);
    world.run();
    let losses: Vec<u32> = world.owner.entries().iter().map(|e| e.losses).collect();
    assert_eq!(losses, [0, 1]);
}

#[test]
fn clients_are_not_told_to_write_to_a_copy_that_is_lost() {
    let mut world = World::settled(1, 1, 3);
    world.join(1);
    world.run();
    let Filling { from, .. } = world.begin_move();
    world.seen.clear();
    world.kill(from);
    world.run();
    let opens_lost = |action: &Action| matches!(action, Action::Tell { entry, .. } if entry.access == Access::Open && entry.copies[0].host == from);
    assert!(!world.seen.iter().any(opens_lost));
}

#[test]
fn the_death_of_a_host_is_told_by_region_and_only_where_bytes_are_gone() {
    let mut world = World::settled(1, 4, 4);
    let gone = host_of(&world, 2);
    world.kill(gone);
    world.run();
    let losses: Vec<u32> = world.owner.entries().iter().map(|e| e.losses).collect();
    assert_eq!(losses, [0, 0, 1, 0]);
    assert!(world.owner.is_settled(), "it is whole again elsewhere");
}

#[test]
fn with_two_copies_a_death_loses_nothing_and_another_copy_is_made() {
    let mut world = World::settled(2, 4, 4);
    assert!(world.owner.is_settled());
    world.kill(1);
    world.run();
    assert!(world.owner.entries().iter().all(|entry| entry.losses == 0));
    assert!(world.owner.is_settled());
}

#[test]
fn a_target_that_dies_while_it_is_filled_costs_nothing() {
    let mut world = World::settled(1, 1, 3);
    let Filling { from, host, .. } = world.begin_move();
    world.kill(host);
    world.run();
    assert_eq!(world.owner.entries()[0].losses, 0);
    assert_ne!(host_of(&world, 0), from);
    assert!(world.owner.is_settled());
}

#[test]
fn a_source_that_dies_while_it_is_read_is_a_loss_and_nothing_half_filled_is_served() {
    let mut world = World::settled(1, 1, 3);
    let Filling { from, target, .. } = world.begin_move();
    world.kill(from);
    world.run();
    let entry = &world.owner.entries()[0];
    assert_eq!(entry.losses, 1);
    assert!(!entry.copies[0].windows.contains(&target));
}

#[test]
fn silence_destroys_nothing_until_the_host_is_given_up() {
    let mut world = World::settled(1, 1, 2);
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
fn the_next_owner_opens_nothing_before_leases_are_over_and_learns_windows_again() {
    let mut world = World::settled(1, 2, 2);
    let entries = world.owner.entries();
    let record = world.owner.record(&names(2));
    world.owner = Owner::recover(settings(1), record, &[0, 1], world.now).unwrap();
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
    let mut world = World::settled(1, 4, 2);
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
    let mut world = World::settled(2, 2, 4);
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
