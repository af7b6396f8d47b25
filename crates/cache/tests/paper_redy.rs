//! What Redy's paper says of the tuner, on the simulated network. Tags as in `docs/papers/redy.md`.

use cenote_cache::simulation::{Network, SimulatedMeasurer};
use cenote_cache::tuner::trial::{Sample, Wishes};
use cenote_cache::tuner::{Key, Model, RISE_MIN, Spacing, Survey, Table, Transport};
use cenote_cache::{LatencyOf, Space, Writes};

const DISTANCE_NS: u64 = 1500;
const RECORDS: [u32; 2] = [16, 256];

/// A model of the simulated network, and how many points were measured of how many.
fn model(spacing: Spacing, rise_min: Option<f64>, seed: u64) -> (Model, usize, usize) {
    let mut model = Model::new(Space::PAPER, spacing);
    let measurer = SimulatedMeasurer::usual(Network::paper(DISTANCE_NS), seed);
    let (mut measured, mut grid) = (0, 0);
    for record_bytes in RECORDS {
        let key = Key {
            transport: Transport::Sim,
            distance_ns: DISTANCE_NS,
            record_bytes,
            writes: Writes::NONE,
        };
        let mut survey = Survey::new(Table::new(model.grid(record_bytes)), rise_min);
        while let Some(next) = survey.next() {
            let result = measurer.run(record_bytes, next);
            survey.insert(next, result).unwrap();
        }
        measured += survey.table().measured_count();
        grid += survey.grid_count();
        model.insert(key, survey.into_table());
    }
    (model, measured, grid)
}

fn wishes(model: &Model, latency_of: LatencyOf, seed: u64) -> Wishes<'_> {
    Wishes::new(
        model.of_writes(Writes::NONE),
        Transport::Sim,
        DISTANCE_NS,
        latency_of,
        seed,
    )
    .unwrap()
}

/// Accuracy of SLOs: "real throughput is always better than SLO", and "measured latency is always much better".
#[test]
fn every_one_of_100_random_slos_is_kept() {
    for (spacing, kinds) in [
        (Spacing::Powers, &LatencyOf::ALL[..]),
        (Spacing::PowersAndEnds, &[LatencyOf::Mean]),
    ] {
        let (model, ..) = model(spacing, Some(RISE_MIN), 1);
        for latency_of in kinds {
            let mut wishes = wishes(&model, *latency_of, 11);
            let mut measurer = SimulatedMeasurer::new(Network::paper(DISTANCE_NS), 99, 1, 10_000);
            for _ in 0..100 {
                let (slo, surface) = wishes.next().unwrap();
                let found = surface.search(&slo).unwrap();
                let Ok(sample) = Sample::run(slo, found, &mut measurer);
                assert!(
                    sample.throughput_ratio() >= 1.0 && sample.latency_ratio() <= 1.0,
                    "{spacing:?}: {sample:?}"
                );
            }
        }
    }
}

/// Early stop: the acceptance test of the specification, the same choice for 95 of 100 at least.
#[test]
fn early_stop_measures_less_and_chooses_what_the_full_grid_chooses() {
    let (full, all, grid) = model(Spacing::Powers, None, 1);
    let (early, measured, _) = model(Spacing::Powers, Some(RISE_MIN), 1);
    assert_eq!(all, grid);
    assert!(measured * 100 < grid * 85, "{measured} of {grid}");
    let mut wishes = wishes(&full, LatencyOf::Mean, 5);
    let mut others = Vec::new();
    for _ in 0..200 {
        let (slo, surface) = wishes.next().unwrap();
        let chosen = surface.search(&slo).unwrap().configuration;
        let surface = early.surface(
            Transport::Sim,
            DISTANCE_NS,
            slo.record_bytes,
            slo.latency_of,
        );
        let of_early = surface
            .unwrap()
            .search(&slo)
            .map(|found| found.configuration);
        if of_early != Ok(chosen) {
            others.push((slo, chosen, of_early));
        }
    }
    assert!(others.len() <= 10, "{others:#?}");
    println!(
        "measured {measured} of {grid}, {} of 200 chose another",
        others.len()
    );
}

/// A survey that is broken off and goes on from its file ends with the same model.
#[test]
fn a_survey_that_goes_on_from_its_file_ends_the_same() {
    let (whole, ..) = model(Spacing::Powers, Some(RISE_MIN), 3);
    let measurer = SimulatedMeasurer::usual(Network::paper(DISTANCE_NS), 3);
    let mut file = Model::new(Space::PAPER, Spacing::Powers).to_text();
    for (key, table) in whole.tables() {
        loop {
            // A new process each time, which has the file alone.
            let mut model: Model = file.parse().unwrap();
            let part = model.table(key).cloned();
            let part = part.unwrap_or_else(|| Table::new(model.grid(key.record_bytes)));
            let mut survey = Survey::new(part, Some(RISE_MIN));
            for _ in 0..100 {
                if let Some(next) = survey.next() {
                    let result = measurer.run(key.record_bytes, next);
                    survey.insert(next, result).unwrap();
                }
            }
            let is_done = survey.next().is_none();
            model.insert(key, survey.into_table());
            file = model.to_text();
            if is_done {
                break;
            }
        }
        assert_eq!(file.parse::<Model>().unwrap().table(key), Some(table));
    }
}
