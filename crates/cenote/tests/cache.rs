//! `cenote cache` and `cenote lab redy` as a user runs them: JSON, files, refusals.

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::{run, words};

/// A model of 1-KiB records, which has the fewest configurations.
fn model(path: &Path, more: &[&str]) -> Vec<Value> {
    let path = path.to_str().unwrap();
    let arguments = ["cache", "model", "--transport", "sim", "--record", "1K"];
    let rest = ["--out", path, "--json"];
    let ended = run(&[&arguments[..], &rest, more].concat()).expect(0);
    let lines = ended.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

fn keys(object: &Value) -> Vec<&str> {
    let object = object.as_object().expect("an object");
    object.keys().map(String::as_str).collect()
}

#[test]
fn a_model_that_was_broken_off_is_gone_on_with_and_ends_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, parts) = (folder.path().join("whole"), folder.path().join("parts"));
    let lines = model(&whole, &[]);
    let [table, last] = &lines[..] else {
        panic!("{lines:?}");
    };
    assert_eq!(table["record_bytes"], 1024);
    assert_eq!(last["grid"], 250, "(s, c) pairs, 3 batches, 5 depths");
    assert_eq!(last["complete"], true);
    let measured = last["measured"].as_u64().unwrap();
    assert!(measured < 230, "early stop: {last}");

    let mut calls = 0;
    while model(&parts, &["--configurations", "70"])[1]["complete"] == false {
        calls += 1;
    }
    assert_eq!(calls, measured / 70, "70 each time");
    let text = fs::read_to_string(&whole).unwrap();
    assert_eq!(fs::read_to_string(&parts).unwrap(), text);

    // Another size is added, what is there stays.
    let path = whole.to_str().unwrap();
    let more = ["--record", "4K", "--full-grid"];
    let arguments = ["cache", "model", "--transport", "sim", "--out", path];
    let ended = run(&[&arguments[..], &more].concat()).expect(0);
    assert!(
        ended.stdout.contains("measured 100 of 100 configurations"),
        "{ended:?}"
    );
    let added = fs::read_to_string(&whole).unwrap();
    assert!(added.starts_with(text.strip_suffix("end\n").unwrap()));
}

#[test]
fn a_model_that_is_damaged_or_another_is_refused_and_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cut");
    model(&path, &["--configurations", "5"]);
    let text = fs::read_to_string(&path).unwrap();
    let path = path.to_str().unwrap();
    let add = format!("cache model --transport sim --record 64 --out {path}");
    let add = words(&add);
    let other = run(&[&add[..], &["--ends"]].concat()).expect(1);
    assert!(other.stderr.contains("try: use another --out"), "{other:?}");

    fs::write(path, text.strip_suffix("end\n").unwrap()).unwrap();
    let cut = run(&add).expect(1);
    assert!(
        cut.stderr
            .contains("line 9: the file is cut off: there is no line \"end\""),
        "{cut:?}"
    );
    assert!(!fs::read_to_string(path).unwrap().contains("end"));
}

#[test]
fn what_cannot_be_measured_here_is_said() {
    let arguments = ["cache", "model", "--record", "16", "--transport", "rdma"];
    let ended = run(&arguments).expect(1);
    assert!(ended.stderr.contains("no rdma: "), "{ended:?}");
    assert!(ended.stderr.contains("try: --transport sim"), "{ended:?}");
    run(&["lab", "redy", "slo", "--transport", "rdma"]).expect(1);
    run(&["cache", "model", "--record", "16", "--transport", "pigeon"]).expect(2);
    run(&["cache", "model", "--record", "0", "--transport", "sim"]).expect(2);
}

#[test]
fn real_transports_are_measured_and_the_survey_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    for transport in ["shm", "tcp"] {
        let path = folder.path().join(transport);
        let path = path.to_str().unwrap();
        for measured in [2, 4] {
            let arguments = ["cache", "model", "--record", "16", "--transport", transport];
            let rest = format!("--configurations 2 --json --writes 5% --out {path}");
            let rest = words(&rest);
            let ended = run(&[&arguments[..], &rest].concat()).expect(0);
            let last = ended.stdout.lines().last().unwrap();
            let said = format!("\"measured\":{measured},");
            assert!(last.contains(&said), "{last}");
        }
    }
}

