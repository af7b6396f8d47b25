//! Who may use whom. The table is the one of docs/ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::process::Command;

/// Each crate below the top, and what it may use at run time.
const MAY_USE: &str = "
    codec:
    durable:
    latency:
    wire:
    pool: wire
    verbs:
    fabric: durable verbs wire
    host: pool fabric codec durable proc
    volume: latency pool fabric codec durable wire
    fuse:
    block: volume fabric fuse
    client: volume cache store fabric pool
    c: client
    python: client
    vfs: volume pool fuse
    store: fabric latency pool wire
    preload:
    pager: volume pool preload
    cache: pool fabric durable proc wire
    proc-sdk:
    proc: proc-sdk fabric wire
    kv: pool fabric codec
    memcached: cli kv latency fabric
    kv-cluster: kv memcached pool fabric codec
    measure:
    plan: measure pool
    cli:
    measurer: cache cli durable fabric host pool
    sim: cache codec fabric host kv kv-cluster measure pool store volume
    bench: block cache cli codec fabric measure pager pool store vfs volume
    papers: bench fabric measure plan pool sim store volume
    test-kit: fabric host volume
";
/// For tests: no program has a line of it.
const TEST_KIT: &str = "cenote-test-kit";
/// Programs: they may use everything but each other, and nobody uses them.
const TOP: [&str; 2] = ["cenote-lab", "cenote"];
/// What the programs that users run have no line of.
const LABORATORY: [&str; 4] = ["cenote-bench", "cenote-lab", "cenote-papers", "cenote-sim"];

/// The rows of [`MAY_USE`], with whole names.
fn may_use() -> BTreeMap<String, Vec<String>> {
    let whole = |name: &str| format!("cenote-{name}");
    let row = |line: &str| {
        let (name, used) = line.split_once(':').expect("a row");
        (
            whole(name.trim()),
            used.split_whitespace().map(whole).collect(),
        )
    };
    MAY_USE.trim().lines().map(row).collect()
}

/// Crate -> (crates of ours it uses, whether only in its tests).
fn uses() -> BTreeMap<String, Vec<(String, bool)>> {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--no-deps",
            "--offline",
            "--format-version",
            "1",
        ])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("metadata is JSON");
    let text = |value: &serde_json::Value| value.as_str().expect("a name").to_owned();
    let packages = metadata["packages"].as_array().expect("packages");
    let ours = |name: &str| packages.iter().any(|package| package["name"] == name);
    let of = |package: &serde_json::Value| {
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        dependencies
            .iter()
            .map(|dependency| (text(&dependency["name"]), dependency["kind"] == "dev"))
            .filter(|(name, _)| ours(name))
            .collect()
    };
    packages
        .iter()
        .map(|package| (text(&package["name"]), of(package)))
        .collect()
}

#[test]
fn crates_use_only_what_their_row_names() {
    let may_use = may_use();
    for (name, used) in uses() {
        if TOP.contains(&name.as_str()) {
            continue;
        }
        let row = may_use.get(&name);
        let allowed =
            row.unwrap_or_else(|| panic!("{name} has no row: add it here and to ARCHITECTURE.md"));
        for (other, only_tests) in used {
            assert!(
                only_tests || allowed.contains(&other),
                "{name} may not use {other}"
            );
        }
    }
}

#[test]
fn the_programs_that_users_run_have_no_simulator_and_no_benchmark() {
    for (name, used) in uses() {
        for (other, only_tests) in used {
            assert_ne!(other, "cenote", "used by {name}");
            let is_apart = !LABORATORY.contains(&other.as_str());
            let may_use = only_tests || LABORATORY.contains(&name.as_str());
            assert!(is_apart || may_use, "{other} is used by {name}");
        }
    }
}

#[test]
fn what_tests_share_is_used_by_tests_alone() {
    for (name, used) in uses() {
        for (other, only_tests) in used {
            assert!(other != TEST_KIT || only_tests, "used by {name}");
        }
    }
}

/// What has the crate for programs as a library of another language.
const LANGUAGES: [&str; 2] = ["cenote-c", "cenote-python"];

/// What is behind it may change: who uses it uses nothing else.
#[test]
fn the_crate_for_programs_is_used_by_tests_and_other_languages_alone() {
    for (name, used) in uses() {
        for (other, only_tests) in used {
            let may_use = only_tests || LANGUAGES.contains(&name.as_str());
            assert!(other != "cenote-client" || may_use, "used by {name}");
        }
    }
}

#[test]
fn every_row_names_a_crate_that_exists() {
    let uses = uses();
    for (name, allowed) in may_use() {
        assert!(uses.contains_key(&name), "{name}");
        for other in allowed {
            assert!(uses.contains_key(&other), "{other}");
        }
    }
}
