//! Groups over hosts that come and go, and stripes inside them.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn shape(members: usize, spare: usize) -> Shape {
    Shape {
        members,
        spare,
        power_max: 2,
    }
}

/// Hosts that share nothing.
fn sites(count: usize) -> Vec<Site> {
    let site = |domain| Site {
        domain,
        power: None,
        retired: false,
    };
    (0..u32::try_from(count).unwrap()).map(site).collect()
}

/// What alike hosts have left.
fn candidates(free: &[u32]) -> Vec<Candidate> {
    let candidate = |(host, &slabs_free): (usize, &u32)| Candidate {
        host,
        domain: u32::try_from(host).unwrap(),
        slabs_free,
        slabs_total: 100,
    };
    free.iter().enumerate().map(candidate).collect()
}

fn of<'a>(candidates: &'a [Candidate]) -> impl Fn(usize) -> Option<&'a Candidate> {
    |host| candidates.get(host)
}

#[test]
fn hosts_fill_one_group_after_the_other_and_the_rest_is_left_over() {
    let sets = CodingSets::new(&sites(17), shape(4, 2));
    assert_eq!(
        sets.groups(),
        [
            (0..6).collect::<Vec<_>>(),
            (6..12).collect(),
            (12..17).collect()
        ]
    );
    // The last one has 5 of 6, which is enough for a stripe; 3 would not be.
    let sets = CodingSets::new(&sites(15), shape(4, 2));
    assert_eq!(sets.groups().len(), 2);
    assert_eq!((sets.group_of(11), sets.group_of(12)), (Some(1), None));
}

#[test]
fn racks_that_are_listed_one_by_one_give_groups_across_them() {
    // 8 racks of 5: 5 groups over the first 6 racks; the last two have too few racks for a group.
    let mut all = sites(40);
    for (host, site) in all.iter_mut().enumerate() {
        site.domain = u32::try_from(host / 5).unwrap();
    }
    let sets = CodingSets::new(&all, shape(4, 2));
    assert_eq!(sets.groups().len(), 5);
    for group in sets.groups() {
        let racks: BTreeSet<u32> = group.iter().map(|&host| all[host].domain).collect();
        assert_eq!((group.len(), racks.len()), (6, 6));
    }
    assert!((30..40).all(|host| sets.group_of(host).is_none()));
}

#[test]
fn a_group_has_no_more_of_a_power_domain_than_a_stripe_may_lose() {
    let mut all = sites(24);
    for (host, site) in all.iter_mut().enumerate() {
        site.power = Some(u32::try_from(host % 3).unwrap());
    }
    // Two of each of three power domains.
    let sets = CodingSets::new(&all, shape(5, 3));
    assert_eq!(sets.groups().len(), 4);
    for group in sets.groups() {
        let mut of_power = BTreeMap::new();
        for &host in group {
            *of_power.entry(all[host].power).or_insert(0) += 1;
        }
        assert!(of_power.values().all(|&count| count == 2), "{of_power:?}");
    }
}

#[test]
fn a_group_that_falls_below_a_stripe_is_none_and_comes_back_with_a_newcomer_in_its_place() {
    let mut all = sites(12);
    let before = CodingSets::new(&all, shape(4, 2));
    for host in [0, 1] {
        all[host].retired = true;
    }
    let shrunk = CodingSets::new(&all, shape(4, 2));
    assert_eq!(shrunk.groups()[0], [2, 3, 4, 5]);
    all[2].retired = true;
    let given_up = CodingSets::new(&all, shape(4, 2));
    assert_eq!(given_up.groups(), [vec![], (6..12).collect::<Vec<_>>()]);
    assert_eq!(given_up.group_of(5), None);
    // Newcomers listed in the stead of those that retired.
    for site in &mut all[0..3] {
        site.retired = false;
    }
    assert_eq!(CodingSets::new(&all, shape(4, 2)), before);
}