/// What `lab redy ablation` says of each switch, in order.
fn ablation(transport: &str) -> Vec<Value> {
    let arguments = format!("lab redy ablation --transport {transport} --json");
    let arguments = words(&arguments);
    let short = ["--rounds", "1", "--span", "20ms"];
    let ended = run(&[&arguments[..], &short].concat()).expect(0);
    let lines = ended.stdout.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn each_switch_is_measured_or_says_why_it_has_no_meaning() {
    for transport in ["sim", "shm", "tcp"] {
        let rows = ablation(transport);
        assert_eq!(rows.len(), 8);
        assert_eq!(rows[0]["switch"], "none");
        for row in &rows {
            // The mean may be above p99: one wait among few requests is enough.
            let is_measured = ["reads_per_second", "writes_per_second", "write_us_p99"]
                .iter()
                .all(|figure| row[figure].as_f64() > Some(0.0));
            assert_eq!(is_measured, row["no_meaning"].is_null(), "{row}");
        }
        let measured = |name: &str| {
            let row = rows.iter().find(|row| row["switch"] == name).unwrap();
            row["no_meaning"].is_null()
        };
        assert!(measured("one-sided") && measured("asynchrony"));
        assert!(!measured("inlined writes") && !measured("selective signals"));
        assert_eq!(measured("polling"), transport != "sim");
    }
    // Without noise each is worth something.
    let rows = ablation("sim");
    let of = |name: &str| {
        let row = rows.iter().find(|row| row["switch"] == name).unwrap();
        row["reads_per_second"].as_f64().unwrap()
    };
    assert!(of("none") < of("one-sided") && of("one-sided") < of("asynchrony"));
}

#[test]
fn a_share_of_writes_is_found_where_it_was_measured_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    model(&path, &["--writes", "5%", "--configurations", "20"]);
    let path = path.to_str().unwrap();
    let asked = ["--throughput", "1000", "--latency", "1ms", "--record", "16"];
    let search = |writes| {
        let how = ["cache", "search", "--model", path, "--writes", writes];
        run(&[&how[..], &asked].concat())
    };
    search("5%").expect(0);
    let ended = search("0%").expect(1);
    let said = "the model has nothing for 0% of writes";
    assert!(ended.stderr.contains(said), "{ended:?}");
}

#[test]
fn a_search_answers_with_one_line_of_exactly_these_keys() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model");
    model(&path, &[]);
    let search = |throughput: &str, latency: &str| {
        let path = path.to_str().unwrap();
        let asked = ["--throughput", throughput, "--latency", latency];
        let rest = ["--record", "1000", "--json"];
        run(&[&["cache", "search", "--model", path][..], &asked, &rest].concat())
    };
    let found = search("200000", "100us").expect(0).json();
    let expected = words("b c predicted_latency_us predicted_throughput q s search_us");
    assert_eq!(keys(&found), expected);
    // One thread and one read after the other do 200,000.
    assert_eq!(
        [&found["c"], &found["s"], &found["b"], &found["q"]],
        [1, 0, 1, 1]
    );
    assert!(found["predicted_throughput"].as_f64() >= Some(200_000.0));
    assert!(found["predicted_latency_us"].as_f64() <= Some(100.0));

    let refused = search("1e9", "10us").expect(3).json();
    assert_eq!(keys(&refused), ["best", "search_us"]);
    let best = &refused["best"];
    assert_eq!(best["at_throughput"], Value::Null);
    assert!(best["within_latency"]["predicted_latency_us"].as_f64() <= Some(10.0));
    let nearest = best["within_latency"]["predicted_throughput"]
        .as_f64()
        .unwrap();
    // What is said to be the best can be had, and nothing above it.
    search(&format!("{nearest}"), "10us").expect(0);
    search(&format!("{}", nearest * 1.001), "10us").expect(3);

    let missing = run(&words(
        "cache search --model /nowhere --throughput 1 --latency 1us --record 16",
    ));
    let missing = missing.expect(1);
    assert!(
        missing.stderr.contains("try: cenote cache model"),
        "{missing:?}"
    );
    assert!(
        search("1", "x").expect(2).stderr.contains("as in 500ms"),
        "no span"
    );
}

