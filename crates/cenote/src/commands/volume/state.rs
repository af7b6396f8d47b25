//! How volumes are shown: the list of them, and each as its owner tells of it.

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use cenote_cli::failure::{DONE, Failure, NOT_WHOLE, chain, colours_of_results};
use cenote_cli::size::Size;
use cenote_cli::table::Table;
use cenote_volume::Left;
use serde_json::Value;

use crate::commands::set::describe_change;
use crate::volumes::{Question, Spec, Volumes};

/// Lists volumes, whether anybody serves them or not.
pub fn list(volumes: &Volumes, timeout: Duration, json: bool, out: &mut impl Write) -> Result<u8> {
    let mut rows = Vec::new();
    let mut table =
        Table::new(["VOLUME", "SIZE", "SCHEME", "STATE"]).coloured(colours_of_results());
    let mut are_known = true;
    for seen in volumes.statuses(timeout)? {
        let state = if seen.in_use { "in use" } else { "not in use" };
        // An owner that does not answer is one for `volume status`.
        let change = seen.status.as_ref().map(|status| status["change"].clone());
        let change = change.unwrap_or_default();
        let under_way = describe_change(&change).unwrap_or_default();
        let error = seen.error.as_ref().filter(|_| seen.spec.is_none());
        are_known &= error.is_none();
        let state = match error {
            Some(error) => format!("ERROR {error}"),
            None => format!("{state}{under_way}"),
        };
        let spec = serde_json::to_value(&seen.spec)?;
        let mut row = serde_json::json!({
            "name": seen.name, "size": spec["size"], "size_bytes": size_bytes(seen.spec.as_ref()),
            "scheme": spec["scheme"], "mode": spec["mode"],
            "delta": spec["delta"], "in_use": seen.in_use, "change": change,
        });
        if let Some(error) = error {
            row["error"] = error.as_str().into();
        }
        rows.push(row);
        let [size, scheme] = seen.size_and_scheme();
        table.row(vec![seen.name, size, scheme, state]);
    }
    if json {
        serde_json::to_writer_pretty(&mut *out, &rows)?;
        writeln!(out)?;
    } else {
        table.write(out)?;
    }
    Ok(if are_known { DONE } else { NOT_WHOLE })
}

/// Shows every volume in a line, those that nobody serves as well.
pub fn all(volumes: &Volumes, timeout: Duration, json: bool, out: &mut impl Write) -> Result<u8> {
    let mut table = Table::new(["VOLUME", "SIZE", "SCHEME", "STORED", "LENT", "STATE"])
        .coloured(colours_of_results());
    let (mut rows, mut are_whole) = (Vec::new(), true);
    for seen in volumes.statuses(timeout)? {
        let left = volumes.left_by(&seen);
        let error = seen.error.clone().or(left.as_ref().err().map(chain));
        let state = match (&error, &seen.status) {
            (Some(error), None) if seen.in_use && seen.spec.is_some() => {
                format!("its server does not answer: {error}")
            }
            (Some(error), _) => format!("ERROR {error}"),
            (None, Some(status)) => health(status),
            (None, None) => format!("not in use: {}", held(left.ok().flatten().as_ref())),
        };
        let status = seen.status.clone().unwrap_or_default();
        let whole = error.is_none() && (!seen.in_use || is_whole(&status));
        are_whole &= whole;
        let bytes = |field: &str| match status[field].as_u64() {
            Some(bytes) => Size(bytes).rounded(),
            None => "-".to_owned(),
        };
        let (stored, lent) = (bytes("stored_bytes"), bytes("lent_bytes"));
        let spec = serde_json::to_value(&seen.spec)?;
        rows.push(serde_json::json!({
            "name": seen.name, "size": spec["size"], "size_bytes": size_bytes(seen.spec.as_ref()),
            "scheme": spec["scheme"], "placement": spec["placement"], "in_use": seen.in_use, "whole": whole,
            "status": status, "error": error,
        }));
        let [size, scheme] = seen.size_and_scheme();
        table.row(vec![seen.name, size, scheme, stored, lent, state]);
    }
    if json {
        serde_json::to_writer_pretty(&mut *out, &rows)?;
        writeln!(out)?;
    } else {
        table.write(out)?;
    }
    Ok(if are_whole { DONE } else { NOT_WHOLE })
}

/// The size that a volume's file says; `None`: it says none.
fn size_bytes(spec: Option<&Spec>) -> Option<u64> {
    Some(spec?.size().ok()?.bytes())
}

/// What hosts hold of a volume that nobody serves.
fn held(left: Option<&Left>) -> String {
    match left {
        Some(left) => format!(
            "{} slabs on {} hosts for the next owner",
            left.slabs,
            left.hosts.len()
        ),
        None => "no slabs on any host".to_owned(),
    }
}

