//! Who may use whom. The table is the one of docs/ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::process::Command;

/// Each crate below the top, and what it may use at run time.
const MAY_USE: &[(&str, &[&str])] = &[
    ("cenote-codec", &[]),
    ("cenote-durable", &[]),
    ("cenote-latency", &[]),
    ("cenote-wire", &[]),
    ("cenote-pool", &["cenote-wire"]),
    ("cenote-verbs", &[]),
    (
        "cenote-fabric",
        &["cenote-durable", "cenote-verbs", "cenote-wire"],
    ),
    (
        "cenote-host",
        &[
            "cenote-pool",
            "cenote-fabric",
            "cenote-codec",
            "cenote-durable",
            "cenote-proc",
        ],
    ),
    (
        "cenote-volume",
        &[
            "cenote-latency",
            "cenote-pool",
            "cenote-fabric",
            "cenote-codec",
            "cenote-durable",
        ],
    ),
    ("cenote-fuse", &[]),
    (
        "cenote-block",
        &["cenote-volume", "cenote-fabric", "cenote-fuse"],
    ),
    (
        "cenote-client",
        &[
            "cenote-volume",
            "cenote-cache",
            "cenote-store",
            "cenote-fabric",
            "cenote-pool",
        ],
    ),
    ("cenote-c", &["cenote-client"]),
    ("cenote-python", &["cenote-client"]),
    (
        "cenote-vfs",
        &["cenote-volume", "cenote-pool", "cenote-fuse"],
    ),
    (
        "cenote-store",
        &[
            "cenote-fabric",
            "cenote-latency",
            "cenote-pool",
            "cenote-wire",
        ],
    ),
    ("cenote-preload", &[]),
    (
        "cenote-pager",
        &["cenote-volume", "cenote-pool", "cenote-preload"],
    ),
    (
        "cenote-cache",
        &[
            "cenote-pool",
            "cenote-fabric",
            "cenote-durable",
            "cenote-proc",
            "cenote-wire",
        ],
    ),
    ("cenote-proc-sdk", &[]),
    (
        "cenote-proc",
        &["cenote-proc-sdk", "cenote-fabric", "cenote-wire"],
    ),
    (
        "cenote-kv",
        &["cenote-pool", "cenote-fabric", "cenote-codec"],
    ),
    (
        "cenote-memcached",
        &["cenote-kv", "cenote-latency", "cenote-fabric"],
    ),
    (
        "cenote-kv-cluster",
        &[
            "cenote-kv",
            "cenote-memcached",
            "cenote-pool",
            "cenote-fabric",
            "cenote-codec",
        ],
    ),
    ("cenote-measure", &[]),
    ("cenote-plan", &["cenote-measure", "cenote-pool"]),
    ("cenote-cli", &[]),
    (
        "cenote-measurer",
        &[
            "cenote-cache",
            "cenote-cli",
            "cenote-durable",
            "cenote-fabric",
            "cenote-host",
            "cenote-pool",
        ],
    ),
    (
        "cenote-sim",
        &[
            "cenote-cache",
            "cenote-codec",
            "cenote-fabric",
            "cenote-host",
            "cenote-kv",
            "cenote-kv-cluster",
            "cenote-measure",
            "cenote-pool",
            "cenote-store",
            "cenote-volume",
        ],
    ),
    (
        "cenote-bench",
        &[
            "cenote-block",
            "cenote-cache",
            "cenote-cli",
            "cenote-codec",
            "cenote-fabric",
            "cenote-measure",
            "cenote-pager",
            "cenote-pool",
            "cenote-store",
            "cenote-vfs",
            "cenote-volume",
        ],
    ),
    (
        "cenote-papers",
        &[
            "cenote-bench",
            "cenote-fabric",
            "cenote-measure",
            "cenote-plan",
            "cenote-pool",
            "cenote-sim",
            "cenote-store",
            "cenote-volume",
        ],
    ),
    (TEST_KIT, &["cenote-fabric", "cenote-host", "cenote-volume"]),
];
/// For tests: no program has a line of it.
const TEST_KIT: &str = "cenote-test-kit";
/// Programs: they may use everything but each other, and nobody uses them.
const TOP: [&str; 2] = ["cenote-lab", "cenote"];
/// What the programs that users run have no line of.
const LABORATORY: [&str; 4] = ["cenote-bench", "cenote-lab", "cenote-papers", "cenote-sim"];

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
    for (name, used) in uses() {
        if TOP.contains(&name.as_str()) {
            continue;
        }
        let row = MAY_USE.iter().find(|(row, _)| *row == name);
        let (_, allowed) =
            row.unwrap_or_else(|| panic!("{name} has no row: add it here and to ARCHITECTURE.md"));
        for (other, only_tests) in used {
            assert!(
                only_tests || allowed.contains(&other.as_str()),
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
    for (name, allowed) in MAY_USE {
        assert!(uses.contains_key(*name), "{name}");
        for other in *allowed {
            assert!(uses.contains_key(*other), "{other}");
        }
    }
}
