//! Samples as rows: what stands in which column, and what wants to be looked at.

use std::time::Duration;

use cenote_cli::size::Size;
use cenote_cli::span::Span;
use cenote_pool::control::HostStatus;
use serde_json::Value;

use super::table::{Cell, Look, Row};
use crate::commands::set::describe_change;
use crate::sample::{Found, Host, Volume, Volumes};

/// Columns of hosts.
pub const HOST_HEADER: [&str; 10] = [
    "HOST", "STATE", "LENT", "OF", "FREE", "PRESSURE", "LEFT", "HEADROOM", "EVICTED", "CLIENTS",
];

/// Columns of volumes.
pub const VOLUME_HEADER: [&str; 12] = [
    "VOLUME",
    "HEALTH",
    "SCHEME",
    "SIZE",
    "MAPPED",
    "STORED",
    "ACTIVITY",
    "READS/S",
    "WRITES/S",
    "READ P99",
    "WRITE P99",
    "REPAIRS",
];

/// A host. Memory of the machine is told by hosts that look at it.
pub fn host(host: &Host) -> Row {
    let (state, why) = match &host.found {
        Found::Up(status) => return answering(host, status),
        Found::Silent(why) => ("silent", why),
        Found::Ended(why) => ("ended", why),
        Found::Unreachable(why) => ("unreachable", why),
    };
    let mut cells = vec![Cell::text(&host.name), Cell::text(state).looking(Look::Bad)];
    cells.resize(HOST_HEADER.len(), Cell::unknown());
    Row {
        name: host.name.clone(),
        cells,
        details: format!("{}: {}: {why}", host.name, host.address),
    }
}

fn answering(host: &Host, status: &HostStatus) -> Row {
    let pressure = &status.pressure;
    let state = if status.draining {
        Cell::text("draining").looking(Look::Warning)
    } else {
        Cell::text("up")
    };
    let mut cells = vec![
        Cell::text(&host.name),
        state,
        bytes(status.lent_bytes),
        bytes(status.memory_bytes),
        bytes(free_bytes(status)),
    ];
    if pressure.watched {
        cells.extend([used(status), left(status), bytes(pressure.headroom_bytes)]);
    } else {
        cells.extend([Cell::unknown(), Cell::unknown(), Cell::unknown()]);
    }
    cells.push(evicted(status));
    cells.push(Cell::number(
        status.clients_total.to_string(),
        status.clients_total,
    ));
    let slabs = &status.slabs;
    let details = format!(
        "{}: {}, domain {}, slabs of {}: {} mapped, {} orphaned, {} prepared, {} preparing, {} free, \
         {} retired; at most {} now; {} asked back so far, {} taken; up {} s",
        host.name,
        host.address,
        status.domain,
        Size(status.slab_bytes),
        slabs.mapped,
        slabs.orphaned,
        slabs.prepared,
        slabs.preparing,
        slabs.free,
        slabs.retired,
        if pressure.watched {
            pressure.slabs_max
        } else {
            slabs.total()
        },
        pressure.evictions_asked,
        pressure.slabs_taken,
        status.uptime_s,
    );
    Row {
        name: host.name.clone(),
        cells,
        details,
    }
}

/// What it could lend without anybody losing any.
pub fn free_bytes(status: &HostStatus) -> u64 {
    u64::from(status.slabs_free()).saturating_mul(status.slab_bytes)
}

/// Share of the machine's memory that all others use.
fn used(status: &HostStatus) -> Cell {
    let pressure = &status.pressure;
    if pressure.total_bytes == 0 {
        return Cell::unknown();
    }
    let share = pressure.used_bytes as f64 / pressure.total_bytes as f64;
    let percent = format!("{:.0} %", share * 100.0);
    if pressure.stalled {
        return Cell::number(format!("{percent} stalled"), share).looking(Look::Bad);
    }
    Cell::number(percent, share)
}

fn left(status: &HostStatus) -> Cell {
    let pressure = &status.pressure;
    let look = if pressure.free_bytes < pressure.floor_bytes {
        Look::Bad
    } else if pressure.free_bytes < pressure.headroom_bytes {
        Look::Warning
    } else {
        Look::Plain
    };
    bytes(pressure.free_bytes).looking(look)
}

fn evicted(status: &HostStatus) -> Cell {
    let pressure = &status.pressure;
    let done = pressure.evictions_done;
    let rank = done as f64;
    if pressure.asked_back == 0 {
        return Cell::number(done.to_string(), rank);
    }
    let text = format!("{done}, {} asked", pressure.asked_back);
    Cell::number(text, rank).looking(Look::Warning)
}

fn bytes(bytes: u64) -> Cell {
    Cell::number(Size(bytes).rounded(), bytes as f64)
}