#[test]
fn of_two_groups_the_less_loaded_one_is_taken_and_of_one_drawn_that() {
    let sets = CodingSets::new(&sites(10), shape(4, 1));
    // Per group the least loaded four; the fullest of each does not count.
    let hosts = candidates(&[50, 50, 50, 50, 0, 60, 60, 60, 60, 0]);
    let first = |pick, seed| sets.place(of(&hosts), pick, seed).unwrap()[0] >= 5;
    assert!((0..100).all(|seed| first(Pick::TwoChoices, seed)));
    let second = (0..1000).filter(|&seed| first(Pick::Random, seed)).count();
    assert!((400..600).contains(&second), "{second}");
}

#[test]
fn a_stripe_that_fits_into_no_group_begins_in_the_roomiest() {
    let sets = CodingSets::new(&sites(10), shape(4, 1));
    let hosts = candidates(&[9, 0, 0, 9, 9, 0, 0, 9, 9, 0]);
    assert_eq!(sets.place(of(&hosts), Pick::TwoChoices, 1), None);
    assert_eq!(sets.roomiest(of(&hosts)), Some(0));
    let none = candidates(&[0; 10]);
    assert_eq!(sets.roomiest(of(&none)), None);
}

#[test]
fn the_home_of_a_stripe_is_where_most_of_it_is() {
    let sets = CodingSets::new(&sites(13), shape(4, 2));
    assert_eq!(sets.home(&[0, 1, 6, 7, 8]), Some(1));
    assert_eq!(sets.home(&[6, 7, 0, 1]), Some(0));
    assert_eq!(sets.home(&[12]), None);
    assert_eq!(sets.home(&[12, 3]), Some(0));
}

#[test]
fn a_lost_member_is_replaced_inside_while_there_is_room_then_by_the_same_few() {
    let sets = CodingSets::new(&sites(15), shape(4, 2));
    let mut hosts = candidates(&[50; 15]);
    hosts[5].slabs_free = 60;
    let inside = |hosts: &[Candidate], seed| {
        let spare = |host: usize| [4, 5].contains(&host).then(|| &hosts[host]);
        sets.replace(0, spare, seed)
    };
    assert_eq!(inside(&hosts, 1), Some(Replacement::Inside(5)));
    hosts[5].slabs_free = 0;
    assert_eq!(inside(&hosts, 1), Some(Replacement::Inside(4)));
    // Nobody of the group: hosts 12, 13 and 14 are left over, and one of them is adopted by all.
    let beyond = |hosts: &[Candidate], seed| {
        let found = sets.replace(0, |host| (host >= 6).then(|| &hosts[host]), seed);
        let Some(Replacement::Adopted(host)) = found else {
            panic!("{found:?}");
        };
        host
    };
    let adopted: BTreeSet<usize> = (0..50).map(|seed| beyond(&hosts, seed)).collect();
    assert_eq!(adopted.len(), 1);
    let first = *adopted.first().unwrap();
    assert!(first >= 12, "{first}");
    // When they are full as well, hosts of the other group.
    for host in &mut hosts[12..15] {
        host.slabs_free = 0;
    }
    let adopted: BTreeSet<usize> = (0..50).map(|seed| beyond(&hosts, seed)).collect();
    assert_eq!(adopted.len(), 1);
    assert!((6..12).contains(adopted.first().unwrap()));
    for host in &mut hosts {
        host.slabs_free = 0;
    }
    assert_eq!(sets.replace(0, of(&hosts), 1), None);
}

fn any_sites() -> impl Strategy<Value = Vec<Site>> {
    let site = (
        0_u32..12,
        proptest::option::of(0_u32..4),
        proptest::bool::weighted(0.1),
    );
    let site = site.prop_map(|(domain, power, retired)| Site {
        domain,
        power,
        retired,
    });
    proptest::collection::vec(site, 0..80)
}

