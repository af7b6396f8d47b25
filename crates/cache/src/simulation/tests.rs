use super::*;

fn measured(record_bytes: u32, c: u32, s: u32, b: u32, q: u32) -> Measurement {
    let measurer = SimulatedMeasurer::usual(Network::paper(1500), 7);
    measurer.run(record_bytes, Configuration { c, s, b, q })
}

fn most(record_bytes: u32, batches: &[u32], sides: &[(u32, u32)]) -> f64 {
    let mut most = 0.0_f64;
    for &(c, s) in sides {
        for &b in batches {
            for q in [1, 4, 16] {
                let b = if s == 0 { 1 } else { b };
                most = most.max(measured(record_bytes, c, s, b, q).throughput_per_second());
            }
        }
    }
    most
}

const RAW: [(u32, u32); 4] = [(4, 0), (8, 0), (16, 0), (30, 0)];
const SERVED: [(u32, u32); 3] = [(16, 8), (16, 16), (30, 30)];

#[test]
fn a_lone_read_takes_three_to_four_microseconds() {
    // Paper: latency-optimised configuration.
    let latency = measured(8, 1, 0, 1, 1).latency_us(crate::LatencyOf::P50);
    assert!((3.0..4.0).contains(&latency), "{latency}");
    let of_4_kib = measured(4096, 1, 0, 1, 1).latency_us(crate::LatencyOf::P50);
    assert!(
        (3.0_f64.min(latency)..4.5).contains(&of_4_kib),
        "{of_4_kib}"
    );
}

#[test]
fn batches_of_small_records_bring_ten_times_the_throughput_and_of_256_bytes_none() {
    // Paper: throughput-optimised configuration; "batching benefit stops at 256 bytes".
    let gain = |record_bytes: u32, batch: u32| {
        most(record_bytes, &[batch], &SERVED) / most(record_bytes, &[1], &RAW)
    };
    let (small, large) = (gain(16, 256), gain(256, 16));
    assert!((8.0..16.0).contains(&small), "{small}");
    assert!((0.8..1.4).contains(&large), "{large}");
}

#[test]
fn throughput_rises_with_client_threads_and_falls_when_they_contend() {
    let of = |c: u32| measured(8, c, 0, 1, 16).throughput_per_second();
    assert!(
        of(1) < of(4) && of(4) < of(16),
        "{} {} {}",
        of(1),
        of(4),
        of(16)
    );
    assert!(of(30) < of(16), "{} {}", of(16), of(30));
}

#[test]
fn what_is_under_way_is_throughput_times_latency() {
    // Little's law, on runs of one round, so that both figures are of the same run.
    for (c, s, b, q) in [(1, 0, 1, 1), (4, 0, 1, 8), (4, 2, 16, 4), (16, 16, 64, 16)] {
        let measurer = SimulatedMeasurer::new(Network::paper(5000), 3, 1, 4000);
        let configuration = Configuration { c, s, b, q };
        let measured = measurer.run(64, configuration);
        let latency_s = measured.latency_us(crate::LatencyOf::Mean) / 1e6;
        let under_way = measured.throughput_per_second() * latency_s;
        let expected = f64::from(c * b * q);
        assert!(
            (under_way / expected - 1.0).abs() < 0.02,
            "{under_way} of {expected}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_run_and_another_seed_nearly_the_same() {
    let configuration = Configuration {
        c: 4,
        s: 2,
        b: 16,
        q: 4,
    };
    let run = |seed| SimulatedMeasurer::usual(Network::paper(1000), seed).run(64, configuration);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let ratio = run(1).throughput_per_second() / run(2).throughput_per_second();
    assert!((ratio - 1.0).abs() < super::super::tuner::MARGIN, "{ratio}");
}

#[test]
fn distance_is_in_every_answer_twice() {
    let of = |distance_ns| {
        let measurer = SimulatedMeasurer::usual(Network::paper(distance_ns), 7);
        let configuration = Configuration {
            c: 1,
            s: 1,
            b: 1,
            q: 1,
        };
        measurer
            .run(64, configuration)
            .latency_us(crate::LatencyOf::P50)
    };
    let difference = of(11_000) - of(1000);
    assert!((difference - 20.0).abs() < 0.1, "{difference}");
}