/// Shows one volume in full.
///
/// # Errors
/// Nobody serves it, or its server does not answer.
pub fn status(
    volumes: &Volumes,
    name: &str,
    timeout: Duration,
    json: bool,
    out: &mut impl Write,
) -> Result<u8> {
    let spec = volumes.load(name)?;
    if !volumes.is_owned(name)? {
        let held = held(volumes.left(name)?.as_ref());
        return Err(Failure::new(
            format!("volume {name} is not in use: {held}"),
            format!(
                "cenote nbd --volume {name} serves it, or cenote mount DIR --volume {name} if it \
                 has files"
            ),
        )
        .into());
    }
    let status = volumes.ask_within(name, Question::Status, timeout)?;
    if json {
        let whole = is_whole(&status);
        let object = serde_json::json!({
            "name": name, "size": spec.size, "size_bytes": size_bytes(Some(&spec)),
            "scheme": spec.scheme, "placement": spec.placement,
            "whole": whole, "status": status,
        });
        serde_json::to_writer_pretty(&mut *out, &object)?;
        writeln!(out)?;
    } else {
        print(out, name, &spec, &status)?;
    }
    Ok(if is_whole(&status) { DONE } else { NOT_WHOLE })
}

/// Whether every extent has all its slabs, no page is lost, and the next owner would find all of it. `status` is
/// what the owner of a volume answers: `cenote_volume::VolumeStatus` as JSON.
pub fn is_whole(status: &Value) -> bool {
    let is_known = status["journal"]["error"].is_null();
    status["health"] == "healthy" && lost_pages(status) == 0 && is_known
}

/// Pages that are errors until they are written whole.
fn lost_pages(status: &Value) -> u64 {
    status["torn_pages"].as_u64().unwrap_or(0)
}

/// What is wrong with a volume's journal, for people; nothing mostly.
fn describe_journal(journal: &Value) -> Option<String> {
    let error = journal["error"].as_str()?;
    let seconds = journal["failing_s"].as_u64().unwrap_or(0);
    Some(format!(
        "; writes wait, the journal has not been writable for {seconds} s ({error})"
    ))
}

/// What it expects of its hosts.
fn expectation(status: &Value) -> String {
    let (mode, delta) = (status["mode"].as_str(), status["delta"].as_u64());
    match (mode, delta) {
        (Some(mode), Some(delta)) => format!(" {mode} delta {delta}"),
        _ => String::new(),
    }
}

/// One line on how a volume is.
pub fn health(status: &Value) -> String {
    let extents = status["extents"].as_array().map_or(&[][..], Vec::as_slice);
    let health = match status["health"].as_str().unwrap_or("unknown") {
        // Of the slabs that it has; pages may be gone with those that it had.
        "healthy" if lost_pages(status) > 0 => "not whole",
        health => health,
    };
    let whole = extents
        .iter()
        .filter(|extent| extent["health"] == "healthy")
        .count();
    let change = describe_change(&status["change"]).unwrap_or_default();
    let lost = match lost_pages(status) {
        0 => String::new(),
        pages => format!(", {pages} pages lost (errors until completely overwritten)"),
    };
    let journal = describe_journal(&status["journal"]).unwrap_or_default();
    format!(
        "{health}, {whole} of {} extents whole{lost}{change}{journal}",
        extents.len()
    )
}

fn print(out: &mut impl Write, name: &str, spec: &Spec, status: &Value) -> Result<()> {
    let bytes = |field: &str| Size(status[field].as_u64().unwrap_or(0)).rounded();
    let placement = spec.placement.as_deref();
    let placement = placement.map(|text| format!(" {text}")).unwrap_or_default();
    writeln!(
        out,
        "{name}: {} {}{}{placement}, {}",
        spec.size,
        spec.scheme,
        expectation(status),
        health(status)
    )?;
    writeln!(
        out,
        "stored {}, lent {}, {:.3} bytes lent per byte of mapped extents ({})",
        bytes("stored_bytes"),
        bytes("lent_bytes"),
        status["overhead"].as_f64().unwrap_or(0.0),
        bytes("mapped_bytes"),
    )?;
    if let Some(backing) = status["backing"].as_object() {
        let number = |field: &str| backing[field].as_u64().unwrap_or(0);
        writeln!(
            out,
            "backing store: {} also on hosts, {} being written to disk, {} pages with failed disk \
             writes",
            Size(number("remote_bytes")).rounded(),
            Size(number("pending_bytes")).rounded(),
            number("stale_pages"),
        )?;
    }
    print_integrity(out, spec, status)?;
    let mut table = Table::new(["EXTENT", "HEALTH", "STORED", "PAGES/S", "REBUILT", "HOSTS"])
        .coloured(colours_of_results());
    for extent in status["extents"].as_array().into_iter().flatten() {
        let hosts = extent["hosts"].as_array().into_iter().flatten();
        let hosts: Vec<&str> = hosts.map(|host| host.as_str().unwrap_or("-")).collect();
        let rebuilt = extent["regenerated"].as_f64();
        table.row(vec![
            extent["index"].to_string(),
            extent["health"].as_str().unwrap_or("unknown").to_owned(),
            Size(extent["stored_bytes"].as_u64().unwrap_or(0)).rounded(),
            format!("{:.0}", extent["activity"].as_f64().unwrap_or(0.0)),
            rebuilt.map_or_else(|| "-".to_owned(), |share| format!("{:.0}%", share * 100.0)),
            hosts.join(" "),
        ]);
    }
    table.write(out)?;
    Ok(())
}

