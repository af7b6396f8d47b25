//! Key-value nodes as rows.

use cenote_cli::size::Size;

use super::rows::time_left;
use super::table::{Cell, Look, Row};
use crate::commands::kv::status::{NodeStatus, State};
use crate::sample::Nodes;

/// Columns of key-value nodes.
pub const NODE_HEADER: [&str; 8] = [
    "NODE", "STATE", "OWNS", "STORED", "VALUES", "PARITY", "TABLES", "MISSING",
];

/// A node. What it lacks is told with the time that it takes at the rate of the last interval.
pub fn node(node: &NodeStatus, now: &Nodes, before: Option<&Nodes>) -> Row {
    let (state, look) = match node.state {
        State::Up => ("up", Look::Plain),
        State::Draining => ("draining", Look::Warning),
        State::Silent => ("silent", Look::Bad),
        State::Down => ("down", Look::Bad),
    };
    let mut cells = vec![
        Cell::text(&node.name),
        Cell::text(state).looking(look),
        Cell::number(node.owned.to_string(), node.owned as f64),
    ];
    if let Some(memory) = node.memory {
        let bytes = [memory.stored, memory.values, memory.parity, memory.tables];
        cells.extend(bytes.map(|bytes| Cell::number(Size(bytes).rounded(), bytes as f64)));
        cells.push(missing(node, now, before));
    }
    cells.resize(NODE_HEADER.len(), Cell::unknown());
    let planned = node.planned.join(" ");
    let why = node.error.as_ref().map(|why| format!("; {why}"));
    Row {
        name: node.name.clone(),
        cells,
        details: format!(
            "{}: planned for {planned}{}",
            node.name,
            why.unwrap_or_default()
        ),
    }
}

fn missing(node: &NodeStatus, now: &Nodes, before: Option<&Nodes>) -> Cell {
    let bytes = node.missing_bytes();
    let text = Size(bytes).rounded();
    if bytes == 0 {
        return Cell::number(text, 0.0);
    }
    let earlier = before.and_then(|before| {
        let found = before.nodes.iter().find(|one| one.name == node.name)?;
        let seconds = now.at.saturating_duration_since(before.at).as_secs_f64();
        let came = found.missing_bytes().checked_sub(bytes)?;
        Some(came as f64 / seconds)
    });
    let left = earlier.and_then(|rate| time_left(bytes as f64, rate));
    let left = left
        .map(|left| format!(", {left} left"))
        .unwrap_or_default();
    Cell::number(format!("{text}{left}"), bytes as f64).looking(Look::Warning)
}
