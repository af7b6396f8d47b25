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
