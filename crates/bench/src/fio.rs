//! fio, and what its report says.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

/// Runs fio on one job with these arguments; its report.
///
/// # Errors
/// fio is missing or the job fails; the message has fio's own words.
pub(super) fn fio(arguments: &[&str]) -> Result<Value> {
    let output = Command::new("fio")
        .args(["--name=bench", "--group_reporting", "--output-format=json"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .context("run fio (Debian package fio)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("fio {}: {}", arguments.join(" "), complaint.trim());
    }
    // An engine may print its own lines before the report.
    let start = text.find("\n{").map_or(0, |at| at + 1);
    let report: Value = serde_json::from_str(&text[start..]).context("read fio's report")?;
    let error = report["jobs"][0]["error"].as_i64();
    ensure!(
        error == Some(0),
        "fio {}: error {error:?}",
        arguments.join(" ")
    );
    Ok(report)
}

/// What is measured of a block size: operations per second of small ones, bytes of large ones.
pub(super) fn metric(block_bytes: u32) -> (&'static str, &'static str) {
    match block_bytes {
        SMALL_BYTES => ("rate", "iops"),
        _ => ("throughput", "MB/s"),
    }
}

/// The figure of [`metric`] for a pattern (`--rw`) in a report.
///
/// # Errors
/// The report has no such figure.
pub(super) fn figure(report: &Value, pattern: &str, block_bytes: u32) -> Result<f64> {
    let direction = match pattern {
        "randread" | "read" => "read",
        _ => "write",
    };
    let (field, scale) = match block_bytes {
        SMALL_BYTES => ("iops", 1.0),
        _ => ("bw_bytes", 1e-6),
    };
    let figure = report["jobs"][0][direction][field]
        .as_f64()
        .with_context(|| format!("read {direction}.{field} in fio's report"))?;
    Ok(figure * scale)
}

/// Blocks whose operations are counted, not their bytes.
const SMALL_BYTES: u32 = 4096;