proptest! {
    #[test]
    fn groups_are_disjoint_and_any_of_their_hosts_can_hold_a_stripe(
        all in any_sites(),
        members in 1_usize..6,
        spare in 0_usize..4,
        power_max in 1_usize..4,
    ) {
        let shape = Shape { members, spare, power_max };
        let sets = CodingSets::new(&all, shape);
        let mut seen = BTreeSet::new();
        for (number, group) in sets.groups().iter().enumerate() {
            let is_whole = (members..=members + spare).contains(&group.len());
            prop_assert!(is_whole || group.is_empty());
            let mut domains = BTreeSet::new();
            let mut powers: BTreeMap<u32, usize> = BTreeMap::new();
            for &host in group {
                prop_assert!(seen.insert(host), "{host} twice");
                prop_assert!(!all[host].retired);
                prop_assert_eq!(sets.group_of(host), Some(number));
                prop_assert!(domains.insert(all[host].domain));
                if let Some(power) = all[host].power {
                    *powers.entry(power).or_default() += 1;
                }
            }
            prop_assert!(powers.values().all(|&count| count <= power_max));
        }
        let grouped = (0..all.len()).filter(|&host| sets.group_of(host).is_some()).count();
        prop_assert_eq!(grouped, seen.len());
    }

    /// Companions of every host that stays: the same, or the group is no more.
    #[test]
    fn who_joins_or_retires_changes_no_other_group(
        mut all in any_sites(),
        members in 1_usize..6,
        spare in 0_usize..4,
        newcomer in (0_u32..12, proptest::option::of(0_u32..4)),
        leaver in any::<prop::sample::Index>(),
    ) {
        let shape = Shape { members, spare, power_max: 2 };
        let companions = |sets: &CodingSets, host: usize| -> Vec<usize> {
            sets.group_of(host).map(|group| sets.groups()[group].clone()).unwrap_or_default()
        };
        let before = CodingSets::new(&all, shape);
        let (domain, power) = newcomer;
        all.push(Site { domain, power, retired: false });
        let joined = CodingSets::new(&all, shape);
        let new = all.len() - 1;
        for host in 0..new {
            let mut now = companions(&joined, host);
            let was = companions(&before, host);
            // A group of left over hosts may have become large enough with the newcomer.
            if was.is_empty() && now.contains(&new) {
                continue;
            }
            now.retain(|&other| other != new);
            prop_assert_eq!(now, was);
        }
        let leaver = leaver.index(all.len());
        all[leaver].retired = true;
        let left = CodingSets::new(&all, shape);
        for host in (0..all.len()).filter(|&host| host != leaver) {
            let mut was = companions(&joined, host);
            was.retain(|&other| other != leaver);
            if was.len() < members {
                was.clear();
            }
            prop_assert_eq!(companions(&left, host), was);
        }
    }

    /// By the rules alone: inside one group, room on each, and no host left out that has more room
    /// than one that was taken.
    #[test]
    fn a_stripe_is_on_the_least_loaded_hosts_of_one_group(
        free in proptest::collection::vec(0_u32..4, 24),
        members in 1_usize..5,
        spare in 0_usize..4,
        seed: u64,
    ) {
        let sets = CodingSets::new(&sites(24), shape(members, spare));
        let hosts = candidates(&free);
        let roomy = |group: &Vec<usize>| group.iter().filter(|&&host| free[host] > 0).count();
        for pick in [Pick::TwoChoices, Pick::Random] {
            let Some(chosen) = sets.place(of(&hosts), pick, seed) else {
                prop_assert!(sets.groups().iter().all(|group| roomy(group) < members));
                continue;
            };
            prop_assert_eq!(chosen.len(), members);
            let home = sets.group_of(chosen[0]).unwrap();
            prop_assert!(chosen.iter().all(|&host| sets.group_of(host) == Some(home)));
            prop_assert_eq!(chosen.iter().collect::<BTreeSet<_>>().len(), members);
            let least = chosen.iter().map(|&host| free[host]).min().unwrap();
            prop_assert!(least > 0);
            let left = sets.groups()[home].iter().filter(|host| !chosen.contains(host));
            prop_assert!(left.into_iter().all(|&host| free[host] <= least));
        }
    }
}