/// The catalogue of the guide.
fn catalogue(folder: &Path) -> String {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/cache.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, after) = guide.split_once("```toml\n").expect("an example");
    let (example, _) = after.split_once("```").expect("its end");
    let path = folder.join("machines.toml");
    fs::write(&path, example).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_plan_takes_the_cheapest_machines_of_the_guides_catalogue() {
    let folder = tempfile::tempdir().unwrap();
    let catalogue = catalogue(folder.path());
    let plan = |more: &[&str]| {
        let arguments = ["cache", "plan", "--catalogue", &catalogue, "--json"];
        run(&[&arguments[..], more].concat())
    };
    let plain = plan(&["--size", "64G"]).expect(0).json();
    assert_eq!(plain["price_per_hour"], json!(0.51));
    assert_eq!(plain["price_least_per_hour"], json!(0.51));
    assert_eq!(plain["regions"], 64);
    let spot = plan(&["--size", "64G", "--spot"]).expect(0).json();
    assert_eq!(spot["price_per_hour"], json!(0.15));
    let with_threads = plan(&["--size", "64G", "--server-threads", "40"]).expect(0);
    let with_threads = with_threads.json();
    let machines = with_threads["machines"].as_array().unwrap();
    let threads = machines
        .iter()
        .map(|one| one["machines"].as_u64().unwrap() * one["server_threads"].as_u64().unwrap());
    assert!(threads.sum::<u64>() >= 40, "{with_threads}");

    let refused = plan(&["--size", "100T"]).expect(3).json();
    let said = refused["error"].as_str().unwrap();
    assert!(said.contains("of 102400 regions"), "{said}");

    let path = folder.path().join("model");
    model(&path, &[]);
    let model = ["--size", "64G", "--model", path.to_str().unwrap()];
    let asked = ["--latency", "100us", "--record", "1K", "--throughput"];
    let planned = plan(&[&model[..], &asked, &["200000"]].concat())
        .expect(0)
        .json();
    assert_eq!(planned["configuration"]["s"], 0);
    let refused = plan(&[&model[..], &asked, &["1e10"]].concat())
        .expect(3)
        .json();
    assert_ne!(refused["best"]["within_latency"], Value::Null);
    plan(&model).expect(2);

    fs::write(&catalogue, "[[machine]]\nname = 1\n").unwrap();
    let ended = plan(&["--size", "1G"]).expect(1);
    assert!(ended.stderr.contains("expected a string"), "{ended:?}");
}

#[test]
fn random_slos_are_kept_and_the_last_line_has_exactly_these_keys() {
    let arguments = ["lab", "redy", "slo", "--samples", "100", "--seed", "5"];
    let rest = ["--record", "1K", "--record", "256", "--compare", "--json"];
    let ended = run(&[&arguments[..], &rest].concat()).expect(0);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    let [comparison, last] = &lines[..] else {
        panic!("{ended:?}");
    };
    let comparison: Value = serde_json::from_str(comparison).unwrap();
    assert!(
        comparison["same_choice"].as_u64() >= Some(95),
        "{comparison}"
    );
    assert!(comparison["measured"].as_u64() < comparison["grid"].as_u64());
    let found: Value = serde_json::from_str(last).unwrap();
    let expected =
        words("met_latency met_throughput samples worst_latency_ratio worst_throughput_ratio");
    assert_eq!(keys(&found), expected);
    for kept in ["samples", "met_latency", "met_throughput"] {
        assert_eq!(found[kept], 100, "{found}");
    }
    assert!(found["worst_throughput_ratio"].as_f64() >= Some(1.0));
    assert!(found["worst_latency_ratio"].as_f64() <= Some(1.0));
}

/// The commands of the guide's demonstration, as they are there, in another folder.
#[test]
fn the_guides_demonstration_runs_as_it_is_written() {
    let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/cache.md");
    let guide = fs::read_to_string(guide).unwrap();
    let (_, after) = guide.split_once("```sh\n").expect("a demonstration");
    let (script, _) = after.split_once("```").expect("its end");
    let folder = support::Folder::new();
    let well = folder.path().join("well");
    let script = script.replace("~/.cenote/cache", well.to_str().unwrap());
    let program = Path::new(env!("CARGO_BIN_EXE_cenote"));
    let path = std::env::var("PATH").unwrap();
    let path = format!("{}:{path}", program.parent().unwrap().display());
    let ended = std::process::Command::new("sh")
        .args(["-e", "-c", &script])
        .env("PATH", path)
        .env_remove("CENOTE_DIR")
        .output()
        .unwrap();
    // Whatever a step that failed left.
    let down = run(&["down", "--force", "--dir", well.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&ended.stdout);
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.success(), "{said}\n{errors}\n{down:#?}");
    for line in [
        "c0: 48M in 12 regions of 4M",
        "expected: at least",
        // The procedure looked at all of it.
        "50331648 50331648 0 9223372036854775808",
        "c1: 16M in 4 regions",
        "is deleted",
    ] {
        assert!(said.contains(line), "{line:?} in\n{said}");
    }
}
