//! Compiles `src/library.rs` to a shared object: cargo builds no library of that kind for a binary
//! that wants its bytes. It has no dependencies, so the compiler alone is enough.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let target = variable("TARGET");
    let output = PathBuf::from(variable("OUT_DIR")).join("libcenote_preload.so");
    if !(target.starts_with("x86_64") && target.ends_with("linux-gnu")) {
        // `cenote run` says that it is not for this machine.
        std::fs::write(&output, []).expect("OUT_DIR can be written");
        return;
    }
    let mut rustc = Command::new(variable("RUSTC"));
    rustc
        .args(["--edition", "2024", "--crate-type", "cdylib"])
        .args([
            "--crate-name",
            "cenote_preload_library",
            "--cap-lints",
            "allow",
        ])
        .args([
            "-C",
            "panic=abort",
            "-C",
            "opt-level=2",
            "-C",
            "lto=fat",
            "-C",
            "codegen-units=1",
        ])
        .args(["--target", &target, "src/library.rs", "-o"])
        .arg(&output);
    if let Ok(linker) = std::env::var("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={linker}"));
    }
    let status = rustc.status().expect("the compiler that cargo uses runs");
    assert!(status.success(), "src/library.rs does not compile");
}
