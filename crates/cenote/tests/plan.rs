//! `cenote plan` and `cenote lab hydra` as a user runs them: JSON, text, files, refusals.

mod support;

use serde_json::Value;
use support::{run, words};

const PLAN: &str = "plan --hosts 1000 --loss 1e-6 --overhead 1.3";

#[test]
fn a_plan_names_a_volume_that_can_be_made_and_draws_the_trade() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("plan.svg");
    let drawn = ["--json", "--svg", svg.to_str().unwrap()];
    let plan = run(&[&words(PLAN)[..], &drawn[..]].concat())
        .expect(0)
        .json();
    let choice = &plan["choice"];
    assert!(choice["loss"].as_f64() <= Some(1e-6), "{choice}");
    assert!(choice["overhead"].as_f64() <= Some(1.3), "{choice}");
    let front = plan["front"].as_array().unwrap();
    assert!(front.len() > 5, "{front:?}");
    let keys =
        words("scheme k r l loss overhead load splits_read splits_written groups spare_hosts fits");
    for candidate in front {
        assert!(
            keys.iter().all(|key| !candidate[key].is_null()),
            "{candidate}"
        );
    }
    let picture = std::fs::read_to_string(&svg).unwrap();
    assert!(picture.contains("wished for"), "{picture}");

    let text = run(&words(PLAN)).expect(0).stdout;
    let scheme = choice["scheme"].as_str().unwrap();
    let line = format!("--scheme {scheme} --placement coding-sets:{}", choice["l"]);
    assert!(text.contains(&line), "{text}");
    // Header, five rows, what marks mean, which odds these are, the command.
    assert_eq!(text.lines().count(), 9, "{text}");
    let rows: Vec<&str> = text.lines().skip(1).take(5).collect();
    assert!(rows[0].starts_with(&format!("*  {scheme} ")), "{text}");
    assert!(
        rows[0].ends_with("fewest splits per read of all that fit"),
        "{text}"
    );
    // The nearest codes of fewer splits, and what keeps them out.
    for row in &rows[1..3] {
        assert!(row.starts_with('-'), "{text}");
        assert!(
            row.contains("too high")
                || row.contains("loss above 1e-6")
                || row.contains("memory above 1.3"),
            "{text}"
        );
    }
}

#[test]
fn a_wish_that_nothing_fulfils_is_answered_with_what_would_do() {
    let mut wish = words(PLAN);
    wish[6] = "1.1";
    let ended = run(&wish).expect(1);
    assert!(ended.stderr.contains("these would: "), "{ended:#?}");
    assert!(ended.stderr.contains("--overhead 1."), "{ended:#?}");
    assert!(ended.stderr.contains("--loss "), "{ended:#?}");
    let plan = run(&[&wish[..], &["--json"]].concat()).expect(1).json();
    assert_eq!(plan["choice"], Value::Null);
    assert!(
        plan["with_more_memory"]["overhead"].as_f64() > Some(1.1),
        "{plan}"
    );
    assert!(
        plan["with_more_loss"]["loss"].as_f64() > Some(1e-6),
        "{plan}"
    );
}

#[test]
fn a_plan_wants_its_three_numbers() {
    let ended = run(&["plan", "--hosts", "10"]).expect(2);
    assert!(ended.stderr.contains("--overhead"), "{ended:#?}");
}

#[test]
fn savings_are_those_of_table_5_and_of_given_prices() {
    let savings = run(&["plan", "tco", "--json"]).expect(0).json();
    let expected = [
        ("Google", 6.27, 3.27, 3.49),
        ("Amazon", 8.42, 4.83, 7.60),
        ("Microsoft", 7.32, 3.93, 4.86),
    ];
    for (row, (machine, hydra, replication, pm)) in savings.as_array().unwrap().iter().zip(expected)
    {
        assert_eq!(row["machine"], machine);
        for (key, value) in [("hydra", hydra), ("replication", replication), ("pm", pm)] {
            let found = row[key].as_f64().unwrap();
            assert!((found - value).abs() < 0.005, "{machine} {key}: {found}");
        }
    }
    let ours = words("plan tco --machine-usd 1553 --percent-usd 5.18 --k 4 --r 4");
    let text = run(&ours).expect(0).stdout;
    // Two bytes for a byte, as two copies.
    assert_eq!(text.matches("3.27 %").count(), 2, "{text}");
    run(&["plan", "tco", "--machine-usd", "1553"]).expect(2);
}

#[test]
fn loss_has_the_formula_and_the_simulation() {
    let base = words(
        "lab hydra loss --k 8 --r 2 --l 2 --slabs-per-host 16 --failed 0.01 --hosts 1000 --json",
    );
    let line = run(&base).expect(0).json();
    let near = |key: &str, value: f64, tolerance: f64| {
        let found = line[key].as_f64().unwrap();
        assert!((found / value - 1.0).abs() < tolerance, "{key}: {line}");
    };
    near("ec_cache", 0.1295, 0.001);
    near("coding_sets", 0.01315, 0.001);
    near("ec_cache_simulated", 0.1295, 0.05);
    near("coding_sets_simulated", 0.01315, 0.06);
    assert_eq!(line["failing"], "share");
    near("covered", 1.0, 0.001);
    assert_eq!(line.as_object().unwrap().len(), 6);
    let ended = run(&["lab", "hydra", "loss", "--hosts", "11"]).expect(1);
    assert!(ended.stderr.contains("a group of 12"), "{ended:#?}");
}

#[test]
fn a_small_cluster_has_binomial_odds_and_says_so() {
    let plan = words("plan --hosts 100 --loss 1e-6 --overhead 2");
    let text = run(&plan).expect(0).stdout;
    assert!(text.contains("LOSS: binomial"), "{text}");
    assert!(!text.contains("0.0e0"), "{text}");
    let loss = ["lab", "hydra", "loss", "--hosts", "100"];
    let text = run(&loss).expect(0).stdout;
    assert!(
        text.contains("each of 100 hosts fails with probability 0.01"),
        "{text}"
    );
    assert!(!text.contains("0.000e0"), "{text}");
}

#[test]
fn where_the_formula_does_not_hold_loss_says_so() {
    let wide = ["lab", "hydra", "loss", "--k", "3", "--r", "2", "--l", "7"];
    let text = run(&wide).expect(0).stdout;
    assert!(text.contains("too high"), "{text}");
    let none = ["lab", "hydra", "loss", "--r", "0", "--json"];
    let line = run(&none).expect(0).json();
    for key in [
        "ec_cache",
        "coding_sets",
        "ec_cache_simulated",
        "coding_sets_simulated",
    ] {
        assert!(line[key].as_f64() <= Some(1.0), "{line}");
    }
}

#[test]
fn figures_are_written_as_tables_and_pictures() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().to_str().unwrap();
    let balance =
        format!("lab hydra placement --figure balance --hosts-max 1000 --json --files {files}");
    let balance = words(&balance);
    let ended = run(&balance).expect(0);
    // Eight placers, clusters of 100, 316 and 1000 hosts.
    assert_eq!(ended.stdout.lines().count(), 24, "{}", ended.stdout);
    let csv = std::fs::read_to_string(folder.path().join("balance.csv")).unwrap();
    assert_eq!(csv.lines().count(), 25);
    assert!(folder.path().join("balance.svg").exists());
    let racks = ["lab", "hydra", "placement", "--figure", "racks"];
    let text = run(&racks).expect(0).stdout;
    assert!(text.starts_with("25 racks"), "{text}");
}
