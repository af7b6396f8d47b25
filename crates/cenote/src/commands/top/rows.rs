//! Samples as rows: what stands in which column, and what wants to be looked at.

use cenote_pool::control::HostStatus;
use serde_json::Value;

use super::sample::{Found, Host, Volume, Volumes};
use super::table::{Cell, Look, Row};
use crate::size::Size;

/// Columns of hosts.
pub const HOST_HEADER: [&str; 10] = [
    "HOST", "STATE", "LENT", "OF", "FREE", "PRESSURE", "LEFT", "HEADROOM", "EVICTED", "CLIENTS",
];

/// Columns of volumes.
pub const VOLUME_HEADER: [&str; 10] = [
    "VOLUME", "HEALTH", "SCHEME", "SIZE", "MAPPED", "STORED", "ACTIVITY", "READS/S", "WRITES/S",
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
            owned_details(&volume.name, status)
        }
        (None, Some(Err(why))) => format!("{}: {why}", volume.name),
        (None, _) => format!("{}: no process owns it", volume.name),
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
        repairs(status),
    ]
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
    let earlier = before.volumes.iter().find(|old| old.name == volume.name)?;
    let pages = value(volume)?.checked_sub(value(earlier)?)?;
    let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
    (seconds > 0.0).then(|| pages as f64 / seconds)
}

fn repairs(status: &Value) -> Cell {
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
    Cell::number(format!("{done}, {now} now"), rank).looking(Look::Warning)
}

fn owned_details(name: &str, status: &Value) -> String {
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
