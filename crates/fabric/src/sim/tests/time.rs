//! How long verbs take, alone and together.

use std::time::Duration;

use super::*;
use crate::sim::{Background, Curve, LinkModel, Nic, Stragglers, now};

fn elapsed_ns(pair: &mut Pair, verb: impl FnOnce(&mut Pair)) -> u64 {
    let start = pair.net.now();
    verb(pair);
    assert_eq!(pair.net.now(), now(), "the clock that others read");
    pair.net.now().0 - start.0
}

#[test]
fn verbs_alone_take_the_published_times() {
    let mut pair = Pair::plain();
    for (len_bytes, expected_ns) in [(512, 1500), (4096, 4000)] {
        let read = elapsed_ns(&mut pair, |pair| drop(pair.read(0, len_bytes).unwrap()));
        assert_eq!(read, expected_ns, "READ of {len_bytes} bytes");
        let bytes = vec![1; len_bytes];
        let write = elapsed_ns(&mut pair, |pair| {
            assert_eq!(pair.write(0, &bytes), Status::Ok);
        });
        assert_eq!(write, expected_ns, "WRITE of {len_bytes} bytes");
    }
}

#[test]
fn answers_leave_a_hosts_card_one_after_the_other() {
    let mut pair = Pair::plain();
    let mut landings = vec![[0; 4096]; 10];
    let start = pair.net.now();
    for (token, landing) in landings.iter_mut().enumerate() {
        pair.post_read(0, landing, token as u64);
    }
    for number in 0..10 {
        pair.finish(1);
        // 50 ns a message and 143 ps a byte.
        let expected = 4000 + number * (50 + 4096 * 143 / 1000);
        assert_eq!(pair.net.now().0 - start.0, expected, "answer {number}");
    }
}

#[test]
fn answers_of_two_hosts_meet_at_the_clients_card() {
    let mut pair = Pair::plain();
    let mut other = pair.net.host(address(1), "other");
    let (_region, _session, mut endpoint, window) = join(&pair.net, &pair.connector, &mut other, 1);
    let (mut here, mut there) = ([0; 4096], [0; 4096]);
    let start = pair.net.now();
    pair.post_read(0, &mut here, 1);
    // SAFETY: the landing outlives the completion below.
    unsafe { endpoint.post_read(&window, 0, there.as_mut_ptr(), 4096, 2, &mut pair.queue) }
        .unwrap();
    endpoint.flush(&mut pair.queue);
    pair.finish(1);
    // Both would arrive after 4 us; the one that was sent second waits until the other is served.
    assert_eq!(pair.net.now().0 - start.0, 4000 + 50 + 4096 * 143 / 1000);
}

#[test]
fn links_are_what_they_are_set_to() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    let read = Curve::through((0, 10_000), (1000, 11_000));
    let model = LinkModel {
        read,
        ..LinkModel::default()
    };
    pair.net.set_link(client, host, model);
    pair.net.set_link(host, client, model);
    let took = elapsed_ns(&mut pair, |pair| drop(pair.read(0, 500).unwrap()));
    assert_eq!(took, 10_500);
    pair.net
        .set_extra_delay(host, client, Duration::from_micros(30));
    let took = elapsed_ns(&mut pair, |pair| drop(pair.read(0, 500).unwrap()));
    assert_eq!(took, 40_500);
}

#[test]
fn stragglers_and_bursts_delay_some_verbs_and_lose_none() {
    let stragglers = Stragglers {
        chance_ppm: 50_000,
        scale_ns: 10_000,
        doublings_max: 6,
    };
    let background = Background {
        burst_ns: 20_000,
        period_ns: 100_000,
    };
    let (alone, slow) = (LinkModel::default(), stragglers);
    let straggling = Config {
        link: LinkModel {
            stragglers: slow,
            ..alone
        },
        ..Config::default()
    };
    let bursty = Config {
        nic: Nic {
            background: Some(background),
            ..Nic::default()
        },
        ..Config::default()
    };
    for (config, delay_min) in [(straggling, 10_000), (bursty, 1)] {
        let mut pair = Pair::new(9, config);
        let times: Vec<u64> = (0..1000)
            .map(|_| elapsed_ns(&mut pair, |pair| drop(pair.read(0, 512).unwrap())))
            .collect();
        let late = times.iter().filter(|&&time| time > 1500).count();
        assert!((20..500).contains(&late), "{late} of 1000 are late");
        let is_stated = |&time: &u64| time == 1500 || time >= 1500 + delay_min;
        assert!(times.iter().all(is_stated), "{times:?}");
    }
}
