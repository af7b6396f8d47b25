//! `cenote lab` as a user runs it: its JSON, its text, its refusals.

mod support;

use support::{run, words};

/// Small, and over within seconds.
const SIM: &str = "lab sim --seed 7 --duration 36s --rate 20 --json";

#[test]
fn a_simulation_ends_with_one_line_of_exactly_these_keys() {
    let ended = run(&words(SIM)).expect(0);
    let keys = words("seed hosts simulated_seconds page_ops faults trace_hash violations");
    let line = ended.stdout.trim_end();
    assert_eq!(line.lines().count(), 1, "{line}");
    let mut at = 0;
    for key in &keys {
        let found = line[at..].find(&format!("\"{key}\":"));
        at += found.unwrap_or_else(|| panic!("{key} in order: {line}"));
    }
    let report = ended.json();
    assert_eq!(report.as_object().expect("an object").len(), keys.len());
    assert_eq!(report["seed"], 7);
    assert_eq!(report["hosts"], 16);
    assert_eq!(report["violations"], serde_json::json!([]));
    assert!(report["page_ops"].as_u64() > Some(100), "{report}");
    assert_eq!(
        run(&words(SIM)).expect(0).stdout,
        ended.stdout,
        "the same seed"
    );
}

#[test]
fn a_simulation_says_how_fast_it_was() {
    let ended = run(&words(SIM.trim_end_matches("--json"))).expect(0);
    assert!(
        ended.stdout.contains("per second of real time)"),
        "{ended:#?}"
    );
    assert!(ended.stdout.contains("all guarantees hold"), "{ended:#?}");
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
fn latencies_in_trouble_have_rows_of_what_comes_through() {
    let arguments = words("lab latency --trouble --operations 50 --json");
    let json = run(&arguments).expect(0).stdout;
    let has = |trouble: &str, system: &str| {
        let is_it = |line: &&str| line.contains(trouble) && line.contains(system);
        json.lines().filter(is_it).count()
    };
    assert!(json.lines().all(|line| line.contains("\"simulated\":true")));
    assert_eq!(has("\"two-dead\"", "\"rs:8+2\""), 2, "{json}");
    assert_eq!(has("\"two-dead\"", "\"mirror:2\""), 0, "{json}");
    run(&["lab", "latency", "--trouble", "--scheme", "plain"]).expect(2);
}

#[test]
fn the_ablations_figures_are_written_beside_its_numbers() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("figures");
    let files = path.to_str().expect("UTF-8");
    let arguments = ["lab", "hydra", "ablation", "--operations", "20"];
    run(&[&arguments[..], &["--files", files]].concat()).expect(0);
    for figure in ["9-read", "10-write", "11-read", "12b-write", "19c"] {
        let table = std::fs::read_to_string(path.join(format!("figure-{figure}.csv")));
        assert!(table.expect("a table").contains("p50_us,p99_us"));
        let picture = std::fs::read_to_string(path.join(format!("figure-{figure}.svg")));
        assert!(picture.expect("a picture").starts_with("<svg "));
    }
    let tcp = ["--transport", "tcp", "--files", files];
    run(&[&arguments[..], &tcp].concat()).expect(1);
}

#[test]
fn schemes_of_the_store_have_a_point_for_each_run_and_figures_that_say_simulated() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("figures");
    let out = path.to_str().expect("UTF-8");
    let arguments = ["lab", "efactory", "latency", "--json", "--out", out];
    let json = run(&arguments).expect(0).stdout;
    let keys = words("simulated scheme mix value_bytes clients ops_per_second p50_us p99_us");
    let points: Vec<serde_json::Value> =
        json.lines().map(|line| expect_keys(line, &keys)).collect();
    assert_eq!(points.len(), 2 * 8 * 8, "mixes, schemes, sizes");
    assert!(points.iter().all(|point| point["simulated"] == true));
    for name in ["latency.csv", "parameters.csv"] {
        assert!(path.join(name).exists(), "{name}");
    }
    let picture = std::fs::read_to_string(path.join("latency-put.svg")).expect("a picture");
    assert!(picture.contains("(simulated)"));
    let text = run(&["lab", "efactory", "latency", "--cores", "2"])
        .expect(0)
        .stdout;
    assert!(text.starts_with("Simulated, seed 1"), "{text}");
    assert!(text.contains("| server_cores | 2 | assumed |"), "{text}");
    run(&["lab", "efactory", "latency", "--cores", "0"]).expect(2);
}

