//! What is listed and counted of items, and what later meta commands do to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;

use super::process::{Server, ask, read_to, stats, until};

#[test]
fn a_dump_has_every_key_of_every_thread_once() {
    let server = Server::local("-t 3");
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
    let long = format!("set long 0 0 1000\r\n{}\r\nmn\r\n", "x".repeat(1000));
    ask(&mut stream, &long);
    let said = ask(&mut stream, "stats cachedump 12 0\r\nmn\r\n");
    assert_eq!(said, "ITEM long [1000 b; 0 s]\r\nEND\r\nMN\r\n");
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

    let server = Server::local("-X");
    let said = ask(&mut server.connect(), "stats cachedump 1 0\r\nmn\r\n");
    assert_eq!(said, "CLIENT_ERROR stats cachedump not allowed\r\nMN\r\n");
    let said = ask(&mut server.connect(), "lru_crawler metadump all\r\nmn\r\n");
    assert_eq!(said, "ERROR metadump not allowed\r\nMN\r\n");
}

#[test]
fn a_long_dump_is_told_as_it_is_read() {
    const COUNT: usize = 30_000;
    let server = Server::local("-t 3 --meta-dialect later");
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
    let server = Server::local("-t 2");
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
    let answers = |arguments: &str| {
        let server = Server::local(arguments);
        ask(&mut server.connect(), said)
    };
    let later = "HD s1\r\nHD\r\nNS\r\nVA 2\r\n01\r\nEX\r\nHD\r\nVA 0 f0\r\n\r\nMN\r\n";
    assert_eq!(answers("--meta-dialect later"), later);
    let fault = "CLIENT_ERROR invalid or duplicate flag\r\n";
    let now = format!("NS\r\nNS\r\nNS\r\nEN\r\n{fault}{fault}EN\r\nNF\r\nNF\r\nMN\r\n");
    assert_eq!(answers(""), now);
}

/// What `stats items` or `stats slabs` says of classes, by its names.
fn told(stream: &mut TcpStream, what: &str) -> BTreeMap<String, u64> {
    let said = ask(stream, &format!("stats {what}\r\nmn\r\n"));
    let lines = said.lines().filter_map(|line| line.strip_prefix("STAT "));
    let pairs = lines.filter_map(|line| line.split_once(' '));
    pairs
        .map(|(name, value)| (name.to_owned(), value.parse().expect("a number")))
        .collect()
}

#[test]
fn items_are_told_by_the_classes_that_memcached_would_put_them_into() {
    let server = Server::local("-t 3");
    let mut stream = server.connect();
    assert!(told(&mut stream, "items").is_empty());
    // 37 bytes with the overhead of 59 are the most of class 1; flags are 4 of them.
    for (key, flags, bytes) in [
        ("k1", 0, 35),
        ("k2", 0, 36),
        ("k3", 7, 32),
        ("k4", 0, 66_560),
    ] {
        let value = "x".repeat(bytes);
        let set = format!("set {key} {flags} 0 {bytes}\r\n{value}\r\nmn\r\n");
        assert_eq!(ask(&mut stream, &set), "STORED\r\nMN\r\n");
    }
    ask(&mut stream, "get k2\r\nget k2\r\nmn\r\n");
    let items = told(&mut stream, "items");
    let number = |class: usize| items.get(&format!("items:{class}:number")).copied();
    assert_eq!(
        (number(1), number(2), number(31)),
        (Some(1), Some(2), Some(1))
    );
    assert_eq!(number(3), None);
    let slabs = told(&mut stream, "slabs");
    let of = |name: &str| slabs[name];
    assert_eq!(
        (of("31:chunk_size"), of("31:cmd_set"), of("2:get_hits")),
        (82792, 1, 2)
    );
    assert_eq!(
        (of("2:used_chunks"), of("2:cmd_set"), of("active_slabs")),
        (2, 2, 3)
    );
    assert!((66_560..67_000).contains(&of("31:mem_requested")));

    // Another length is another class.
    ask(&mut stream, "set k4 0 0 1\r\nx\r\ndelete k2\r\nmn\r\n");
    let items = told(&mut stream, "items");
    assert_eq!((items["items:1:number"], items["items:2:number"]), (2, 1));
    let slabs = told(&mut stream, "slabs");
    assert_eq!((slabs["31:used_chunks"], slabs["31:mem_requested"]), (0, 0));
    assert_eq!(slabs["2:delete_hits"], 1);
    ask(&mut stream, "stats reset\r\nmn\r\n");
    let slabs = told(&mut stream, "slabs");
    assert_eq!((slabs["2:used_chunks"], slabs["2:cmd_set"]), (1, 0));
    assert!(!slabs.contains_key("31:cmd_set"), "nothing of it is left");
}

#[test]
fn the_time_moves_on_where_that_is_asked_for_and_allowed() {
    let server = Server::local("-t 3");
    let said = ask(&mut server.connect(), "debugtime 3\r\nmn\r\n");
    assert_eq!(said, "ERROR\r\nMN\r\n");

    let server = Server::local("-t 3 --debug-time");
    let mut stream = server.connect();
    let keys: Vec<String> = (0..20).map(|number| format!("key{number}")).collect();
    let sets = keys
        .iter()
        .map(|key| format!("set {key} 0 1000 1 noreply\r\nx\r\n"));
    ask(&mut stream, &(sets.collect::<String>() + "mn\r\n"));
    let gets = format!("get {}\r\nmn\r\n", keys.join(" "));
    ask(&mut stream, "debugtime 500\r\nmn\r\n");
    assert_eq!(ask(&mut stream, &gets).matches("VALUE ").count(), 20);
    let before = stats(&mut stream)["time"];
    let said = ask(&mut stream, &format!("debugtime 600\r\n{gets}"));
    assert_eq!(
        said, "OK\r\nEND\r\nMN\r\n",
        "every thread's items have ended"
    );
    assert!(stats(&mut stream)["time"] >= before + 600);
    let said = ask(&mut stream, "set new 0 10 1\r\nx\r\nget new\r\nmn\r\n");
    assert_eq!(said, "STORED\r\nVALUE new 0 1\r\nx\r\nEND\r\nMN\r\n");
    // Never back, nor by what is no number.
    let said = ask(
        &mut stream,
        "debugtime -5\r\ndebugtime p\r\ndebugtime\r\nmn\r\n",
    );
    assert_eq!(said, "ERROR\r\nERROR\r\nERROR\r\nMN\r\n");
}
