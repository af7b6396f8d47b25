//! From samples to rows: the coded volume beside the others, and beside itself without rot.

use hdrhistogram::Histogram;

use super::load::Sample;
use super::{COPIED, Cast, Options, Taken, Trouble};
use crate::Row;

/// Per cent of a sample.
type Share = (&'static str, fn(&Sample) -> f64);

/// Reading of a sample.
type Metric = (&'static str, &'static str, fn(&Sample) -> f64);

const METRICS: [Metric; 6] = [
    ("read_latency_p50", "us", |sample| us(&sample.reads, 0.5)),
    ("read_latency_p99", "us", |sample| us(&sample.reads, 0.99)),
    ("read_latency_p999", "us", |sample| us(&sample.reads, 0.999)),
    ("write_latency_p50", "us", |sample| us(&sample.writes, 0.5)),
    ("write_latency_p99", "us", |sample| us(&sample.writes, 0.99)),
    ("write_latency_p999", "us", |sample| {
        us(&sample.writes, 0.999)
    }),
];

fn us(times: &Histogram<u64>, quantile: f64) -> f64 {
    times.value_at_quantile(quantile) as f64 / 1e3
}

/// The coded volume beside the others in the same round.
pub(super) fn rows(options: &Options, taken: &[Taken]) -> Vec<Row> {
    let mut rows = Vec::new();
    for &trouble in &options.troubles {
        let cast = Cast::of(trouble);
        let of = |(volume, at): (usize, Trouble)| -> Vec<&Sample> {
            let of_cast = taken.iter().filter(|taken| taken.cast == cast);
            let samples = of_cast.filter(|taken| (taken.index, taken.trouble) == (volume, at));
            samples.map(|taken| &taken.sample).collect()
        };
        let ours = of((0, trouble));
        let case = format!("{} {}, {}", cast.name, options.transport, trouble.label());
        let mut peers = vec![((1, trouble), COPIED), ((2, trouble), "plain+backing")];
        if trouble == Trouble::Corrupted {
            peers.push(((0, Trouble::Quiet), "the same before"));
        }
        for (peer_at, peer) in peers {
            let theirs = of(peer_at);
            let pairs = |value: &dyn Fn(&Sample) -> f64| -> Vec<(f64, f64)> {
                let both = ours.iter().zip(&theirs);
                both.map(|(ours, theirs)| (value(ours), value(theirs)))
                    .collect()
            };
            for (metric, unit, value) in METRICS {
                let pairs = pairs(&value);
                let (case, metric) = (("page", &case), (metric, unit));
                rows.push(Row::of_rounds(case, metric, Some(false), peer, &pairs));
            }
            let shares: [Share; 2] = [
                ("lost", Sample::lost_percent),
                ("wrong", Sample::wrong_percent),
            ];
            for (metric, share) in shares {
                let all = || ours.iter().chain(&theirs);
                if all().any(|sample| share(sample) > 0.0) {
                    let (metric, pairs) = ((metric, "%"), pairs(&share));
                    let case = ("page", &case);
                    rows.push(Row::of_rounds(case, metric, Some(false), peer, &pairs));
                }
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::{FAILING, ROTTING};
    use super::*;

    #[test]
    fn what_is_lost_is_a_row_and_what_is_not_is_none() {
        let sample = |index, read_ns, lost| {
            let mut sample = Sample {
                lost,
                ..Sample::new()
            };
            sample.reads.record(read_ns).unwrap();
            sample.writes.record(2000).unwrap();
            Taken {
                cast: &FAILING,
                trouble: Trouble::TwoDead,
                index,
                sample,
            }
        };
        let options = Options {
            troubles: vec![Trouble::TwoDead],
            ..Options::default()
        };
        let taken = [sample(0, 1000, 0), sample(1, 4000, 2), sample(2, 500, 0)];
        let rows = rows(&options, &taken);
        assert_eq!(rows.len(), 6 + 1 + 6);
        let row = |metric, peer: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row.metric == metric && row.peer == peer)
        };
        let read = row("read_latency_p50", COPIED).expect("measured");
        assert!((read.ratio - 0.25).abs() < 0.01, "{read:?}");
        let lost = row("lost", COPIED).expect("something was");
        assert_eq!((lost.ours, lost.theirs), (0.0, 50.0));
        assert_eq!(row("lost", "plain+backing"), None);
    }

    #[test]
    fn rot_stands_beside_the_same_volume_without_it() {
        let taken = |trouble, index, read_ns, wrong| {
            let mut sample = Sample {
                wrong,
                ..Sample::new()
            };
            sample.reads.record(read_ns).unwrap();
            sample.writes.record(2000).unwrap();
            Taken {
                cast: &ROTTING,
                trouble,
                index,
                sample,
            }
        };
        let options = Options {
            troubles: vec![Trouble::Corrupted],
            ..Options::default()
        };
        let asked = ROTTING.troubles(&options.troubles);
        assert_eq!(asked, [Trouble::Quiet, Trouble::Corrupted]);
        assert!(FAILING.troubles(&options.troubles).is_empty());
        let taken = [
            taken(Trouble::Quiet, 0, 1000, 0),
            taken(Trouble::Corrupted, 0, 3000, 0),
            taken(Trouble::Corrupted, 1, 1000, 1),
            taken(Trouble::Corrupted, 2, 1000, 0),
        ];
        let rows = rows(&options, &taken);
        assert_eq!(rows.len(), 6 + 1 + 6 + 6);
        let row = |metric, peer: &str| {
            let mut rows = rows.iter();
            rows.find(|row| row.metric == metric && row.peer == peer)
        };
        let read = row("read_latency_p50", "the same before").expect("measured");
        assert!((read.ratio - 3.0).abs() < 0.01, "{read:?}");
        let wrong = row("wrong", COPIED).expect("something was");
        assert_eq!((wrong.ours, wrong.theirs), (0.0, 100.0));
    }
}
