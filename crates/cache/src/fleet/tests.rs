//! Providers and hosts that do as they like, in a table.

use std::collections::BTreeMap;

use super::*;

mod arrivals;
mod catalogue;
mod silence;

const MIB: u64 = 1 << 20;
const TEXT: &str = "\
[[machine]]
name = \"dear\"
provider = \"cloud\"
cores = 2
memory_mib = 8
price_per_hour = 1.0
count = 2

[[machine]]
name = \"cheap\"
provider = \"attic\"
cores = 2
memory_mib = 4
price_per_hour = 0.1
count = 1
";

fn shape(copies: u32) -> Shape {
    Shape {
        cache: 7,
        region_bytes: MIB,
        slab_bytes: MIB / 4,
        copies,
        server_threads: 0,
        is_spot_allowed: false,
    }
}

/// A fleet, with hosts that stand as a test says.
struct World {
    fleet: Fleet,
    hosts: BTreeMap<HostIndex, HostSummary>,
    now: Time,
    regions: u32,
}

const UP: HostSummary = HostSummary {
    is_up: true,
    has_ended: false,
    is_missing: false,
    is_leaving: false,
    is_empty: false,
    slabs: 32,
};
const ENDED: HostSummary = HostSummary {
    is_up: false,
    has_ended: true,
    is_missing: true,
    is_leaving: false,
    is_empty: true,
    slabs: 0,
};

impl World {
    fn new(text: &str, left: Vec<KeptMachine>) -> Self {
        Self::of_epoch(3, text, left)
    }

    fn of_epoch(epoch: u64, text: &str, left: Vec<KeptMachine>) -> Self {
        let now = Time(0).after(Duration::from_secs(1));
        let catalogue = text.parse().unwrap();
        let limit = |_: &str| Duration::from_secs(30);
        Self {
            fleet: Fleet::new(shape(1), epoch, catalogue, left, limit, now),
            hosts: BTreeMap::new(),
            now,
            regions: 8,
        }
    }

    /// What it wants in so many seconds, each of which it is asked in.
    fn tick(&mut self, seconds: u64) -> Vec<Action> {
        let steps = (0..seconds).map(|_| 1).chain((seconds == 0).then_some(0));
        steps.flat_map(|step| self.tick_after(step)).collect()
    }

    /// What it wants after so many seconds in which nobody asked, once the journal says what is to be kept.
    fn tick_after(&mut self, seconds: u64) -> Vec<Action> {
        self.now = self.now.after(Duration::from_secs(seconds));
        if self.fleet.wants_prices(self.now) {
            let same = self.fleet.catalogue.clone();
            self.fleet.set_catalogue(Ok(same));
        }
        let hosts = self.hosts.clone();
        let summary = |host: HostIndex| hosts.get(&host).copied().unwrap_or(ENDED);
        let demand = Demand {
            regions: self.regions,
            remaining: None,
        };
        self.fleet.handle_tick(self.now, &summary, demand);
        if self.fleet.is_changed() {
            assert!(self.fleet.poll_action().is_none(), "before it is kept");
        }
        self.fleet.confirm();
        std::iter::from_fn(|| self.fleet.poll_action()).collect()
    }

    fn give(&mut self, order: Order, host: HostIndex, summary: HostSummary) {
        let machine = machine(order, &format!("vm-{order}"));
        self.fleet.handle_acquired(self.now, order, &machine, host);
        self.hosts.insert(host, summary);
    }
}

/// What came of an order, in this failure domain.
fn machine(order: Order, domain: &str) -> Machine {
    let id = format!("vm-{order}");
    Machine {
        order: order.name(7),
        id: id.clone(),
        host: crate::links::HostConfig {
            name: id,
            address: "tcp:127.0.0.1:7000".parse().unwrap(),
            domain: domain.to_owned(),
        },
    }
}

fn orders(actions: &[Action]) -> Vec<(Order, &str)> {
    let order = |action| match action {
        &Action::Acquire(order, _, ref wish) => Some((order, &*wish.machine_type)),
        _ => None,
    };
    actions.iter().filter_map(order).collect()
}

fn released(actions: &[Action]) -> Vec<Order> {
    let order = |action: &Action| match action {
        Action::Release(order, ..) | Action::Cancel(order, _) => Some(*order),
        _ => None,
    };
    actions.iter().filter_map(order).collect()
}

