use proptest::prelude::*;

use super::*;

const PEER: NodeId = NodeId(1);

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// A detector that knows one peer, connected at the start.
fn connected(start: Instant) -> Detector {
    let mut detector = Detector::new(Settings::default());
    detector.add(PEER, start);
    detector.handle_connected(PEER, start);
    detector
}

fn probes(actions: &[Action]) -> Vec<u64> {
    let number = |action: &Action| match action {
        Action::Probe { number, .. } => Some(*number),
        Action::Changed { .. } => None,
    };
    actions.iter().filter_map(number).collect()
}

/// Polls at every deadline up to `end`, and then: the changes, and when each came.
fn poll_until(detector: &mut Detector, end: Instant) -> Vec<(Instant, State)> {
    let mut found = Vec::new();
    loop {
        let now = detector.next_deadline().map_or(end, |due| due.min(end));
        let states = changes(&detector.poll(now));
        found.extend(states.into_iter().map(|state| (now, state)));
        if now == end {
            return found;
        }
    }
}

fn changes(actions: &[Action]) -> Vec<State> {
    let state = |action: &Action| match action {
        Action::Changed { state, .. } => Some(*state),
        Action::Probe { .. } => None,
    };
    actions.iter().filter_map(state).collect()
}

#[test]
fn a_peer_is_probed_at_the_interval_while_there_is_a_connection() {
    let start = Instant::now();
    let mut detector = Detector::new(Settings::default());
    assert_eq!(
        (detector.poll(start), detector.next_deadline()),
        (vec![], None)
    );
    detector.add(PEER, start);
    assert_eq!(detector.poll(start), []);
    assert_eq!(detector.state(PEER), Some(State::Suspect(Cause::NeverMet)));
    detector.handle_connected(PEER, start);
    let first = detector.poll(start);
    assert_eq!(
        (changes(&first), probes(&first)),
        (vec![State::Alive], vec![1])
    );
    assert_eq!(detector.next_deadline(), Some(start + ms(50)));
    assert_eq!(detector.poll(start + ms(49)), []);
    assert_eq!(probes(&detector.poll(start + ms(50))), [2]);
    detector.handle_disconnected(PEER, start + ms(51));
    assert!(probes(&detector.poll(start + ms(120))).is_empty());
}

#[test]
fn silence_makes_suspect_and_a_sign_makes_alive() {
    let start = Instant::now();
    let mut detector = connected(start);
    detector.poll(start);
    detector.handle_heard(PEER, start + ms(100));
    let suspect = (start + ms(600), State::Suspect(Cause::Silent));
    assert_eq!(poll_until(&mut detector, start + ms(700)), [suspect]);
    detector.handle_heard(PEER, start + ms(700));
    assert_eq!(changes(&detector.poll(start + ms(700))), [State::Alive]);
    // An earlier sign does not make it younger.
    detector.handle_heard(PEER, start + ms(650));
    assert_eq!(detector.silence(PEER, start + ms(700)), Some(ms(0)));
}

#[test]
fn time_in_which_this_process_stood_still_is_not_held_against_a_peer() {
    let start = Instant::now();
    let mut detector = connected(start);
    poll_until(&mut detector, start + ms(100));
    // The next turn was due at 150: of what followed nothing is known.
    assert_eq!(changes(&detector.poll(start + ms(10_150))), []);
    let suspect = (start + ms(10_500), State::Suspect(Cause::Silent));
    assert_eq!(poll_until(&mut detector, start + ms(11_000)), [suspect]);
    // Nor is it when a link broke meanwhile.
    detector.handle_connected(PEER, start + ms(11_000));
    poll_until(&mut detector, start + ms(11_010));
    detector.handle_disconnected(PEER, start + ms(11_020));
    assert_eq!(changes(&detector.poll(start + ms(12_000))), []);
    let ended = detector.poll(start + ms(12_040));
    assert_eq!(changes(&ended), [State::Suspect(Cause::Disconnected)]);
}

