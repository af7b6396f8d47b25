use proptest::prelude::*;

use super::*;

/// The least price of all choices there are.
fn exhaustive(offers: &[Offer], regions: u64) -> Option<u64> {
    let Some((first, rest)) = offers.split_first() else {
        return (regions == 0).then_some(0);
    };
    let with = |count: u32| {
        let held = first.capacity * u64::from(count);
        let more = exhaustive(rest, regions.saturating_sub(held))?;
        Some(more + first.price * u64::from(count))
    };
    (0..=first.count).filter_map(with).min()
}

fn offers(capacity: u64, price: u64) -> impl Strategy<Value = Vec<Offer>> {
    let offer = (0..=capacity, 0..=price, 0_u32..4).prop_map(|(capacity, price, count)| Offer {
        capacity,
        price,
        count,
    });
    proptest::collection::vec(offer, 0..6)
}

fn check_holds(cover: &Cover, offers: &[Offer], regions: u64) -> Result<(), TestCaseError> {
    let taken = || offers.iter().zip(&cover.counts);
    prop_assert!(taken().all(|(offer, count)| *count <= offer.count));
    let sum = |of: fn(&Offer) -> u64| -> u64 {
        taken()
            .map(|(offer, count)| of(offer) * u64::from(*count))
            .sum()
    };
    prop_assert!(sum(|offer| offer.capacity) >= regions);
    prop_assert_eq!(sum(|offer| offer.price), cover.price);
    prop_assert!(cover.price_least <= cover.price);
    Ok(())
}

#[test]
fn two_small_machines_are_taken_where_they_are_cheaper_than_a_large_one() {
    let large = Offer {
        capacity: 8,
        price: 100,
        count: 9,
    };
    let small = Offer {
        capacity: 4,
        price: 45,
        count: 9,
    };
    let counts = |regions| cover(&[large, small], regions).unwrap().counts;
    assert_eq!(counts(8), [0, 2]);
    assert_eq!(counts(3), [0, 1]);
    let few = Offer { count: 1, ..small };
    assert_eq!(cover(&[large, few], 8).unwrap().counts, [1, 0]);
    assert_eq!(cover(&[few], 5), None);
    assert_eq!(cover(&[], 0).unwrap().price, 0);
}

#[test]
fn of_equal_prices_the_fewest_machines_are_taken() {
    let small = Offer {
        capacity: 1,
        price: 10,
        count: 9,
    };
    let large = Offer {
        capacity: 4,
        price: 40,
        count: 9,
    };
    assert_eq!(cover(&[small, large], 4).unwrap().counts, [0, 1]);
    let free = Offer {
        capacity: 1,
        price: 0,
        count: 9,
    };
    assert_eq!(cover(&[free], 2).unwrap().counts, [2]);
}

#[test]
fn what_is_too_large_for_the_table_ends_and_says_how_far_it_may_be_off() {
    // Prices in proportion to memory, so that all bounds are equal: the hard case.
    let offers: Vec<Offer> = (0..2000)
        .map(|index| Offer {
            capacity: 900 + index * 7,
            price: 9000 + index * 70,
            count: 3,
        })
        .collect();
    let regions = 30_000_019;
    let found = cover(&offers, regions).unwrap();
    check_holds(&found, &offers, regions).unwrap();
    assert!(
        found.price * 100 <= found.price_least * 105,
        "{} of {}",
        found.price,
        found.price_least
    );
    assert!(found.price_least >= regions * 10);
}

proptest! {
    #[test]
    fn the_table_finds_the_least_price_of_all(offers in offers(12, 50), regions in 0_u64..40) {
        let found = cover(&offers, regions);
        prop_assert_eq!(found.as_ref().map(|cover| cover.price), exhaustive(&offers, regions));
        if let Some(found) = found {
            check_holds(&found, &offers, regions)?;
            prop_assert_eq!(found.price_least, found.price);
        }
    }

    #[test]
    fn branch_and_bound_is_never_dearer_by_more_than_5_percent(
        offers in offers(12, 50), regions in 0_u64..40,
    ) {
        let Some(least) = exhaustive(&offers, regions) else {
            return Ok(());
        };
        let found = Bounded::new(&offers, regions).run();
        check_holds(&found, &offers, regions)?;
        prop_assert!(found.price * 100 <= least * 105, "{} of {least}", found.price);
        prop_assert!(found.price_least <= least);
    }

    #[test]
    fn branch_and_bound_keeps_its_promise_on_larger_catalogues(
        raw in proptest::collection::vec((20_u64..400, 80_u64..120, 1_u32..20), 20..60),
        regions in 200_u64..6000,
    ) {
        // A price by region of about 1, as in a real catalogue.
        let offers: Vec<Offer> = raw
            .iter()
            .map(|&(capacity, percent, count)| Offer { capacity, price: capacity * percent, count })
            .collect();
        let Some(exact) = cover(&offers, regions) else {
            return Ok(());
        };
        prop_assert_eq!(exact.price, exact.price_least);
        let found = Bounded::new(&offers, regions).run();
        check_holds(&found, &offers, regions)?;
        prop_assert!(found.price * 100 <= exact.price * 105, "{} of {}", found.price, exact.price);
        prop_assert!(found.price_least <= exact.price);
    }
}
