//! `cenote lab` as a user runs it: its JSON, its text, its refusals.

mod support;

use support::run;

/// Small, and over within seconds.
const SIM: [&str; 9] = [
    "lab", "sim", "--seed", "7", "--hours", "0.01", "--rate", "20", "--json",
];

#[test]
fn a_simulation_ends_with_one_line_of_exactly_these_keys() {
    let ended = run(&SIM).expect(0);
    let keys = [
        "seed",
        "hosts",
        "simulated_seconds",
        "page_ops",
        "faults",
        "trace_hash",
        "violations",
    ];
    let line = ended.stdout.trim_end();
    assert_eq!(line.lines().count(), 1, "{line}");
    let mut at = 0;
    for key in keys {
        let found = line[at..].find(&format!("\"{key}\":"));
        at += found.unwrap_or_else(|| panic!("{key} in order: {line}"));
    }
    let report = ended.json();
    assert_eq!(report.as_object().expect("an object").len(), keys.len());
    assert_eq!(report["seed"], 7);
    assert_eq!(report["hosts"], 16);
    assert_eq!(report["violations"], serde_json::json!([]));
    assert!(report["page_ops"].as_u64() > Some(100), "{report}");
    assert_eq!(run(&SIM).expect(0).stdout, ended.stdout, "the same seed");
}

#[test]
fn a_simulation_says_how_fast_it_was() {
    let ended = run(&SIM[..SIM.len() - 1]).expect(0);
    assert!(
        ended.stdout.contains("per second of real time)"),
        "{ended:#?}"
    );
    assert!(ended.stdout.contains("every promise kept"), "{ended:#?}");
}

#[test]
fn latencies_are_labelled_simulated_in_text_and_json() {
    let arguments = ["lab", "latency", "--operations", "50", "--scheme", "plain"];
    let text = run(&arguments).expect(0).stdout;
    assert!(text.starts_with("Simulated, seed 1"), "{text}");
    assert_eq!(text.lines().count(), 2 + 8, "{text}");

    let json = run(&[&arguments[..], &["--json"]].concat())
        .expect(0)
        .stdout;
    let rows: Vec<serde_json::Value> = json
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    assert_eq!(rows.len(), 8);
    assert!(rows.iter().all(|row| row["simulated"] == true), "{json}");
    assert_eq!(rows[0]["operation"], "read");
    assert_eq!(rows[0]["network"], "quiet");
    assert_eq!(rows[0]["p50_ns"], 4000, "the model's READ of 4 KiB");
}

#[test]
fn what_makes_no_sense_is_refused() {
    run(&["lab"]).expect(2);
    run(&["lab", "latency", "--operations", "0"]).expect(2);
    run(&["lab", "latency", "--scheme", "rs:3"]).expect(2);
    let few = run(&["lab", "sim", "--hosts", "3"]).expect(1);
    assert!(few.stderr.contains("3 hosts"), "{few:#?}");
}

#[test]
fn help_shows_examples() {
    for command in ["sim", "latency"] {
        let help = run(&["lab", command, "--help"]).expect(0).stdout;
        let example = format!("cenote lab {command}");
        assert!(
            help.contains("Examples:") && help.contains(&example),
            "{help}"
        );
    }
}
