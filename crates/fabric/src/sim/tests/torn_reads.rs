//! READs of two moments.

use super::*;
use crate::sim::Torn;

/// Each word of the window says how often all of them were changed.
fn fill(pair: &Pair, count: u64) {
    let words = count.to_le_bytes().repeat(WINDOW_BYTES as usize / 8);
    pair.region.write(0, &words).unwrap();
}

fn words(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8);
    words
        .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
        .collect()
}

#[test]
fn a_torn_read_has_words_of_two_moments_and_the_next_verb_waits_for_both() {
    let mut seen = [0; 2];
    for seed in 0..40 {
        let mut pair = Pair::new(seed, Config::default());
        pair.net.set_torn_reads(Some(Torn {
            chance_ppm: 1_000_000,
            delay_ns_max: 5_000,
        }));
        let (mut first, mut second, written) = ([0; 256], [0; 8], [0xff; 64]);
        pair.post_read(64, &mut first, 1);
        pair.post_write(128, &written, 2);
        pair.post_read(128, &mut second, 3);
        pair.endpoint.flush(&mut pair.queue);
        let mut count = 1;
        fill(&pair, count);
        let mut ended = Vec::new();
        while ended.len() < 3 {
            assert!(pair.net.step());
            pair.endpoint.poll(pair.net.now(), &mut pair.queue);
            while let Some(end) = pair.queue.pop() {
                assert_eq!(end.status, Status::Ok);
                ended.push(end.token);
            }
            let is_written = pair.memory(128, 64) == written;
            if !is_written {
                count += 1;
                fill(&pair, count);
            }
        }
        assert_eq!(ended, [1, 2, 3]);
        let words = words(&first);
        assert!(
            !words.contains(&u64::MAX),
            "the WRITE came first: {words:?}"
        );
        let changes = words.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert_eq!(changes, 1, "{words:?}");
        seen[usize::from(words[0] > words[31])] += 1;
        assert_eq!(second, [0xff; 8], "the second READ came before the WRITE");
    }
    assert!(
        seen[0] > 5 && seen[1] > 5,
        "either part is the first: {seen:?}"
    );
}

#[test]
fn what_waits_behind_a_torn_read_is_lost_with_its_connection() {
    let mut pair = Pair::plain();
    let (client, host) = pair.nodes();
    pair.net.set_torn_reads(Some(Torn {
        chance_ppm: 1_000_000,
        delay_ns_max: 50_000_000,
    }));
    let mut landing = [0; 256];
    pair.post_read(0, &mut landing, 1);
    pair.post_write(0, &[9; 64], 2);
    pair.endpoint.flush(&mut pair.queue);
    pair.pass(Duration::from_micros(20));
    pair.net.lose_connections(client, host);
    assert_eq!(pair.statuses(2), [Status::Disconnected; 2]);
    pair.pass(Duration::from_secs(1));
    assert_eq!(pair.memory(0, 64), [0; 64]);
    assert_eq!(landing, [0; 256]);
}

#[test]
fn a_torn_read_beyond_the_window_fails_whole() {
    let mut pair = Pair::plain();
    pair.net.set_torn_reads(Some(Torn {
        chance_ppm: 1_000_000,
        delay_ns_max: 5_000,
    }));
    assert_eq!(pair.read(WINDOW_BYTES - 64, 128), Err(Status::OutOfBounds));
}
