//! The library for C programs, against hosts that run: its example, compiled by gcc and watched by
//! valgrind, and what docs/guides/c.md says.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::Folder;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo put the library, a dependency of this test.
fn library() -> PathBuf {
    let own = std::env::current_exe().expect("our own file");
    let folder = own.parent().expect("a folder").to_owned();
    assert!(folder.join("libcenote_c.so").exists(), "{folder:?}");
    folder
}

fn is_there(program: &str) -> bool {
    let found = Command::new(program).arg("--version").output();
    if found.is_err() {
        println!("skipped: {program} is not installed (scripts/install-packages.sh test)");
    }
    found.is_ok()
}

fn said(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr];
    texts.map(|text| String::from_utf8_lossy(text)).join("\n")
}

/// Compiles the example; warnings are errors.
fn compiled(into: &Path) -> PathBuf {
    let program = into.join("pages");
    let output = Command::new("gcc")
        .args([
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-pedantic",
            "-g",
            "-o",
        ])
        .arg(&program)
        .arg(root().join("bindings/c/examples/pages.c"))
        .arg("-I")
        .arg(root().join("bindings/c/include"))
        .arg("-L")
        .arg(library())
        .arg("-lcenote_c")
        .output()
        .expect("gcc runs");
    assert!(output.status.success(), "{}", said(&output));
    program
}

#[test]
fn the_example_compiles_without_a_warning_and_keeps_to_its_own_memory() {
    if !is_there("gcc") || !is_there("valgrind") {
        return;
    }
    let folder = Folder::new();
    folder
        .run(&["up", "--hosts", "3", "--memory", "16M"])
        .expect(0);
    let program = compiled(folder.path());
    let output = Command::new("valgrind")
        .args(["--quiet", "--error-exitcode=99", "--fair-sched=try"])
        .args(["--leak-check=full", "--errors-for-leak-kinds=definite"])
        .arg(program)
        .arg(folder.path().join("cluster.toml"))
        .env("LD_LIBRARY_PATH", library())
        .output()
        .expect("valgrind runs");
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let expected = "8388608 bytes, 266240 stored on 3 hosts\nrefused: out of range\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
}

#[test]
fn the_example_says_why_where_no_cluster_is() {
    if !is_there("gcc") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let program = compiled(folder.path());
    let output = Command::new(program)
        .arg("/nowhere/cluster.toml")
        .env("LD_LIBRARY_PATH", library())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let expected = "open: the cluster file or its key cannot be read: read /nowhere/cluster.toml";
    assert!(said(&output).contains(expected), "{}", said(&output));
}

#[test]
fn the_guide_shows_the_example() {
    let read = |name: &str| fs::read_to_string(root().join(name)).expect(name);
    let guide = read("docs/guides/c.md");
    let (_, block) = guide.split_once("```c\n").expect("a block of C");
    let (block, _) = block.split_once("```").expect("its end");
    let bare = |text: &str| text.split_whitespace().collect::<String>();
    let example = bare(&read("bindings/c/examples/pages.c"));
    assert!(example.contains(&bare(block)), "{block}");
}
