//! Values whose length is not known where they are asked for, or that cannot be shown yet.

use super::*;

const MIB: usize = 1 << 20;
const LONG: usize = 100_000;

/// One with an item of so many bytes, for whose client others have all memory for answers.
fn bench(bytes: usize) -> Bench {
    let mut bench = Bench::new();
    let value = "v".repeat(bytes);
    bench.say(&format!("set a 0 0 {bytes}\r\n{value}\r\n"));
    assert_eq!(bench.commit(1), "STORED\r\n");
    bench.session.only_small = true;
    bench.session.connection = Some(7);
    bench
}

impl Bench {
    /// Goes on as its client's turn does where there is memory, until nothing comes of it; what is read.
    fn read_all(&mut self) -> String {
        let mut said = self.read();
        loop {
            if self.session.waits_for_memory() {
                self.session.go_on_with_doubtful(&mut self.core);
            } else if !self.session.asks_again(&mut self.core) {
                return said;
            }
            said += &self.read();
        }
    }
}

fn shown(bytes: usize) -> String {
    format!("VALUE a 0 {bytes}\r\n{}\r\nEND\r\n", "v".repeat(bytes))
}

#[test]
fn no_memory_is_kept_for_a_value_of_a_partition_that_cannot_be_served() {
    for (bytes, only_small) in [(LONG, true), (LONG, false), (1, true), (1, false)] {
        let mut bench = bench(bytes);
        bench.session.only_small = only_small;
        bench.core.backend.may_serve = false;
        bench.say("get a\r\nmn\r\n");
        for _ in 0..3 {
            assert_eq!(bench.read_all(), "");
            let kept = bench.session.bytes();
            assert!(kept < 1024, "{kept} bytes for a value of {bytes}");
        }
        bench.core.backend.may_serve = true;
        if bytes == LONG {
            // Or all that were kept would be served at once.
            assert_eq!(bench.read(), "");
            assert!(bench.session.waits_for_memory());
        }
        assert_eq!(bench.read_all(), shown(bytes));
    }
}

#[test]
fn no_memory_is_kept_for_a_value_that_can_no_longer_be_shown_when_there_is_some() {
    type Change = fn(&mut TestBackend, bool);
    let changes: [Change; 2] = [
        |backend, is_away| backend.may_serve = !is_away,
        |backend, is_away| backend.partition.is_recovering = is_away,
    ];
    for change in changes {
        let mut bench = bench(LONG);
        bench.say("get a\r\n");
        assert_eq!(bench.read(), "");
        assert!(bench.session.waits_for_memory());
        change(&mut bench.core.backend, true);
        for _ in 0..3 {
            assert_eq!(bench.read_all(), "");
            let kept = bench.session.bytes();
            assert!(kept < 1024, "{kept} bytes");
            // It is not asked for again and again.
            assert!(bench.core.parked.has((Asker::Worker(0), 0, 0)));
        }
        change(&mut bench.core.backend, false);
        assert_eq!(bench.read_all(), shown(LONG));
    }
}

#[test]
fn a_value_of_another_node_waits_for_memory_only_if_it_is_large() {
    for is_large in [false, true] {
        let mut bench = Bench::new();
        bench.session.only_small = true;
        bench.session.connection = Some(7);
        bench.core.backend.route = Route::Node(3);
        bench.say("get a\r\n");
        let (node, ticket, text) = bench.core.backend.asked.pop().expect("it is asked");
        assert_eq!((node, limited(&text)), (3, (&b"get a\r\n"[..], Some(1024))));
        assert!(!bench.session.waits_for_memory());
        // As the other node answers it.
        let mut other = Bench::new();
        let bytes = if is_large { LONG } else { 1000 };
        other.say(&format!("set a 0 0 {bytes}\r\n{}\r\n", "v".repeat(bytes)));
        other.commit(1);
        let mut answer = |text: &[u8]| {
            other.core.serve(of_node(1), text);
            other.core.backend.answered.pop().expect("at once")
        };
        let told = answer(&text);
        bench.core.backend.answers.push(ticket, &told);
        let said = bench.read();
        assert_eq!(bench.session.waits_for_memory(), is_large);
        if !is_large {
            assert_eq!(said, shown(bytes));
            continue;
        }
        bench.session.go_on_with_doubtful(&mut bench.core);
        assert!(bench.session.bytes() >= MIB, "it is expected");
        let (_, ticket, text) = bench.core.backend.asked.pop().expect("it is asked");
        let told = answer(&text);
        bench.core.backend.answers.push(ticket, &told);
        assert_eq!(bench.read(), shown(bytes));
        assert!(bench.session.bytes() < 1024);
    }
}

/// Nobody knows how long they are before the first.
#[test]
fn a_client_has_few_values_of_others_under_way_before_it_has_seen_some() {
    let mut bench = Bench::new();
    bench.session.connection = Some(7);
    bench.core.backend.route = Route::Node(3);
    bench.say(&"get a\r\n".repeat(500));
    let asked = mem::take(&mut bench.core.backend.asked);
    let [(_, ticket, text)] = &asked[..] else {
        panic!("{} at once", asked.len());
    };
    let (_, limit) = limited(text);
    assert_eq!(limit, Some(16 << 10));
    assert!(bench.session.bytes() >= 16 << 10, "as much is kept for it");
    bench.core.backend.answers.push(*ticket, &[b'v'; 10_000]);
    bench.read();
    bench.say(&"get a\r\n".repeat(500));
    let asked = bench.core.backend.asked.len();
    assert!((50..=105).contains(&asked), "{asked} of 10 kB each");
    assert!(bench.session.bytes() >= 1_000_000);
}

/// Whoever asks keeps memory for it, be it short or long.
#[test]
fn no_memory_is_kept_for_the_first_value_of_another_node_that_cannot_be_shown_yet() {
    for (bytes, is_behind) in [(100, false), (LONG, false), (100, true)] {
        let mut bench = Bench::new();
        bench.session.connection = Some(7);
        bench.core.backend.route = Route::Node(3);
        bench.say("get a\r\n");
        let (_, ticket, text) = bench.core.backend.asked.pop().expect("it is asked");
        let mut other = Bench::new();
        other.say(&format!("set a 0 0 {bytes}\r\n{}\r\n", "v".repeat(bytes)));
        other.commit(1);
        let of_node = of_node(1);
        match is_behind {
            true => other.core.park(of_node, b"set b 0 0 1\r\nx\r\n"),
            false => other.core.backend.partition.is_recovering = true,
        }
        other.core.serve(of_node, &text);
        let told = other.core.backend.answered.pop();
        let told = told.expect("it is told that it waits");
        bench.core.backend.answers.push(ticket, &told);
        assert_eq!(bench.read_all(), "");
        let kept = bench.session.bytes();
        assert!(kept < 1024, "{kept} bytes for a value of {bytes}");
    }
}