#[test]
fn a_connection_that_ends_makes_suspect_unless_it_is_made_again_in_the_grace() {
    let start = Instant::now();
    let mut detector = connected(start);
    detector.poll(start);
    detector.handle_disconnected(PEER, start + ms(1));
    assert_eq!(detector.poll(start + ms(5)), []);
    detector.handle_connected(PEER, start + ms(5));
    assert_eq!(changes(&detector.poll(start + ms(6))), []);
    detector.handle_disconnected(PEER, start + ms(7));
    assert_eq!(detector.next_deadline(), Some(start + ms(47)));
    let ended = detector.poll(start + ms(47));
    assert_eq!(changes(&ended), [State::Suspect(Cause::Disconnected)]);
    // It does not turn into another suspicion, nor does a late sign of the old connection heal it.
    detector.handle_heard(PEER, start + ms(48));
    assert_eq!(detector.poll(start + ms(900)), []);
    detector.handle_connected(PEER, start + ms(901));
    assert_eq!(changes(&detector.poll(start + ms(901))), [State::Alive]);
}

#[test]
fn who_may_be_suspect_soon_is_in_doubt() {
    let start = Instant::now();
    let mut detector = connected(start);
    detector.poll(start);
    assert!(!detector.is_in_doubt(PEER, start + ms(249)));
    assert!(detector.is_in_doubt(PEER, start + ms(250)));
    detector.handle_heard(PEER, start + ms(260));
    assert!(!detector.is_in_doubt(PEER, start + ms(260)));
    detector.handle_disconnected(PEER, start + ms(261));
    assert!(detector.is_in_doubt(PEER, start + ms(261)), "in the grace");
    poll_until(&mut detector, start + ms(310));
    assert!(
        !detector.is_in_doubt(PEER, start + ms(310)),
        "it is suspect"
    );
}

#[test]
fn an_answer_counts_once_and_on_the_connection_of_its_probe() {
    let start = Instant::now();
    let mut detector = connected(start);
    detector.poll(start);
    detector.handle_answer(PEER, 7, start + ms(5));
    assert_eq!(detector.round_trip(PEER), None, "never asked");
    detector.handle_answer(PEER, 1, start + ms(30));
    assert_eq!(detector.round_trip(PEER), Some(ms(30)));
    detector.handle_answer(PEER, 1, start + ms(90));
    assert_eq!(detector.round_trip(PEER), Some(ms(30)), "twice");
    detector.poll(start + ms(100));
    detector.handle_disconnected(PEER, start + ms(101));
    detector.handle_connected(PEER, start + ms(102));
    detector.handle_answer(PEER, 2, start + ms(103));
    assert_eq!(
        detector.round_trip(PEER),
        Some(ms(30)),
        "of the last connection"
    );
}

#[test]
fn probes_without_answers_do_not_pile_up() {
    let start = Instant::now();
    let mut detector = connected(start);
    for turn in 0..10 * PROBES_MAX as u64 {
        detector.poll(start + ms(20 * turn));
    }
    assert_eq!(detector.peers[&PEER].probes.len(), PROBES_MAX);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn whatever_happens_the_detector_says_each_change_once_and_knows_when_to_be_asked(
        steps in proptest::collection::vec((0_u64..300, 0_u8..4), 1..100),
    ) {
        let mut now = Instant::now();
        let mut detector = connected(now);
        let mut last = State::Suspect(Cause::NeverMet);
        for (wait, event) in steps {
            // Nothing is due before the deadline that it names.
            let then = now + ms(wait);
            if let Some(deadline) = detector.next_deadline() && then < deadline {
                prop_assert_eq!(detector.poll(then), vec![]);
            }
            now = then;
            match event {
                0 => detector.handle_heard(PEER, now),
                1 => detector.handle_disconnected(PEER, now),
                2 => detector.handle_connected(PEER, now),
                _ => {}
            }
            for state in changes(&detector.poll(now)) {
                prop_assert_ne!(state, last);
                last = state;
            }
            prop_assert_eq!(detector.state(PEER), Some(last));
            prop_assert_eq!(detector.poll(now), vec![], "all was done");
        }
    }
}
