//! What a key may be while merges into it wait for tiers.

use std::collections::{BTreeMap, BTreeSet};

use cenote_cache::log::Ticket;

/// A number or none, and the merges that may still come.
pub type State = (Option<u64>, BTreeMap<Ticket, u64>);
pub type States = BTreeSet<State>;

/// All that may be once any of the merges have come.
pub fn closure(states: &States) -> States {
    let mut all = states.clone();
    let mut todo: Vec<State> = all.iter().cloned().collect();
    while let Some((number, merges)) = todo.pop() {
        for (ticket, operand) in &merges {
            let mut rest = merges.clone();
            rest.remove(ticket);
            let state = (Some(number.unwrap_or(0) + operand), rest);
            if all.insert(state.clone()) {
                todo.push(state);
            }
        }
    }
    all
}

pub fn numbers(states: &States) -> BTreeSet<Option<u64>> {
    closure(states)
        .into_iter()
        .map(|(number, _)| number)
        .collect()
}