/// A volume, with rates since `before`.
pub fn volume(volume: &Volume, now: &Volumes, before: Option<&Volumes>) -> Row {
    let (health, status) = match &volume.status {
        Some(Ok(status)) => (health(status), Some(status)),
        Some(Err(_)) => (Cell::text("no answer").looking(Look::Bad), None),
        None => (Cell::text("not in use").looking(Look::Faint), None),
    };
    let mut cells = vec![Cell::text(&volume.name), health, Cell::text(&volume.scheme)];
    let details = match (status, &volume.status) {
        (Some(status), _) => {
            cells.extend(owned(volume, status, now, before));
            owned_details(volume, status, now, before)
        }
        (None, Some(Err(why))) => format!("{}: {why}", volume.name),
        (None, _) => format!("{}: not in use", volume.name),
    };
    if status.is_none() {
        let size = volume
            .size
            .parse()
            .map_or(Cell::unknown(), |size: Size| bytes(size.bytes()));
        cells.push(size);
        cells.resize(VOLUME_HEADER.len(), Cell::unknown());
    }
    Row {
        name: volume.name.clone(),
        cells,
        details,
    }
}

fn health(status: &Value) -> Cell {
    let health = status["health"].as_str().unwrap_or("unknown");
    let look = match health {
        "healthy" => Look::Plain,
        "regenerating" | "degraded" => Look::Warning,
        _ => Look::Bad,
    };
    Cell::text(health).looking(look)
}

/// From the size on.
fn owned(volume: &Volume, status: &Value, now: &Volumes, before: Option<&Volumes>) -> Vec<Cell> {
    let figure = |field: &str| status[field].as_u64().map_or(Cell::unknown(), bytes);
    let rate = |counter: &str| {
        let rate = before.and_then(|before| rate(volume, counter, now, before));
        rate.map_or(Cell::unknown(), |rate| {
            Cell::number(format!("{rate:.0}"), rate)
        })
    };
    vec![
        figure("size_bytes"),
        figure("mapped_bytes"),
        figure("stored_bytes"),
        activity(status),
        rate("pages_read"),
        rate("pages_written"),
        latency(volume, "read", before),
        latency(volume, "write", before),
        repairs(volume, status, now, before),
    ]
}

/// What 99 of 100 requests of a page did not pass in the last interval. Unknown when there were none.
fn latency(volume: &Volume, kind: &str, before: Option<&Volumes>) -> Cell {
    let earlier = before.and_then(|before| earlier_of(volume, before));
    let p99_ns = earlier.and_then(|earlier| {
        let then = histogram(earlier, kind);
        let mut came = histogram(volume, kind);
        for (upper, count) in &mut came {
            let known = then.iter().find(|(known, _)| known == upper);
            // Less than before: another owner.
            *count = count.checked_sub(known.map_or(0, |(_, count)| *count))?;
        }
        let all: u64 = came.iter().map(|(_, count)| count).sum();
        let rank = (all * 99).div_ceil(100);
        let mut seen = 0;
        let within = came.iter().find(|(_, count)| {
            seen += count;
            all > 0 && seen >= rank
        });
        within.map(|(upper, _)| *upper)
    });
    p99_ns.map_or(Cell::unknown(), |ns| {
        let text = match ns {
            ..1_000_000 => format!("{:.1} us", ns as f64 / 1e3),
            _ => format!("{:.1} ms", ns as f64 / 1e6),
        };
        Cell::number(text, ns as f64)
    })
}

/// Longest duration of each bucket in nanoseconds, and how many are in it.
fn histogram(volume: &Volume, kind: &str) -> Vec<(u64, u64)> {
    let Some(Ok(status)) = &volume.status else {
        return Vec::new();
    };
    let buckets = status["latency"][kind]["buckets"].as_array();
    let buckets = buckets.into_iter().flatten();
    let pair = |bucket: &Value| Some((bucket[0].as_u64()?, bucket[1].as_u64()?));
    buckets.filter_map(pair).collect()
}

fn earlier_of<'a>(volume: &Volume, before: &'a Volumes) -> Option<&'a Volume> {
    before.volumes.iter().find(|old| old.name == volume.name)
}

/// How long so much takes at this rate per second; `None` where nothing moves.
pub fn time_left(amount: f64, per_second: f64) -> Option<Span> {
    let seconds = amount / per_second;
    let is_sure = per_second > 0.0 && seconds < 1e7;
    is_sure.then(|| Span::from(Duration::from_secs(seconds.ceil() as u64)))
}

fn extents(status: &Value) -> &[Value] {
    status["extents"].as_array().map_or(&[], Vec::as_slice)
}

