//! Words of operators, to a store that others change.

use cenote_kv::group::view::{Parity, Scheme};

use super::super::config::VERSION;
use super::super::store::memory::Memory;
use super::*;

fn process(node: u32, incarnation: u64) -> Process {
    Process { node, incarnation }
}

#[test]
fn all_of_a_group_begins_on_its_plan_and_on_others_for_those_that_are_missing() {
    let before = View::first(
        Scheme::Coded,
        &[process(0, 1), process(1, 1)],
        &[process(2, 1)],
    );
    let spares = [process(1, 7), process(2, 8), process(5, 9)];
    let Step::To(Reset::AllBegun(players), view) = reset_all(&before, &spares, &[0, 1, 2]) else {
        panic!("there are enough");
    };
    assert_eq!(players, [process(5, 9), process(1, 7), process(2, 8)]);
    assert_eq!((view.number, view.begun), (2, vec![2, 2]));
    let full = Parity::Full {
        process: process(2, 8),
        since: 2,
    };
    assert_eq!(view.parities, [full]);
    let few = reset_all(&before, &spares[..2], &[0, 1, 2]);
    assert!(matches!(few, Step::None(Reset::NoNode)));
}

fn keys() -> DocumentKeys {
    DocumentKeys::of("test").unwrap()
}

/// Registers a process; the revision of its key.
fn register(store: &Memory, process: Process) -> i64 {
    let registration = Registration {
        version: VERSION,
        name: format!("n{}", process.node),
        clients: Vec::new(),
        peers: vec![([127, 0, 0, 1], 1).into()],
        incarnation: process.incarnation,
        state: NodeState::Up,
    };
    let key = keys().node(NodeId(process.node));
    store.put(&key, &registration.to_bytes())
}

fn write(store: &Memory, view: &View) {
    let mut bytes = BytesMut::new();
    encode_view(view, &mut bytes);
    store.put(&keys().view(0), &bytes);
}

fn written(store: &Memory) -> View {
    view_of(&store.entry(&keys().view(0)).unwrap()).unwrap()
}

/// A group of three nodes.
fn group() -> (Vec<Process>, View) {
    let all: Vec<Process> = (0..3).map(|node| process(node, 1)).collect();
    let view = View::first(Scheme::Coded, &all[..2], &all[2..]);
    (all, view)
}

fn sight(latest: Option<View>) -> Sight<'static> {
    Sight {
        homes: &[0, 1, 2],
        latest,
        nothing: View::nothing(Scheme::Coded, 2, 1),
        is_heard: &|_| false,
    }
}

#[test]
fn a_view_that_is_older_than_the_nodes_own_is_no_word_of_the_group() {
    let (all, view) = group();
    let store = Memory::default();
    all.iter().for_each(|process| {
        register(&store, *process);
    });
    write(&store, &view);
    let latest = View {
        number: view.number + 2,
        ..view.clone()
    };
    let done = keys().begin_reset(&store, 0, &sight(Some(latest.clone())));
    let restored = raised(&latest);
    assert_eq!(done.unwrap(), Reset::Restored(restored.number));
    assert_eq!(written(&store), restored);
    // And it stands: the nodes' word is the older one now.
    let done = keys().begin_reset(&store, 0, &sight(Some(latest)));
    assert_eq!(done.unwrap(), Reset::Nothing);
    assert_eq!(written(&store), restored);
}

#[test]
fn who_registers_just_before_it_would_be_given_up_is_not() {
    let (all, view) = group();
    for is_all in [false, true] {
        let store = Memory::default();
        write(&store, &view);
        // Two have gone, or all, and others could take their places.
        let there = if is_all { 0 } else { 1 };
        for process in all[..there]
            .iter()
            .chain(&[process(5, 1), process(6, 1), process(7, 1)])
        {
            register(&store, *process);
        }
        let back = all.clone();
        store.before_swap(move |store| {
            back.iter().for_each(|process| {
                register(store, *process);
            });
        });
        let done = keys().begin_reset(&store, 0, &sight(None)).unwrap();
        assert_eq!(done, Reset::Nothing);
        assert_eq!(written(&store), view);
    }
}

#[test]
fn a_later_process_of_who_is_given_up_holds_nothing_up() {
    let (all, view) = group();
    let store = Memory::default();
    write(&store, &view);
    for process in [all[0], process(1, 2), process(2, 2)] {
        register(&store, process);
    }
    let done = keys().begin_reset(&store, 0, &sight(None)).unwrap();
    assert_eq!(done, Reset::GivenUp(all[1..].to_vec()));
}
