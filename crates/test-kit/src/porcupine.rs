//! Porcupine as the judge of a history, built with modules that are kept under `target`.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The judge. `tmpdir` is the test's `CARGO_TARGET_TMPDIR`, beside which it is kept.
///
/// # Errors
/// Why there is none here.
///
/// # Panics
/// If it does not compile.
pub fn judge(tmpdir: &str) -> Result<PathBuf, String> {
    static JUDGE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    JUDGE.get_or_init(|| build_judge(Path::new(tmpdir))).clone()
}

fn build_judge(tmpdir: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/porcupine");
    let kept = tmpdir.join("../go");
    let program = kept.join("porcupine");
    let output = Command::new("go")
        .args(["build", "-mod=readonly", "-modcacherw", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .env("GOMODCACHE", kept.join("modules"))
        .env("GOCACHE", kept.join("build"))
        .env("CGO_ENABLED", "0")
        .output()
        .map_err(|error| format!("go is not installed ({error})"))?;
    if output.status.success() {
        return Ok(program);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    // Without the module there is no judge; a program that does not compile is a failure.
    let is_offline = ["dial tcp", "lookup ", "no such host", "i/o timeout"]
        .iter()
        .any(|sign| complaint.contains(sign));
    assert!(is_offline, "go build: {complaint}");
    Err(format!("Porcupine cannot be fetched: {}", complaint.trim()))
}

/// Exit code and words of the judge, of a history as it is written.
///
/// # Panics
/// If the history cannot be written, or the judge cannot be run.
pub fn judged(judge: &Path, write: impl FnOnce(&mut &File) -> io::Result<()>) -> (i32, String) {
    let file = tempfile::NamedTempFile::new().unwrap();
    write(&mut file.as_file()).unwrap();
    let output = Command::new(judge).arg(file.path()).output().unwrap();
    let words = String::from_utf8(output.stdout).unwrap();
    (output.status.code().unwrap(), words)
}
