use super::*;

#[test]
fn the_busiest_is_helped_with_half_of_its_queue() {
    assert_eq!(whom_to_help(&[0, 40, 100, 90], 0), Some((2, 50)));
    assert_eq!(whom_to_help(&[0, 10_000], 0), Some((1, MOST)));
}

#[test]
fn short_queues_and_ones_own_are_left_alone() {
    assert_eq!(whom_to_help(&[0, LEAST - 1], 0), None);
    assert_eq!(whom_to_help(&[1000, 0], 0), None);
    assert_eq!(whom_to_help(&[1000], 0), None);
    assert_eq!(whom_to_help(&[], 0), None);
}

/// Ticks that each request waits and runs, for threads that get `share` of 100 of the load each; a
/// request takes one tick of one thread, and the load is 0.8 of what all can do.
fn waits(shares: [usize; 4], helped: bool) -> Vec<usize> {
    let mut queues: [Vec<usize>; 4] = Default::default();
    let mut waits = Vec::new();
    let mut credit = [0; 4];
    // A step of the simulation: every thread runs a round.
    for now in 0..4000 {
        for (at, share) in shares.iter().enumerate() {
            credit[at] += share * 4 * ROUND * 8 / 10;
            while credit[at] >= 100 {
                credit[at] -= 100;
                queues[at].push(now);
            }
        }
        let lengths = queues.each_ref().map(Vec::len);
        for at in 0..4 {
            let mut left = ROUND.min(queues[at].len());
            waits.extend(queues[at].drain(..left).map(|then| now - then));
            left = ROUND - left;
            if lengths[at] == 0 && helped {
                let current = queues.each_ref().map(Vec::len);
                if let Some((busiest, count)) = whom_to_help(&current, at) {
                    let taken = queues[busiest].drain(..count.min(left.max(1) * 4));
                    waits.extend(taken.map(|then| now - then));
                }
            }
        }
    }
    waits.sort_unstable();
    waits
}

#[test]
fn a_skewed_load_waits_less_when_idle_threads_help() {
    let skewed = [97, 1, 1, 1];
    let p99 = |waits: &[usize]| waits[waits.len() * 99 / 100];
    let (alone, helped) = (waits(skewed, false), waits(skewed, true));
    assert!(helped.len() > alone.len(), "more is done");
    assert!(
        p99(&helped) * 10 < p99(&alone),
        "{} {}",
        p99(&helped),
        p99(&alone)
    );
    // An even load is left as it is.
    assert_eq!(waits([25; 4], true), waits([25; 4], false));
}