/// The keys of a JSON object in their order, which the map of the parser does not keep.
fn expect_keys(line: &str, keys: &[&str]) -> serde_json::Value {
    let mut at = 0;
    for key in keys {
        let found = line[at..].find(&format!("\"{key}\":"));
        at += found.unwrap_or_else(|| panic!("{key} in order: {line}"));
    }
    let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
    assert_eq!(
        object.as_object().expect("an object").len(),
        keys.len(),
        "{line}"
    );
    object
}

#[test]
fn a_batch_of_evictions_is_two_figures() {
    let arguments = words("lab infiniswap eviction --evict 10 --extra 2 --busy 0.3 --runs 4000");
    let json = run(&[&arguments[..], &["--json"]].concat())
        .expect(0)
        .stdout;
    let figure = expect_keys(json.trim_end(), &["analytic", "simulated"]);
    let analytic = figure["analytic"].as_f64().expect("a number");
    let simulated = figure["simulated"].as_f64().expect("a number");
    // Figure 8; four standard deviations of 4000 runs are 0.0275.
    assert_eq!(format!("{analytic:.3}"), "0.253");
    assert!((simulated - analytic).abs() < 0.0275, "{json}");
    let text = run(&arguments).expect(0).stdout;
    assert!(text.contains("analytic   0.2528"), "{text}");
    let again = run(&[&arguments[..], &["--json"]].concat()).expect(0);
    assert_eq!(again.stdout, json, "the same seed");
}

#[test]
fn figure_8_is_a_table_and_a_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let (csv, svg) = (folder.path().join("8.csv"), folder.path().join("8.svg"));
    let ended = run(&words(&format!(
        "lab infiniswap eviction --runs 20 --json --csv {} --svg {}",
        csv.display(),
        svg.display()
    )))
    .expect(0);
    let keys = ["evict", "extra", "busy", "analytic", "simulated"];
    assert_eq!(ended.stdout.lines().count(), 12 * 11);
    for line in ended.stdout.lines() {
        expect_keys(line, &keys);
    }
    let table = std::fs::read_to_string(csv).expect("the table");
    assert!(table.starts_with("evict,extra,busy,analytic,simulated\n10,0,0.05,0.59"));
    assert_eq!(table.lines().count(), 1 + 12 * 11);
    let picture = std::fs::read_to_string(svg).expect("the picture");
    assert!(picture.starts_with("<svg ") && picture.contains("probability"));
    let nowhere = run(&["lab", "infiniswap", "cost", "--csv", "/nowhere/x"]).expect(1);
    assert!(nowhere.stderr.contains("/nowhere/x"), "{nowhere:#?}");
}

#[test]
fn a_machine_costs_what_the_paper_says() {
    let json = run(&["lab", "infiniswap", "cost", "--json"])
        .expect(0)
        .stdout;
    let cost = expect_keys(json.trim_end(), &["usd_per_machine_month"]);
    let usd = cost["usd_per_machine_month"].as_f64().expect("a number");
    assert!((usd - 1.450_062_8).abs() < 1e-6, "{json}");
    // Twice the price of energy: 0.798 more.
    let dear = run(&words("lab infiniswap cost --usd-per-kwh 0.134 --json"));
    let dear = dear.expect(0).json();
    let usd = dear["usd_per_machine_month"].as_f64().expect("a number");
    assert_eq!(format!("{usd:.2}"), "2.25");

    let revenue = words("lab infiniswap revenue --machine-usd 200 --memory-usd 100 --json");
    let json = run(&revenue).expect(0).stdout;
    let gain = expect_keys(json.trim_end(), &["gain_percent"]);
    // A fifth of 100 less 1.45, of 200.
    let gain = gain["gain_percent"].as_f64().expect("a number");
    assert_eq!(format!("{gain:.2}"), "9.27");
}

