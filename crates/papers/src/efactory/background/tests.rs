use cenote_store::schemes::EFactory;

use super::*;

const VALUE: u64 = 64;

/// Runs units until there is none, or `limit`; versions that became durable, and keys that moved.
fn run(
    background: &mut Background,
    versions: &mut Versions,
    limit: usize,
) -> (Vec<Version>, Vec<u32>) {
    let (parameters, scheme) = (Parameters::default(), EFactory);
    let prices = Prices {
        scheme: &scheme,
        parameters: &parameters,
        value_bytes: VALUE,
    };
    let (mut durable, mut moved) = (Vec::new(), Vec::new());
    for _ in 0..limit {
        let Some(unit) = background.begin(versions, &prices) else {
            break;
        };
        assert_eq!(background.begin(versions, &prices), None, "it is busy");
        match unit.job {
            Job::Persist {
                version,
                is_whole: true,
                ..
            } => {
                versions.make_durable(version);
                durable.push(version);
            }
            Job::Move { key } => moved.push(key),
            Job::Persist { .. } | Job::Look => {}
        }
        background.end(unit.job, 1);
    }
    (durable, moved)
}

#[test]
fn versions_become_durable_in_log_order_and_those_without_values_later() {
    let mut versions = Versions::new(3, cenote_store::schemes::Named::AtAllocation);
    let mut background = Background::default();
    let made: Vec<Version> = (0..3).map(|key| versions.allocate(key)).collect();
    for &version in &made {
        background.wait(version, 0);
    }
    versions.land(made[1]);
    versions.land(made[2]);
    let (durable, _) = run(&mut background, &mut versions, 10);
    assert_eq!(durable, made[1..]);
    versions.land(made[0]);
    let (durable, _) = run(&mut background, &mut versions, 10);
    assert_eq!(durable, made[..1]);
    assert_eq!(run(&mut background, &mut versions, 10), (vec![], vec![]));
}

#[test]
fn a_version_that_a_read_settled_is_not_verified_again() {
    let mut versions = Versions::new(1, cenote_store::schemes::Named::AtAllocation);
    let mut background = Background::default();
    let version = versions.allocate(0);
    background.wait(version, 0);
    versions.land(version);
    versions.make_durable(version);
    assert_eq!(run(&mut background, &mut versions, 10), (vec![], vec![]));
}

#[test]
fn a_cleaning_ends_when_every_entry_leads_to_the_other_half() {
    let mut versions = Versions::new(4, cenote_store::schemes::Named::AtAllocation);
    let mut background = Background::default();
    background.clean(Cleaning::new(vec![2, 0, 3, 1], versions.count()));
    // Key 3 has a new version in the other half whose value is not there yet.
    let late = versions.allocate(3);
    background.wait(late, 0);
    let (_, moved) = run(&mut background, &mut versions, 400);
    assert_eq!(moved, [2, 0, 1]);
    let cleaning = background.cleaning().expect("key 3 is waited for");
    assert!(cleaning.is_moved(1, versions.newest(1)));
    versions.land(late);
    let (durable, moved) = run(&mut background, &mut versions, 400);
    assert_eq!((durable, moved), (vec![late], vec![]));
    assert!(background.cleaning().is_none());
}

#[test]
fn cleaning_and_persisting_take_turns() {
    let keys = 400;
    let mut versions = Versions::new(keys, cenote_store::schemes::Named::AtAllocation);
    let mut background = Background::default();
    background.clean(Cleaning::new((0..keys).collect(), versions.count()));
    for key in 200..keys {
        let version = versions.allocate(key);
        versions.land(version);
        background.wait(version, 0);
    }
    // The first turn is for versions.
    let (durable, moved) = run(&mut background, &mut versions, 3 * 64);
    assert_eq!((durable.len(), moved.len()), (128, 64));
}
