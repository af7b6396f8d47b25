//! Machines that come and add nothing, or cannot be used.

use super::*;

/// All machines of a type are in one failure domain, which the catalogue does not say.
const ZONES: &str = "\
[[machine]]
name = \"small-a\"
provider = \"cloud\"
cores = 2
memory_mib = 8
price_per_hour = 1.0
count = 50

[[machine]]
name = \"small-b\"
provider = \"attic\"
cores = 2
memory_mib = 8
price_per_hour = 1.2
count = 50
";

/// Two copies, on machines that come and go at once.
struct Zones {
    world: World,
    /// Types of what was ordered since it was asked.
    ordered: Vec<String>,
    hosts: usize,
}

impl Zones {
    fn new() -> Self {
        let mut world = World::new(ZONES, Vec::new());
        world.fleet.shape.copies = 2;
        Self {
            world,
            ordered: Vec::new(),
            hosts: 0,
        }
    }

    /// What is ordered after so many seconds, and in the seconds that follow.
    fn run(&mut self, seconds: u64) -> Vec<String> {
        for seconds in [seconds, 0, 1, 1, 1, 1] {
            for action in self.world.tick(seconds) {
                self.carry_out(action);
            }
        }
        std::mem::take(&mut self.ordered)
    }

    fn carry_out(&mut self, action: Action) {
        let now = self.world.now;
        match action {
            Action::Acquire(order, _, wish) => {
                self.take(order, &wish.machine_type);
                self.ordered.push(wish.machine_type);
            }
            Action::Release(order, ..) | Action::Cancel(order, _) => {
                self.world.fleet.handle_released(now, order, Ok(()));
            }
            Action::Empty(host) => {
                let host = self.world.hosts.get_mut(&host).unwrap();
                (host.is_leaving, host.is_empty) = (true, true);
            }
            Action::Drop(host) => drop(self.world.hosts.remove(&host)),
        }
    }

    /// As the server takes one.
    fn take(&mut self, order: Order, zone: &str) {
        let (now, machine) = (self.world.now, machine(order, zone));
        let hosts = self.world.hosts.clone();
        let summary = |host: HostIndex| hosts.get(&host).copied().unwrap_or(ENDED);
        let demand = Demand {
            regions: self.world.regions,
            remaining: None,
        };
        let fleet = &mut self.world.fleet;
        if fleet.is_useless(order, zone, &summary, demand) {
            return fleet.handle_no_machine(now, order, Some(&machine), "of no use");
        }
        fleet.handle_acquired(now, order, &machine, self.hosts);
        self.world.hosts.insert(self.hosts, UP);
        self.hosts += 1;
    }

    fn host_of(&self, machine_type: &str) -> HostIndex {
        let mut kept = self.world.fleet.kept().into_iter();
        let one = kept.find(|one| one.machine_type == machine_type).unwrap();
        usize::from(one.host.unwrap())
    }
}

#[test]
fn a_move_to_machines_of_one_domain_is_tried_once() {
    let mut zones = Zones::new();
    assert_eq!(zones.run(0).last().unwrap(), "small-b");
    assert_eq!(zones.world.fleet.kept().len(), 2);
    let tries = |zones: &mut Zones| (0..3).flat_map(|_| zones.run(400)).collect::<Vec<_>>();
    assert_eq!(tries(&mut zones), ["small-a"], "2.0 for what costs 2.2");
    assert_eq!(zones.world.fleet.kept().len(), 2);
    let cheaper = ZONES.replace("price_per_hour = 1.0", "price_per_hour = 0.9");
    zones
        .world
        .fleet
        .set_catalogue(Ok(cheaper.parse().unwrap()));
    assert_eq!(tries(&mut zones), ["small-a"], "it saves more than then");
}

#[test]
fn what_is_lost_after_a_move_is_replaced_in_its_domain() {
    let mut zones = Zones::new();
    zones.run(0);
    zones.run(400);
    let lost = zones.host_of("small-b");
    zones.world.hosts.insert(lost, ENDED);
    assert_eq!(zones.run(1), ["small-a", "small-b"], "one adds nothing");
}

#[test]
fn what_is_lost_in_a_move_is_replaced_in_its_domain() {
    let mut zones = Zones::new();
    zones.run(0);
    let asked = zones.world.tick(400);
    let [(order, "small-a")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    let lost = zones.host_of("small-b");
    zones.world.hosts.insert(lost, ENDED);
    zones.take(order, "small-a");
    assert_eq!(zones.run(0), ["small-b"]);
}

#[test]
fn a_machine_that_is_being_given_back_is_not_taken_for_one_that_comes() {
    let mut world = World::new(TEXT, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    let given = machine(first, "d");
    world
        .fleet
        .handle_no_machine(world.now, first, Some(&given), "of no use");
    let asked = world.tick(2);
    assert_eq!(released(&asked), [first]);
    let second = orders(&asked)[0].0;
    assert!(world.fleet.is_given_back(second, &given.id));
    assert!(!world.fleet.is_given_back(second, "vm-0"));
    world
        .fleet
        .handle_released(world.now, first, Err("no".to_owned()));
    assert!(world.fleet.is_given_back(second, &given.id), "it may go");
    // Another provider may call its own by that name.
    world.regions = 12;
    let asked = world.tick(1);
    let [(other, "cheap")] = orders(&asked)[..] else {
        panic!("{asked:?}");
    };
    assert!(!world.fleet.is_given_back(other, &given.id));
    world.fleet.handle_released(world.now, first, Ok(()));
    assert!(!world.fleet.is_given_back(second, &given.id));
}