#[test]
fn the_cluster_experiment_stands_beside_the_papers_figures() {
    let arguments = ["lab", "infiniswap", "cluster", "--runs", "2"];
    let text = run(&arguments).expect(0).stdout;
    assert!(text.starts_with("Simulated: 32 machines"), "{text}");
    for paper in [
        "40.8 %", "60.0 %", "1.47", "2.36", "22.50", "2.70", "< 1.0 %",
    ] {
        assert!(text.matches(paper).count() >= 2, "{paper}: {text}");
    }
    let json = run(&[&arguments[..], &["--json"]].concat())
        .expect(0)
        .stdout;
    let keys = words(
        "simulated seed runs swapped utilisation_without utilisation_with utilisation_ratio \
         max_to_median_without max_to_median_with max_to_min_without max_to_min_with network_mbps \
         network_share evictions remote_share machines_without machines_with",
    );
    let outcomes: Vec<_> = json.lines().map(|line| expect_keys(line, &keys)).collect();
    assert_eq!(outcomes.len(), 2);
    for outcome in &outcomes {
        assert_eq!(outcome["simulated"], true);
        let ratio = outcome["utilisation_ratio"]["median"].as_f64();
        assert!(ratio > Some(1.1), "{outcome}");
        assert_eq!(outcome["machines_with"].as_array().map(Vec::len), Some(32));
    }
}

#[test]
fn placements_are_compared_by_policy_and_size() {
    let arguments = words("lab infiniswap placement --machines 32..100 --runs 2");
    let json = run(&[&arguments[..], &["--json"]].concat())
        .expect(0)
        .stdout;
    let keys = words("machines policy slabs max max_to_median max_to_min");
    let rows: Vec<_> = json.lines().map(|line| expect_keys(line, &keys)).collect();
    let of = |machines: u64, policy: &str| {
        let mut rows = rows.iter();
        let row = rows.find(|row| row["machines"] == machines && row["policy"] == policy);
        row.expect("a row")["max"]["median"].as_f64()
    };
    for machines in [32, 100] {
        assert_eq!(of(machines, "least-loaded"), Some(16.0));
        assert!(of(machines, "two-choices") < of(machines, "single"));
        assert!(of(machines, "two-choices") < of(machines, "random"));
    }
    let text = run(&arguments).expect(0).stdout;
    assert_eq!(text.lines().count(), 2 + 2 * 4, "{text}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    run(&["lab"]).expect(2);
    run(&["lab", "latency", "--operations", "0"]).expect(2);
    run(&["lab", "latency", "--scheme", "rs:3"]).expect(2);
    run(&["lab", "infiniswap"]).expect(2);
    run(&["lab", "infiniswap", "eviction", "--busy", "1.1"]).expect(2);
    run(&["lab", "infiniswap", "placement", "--machines", "9..3"]).expect(2);
    run(&["lab", "infiniswap", "cost", "--pue", "nan"]).expect(2);
    run(&["lab", "infiniswap", "revenue"]).expect(2);
    run(&["lab", "infiniswap", "eviction", "--extra", "1001"]).expect(2);
    let few = run(&["lab", "sim", "--hosts", "3"]).expect(1);
    assert!(few.stderr.contains("3 hosts"), "{few:#?}");
}

#[test]
fn a_group_of_key_value_nodes_is_simulated_by_seed() {
    let json = run(&["lab", "kv", "--seed", "3", "--runs", "2", "--json"]).expect(0);
    assert_eq!(json.stdout.lines().count(), 2, "{json:#?}");
    let first = json.stdout.lines().next().expect("a line");
    let report: serde_json::Value = serde_json::from_str(first).expect("JSON");
    assert_eq!(report["seed"], 3);
    assert!(report["violation"].is_null(), "{first}");
    assert!(
        report["operations"].as_u64().expect("a number") > 10,
        "{first}"
    );
    let text = run(&["lab", "kv", "--scheme", "replicated", "--steps", "500"]).expect(0);
    assert!(text.stdout.contains("all guarantees hold"), "{text:#?}");
    run(&["lab", "kv", "--k", "17"]).expect(2);
    run(&["lab", "kv", "--plant", "nothing"]).expect(1);
}

#[test]
fn help_shows_examples() {
    for command in [
        "sim",
        "kv",
        "latency",
        "infiniswap",
        "infiniswap eviction",
        "infiniswap cost",
        "infiniswap cluster",
        "infiniswap placement",
    ] {
        let words = ["lab"].into_iter().chain(command.split(' '));
        let arguments: Vec<&str> = words.chain(["--help"]).collect();
        let help = run(&arguments).expect(0).stdout;
        let example = format!("cenote lab {command}");
        assert!(
            help.contains("Example") && help.contains(&example),
            "{help}"
        );
    }
}
