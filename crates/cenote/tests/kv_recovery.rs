//! `cenote bench kv --recovery` with clusters of ours: what nodes tell of recoveries, and that none of them
//! loses anything. Without etcd it is left out.

mod support;

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;
use support::{run, words};

/// Lines of a table, each by the names of its columns.
fn table(text: &str) -> Vec<BTreeMap<String, String>> {
    let mut lines = text.lines();
    let names: Vec<&str> = lines.next().expect("a head").split(',').collect();
    let line = |line: &str| {
        let cells = line.split(',').map(str::to_owned);
        names
            .iter()
            .map(|name| (*name).to_owned())
            .zip(cells)
            .collect()
    };
    lines.map(line).collect()
}

#[test]
fn two_of_five_nodes_die_under_a_load_and_tell_how_they_were_recovered() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("files");
    let (blocked, online) = ("ours-3+2-blocked", "ours-3+2");
    let command = format!(
        "bench kv --recovery --json --server {online} --server {blocked} --mix 50:50 --memory 4 \
         --clients 4 --rounds 1 --duration 9s --kill-at 1s --kill-at 6s --files"
    );
    let command = words(&command);
    let ended = run(&[&command[..], &[files.to_str().unwrap()]].concat());
    if ended.code == 1 && ended.stderr.contains("etcd-server") {
        return println!("skipped: {}", ended.stderr);
    }
    let ended = ended.expect(0);
    let rows: Vec<Value> = ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    let row = |case: &str, metric: &str| {
        let mut found = rows.iter().filter(|row| row["metric"] == metric);
        found
            .find(|row| {
                row["case"]
                    .as_str()
                    .is_some_and(|known| known.ends_with(case))
            })
            .unwrap_or_else(|| panic!("{metric} of {case}: {}", ended.stdout))
    };
    let lost = row("50:50", "items_lost");
    assert_eq!(
        (&lost["ours"], &lost["theirs"]),
        (&Value::from(0.0), &Value::from(0.0))
    );
    for case in ["kill 1", "kill 2", "idle"] {
        for metric in ["recovery_rate", "blocked", "rebuilt"] {
            let row = row(&format!(", {case}"), metric);
            assert!(
                row["ours"].as_f64() > Some(0.0) && row["theirs"].as_f64() > Some(0.0),
                "{row}"
            );
        }
    }

    let files = files.join("50-50");
    let told = table(&fs::read_to_string(files.join("takeovers.csv")).unwrap());
    let number = |line: &BTreeMap<String, String>, name: &str| -> f64 {
        line[name]
            .parse()
            .unwrap_or_else(|_| panic!("{name}: {line:?}"))
    };
    for variant in [online, blocked] {
        for when in ["kill 1", "idle"] {
            let mut told = told.iter();
            let of = |line: &&BTreeMap<String, String>| {
                line["variant"] == variant && line["when"] == when
            };
            // Each node has data of three of the five groups.
            assert_eq!(told.by_ref().filter(of).count(), 3, "{variant}, {when}");
        }
    }
    for line in &told {
        let settled = number(line, "settled_ms");
        assert!(number(line, "rebuilt_bytes") > 0.0, "{line:?}");
        assert!(number(line, "began_ms") <= settled && settled <= number(line, "ended_ms"));
        let opens = line["lease_over_ms"]
            .parse()
            .unwrap_or(settled)
            .max(settled);
        assert!(number(line, "served_ms") >= opens, "{line:?}");
    }
    for name in [
        "recovery.csv",
        "recovery.jsonl",
        "throughput.svg",
        "get_p99.svg",
    ] {
        assert!(files.join(name).metadata().unwrap().len() > 0, "{name}");
    }
}
