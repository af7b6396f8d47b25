//! One seed, one run.

use super::*;
use crate::sim::{Late, LinkModel, Memory, Notice, Stragglers};

/// A bit of everything; returns the fingerprint and when it ended.
fn run(seed: u64) -> (u64, u64) {
    let stragglers = Stragglers {
        chance_ppm: 100_000,
        scale_ns: 5_000,
        doublings_max: 8,
    };
    let config = Config {
        link: LinkModel {
            stragglers,
            ..LinkModel::default()
        },
        ..Config::default()
    };
    let mut pair = Pair::new(seed, config);
    let (client, host) = pair.nodes();
    pair.net.set_late(Some(Late {
        chance_ppm: 700_000,
        torn_ppm: 500_000,
        delay_ns_max: 50_000,
    }));
    for round in 0..20_u8 {
        let bytes = [round; 3000];
        for token in 0..10 {
            pair.post_write(u64::from(round) * 3000, &bytes, token);
        }
        pair.endpoint.flush(&mut pair.queue);
        pair.finish(3);
        pair.net
            .lose_connection(pair.net.connections(client, host)[1]);
        pair.finish(7);
        pair.endpoint = pair.session.endpoint(Duration::ZERO).unwrap();
        let descriptor = &pair.window.descriptor;
        pair.net
            .corrupt(host, descriptor.id, descriptor.generation, 5, 3)
            .unwrap();
        drop(pair.read(0, 4096).unwrap());
    }
    pair.net.crash(host, Memory::Lost, Notice::BySilence);
    assert_eq!(pair.write(0, &[1]), Status::Timeout);
    (pair.net.trace_hash(), pair.net.now().0)
}

#[test]
fn a_seed_is_a_run() {
    let first = run(5);
    assert_eq!(run(5), first);
    let other = run(6);
    assert_ne!(other.0, first.0);
    assert_ne!(other.1, first.1);
}

#[test]
fn generations_follow_from_the_seed() {
    let generation = |seed| {
        Pair::new(seed, Config::default())
            .window
            .descriptor
            .generation
    };
    assert_eq!(generation(1), generation(1));
    assert_ne!(generation(1), generation(2));
}
