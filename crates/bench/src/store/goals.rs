//! What is aimed at, beside what was measured. Goals are printed and never decide anything.

use super::super::Row;
use super::contender::Way;
use super::figures::{Case, promise};

/// A least ratio of throughputs.
struct Goal {
    peer: &'static str,
    /// Of 100 requests.
    get_percent: u8,
    /// Of ours; none: any.
    transport: Option<&'static str>,
    clients: Option<usize>,
    least: f64,
}

const GOALS: [Goal; 3] = [
    Goal {
        peer: "redis-always",
        get_percent: 0,
        transport: None,
        clients: Some(32),
        least: 1.5,
    },
    Goal {
        peer: "redis-everysec",
        get_percent: 0,
        transport: None,
        clients: None,
        least: 2.0,
    },
    Goal {
        peer: "redis-everysec",
        get_percent: 100,
        transport: Some("shm"),
        clients: None,
        least: 3.0,
    },
];

/// What is said of a row of throughputs, if something is aimed at.
pub(super) fn line(case: Case, (ours, peer): (&Way, &Way), row: &Row) -> Option<String> {
    let goal = GOALS.iter().find(|goal| {
        goal.peer == peer.scheme
            && goal.get_percent == case.mix.get_percent
            && goal.transport.is_none_or(|one| one == ours.transport)
            && goal.clients.is_none_or(|one| one == case.clients)
    })?;
    let what = match goal.get_percent {
        100 => "get",
        _ => promise(ours.promise),
    };
    let end = if row.ratio >= goal.least {
        "reached"
    } else {
        "missed"
    };
    Some(format!(
        "goal: {what}: {}: at least {} of {}: {:.2}, {end}",
        row.case, goal.least, row.peer, row.ratio
    ))
}