#[test]
fn a_machine_that_goes_is_followed_by_another_and_given_back_when_it_is_empty() {
    let mut world = World::new(TEXT, Vec::new());
    // One dear machine holds all eight; the cheap one only half.
    let asked = world.tick(0);
    let [(first, "dear")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    assert!(orders(&world.tick(5)).is_empty(), "it is on its way");
    world.give(first, 0, UP);
    assert!(orders(&world.tick(1)).is_empty());

    world.hosts.get_mut(&0).unwrap().is_leaving = true;
    let asked = world.tick(1);
    let [(second, "dear")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    assert!(released(&asked).is_empty(), "its regions are still there");
    world.give(second, 1, UP);
    world.hosts.get_mut(&0).unwrap().is_empty = true;
    assert_eq!(released(&world.tick(1)), [first]);
    world
        .fleet
        .handle_released(world.now, first, Err("no".to_owned()));
    assert!(world.fleet.troubles().any(|(_, what)| what == "no"));
    assert_eq!(released(&world.tick(2)), [first], "until it is taken");
    world.fleet.handle_released(world.now, first, Ok(()));
    assert_eq!(world.fleet.kept().len(), 1);
    assert_eq!(world.fleet.troubles().count(), 0);
}

#[test]
fn what_is_refused_is_left_alone_for_a_while_and_others_are_asked() {
    let mut world = World::new(TEXT, Vec::new());
    world.regions = 4;
    let asked = world.tick(0);
    let [(cheap, "cheap")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    world
        .fleet
        .handle_no_machine(world.now, cheap, None, "no quota");
    let asked = world.tick(0);
    assert_eq!(
        released(&asked),
        [cheap],
        "it may have got one all the same"
    );
    let [(dear, "dear")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    world.fleet.handle_released(world.now, cheap, Ok(()));
    // It never answers.
    world.give(dear, 0, ENDED);
    let asked = world.tick(USE_LIMIT.as_secs());
    assert_eq!(released(&asked), [dear]);
    let troubles: Vec<_> = world.fleet.troubles().collect();
    assert!(troubles.contains(&("attic", "no quota")), "{troubles:?}");
    assert!(
        troubles.iter().any(|(with, _)| *with == "cloud"),
        "{troubles:?}"
    );
    assert_eq!(orders(&asked)[0].1, "cheap", "its time has come again");
}

#[test]
fn a_cheaper_machine_is_moved_to_and_the_dear_one_goes_when_it_is_there() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    assert!(orders(&world.tick(400)).is_empty(), "nothing is cheaper");
    let cheaper = TEXT.replace("memory_mib = 4", "memory_mib = 16");
    world.fleet.set_catalogue(Ok(cheaper.parse().unwrap()));
    assert!(orders(&world.tick(1)).is_empty(), "not at once");
    let asked = world.tick(400);
    let [(second, "cheap")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    world.give(second, 1, ENDED);
    assert!(world.tick(1).is_empty(), "the cheap one is not there yet");
    world.hosts.insert(1, UP);
    let emptied = world.tick(1);
    assert!(matches!(emptied[..], [Action::Empty(0)]), "{emptied:?}");
    let gone = HostSummary {
        is_leaving: true,
        is_empty: true,
        ..UP
    };
    world.hosts.insert(0, gone);
    assert_eq!(released(&world.tick(1)), [first]);
}

#[test]
fn a_successor_takes_back_what_it_cannot_know_twice_and_uses_the_rest() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.regions = 12;
    let asked = world.tick(1);
    let (second, kept) = (orders(&asked)[0].0, world.fleet.kept());

    // This one ends before it is time to take it back again: the next one waits as long, too.
    let mut brief = World::of_epoch(4, TEXT, kept);
    brief.hosts.insert(0, UP);
    assert_eq!(released(&brief.tick(0)), [second]);
    brief.fleet.handle_released(brief.now, second, Ok(()));
    assert!(released(&brief.tick(10)).is_empty());

    let mut next = World::of_epoch(5, TEXT, brief.fleet.kept());
    next.hosts.insert(0, UP);
    let asked = next.tick(0);
    assert_eq!(released(&asked), [second], "nobody knows what became of it");
    assert!(
        orders(&asked).is_empty(),
        "eight regions have their machine"
    );
    next.fleet.handle_released(next.now, second, Ok(()));
    assert!(released(&next.tick(10)).is_empty());
    assert_eq!(
        released(&next.tick(25)),
        [second],
        "its command may have run on"
    );
    next.fleet.handle_released(next.now, second, Ok(()));
    assert_eq!(next.fleet.kept().len(), 1);
    let next_order = {
        next.regions = 12;
        orders(&next.tick(1))[0].0
    };
    assert!(next_order > second, "no name twice");
}

#[test]
fn a_cache_that_shrinks_or_ends_gives_back_what_it_does_not_need() {
    let mut world = World::new(TEXT, Vec::new());
    world.regions = 12;
    let asked = world.tick(0);
    let both: Vec<Order> = orders(&asked).iter().map(|(order, _)| *order).collect();
    let dear = orders(&asked)
        .iter()
        .position(|(_, of)| *of == "dear")
        .unwrap();
    for (host, &order) in both.iter().enumerate() {
        world.give(order, host, UP);
    }
    world.regions = 4;
    let emptied = world.tick(1);
    assert!(
        matches!(emptied[..], [Action::Empty(host)] if host == dear),
        "{emptied:?}"
    );
    world.regions = 0;
    for host in world.hosts.values_mut() {
        host.is_empty = true;
    }
    assert_eq!(released(&world.tick(1)).len(), 2);
}

#[test]
fn a_machine_that_is_being_given_back_is_no_host_for_the_next_manager() {
    let mut world = World::new(TEXT, Vec::new());
    let (order, _) = orders(&world.tick(0))[0];
    world.give(order, 0, UP);
    let of = |world: &World| {
        let kept = world.fleet.kept();
        kept.into_iter().find(|one| one.order == order).unwrap()
    };
    assert_eq!(of(&world).host, Some(0));
    world.regions = 0;
    world.hosts.get_mut(&0).unwrap().is_empty = true;
    assert!(released(&world.tick(1)).contains(&order));
    let kept = of(&world);
    assert_eq!((kept.stage, kept.host), (Stage::Releasing, None));
    assert!(kept.machine(7).is_some(), "its provider can still be asked");
}

const SMALL: &str = "\
[[machine]]
name = \"small\"
provider = \"attic\"
cores = 2
memory_mib = 2
price_per_hour = 0.3
count = 5000
";

const LARGE: &str = "
[[machine]]
name = \"large\"
provider = \"cloud\"
cores = 2
memory_mib = 8
price_per_hour = 1.0
count = 3
";

#[test]
fn a_move_to_one_large_machine_ends_and_is_not_begun_again() {
    let mut world = World::new(SMALL, Vec::new());
    let small: Vec<Order> = orders(&world.tick(0)).iter().map(|one| one.0).collect();
    assert_eq!(small.len(), 4, "of two regions each");
    for (host, &order) in small.iter().enumerate() {
        world.give(order, host, UP);
    }
    world.tick(1);
    world
        .fleet
        .set_catalogue(Ok([SMALL, LARGE].concat().parse().unwrap()));
    let asked = world.tick(400);
    let [(large, "large")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    world.give(large, 4, UP);
    let mut emptied = Vec::new();
    while emptied.len() < small.len() {
        let asked = world.tick(1);
        let [Action::Empty(host)] = asked[..] else {
            panic!("{asked:?} after {emptied:?}");
        };
        assert_ne!(host, 4, "the one that it moves to");
        emptied.push(host);
        let there = world.hosts.get_mut(&host).unwrap();
        there.is_leaving = true;
    }
    for host in emptied {
        world.hosts.get_mut(&host).unwrap().is_empty = true;
    }
    assert_eq!(released(&world.tick(1)), small);
    // They cost until their provider has them. That is no reason to move.
    for _ in 0..3 {
        let asked = world.tick(400);
        assert!(orders(&asked).is_empty(), "{asked:?}");
    }
}

#[test]
fn nothing_is_ordered_of_a_type_that_its_provider_does_not_take_back() {
    let mut world = World::new(SMALL, Vec::new());
    world.regions = 2;
    let order = orders(&world.tick(0))[0].0;
    world
        .fleet
        .handle_no_machine(world.now, order, None, "no quota");
    assert_eq!(released(&world.tick(0)), [order]);
    world
        .fleet
        .handle_released(world.now, order, Err("broken".to_owned()));
    for _ in 0..3 {
        assert!(orders(&world.tick(400)).is_empty());
        world
            .fleet
            .handle_released(world.now, order, Err("broken".to_owned()));
    }
    world.fleet.handle_released(world.now, order, Ok(()));
    assert_eq!(orders(&world.tick(400)).len(), 1);
}

#[test]
fn no_more_machines_are_ordered_than_a_journal_keeps() {
    let mut world = World::new(SMALL, Vec::new());
    world.regions = 9000;
    assert_eq!(orders(&world.tick(0)).len(), MACHINES_MAX);
    assert!(orders(&world.tick(400)).is_empty());
    let troubles: Vec<_> = world.fleet.troubles().collect();
    assert!(troubles[0].1.contains("1024"), "{troubles:?}");
}

#[test]
fn a_machine_in_a_domain_that_has_a_copy_of_all_is_of_no_use() {
    let mut world = World::new(TEXT, Vec::new());
    world.fleet.shape.copies = 2;
    let asked = world.tick(0);
    let asked: Vec<Order> = orders(&asked).iter().map(|one| one.0).collect();
    let [first, second, ..] = asked[..] else {
        panic!("{asked:?}");
    };
    world.give(first, 0, UP);
    for &order in &asked[2..] {
        world
            .fleet
            .handle_no_machine(world.now, order, None, "no quota");
    }
    let hosts = world.hosts.clone();
    let summary = |host: HostIndex| hosts.get(&host).copied().unwrap_or(ENDED);
    let demand = Demand {
        regions: world.regions,
        remaining: None,
    };
    let fleet = &world.fleet;
    let is_useless = |domain: &str| fleet.is_useless(second, domain, &summary, demand);
    assert!(is_useless(&format!("vm-{first}")));
    assert!(!is_useless("elsewhere"));
}

#[test]
fn room_that_is_promised_and_not_there_is_not_counted_on_for_ever() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    let half = HostSummary { slabs: 16, ..UP };
    world.give(first, 0, half);
    assert!(
        orders(&world.tick(1)).is_empty(),
        "slabs may be on their way"
    );
    world.hosts.insert(0, UP);
    assert!(orders(&world.tick(9)).is_empty());
    world.hosts.insert(0, half);
    assert!(orders(&world.tick(9)).is_empty(), "it lent all in between");
    let asked = world.tick(10);
    let asked = [asked, world.tick(1)].concat();
    assert!(!orders(&asked).is_empty(), "{asked:?}");
    let troubles: Vec<_> = world.fleet.troubles().collect();
    assert!(troubles[0].1.contains("lends"), "{troubles:?}");
}

#[test]
fn what_was_wrong_with_a_provider_is_forgotten_when_its_machines_are_not_needed() {
    let mut world = World::new(TEXT, Vec::new());
    let order = orders(&world.tick(0))[0].0;
    world
        .fleet
        .handle_no_machine(world.now, order, None, "no quota");
    let asked = world.tick(0);
    assert!(world.fleet.troubles().any(|(with, _)| with == "cloud"));
    world.fleet.handle_released(world.now, order, Ok(()));
    for (host, (order, _)) in orders(&asked).into_iter().enumerate() {
        world.give(order, host, UP);
    }
    for (host, (order, _)) in orders(&world.tick(400)).into_iter().enumerate() {
        world.give(order, 10 + host, UP);
    }
    world.tick(400);
    assert_eq!(world.fleet.troubles().next(), None);
}

#[test]
fn what_was_wrong_with_a_provider_is_told_for_a_while_though_another_helped_out_at_once() {
    let mut world = World::new(TEXT, Vec::new());
    let order = orders(&world.tick(0))[0].0;
    world
        .fleet
        .handle_no_machine(world.now, order, None, "no quota");
    let is_told = |world: &World| {
        world
            .fleet
            .troubles()
            .any(|one| one == ("cloud", "no quota"))
    };
    let asked = world.tick(0);
    world.fleet.handle_released(world.now, order, Ok(()));
    for (host, (order, _)) in orders(&asked).into_iter().enumerate() {
        world.give(order, host, UP);
    }
    world.tick(50);
    assert!(is_told(&world), "its penalty is over since 49 s");
    world.tick(11);
    assert!(!is_told(&world));
}

#[test]
fn a_disk_that_refuses_has_nothing_pile_up() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.tick(1);
    world.regions = 4;
    for (host, (order, _)) in orders(&world.tick(400)).into_iter().enumerate() {
        world.give(order, 1 + host, UP);
    }
    let hosts = world.hosts.clone();
    let summary = |host: HostIndex| hosts.get(&host).copied().unwrap_or(ENDED);
    let demand = Demand {
        regions: world.regions,
        remaining: None,
    };
    // Nobody confirms: no action goes out.
    for _ in 0..100 {
        world.fleet.handle_tick(world.now, &summary, demand);
    }
    assert!(world.fleet.actions.len() <= 2, "{:?}", world.fleet.actions);
    assert!(!world.fleet.actions.is_empty());
}

#[test]
fn the_first_look_for_cheaper_machines_is_at_prices_of_then() {
    let mut world = World::new(TEXT, Vec::new());
    let same = world.fleet.catalogue.clone();
    world.fleet.set_catalogue(Ok(same));
    assert!(!world.fleet.wants_prices(world.now));
    let due = world.now.after(Duration::from_secs(400));
    assert!(
        world.fleet.wants_prices(due),
        "those of the start are old by then"
    );
}

#[test]
fn a_host_that_leaves_lends_nothing_and_is_counted_on_again_when_it_stays() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.tick(1);
    let leaving = HostSummary {
        is_leaving: true,
        slabs: 0,
        ..UP
    };
    world.hosts.insert(0, leaving);
    for _ in 0..4 {
        world.tick(6);
    }
    let kept = world.fleet.kept();
    let there = kept.iter().find(|one| one.order == first).unwrap();
    assert_eq!(there.memory_bytes, 8 * MIB);
}
