//! The program itself, which the commands of `cenote` become.

use std::process::{Command, Output};

fn run(program: &std::path::Path, arguments: &[&str]) -> Output {
    let output = Command::new(program).args(arguments).output();
    output.expect("the program runs")
}

fn lab() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_BIN_EXE_cenote-lab"))
}

#[test]
fn completions_know_commands_and_their_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(lab(), &["completions", shell]);
        let said = String::from_utf8(output.stdout).unwrap();
        for word in ["cenote-lab", "bench", "codec", "transport", "migrate"] {
            assert!(said.contains(word), "{shell} lacks {word}");
        }
    }
}

/// Benchmarks start hosts by the program that a user would start them by.
#[test]
fn without_cenote_beside_it_a_benchmark_says_what_is_missing() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let alone = folder.path().join("cenote-lab");
    std::fs::hard_link(lab(), &alone).unwrap();
    let output = run(&alone, &["bench", "page", "--transport", "shm"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("/cenote: no such program"), "{said}");
    assert!(said.contains("it must be beside"), "{said}");
}

#[test]
fn a_benchmark_of_procedures_saves_what_it_measured() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (flags, keys) in [
        (
            &["--hops", "1", "--memory", "64"][..],
            &["hops", "p50_us"][..],
        ),
        (&["--filter"], &["selectivity_percent", "mb_per_second"]),
    ] {
        let file = folder.path().join("proc.jsonl");
        let mut command = Command::new(lab());
        command.args(["bench", "proc", "--transport", "shm", "--rounds", "1"]);
        command
            .args(["--variant", "native", "--json", "--save"])
            .arg(&file);
        let output = command.args(flags).output().expect("the program runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{said}");
        let saved = std::fs::read_to_string(&file).expect("a file");
        assert_eq!(saved, String::from_utf8(output.stdout).unwrap());
        let line = saved.lines().next().expect("a line");
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        for key in keys {
            assert!(!line[key].is_null(), "{key}: {line}");
        }
    }
}
