//! What is aimed at, beside what was measured. Goals are printed and never decide anything.

use super::server::{OURS, Redundancy, Server};
use crate::Row;

/// A bound on the ratio of a row.
struct Goal {
    /// Between which stores.
    between: Between,
    /// Words that the case has.
    case: &'static [&'static str],
    /// Words of which it has none.
    without: &'static [&'static str],
    metric: &'static str,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Between {
    /// Our node and one memcached.
    Nodes,
    /// The same code, coded and in copies.
    CodedAndCopies,
    /// A coded group and memcached on as many processes.
    CodedAndMemcached,
}

#[derive(Clone, Copy)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// Stores, words of the case, words that it has not, the metric and its bound.
macro_rules! goals {
    ($($between:ident $($case:literal),+ $(without $without:literal)?:
        $metric:literal $bound:ident($than:literal);)*) => {
        [$(Goal {
            between: Between::$between,
            case: &[$($case),+],
            without: &[$($without)?],
            metric: $metric,
            bound: Bound::$bound($than),
        }),*]
    };
}

/// Memory: what coding 3+2 saves of three copies, less the metadata that is kept three times.
const GOALS: [Goal; 9] = goals! {
    Nodes "100:0", "depth 1": "throughput" AtLeast(1.0);
    Nodes "100:0", "depth 1": "get_p99" AtMost(1.0);
    Nodes "100:0", "depth" without "depth 1": "throughput" AtLeast(1.2);
    CodedAndCopies "50:50": "throughput" AtLeast(0.9);
    CodedAndMemcached "50:50": "throughput" AtLeast(0.5);
    CodedAndCopies "1 KiB": "resident_per_byte" AtMost(0.59);
    CodedAndCopies "4 KiB": "resident_per_byte" AtMost(0.57);
    CodedAndCopies "16 KiB": "resident_per_byte" AtMost(0.565);
    CodedAndCopies "zipf": "resident_per_byte" AtMost(0.8);
};

fn between(ours: &Server, peer: &Server) -> Option<Between> {
    match (ours.redundancy, peer.redundancy) {
        (Redundancy::None, Redundancy::None)
            if ours.name.contains(OURS) && peer.name.contains("memcached") =>
        {
            Some(Between::Nodes)
        }
        (Redundancy::Coded { .. }, Redundancy::Copies(_)) => Some(Between::CodedAndCopies),
        (Redundancy::Coded { .. }, Redundancy::None) if peer.name.contains("memcached") => {
            Some(Between::CodedAndMemcached)
        }
        _ => None,
    }
}

impl Goal {
    fn is_for(&self, between: Between, row: &Row) -> bool {
        // Whole words: "depth 1" is not in "depth 16".
        let case = format!(" {} ", row.case);
        let has = |words: &&str| case.contains(&format!(" {words} "));
        self.between == between
            && self.metric == row.metric
            && self.case.iter().all(has)
            && !self.without.iter().any(has)
    }

    fn is_reached(&self, ratio: f64) -> bool {
        match self.bound {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }
}

/// A line for each row that a goal is set for.
fn lines(servers: &[Server], rows: &[Row]) -> Vec<String> {
    let Some((ours, peers)) = servers.split_first() else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for row in rows {
        let peer = peers.iter().find(|peer| peer.name == row.peer);
        let Some(between) = peer.and_then(|peer| between(ours, peer)) else {
            continue;
        };
        for goal in GOALS.iter().filter(|goal| goal.is_for(between, row)) {
            let (word, bound) = match goal.bound {
                Bound::AtLeast(bound) => ("at least", bound),
                Bound::AtMost(bound) => ("at most", bound),
            };
            let end = if goal.is_reached(row.ratio) {
                "reached"
            } else {
                "missed"
            };
            lines.push(format!(
                "goal: {} {} {word} {bound} of {}: {:.3}, {end}",
                row.case, row.metric, row.peer, row.ratio
            ));
        }
    }
    lines
}

/// On stderr, as all that is said beside the rows.
pub(super) fn print(servers: &[Server], rows: &[Row]) {
    for line in lines(servers, rows) {
        eprintln!("{line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_beside_the_rows_that_it_is_for() {
        let coded: Server = "coded@3+2=memcached:x".parse().unwrap();
        let copies: Server = "copies@3x=memcached:x".parse().unwrap();
        let servers = [
            Server::ours().unwrap(),
            Server::memcached(),
            Server::redis(),
        ];
        let row = |case: &str, metric, peer: &Server, ratio: f64| {
            Row::new(("kv", case), (metric, ""), ratio, (peer.name.clone(), 1.0))
        };
        let rows = [
            row("x 1 KiB 100:0 depth 1", "throughput", &servers[1], 0.9),
            row("x 1 KiB 100:0 depth 16", "throughput", &servers[1], 1.3),
            row("x 1 KiB 100:0 depth 16", "get_p99", &servers[1], 1.3),
            row("x 1 KiB 95:5 depth 1", "throughput", &servers[1], 0.9),
            row("x 1 KiB 100:0 depth 1", "throughput", &servers[2], 0.9),
        ];
        let shown = lines(&servers, &rows);
        assert_eq!(shown.len(), 2, "{shown:?}");
        assert!(shown[0].ends_with("at least 1 of memcached -t 1: 0.900, missed"));
        assert!(shown[1].ends_with("at least 1.2 of memcached -t 1: 1.300, reached"));
        let rows = [
            row("coded 16 KiB", "resident_per_byte", &copies, 0.56),
            row("coded 1 KiB", "resident_per_byte", &copies, 0.60),
        ];
        let shown = lines(&[coded, copies], &rows);
        assert!(shown[0].ends_with("0.560, reached"), "{shown:?}");
        assert!(shown[1].ends_with("0.600, missed"), "{shown:?}");
    }
}
