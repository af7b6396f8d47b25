use proptest::prelude::*;

use super::*;
use crate::tuner::{Grid, Measurement, Spacing, Table};
use crate::{LatencyOf, Space};

/// What a scan of the whole space in the order of cost finds.
fn scanned(surface: &Surface, wish: &Prediction) -> Option<Configuration> {
    surface.grid().space().iter().find(|configuration| {
        let prediction = surface.predict(*configuration);
        prediction.is_some_and(|prediction| prediction.meets(wish))
    })
}

/// The highest value of what a scan sees.
fn best_scanned(
    surface: &Surface,
    wish: &Prediction,
    value: impl Fn(&Prediction) -> f64,
) -> Option<f64> {
    let space = surface.grid().space();
    let predictions = space.iter().filter_map(|one| surface.predict(one));
    predictions
        .filter(|prediction| prediction.meets(wish))
        .map(|prediction| value(&prediction))
        .max_by(f64::total_cmp)
}

fn check(surface: &Surface, throughput: f64, latency: f64) -> Result<(), TestCaseError> {
    let slo = Slo {
        throughput_per_second: throughput,
        latency_us: latency,
        latency_of: LatencyOf::Mean,
        record_bytes: 16,
    };
    let wish = |throughput_per_second, latency_us| Prediction {
        throughput_per_second,
        latency_us,
    };
    let expected = scanned(surface, &wish(throughput, latency));
    match surface.search(&slo) {
        Ok(found) => {
            prop_assert_eq!(Some(found.configuration), expected);
            prop_assert_eq!(Some(found.prediction), surface.predict(found.configuration));
        }
        Err(refusal) => {
            prop_assert_eq!(expected, None);
            let speed = |prediction: &Prediction| prediction.throughput_per_second;
            let within = refusal.within_latency;
            prop_assert_eq!(
                within.map(|found| speed(&found.prediction)),
                best_scanned(surface, &wish(0.0, latency), speed)
            );
            let shortness = |prediction: &Prediction| -prediction.latency_us;
            let at = refusal.at_throughput;
            prop_assert_eq!(
                at.map(|found| shortness(&found.prediction)),
                best_scanned(surface, &wish(throughput, f64::INFINITY), shortness)
            );
            for found in within.into_iter().chain(at) {
                prop_assert_eq!(Some(found.prediction), surface.predict(found.configuration));
            }
        }
    }
    Ok(())
}

/// A surface whose points are `measured`, taken in turn; those that are `None` were not measured.
fn surface(space: Space, spacing: Spacing, measured: &[Option<(f64, f64)>]) -> Surface {
    let grid = Grid::new(space, spacing);
    let mut table = Table::new(grid);
    let points: Vec<Configuration> = {
        let grid = table.grid();
        grid.positions().filter_map(|at| grid.at(at)).collect()
    };
    for (configuration, measured) in points.into_iter().zip(measured.iter().cycle()) {
        if let Some((throughput, latency)) = *measured {
            let measurement = Measurement::new(throughput, latency, latency, latency).unwrap();
            table.insert(configuration, measurement).unwrap();
        }
    }
    Surface::new(&table, &table, LatencyOf::Mean, 0.03)
}

/// A surface that rises and falls along each parameter, as networks do.
fn like_a_network(one: Configuration, steep: f64, full: f64) -> (f64, f64) {
    let (c, b, q) = (f64::from(one.c), f64::from(one.b), f64::from(one.q));
    let offered = c * b * q / (1.0 + 0.2 * b + 0.1 * q);
    let most = full * f64::from(one.s).max(0.5) / (1.0 + steep * (c - 1.0));
    let throughput = offered * most / (offered + most);
    (throughput, c * b * q / throughput)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn a_search_finds_what_a_scan_of_any_surface_finds(
        measured in proptest::collection::vec(
            proptest::option::weighted(0.9, (1.0_f64..100.0, 1.0_f64..100.0)), 37..300),
        limits in (1_u32..9, 0_u32..9, 1_u32..12, 1_u32..7),
        ends: bool,
        wishes in proptest::collection::vec((1.0_f64..110.0, 1.0_f64..110.0), 6),
    ) {
        let (c, s, b, q) = limits;
        let spacing = if ends { Spacing::PowersAndEnds } else { Spacing::Powers };
        let surface = surface(Space::new(c, s, b, q).unwrap(), spacing, &measured);
        for (throughput, latency) in wishes {
            check(&surface, throughput, latency)?;
        }
        // Exactly what a point has.
        if let Some((_, point)) = surface.points().next() {
            check(&surface, point.throughput_per_second, point.latency_us)?;
        }
        // And what one in between has.
        let all = surface.grid().space().iter();
        if let Some(between) = all.filter_map(|one| surface.predict(one)).nth(7) {
            check(&surface, between.throughput_per_second, between.latency_us)?;
        }
    }

    #[test]
    fn a_search_finds_what_a_scan_of_a_networks_surface_finds(
        steep in 0.01_f64..0.3, full in 1.0_f64..300.0,
        wishes in proptest::collection::vec((0.1_f64..1.1, 1.0_f64..3.0), 4),
    ) {
        let space = Space::new(9, 9, 20, 8).unwrap();
        let grid = Grid::new(space, Spacing::PowersAndEnds);
        let points = grid.positions().filter_map(|at| grid.at(at));
        let measured: Vec<_> = points.map(|one| Some(like_a_network(one, steep, full))).collect();
        let surface = surface(space, Spacing::PowersAndEnds, &measured);
        let most = measured.iter().flatten().map(|one| one.0).fold(0.0, f64::max);
        for (share, times) in wishes {
            check(&surface, share * most, times * times * times)?;
        }
    }
}

#[test]
fn a_wish_that_nothing_meets_is_refused_with_what_comes_nearest() {
    let space = Space::new(2, 0, 1, 1).unwrap();
    let slow_and_fast = [Some((10.0, 1.0)), Some((20.0, 4.0))];
    let surface = surface(space, Spacing::Powers, &slow_and_fast);
    let refused = |throughput, latency| {
        let slo = Slo {
            throughput_per_second: throughput,
            latency_us: latency,
            latency_of: LatencyOf::Mean,
            record_bytes: 16,
        };
        let refusal = surface.search(&slo).unwrap_err();
        (
            refusal.within_latency.map(|found| found.configuration.c),
            refusal.at_throughput.map(|found| found.configuration.c),
        )
    };
    assert_eq!(refused(19.0, 3.9), (Some(1), Some(2)));
    assert_eq!(refused(20.0, 4.2), (Some(2), None));
    assert_eq!(refused(9.0, 0.9), (None, Some(1)));
    assert_eq!(refused(30.0, 0.5), (None, None));
}