/// Page reads and writes per second, smoothed, of all extents.
fn activity(status: &Value) -> Cell {
    let mut known = extents(status)
        .iter()
        .map(|extent| extent["activity"].as_f64());
    // `sum` of no floating-point number is -0.
    let sum = known.try_fold(0.0, |sum, activity| Some(sum + activity?));
    sum.map_or(Cell::unknown(), |sum| {
        Cell::number(format!("{sum:.0}"), sum)
    })
}

/// Pages per second. Unknown when the volume had no owner then, or another one.
fn rate(volume: &Volume, counter: &str, now: &Volumes, before: &Volumes) -> Option<f64> {
    let value = |volume: &Volume| match &volume.status {
        Some(Ok(status)) => status["counters"][counter].as_u64(),
        _ => None,
    };
    let earlier = earlier_of(volume, before)?;
    let pages = value(volume)?.checked_sub(value(earlier)?)?;
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    (seconds > 0.0).then(|| pages as f64 / seconds)
}

fn repairs(volume: &Volume, status: &Value, sampled: &Volumes, before: Option<&Volumes>) -> Cell {
    let Some(done) = status["counters"]["slabs_rebuilt"].as_u64() else {
        return Cell::unknown();
    };
    let now = extents(status)
        .iter()
        .filter(|extent| extent["health"] == "regenerating")
        .count();
    let rank = done as f64;
    if now == 0 {
        return Cell::number(done.to_string(), rank);
    }
    let per_second = before.and_then(|before| rate(volume, "rebuilt_bytes", sampled, before));
    let left = per_second.and_then(|rate| time_left(to_rebuild(status), rate));
    let left = left
        .map(|left| format!(", {left} left"))
        .unwrap_or_default();
    Cell::number(format!("{done}, {now} now{left}"), rank).looking(Look::Warning)
}

/// Bytes of slabs that are missing, or on their way.
fn to_rebuild(status: &Value) -> f64 {
    let slab_bytes = status["slab_bytes"].as_f64().unwrap_or(0.0);
    let slabs = extents(status).iter().map(|extent| {
        let hosts = extent["hosts"].as_array().into_iter().flatten();
        let missing = hosts.filter(|host| host.is_null()).count() as f64;
        match extent["regenerated"].as_f64() {
            Some(share) => missing.max(1.0) - share,
            None => missing,
        }
    });
    slabs.sum::<f64>() * slab_bytes
}

fn owned_details(
    volume: &Volume,
    status: &Value,
    now: &Volumes,
    before: Option<&Volumes>,
) -> String {
    let name = &volume.name;
    let hosts = status["hosts"].as_array().map_or(&[][..], Vec::as_slice);
    let connected = hosts
        .iter()
        .filter(|host| host["connected"] == true)
        .count();
    let extents = extents(status);
    let whole = extents
        .iter()
        .filter(|extent| extent["health"] == "healthy")
        .count();
    let counter = |name: &str| status["counters"][name].as_u64().unwrap_or(0);
    let mut details = format!(
        "{name}: {whole} of {} extents whole, {connected} of {} hosts connected, {} lent, {} pages \
         decoded, {} slabs moved, {} requests failed",
        extents.len(),
        hosts.len(),
        Size(status["lent_bytes"].as_u64().unwrap_or(0)).rounded(),
        counter("pages_decoded"),
        counter("slabs_moved"),
        counter("requests_failed"),
    );
    if let Some(change) = describe_change(&status["change"]) {
        details += &change;
        let left = before.and_then(|before| change_left(volume, status, now, before));
        details += &left
            .map(|left| format!(", {left} left"))
            .unwrap_or_default();
    }
    let backing = &status["backing"];
    if backing.is_object() {
        let bytes = |field: &str| Size(backing[field].as_u64().unwrap_or(0)).rounded();
        details += &format!(
            "; backed: {} on hosts too, {} not on the disk yet, {} slabs dropped",
            bytes("remote_bytes"),
            bytes("pending_bytes"),
            counter("slabs_dropped"),
        );
    }
    details
}

/// How long a change of the scheme takes at the rate of the last interval.
fn change_left(volume: &Volume, status: &Value, now: &Volumes, before: &Volumes) -> Option<Span> {
    let Some(Ok(earlier)) = &earlier_of(volume, before)?.status else {
        return None;
    };
    let left = |status: &Value| {
        let change = &status["change"];
        change["bytes"]
            .as_u64()?
            .checked_sub(change["bytes_done"].as_u64()?)
    };
    let (bytes, before_bytes) = (left(status)?, left(earlier)?);
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    time_left(
        bytes as f64,
        before_bytes.checked_sub(bytes)? as f64 / seconds,
    )
}