/// What was found wrong in hosts' memory; nothing where nothing was looked for and nothing found.
fn print_integrity(out: &mut impl Write, spec: &Spec, status: &Value) -> Result<()> {
    let number = |part: &str, field: &str| status[part][field].as_u64().unwrap_or(0);
    let wrong = number("integrity", "wrong_splits") + number("integrity", "corrupt_reads");
    if spec.protection.is_some() || wrong > 0 {
        writeln!(
            out,
            "protection: {}; {} wrong splits, {} repaired, {} reads failed",
            spec.protection.as_deref().unwrap_or("none"),
            number("integrity", "wrong_splits"),
            number("integrity", "healed_splits"),
            number("integrity", "corrupt_reads"),
        )?;
    }
    let last = &status["scrub"]["last"];
    if last.is_object() {
        writeln!(
            out,
            "last scrub: {} pages, {} wrong splits, {} repaired, {} pages corrupt",
            last["pages"], last["wrong_splits"], last["healed_splits"], last["corrupt_pages"],
        )?;
    }
    let hosts = status["hosts"].as_array().into_iter().flatten();
    for host in hosts.filter(|host| host["standing"].as_str().unwrap_or("trusted") != "trusted") {
        writeln!(
            out,
            "host {} is {}: it sent {} wrong splits",
            host["name"].as_str().unwrap_or("-"),
            standing(host["standing"].as_str().unwrap_or("-")),
            host["wrong_splits"],
        )?;
    }
    Ok(())
}

/// What people read for the standing that a status has.
fn standing(word: &str) -> &str {
    match word {
        "condemned" => "excluded",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_that_cannot_be_written_shows_in_every_view() {
        let mut status = serde_json::json!({
            "health": "healthy", "extents": [],
            "journal": {"error": null, "failing_s": null},
        });
        assert!(is_whole(&status));
        assert_eq!(health(&status), "healthy, 0 of 0 extents whole");
        status["journal"] = serde_json::json!({"error": "no room", "failing_s": 12});
        assert!(!is_whole(&status));
        let text = health(&status);
        assert!(
            text.ends_with("; writes wait, the journal has not been writable for 12 s (no room)"),
            "{text}"
        );
        // Of a volume that leaves nothing to a next owner.
        status["journal"] = Value::Null;
        assert!(is_whole(&status));
    }

    #[test]
    fn a_host_that_sent_wrong_splits_is_named_as_the_guides_name_it() {
        let spec = Spec::new(Size(2 << 30), "rs:8+2").unwrap();
        let status = serde_json::json!({"hosts": [
            {"name": "h00", "standing": "trusted", "wrong_splits": 0},
            {"name": "h01", "standing": "condemned", "wrong_splits": 7},
        ]});
        let mut out = Vec::new();
        print_integrity(&mut out, &spec, &status).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "host h01 is excluded: it sent 7 wrong splits\n");
    }

    #[test]
    fn a_degraded_extent_shows_in_every_view() {
        let status = serde_json::json!({
            "health": "degraded", "mode": "detection", "delta": 1, "overhead": 1.25, "stored_bytes": 4096, "lent_bytes": 10 << 20,
            "mapped_bytes": 8 << 20,
            "backing": {"remote_bytes": 8192, "pending_bytes": 4096, "stale_pages": 1},
            "extents": [
                {"index": 0, "health": "healthy", "stored_bytes": 4096, "hosts": ["h00", "h01"], "regenerated": null},
                {"index": 3, "health": "degraded", "activity": 21.4, "stored_bytes": 0, "hosts": ["h00", null], "regenerated": 0.5},
            ],
        });
        assert!(!is_whole(&status));
        assert_eq!(health(&status), "degraded, 1 of 2 extents whole");
        let spec = Spec {
            id: String::new(),
            size: "2G".to_owned(),
            scheme: "rs:8+2".to_owned(),
            mode: None,
            delta: None,
            placement: Some("coding-sets:2".to_owned()),
            protection: None,
            key: None,
        };
        let mut out = Vec::new();
        print(&mut out, "v0", &spec, &status).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains(
                "v0: 2G rs:8+2 detection delta 1 coding-sets:2, degraded, 1 of 2 extents whole"
            ),
            "{text}"
        );
        assert!(
            text.contains("8.00 KiB also on hosts, 4.00 KiB being written"),
            "{text}"
        );
        assert!(
            text.lines()
                .last()
                .unwrap()
                .ends_with("21       50%      h00 -"),
            "{text}"
        );
    }
}
