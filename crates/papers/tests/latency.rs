//! The latency laboratory: its figures are those of the network's model, every time.
//!
//! Paper: \[hydra22\] 7.1: a one-sided READ of 4 KiB takes 4 us, one of 512 bytes 1.5 us.

use cenote_papers::latency::{self, Network, Operation, Options, Row};

fn rows(options: &Options) -> Vec<Row> {
    latency::run(options).expect("the options make sense")
}

fn options(schemes: &[&str], operations: usize) -> Options {
    let parse = |text: &&str| text.parse().expect("a valid scheme");
    Options {
        operations,
        schemes: schemes.iter().map(parse).collect(),
        ..Options::default()
    }
}

fn find<'a>(rows: &'a [Row], scheme: &str, operation: Operation, network: Network) -> &'a Row {
    rows.iter()
        .find(|row| (row.operation, row.network) == (operation, network) && row.scheme == scheme)
        .expect("every combination has a row")
}

#[test]
fn the_same_seed_gives_the_same_figures_and_another_seed_others() {
    let asked = options(&["rs:8+2", "plain"], 500);
    let first = rows(&asked);
    assert_eq!(first, rows(&asked));
    assert_eq!(first.len(), 2 * 4 * 2);
    assert!(first.iter().all(|row| row.simulated));
    let tails = |rows: &[Row]| -> Vec<u64> { rows.iter().map(|row| row.p999_ns).collect() };
    let other = rows(&Options { seed: 2, ..asked });
    assert_ne!(tails(&first), tails(&other));
}

#[test]
fn medians_are_those_of_the_model() {
    let rows = rows(&options(&["plain", "mirror:2", "rs:8+2"], 500));
    let median = |scheme, operation| find(&rows, scheme, operation, Network::Quiet).p50_ns;
    // One READ and one WRITE of 4 KiB.
    assert_eq!(median("plain", Operation::Read), 4000);
    assert_eq!(median("plain", Operation::Write), 4000);
    assert_eq!(median("mirror:2", Operation::Read), 4000);
    // The second copy waits for the client's card: 50 ns, and 143 ps for each byte.
    assert_eq!(
        median("mirror:2", Operation::Write),
        4000 + 50 + 4096 * 143 / 1000
    );
    // 512 bytes take 1.5 us; eight answers wait for the card one after the other.
    let split = 50 + 512 * 143 / 1000;
    let read = median("rs:8+2", Operation::Read);
    assert!(
        (1500 + 7 * split..1500 + 9 * split).contains(&read),
        "{read}"
    );
    let write = median("rs:8+2", Operation::Write) - latency::ENCODE_NS;
    assert!(
        (1500 + 9 * split..1500 + 11 * split).contains(&write),
        "{write}"
    );
}

#[test]
fn only_stragglers_and_flows_make_a_tail() {
    let rows = rows(&options(&["plain", "rs:8+2"], 4000));
    for scheme in ["plain", "rs:8+2"] {
        for operation in [Operation::Read, Operation::Write] {
            let row = |network| find(&rows, scheme, operation, network);
            let quiet = row(Network::Quiet);
            assert!(quiet.p999_ns < quiet.p50_ns + 1000, "{quiet:?}");
            for network in [Network::Stragglers, Network::Flows] {
                let is_late = row(network).p99_ns > quiet.p99_ns + 5000;
                // One busy host of nine is not waited for.
                let is_left_out = (scheme, operation) == ("rs:8+2", Operation::Read);
                let is_expected = network == Network::Stragglers || !is_left_out;
                assert_eq!(is_late, is_expected, "{:?}", row(network));
            }
        }
    }
    // A page of ten splits meets ten times the stragglers, and its write waits for the last of them.
    let late = |scheme, operation| find(&rows, scheme, operation, Network::Stragglers).p99_ns;
    assert!(late("rs:8+2", Operation::Write) > 2 * late("plain", Operation::Write));
    // Its read takes the first eight of nine.
    assert!(late("rs:8+2", Operation::Read) * 3 < late("rs:8+2", Operation::Write) * 2);
}

