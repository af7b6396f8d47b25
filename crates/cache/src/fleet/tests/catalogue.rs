//! When the catalogue is read again.

use super::*;

const PROVIDERS: &str = "\
[[provider]]
name = \"cloud\"
kind = \"running\"

[[provider]]
name = \"attic\"
kind = \"running\"
";

/// Later than several looks for cheaper machines.
const LATER: u64 = 4000;

/// What is wrong with the catalogue is put right while nothing else happens.
fn mend(world: &mut World, text: &str) {
    assert!(world.fleet.wants_prices(world.now), "it may be mended");
    world.fleet.set_catalogue(Ok(text.parse().unwrap()));
}

#[test]
fn a_cache_that_ends_finds_a_provider_that_the_catalogue_has_again() {
    let whole = format!("{PROVIDERS}{TEXT}");
    let mut world = World::new(&whole, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.tick(1);
    // Somebody takes the provider out, and deletes the cache.
    let without = whole.replace("\"cloud\"", "\"shed\"");
    world.fleet.set_catalogue(Ok(without.parse().unwrap()));
    world.regions = 0;
    world.hosts.insert(
        0,
        HostSummary {
            is_empty: true,
            ..UP
        },
    );
    assert_eq!(released(&world.tick(1)), [first]);
    let nobody = Err("the catalogue has no provider cloud".to_owned());
    world.fleet.handle_released(world.now, first, nobody);
    // The look for cheaper machines that would have been due reads it once, and never comes.
    world.tick(LATER);
    mend(&mut world, &whole);
    assert!(world.fleet.source("cloud").is_some());
    world.fleet.handle_released(world.now, first, Ok(()));
    assert!(world.fleet.is_empty());
    assert!(!world.fleet.wants_prices(world.now), "nothing waits for it");
}

#[test]
fn a_cache_that_lacks_machines_finds_those_that_the_catalogue_has_later() {
    let whole = format!("{PROVIDERS}{TEXT}");
    let cheap = TEXT.split("[[machine]]").nth(2).expect("the second");
    let few = format!("{PROVIDERS}[[machine]]{cheap}");
    let mut world = World::new(&few, Vec::new());
    let first = orders(&world.tick(0))[0].0;
    world.give(first, 0, UP);
    world.tick(LATER);
    mend(&mut world, &whole);
    assert_eq!(orders(&world.tick(1)).len(), 1, "the rest is to be had now");
}
