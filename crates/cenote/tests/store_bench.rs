//! `cenote bench store` as a user runs it, with the peers that are installed.

mod support;

use std::collections::BTreeSet;

use serde_json::Value;
use support::{Ended, cenote, words};

/// Runs it with these arguments; `None`, said, where there is no store to measure.
fn measured(arguments: &[&str]) -> Option<Vec<Value>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut command = cenote();
    command.args(words("bench store --json --rounds 1 --duration 100ms"));
    command.args(arguments).arg("--dir").arg(folder.path());
    let ended = Ended::from(command.output().expect("the binary runs"));
    if ended.stderr.contains("none of the stores is here") {
        println!("skipped: neither redis-server nor RocksDB is installed");
        return None;
    }
    let ended = ended.expect(0);
    assert!(
        ended.stderr.contains("fdatasync"),
        "the disk is told: {ended:#?}"
    );
    let left = std::fs::read_dir(folder.path())
        .expect("it is there")
        .count();
    assert_eq!(left, 0, "what was made is removed");
    let lines = ended.stdout.lines();
    let lines: Vec<Value> = lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert!(!lines.is_empty(), "{ended:#?}");
    Some(lines)
}

#[test]
fn stores_that_are_here_are_measured_under_each_mix() {
    let arguments = "--mix 100:0 --mix 50:50 --value 16K --clients 4";
    let Some(lines) = measured(&words(arguments)) else {
        return;
    };
    let mut mixes = BTreeSet::new();
    for line in lines.iter().filter(|line| line.get("bench").is_none()) {
        assert_eq!(line["value_bytes"], 16384);
        assert_eq!(line["clients"], 4);
        for figure in ["ops_per_second", "p50_us", "p99_us"] {
            let value = line[figure].as_f64();
            assert!(value.is_some_and(|value| value > 0.0), "{figure} in {line}");
        }
        let is_read = line["mix"] == "100:0";
        assert!(!is_read || line["write_amplification"].is_null(), "{line}");
        mixes.insert(line["mix"].to_string());
    }
    assert_eq!(mixes.len(), 2);
}