#[test]
fn encoding_is_charged_to_writes_that_encode() {
    let base = options(&["mirror:2", "rs:8+2"], 100);
    let slow = rows(&Options {
        encode_ns: 10_000,
        ..base.clone()
    });
    for (row, slow) in rows(&base).iter().zip(&slow) {
        let encodes = row.scheme == "rs:8+2" && row.operation == Operation::Write;
        let charged = if encodes {
            10_000 - latency::ENCODE_NS
        } else {
            0
        };
        assert_eq!(slow.p50_ns, row.p50_ns + charged, "{row:?}");
    }
}

#[test]
fn nothing_to_measure_is_refused() {
    assert!(latency::run(&options(&["plain"], 0)).is_err());
}

/// Each in one trouble at a time: ours with one split to spare beside two copies and a disk.
mod in_trouble {
    use cenote_papers::latency::Operation::{self, Read, Write};
    use cenote_papers::latency::trouble::{
        self, BACKUP, COPIES, CORRECTION, OURS, OURS_EXACTLY, Options, Row, Trouble,
    };
    use std::sync::OnceLock;

    const OPTIONS: Options = Options {
        seed: 1,
        operations: 1000,
    };

    fn row(system: &str, operation: Operation, of: Trouble) -> &'static Row {
        static ROWS: OnceLock<Vec<Row>> = OnceLock::new();
        let rows = ROWS.get_or_init(|| trouble::run(&OPTIONS).expect("the options make sense"));
        trouble::find(rows, system, operation, of).expect("it comes through")
    }

    #[test]
    fn a_slow_host_is_in_the_tail_of_copies_and_not_in_ours() {
        let ours = row(OURS, Read, Trouble::SlowHost);
        assert!(2 * ours.p99_ns <= 3 * ours.p50_ns, "{ours:?}");
        let exactly = row(OURS_EXACTLY, Read, Trouble::SlowHost);
        assert!(ours.p99_ns * 4 < exactly.p99_ns, "{ours:?} {exactly:?}");
        let copies = row(COPIES, Read, Trouble::SlowHost);
        assert!(ours.p99_ns < copies.p99_ns, "{ours:?} {copies:?}");
        let flows = |system| row(system, Read, Trouble::Flows).p99_ns;
        assert!(flows(OURS) < flows(COPIES) && flows(OURS) < flows(BACKUP));
    }

    #[test]
    fn dead_hosts_cost_a_disk_and_not_codes_or_copies() {
        for trouble in [Trouble::OneDead, Trouble::TwoDead] {
            for operation in [Read, Write] {
                let (ours, backup) = (
                    row(OURS, operation, trouble),
                    row(BACKUP, operation, trouble),
                );
                assert!(ours.p50_ns * 4 < backup.p50_ns, "{ours:?} {backup:?}");
                let calm = row(OURS, operation, Trouble::None);
                assert!(ours.p50_ns < 2 * calm.p50_ns, "{ours:?} {calm:?}");
            }
        }
    }

    #[test]
    fn wrong_splits_cost_the_tail_of_reads() {
        let (rot, calm) = (
            row(CORRECTION, Read, Trouble::Rot),
            row(CORRECTION, Read, Trouble::None),
        );
        assert_eq!(rot.p50_ns, calm.p50_ns);
        assert!(rot.p99_ns > calm.p99_ns, "{rot:?} {calm:?}");
    }

    #[test]
    fn a_burst_waits_for_itself() {
        for system in [OURS, COPIES, BACKUP] {
            let (burst, calm) = (
                row(system, Read, Trouble::Bursts),
                row(system, Read, Trouble::None),
            );
            assert!(burst.p99_ns > calm.p99_ns, "{burst:?} {calm:?}");
            // For its own sixteen pages, and for nothing else.
            assert!(burst.p999_ns < 16 * calm.p50_ns, "{burst:?} {calm:?}");
        }
    }
}
