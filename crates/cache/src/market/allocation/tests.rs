use proptest::prelude::*;

use super::*;

const GIB: u64 = 1 << 30;

fn entry(name: &str, cores: u32, gib: u64, price: f64, spot: Option<f64>, count: u32) -> String {
    let spot = spot.map_or(String::new(), |spot| {
        format!("spot_price_per_hour = {spot}\n")
    });
    let mib = gib * 1024;
    format!(
        "[[machine]]\nname = \"{name}\"\nprovider = \"p\"\ncores = {cores}\nmemory_mib = {mib}\n\
         price_per_hour = {price}\n{spot}distance_ns = {}\ncount = {count}\n",
        u64::from(cores) * 100
    )
}

fn need(gib: u64, threads: u32) -> Need {
    Need::new(gib * GIB, GIB, threads, 1_000_000).unwrap()
}

#[test]
fn a_machine_holds_no_more_regions_than_its_cores_serve() {
    let catalogue: Catalogue = entry("m", 2, 100, 1.0, None, 9).parse().unwrap();
    let found = need(10, 5).allocate(&catalogue).unwrap();
    // Two cores serve two fifths of the regions: 4, 4, and 2 on the last.
    let shares: Vec<_> = found
        .shares
        .iter()
        .map(|share| (share.machines, share.regions, share.server_threads))
        .collect();
    assert_eq!(shares, [(2, 4, 2), (1, 2, 1)]);
    assert_eq!(found.price, Price::new(3.0).unwrap());
    let one_sided = need(10, 0).allocate(&catalogue).unwrap();
    assert_eq!(one_sided.shares[0].server_threads, 0);
    assert_eq!(one_sided.price, Price::new(1.0).unwrap());
}

#[test]
fn spot_machines_and_far_ones_are_taken_only_where_they_may_be() {
    let text = entry("near", 4, 8, 2.0, Some(0.5), 1) + &entry("far", 40, 8, 1.0, None, 1);
    let catalogue: Catalogue = text.parse().unwrap();
    let chosen = |need: Need| {
        let found = need.allocate(&catalogue).map(|found| found.shares);
        found.map(|shares| {
            let first = shares.first().expect("a share");
            (first.machine.clone(), first.is_spot)
        })
    };
    assert_eq!(chosen(need(8, 1)), Ok(("far".to_owned(), false)));
    assert_eq!(
        chosen(need(8, 1).with_spot(true)),
        Ok(("near".to_owned(), true))
    );
    let near = Need::new(8 * GIB, GIB, 1, 400).unwrap();
    assert_eq!(chosen(near), Ok(("near".to_owned(), false)));
    let too_much = Need::new(9 * GIB, GIB, 1, 400).unwrap();
    let refused = chosen(too_much).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the machines that may be taken hold 8 of 9 regions"
    );
}

#[test]
fn a_cache_that_cannot_be_is_refused() {
    for (size, region, threads, said) in [
        (0, GIB, 1, "the number of regions is out of range"),
        (GIB, 0, 1, "a region's size is out of range"),
        (u64::MAX, 1, 1, "the number of regions is out of range"),
        (
            GIB,
            GIB,
            1025,
            "the number of server threads is out of range",
        ),
    ] {
        assert_eq!(
            Need::new(size, region, threads, 0).unwrap_err().to_string(),
            said
        );
    }
}

/// Whether `counts` machines of each type hold the regions, by dealing out regions one by one.
fn holds(catalogue: &Catalogue, counts: &[u32], regions: u64, threads: u32) -> bool {
    let mut left = regions;
    for (one, &count) in catalogue.types().iter().zip(counts) {
        for _ in 0..count {
            let mut here = 0;
            // ceil(threads * regions of it / regions) cores, without a division.
            while left > 0
                && (here + 1) * GIB <= one.memory_bytes
                && u64::from(threads) * (here + 1) <= u64::from(one.cores) * regions
            {
                here += 1;
                left -= 1;
            }
        }
    }
    left == 0
}

proptest! {
    #[test]
    fn no_choice_of_machines_is_cheaper(
        raw in proptest::collection::vec(
            (0_u32..5, 1_u64..9, 0_u64..20, proptest::option::of(0_u64..20), 0_u32..4), 1..4),
        gib in 1_u64..16, threads in 0_u32..8, spot: bool,
    ) {
        let text: String = raw
            .iter()
            .enumerate()
            .map(|(index, &(cores, gib, price, spot, count))| {
                entry(&format!("m{index}"), cores, gib, price as f64, spot.map(|one| one as f64), count)
            })
            .collect();
        let catalogue: Catalogue = text.parse().unwrap();
        let need = need(gib, threads).with_spot(spot);
        let price = |index: usize| {
            let (_, _, price, of_spot, _) = raw[index];
            of_spot.filter(|_| spot).map_or(price, |of_spot| of_spot.min(price))
        };
        let mut cheapest: Option<u64> = None;
        let most: Vec<u32> = raw.iter().map(|one| one.4 + 1).collect();
        for choice in 0..most.iter().product::<u32>() {
            let mut rest = choice;
            let counts: Vec<u32> = most
                .iter()
                .map(|&most| {
                    let count = rest % most;
                    rest /= most;
                    count
                })
                .collect();
            if holds(&catalogue, &counts, gib, threads) {
                let sum = (0..counts.len()).map(|at| u64::from(counts[at]) * price(at)).sum();
                cheapest = Some(cheapest.map_or(sum, |least| least.min(sum)));
            }
        }
        match need.allocate(&catalogue) {
            Err(_) => prop_assert_eq!(cheapest, None),
            Ok(found) => {
                prop_assert_eq!(Some(found.price.micros()), cheapest.map(|price| price * 1_000_000));
                prop_assert_eq!(found.price_least, found.price);
                let regions: u64 = found.shares.iter().map(|one| u64::from(one.machines) * one.regions).sum();
                prop_assert_eq!(regions, gib);
                let running: u32 = found.shares.iter().map(|one| one.machines * one.server_threads).sum();
                prop_assert!(running >= threads);
                for share in &found.shares {
                    let one = catalogue.types().iter().find(|one| one.name == share.machine).unwrap();
                    prop_assert!(share.server_threads <= one.cores);
                    prop_assert!(share.regions * GIB <= one.memory_bytes && share.regions > 0);
                    prop_assert!(share.is_spot <= spot);
                }
            }
        }
    }
}
