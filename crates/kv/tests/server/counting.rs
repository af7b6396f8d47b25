//! What is listed and counted of items, and what later meta commands do to them.

use std::collections::BTreeSet;
use std::io::Write;

use super::process::{Server, ask, read_to, stats, until};

#[test]
fn a_dump_has_every_key_of_every_thread_once() {
    let server = Server::start(&["-p", "-1", "-l", "127.0.0.1", "-t", "3"]);
    let mut stream = server.connect();
    let mut expected: Vec<String> = Vec::new();
    for number in 0..500 {
        ask(
            &mut stream,
            &format!("set key{number} 0 0 3\r\nabc\r\nmn\r\n"),
        );
        expected.push(format!("ITEM key{number} [3 b; 0 s]"));
    }
    expected.sort();
    ask(&mut stream, "set gone 0 -1 1\r\nx\r\nmn\r\n");
    let said = ask(&mut stream, "stats cachedump 1 0\r\nmn\r\n");
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.split_off(lines.len() - 2), ["END", "MN"]);
    lines.sort_unstable();
    assert_eq!(lines, expected);
    let some = ask(
        &mut stream,
        "stats cachedump 1 2\r\nstats cachedump 2 0\r\nmn\r\n",
    );
    let count = some.matches("ITEM ").count();
    assert!(
        (2..=6).contains(&count) && some.ends_with("\r\nEND\r\nEND\r\nMN\r\n"),
        "{some}"
    );

    let server = Server::start(&["-p", "-1", "-l", "127.0.0.1", "-X"]);
    let said = ask(&mut server.connect(), "stats cachedump 1 0\r\nmn\r\n");
    assert_eq!(said, "CLIENT_ERROR stats cachedump not allowed\r\nMN\r\n");
    let said = ask(&mut server.connect(), "lru_crawler metadump all\r\nmn\r\n");
    assert_eq!(said, "ERROR metadump not allowed\r\nMN\r\n");
}

#[test]
fn a_long_dump_is_told_as_it_is_read() {
    const COUNT: usize = 30_000;
    let server = Server::start(&[
        "-p",
        "-1",
        "-l",
        "127.0.0.1",
        "-t",
        "3",
        "--meta-dialect",
        "later",
    ]);
    let mut stream = server.connect();
    let long = "k".repeat(200);
    for part in 0..COUNT / 1000 {
        let sets =
            (0..1000).map(|number| format!("ms {long}{} 1 q\r\nx\r\n", part * 1000 + number));
        ask(&mut stream, &(sets.collect::<String>() + "mn\r\n"));
    }
    ask(&mut stream, "ms YSBi 1 b\r\nx\r\nmn\r\n");
    // 6 MB, of which no more is held than of any other reply. What is asked meanwhile is behind it.
    let mut reader = server.connect();
    reader
        .write_all(b"lru_crawler mgdump all\r\nmn\r\n")
        .unwrap();
    until("it does not read", || {
        stats(&mut stream)["read_buf_bytes"] > 200 << 10
    });
    for _ in 0..50 {
        let held = stats(&mut stream)["read_buf_bytes"];
        assert!(held < 1 << 20, "{held}");
    }
    let said = read_to(&mut reader, "MN\r\n");
    let lines: BTreeSet<&str> = said.lines().collect();
    assert!(said.ends_with("\r\nEN\r\nMN\r\n") && lines.contains("mg YSBi b"));
    assert_eq!((said.lines().count(), lines.len()), (COUNT + 3, COUNT + 3));
}

#[test]
fn items_that_have_ended_are_counted_as_reclaimed() {
    let server = Server::start(&["-p", "-1", "-l", "127.0.0.1", "-t", "2"]);
    let mut stream = server.connect();
    for number in 0..40 {
        ask(&mut stream, &format!("set k{number} 0 2 1\r\nx\r\nmn\r\n"));
    }
    // Whether they had ended by then is the machine's choice.
    let fetched = (0..10)
        .filter(|number| ask(&mut stream, &format!("mg k{number}\r\nmn\r\n")).starts_with("HD"));
    let fetched = fetched.count() as u64;
    until("all have gone", || stats(&mut stream)["reclaimed"] == 40);
    let counted = stats(&mut stream);
    assert_eq!((counted["curr_items"], counted["evictions"]), (0, 0));
    assert_eq!(counted["expired_unfetched"], 40 - fetched);
}

#[test]
fn later_meta_commands_are_spoken_where_that_is_asked_for() {
    let said = "ms a 1 MA N0 s\r\n1\r\nms a 1 MP N0\r\n0\r\nms b 1 MA\r\n1\r\nmg a v\r\nmd a x C1\r\nmd a x\r\nmg a v f\r\nmd c q\r\nma c q\r\nmn\r\n";
    let answers = |arguments: &[&str]| {
        let server = Server::start(&[&["-p", "-1", "-l", "127.0.0.1"], arguments].concat());
        ask(&mut server.connect(), said)
    };
    let later = "HD s1\r\nHD\r\nNS\r\nVA 2\r\n01\r\nEX\r\nHD\r\nVA 0 f0\r\n\r\nMN\r\n";
    assert_eq!(answers(&["--meta-dialect", "later"]), later);
    let fault = "CLIENT_ERROR invalid or duplicate flag\r\n";
    let now = format!("NS\r\nNS\r\nNS\r\nEN\r\n{fault}{fault}EN\r\nNF\r\nNF\r\nMN\r\n");
    assert_eq!(answers(&[]), now);
}
