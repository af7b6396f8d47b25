//! What shows a server at work, and tunes it while it is: `watch`, `stats detail`, `cache_memlimit`.

use std::io::{BufRead, BufReader, Write};

use super::process::{Server, ask, read_to, stats, until};

#[test]
fn a_watcher_sees_what_others_do_on_every_thread() {
    let server = Server::local("-t 3");
    let mut watcher = server.connect();
    watcher
        .write_all(b"watch fetchers mutations connevents\r\n")
        .unwrap();
    assert_eq!(read_to(&mut watcher, "\r\n"), "OK\r\n");
    let mut lines = BufReader::new(watcher.try_clone().unwrap()).lines();
    let mut line = || lines.next().expect("it goes on").expect("a line");
    let mut stream = server.connect();
    assert!(line().contains(" type=conn_new rip=127.0.0.1 "));
    for index in 0..20 {
        let said = format!("set key#{index} 0 60 2\r\nhi\r\nget key#{index}\r\nmn\r\n");
        ask(&mut stream, &said);
        let looked = line();
        let key = format!(" key=key%23{index} ");
        assert!(
            looked.starts_with("ts=") && looked.contains(" gid="),
            "{looked}"
        );
        assert!(looked.contains("type=item_get") && looked.contains("status=not_found"));
        let stored = line();
        assert!(stored.contains(&key) && stored.contains("status=stored cmd=set ttl=60"));
        let read = line();
        assert!(
            read.contains(&key) && read.contains("status=found"),
            "{read}"
        );
        assert!(
            read.ends_with(" size=2") && !read.contains("cfd=0 "),
            "{read}"
        );
    }
    // What a watcher says is not read, and who was told a lot is not waited for.
    watcher.write_all(b"get a\r\n").unwrap();
    drop(stream);
    assert!(line().contains(" type=conn_close "));
    let mut stream = server.connect();
    let many = "get abcdefghijklmnopqrstuvwxyz\r\n".repeat(1000) + "mn\r\n";
    until("some lines found no room", || {
        ask(&mut stream, &many);
        stats(&mut stream)["log_watcher_skipped"] > 0
    });
    assert_eq!(stats(&mut stream)["log_watchers"], 1);
    drop((watcher, lines));
    until("it is gone", || stats(&mut stream)["log_watchers"] == 0);
    let silent = Server::local("-W -C");
    let mut stream = silent.connect();
    let told = ask(&mut stream, "watch\r\nset a 0 0 1\r\nx\r\ngets a\r\nmn\r\n");
    let expected =
        "CLIENT_ERROR watch commands not allowed\r\nSTORED\r\nVALUE a 0 1 0\r\nx\r\nEND\r\nMN\r\n";
    assert_eq!(told, expected);
}

#[test]
fn memory_follows_its_limit_both_ways() {
    let server = Server::local("-m 64 -t 2");
    let mut stream = server.connect();
    let value = "v".repeat(100_000);
    let mut fill = |count: usize| {
        for index in 0..count {
            let said = format!("set key{index} 0 0 100000\r\n{value}\r\nmn\r\n");
            assert_eq!(ask(&mut stream, &said), "STORED\r\nMN\r\n");
        }
        stats(&mut stream)
    };
    let full = fill(1000);
    assert!(full["evictions"] > 0);
    let mut other = server.connect();
    assert_eq!(
        ask(&mut other, "cache_memlimit 16\r\nmn\r\n"),
        "OK\r\nMN\r\n"
    );
    until("items have gone for it", || {
        let stats = stats(&mut other);
        stats["limit_maxbytes"] == 16 << 20 && stats["bytes"] < 16 << 20
    });
    assert_eq!(
        ask(&mut other, "cache_memlimit 256\r\nmn\r\n"),
        "OK\r\nMN\r\n"
    );
    let more = fill(1000);
    assert!(more["curr_items"] == 1000 && more["bytes"] > 64 << 20);
    for (said, answer) in [
        (
            "cache_memlimit 4",
            "MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m",
        ),
        ("cache_memlimit x", "ERROR"),
        (
            "cache_memlimit 100000",
            "MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust",
        ),
        ("slabs automove 1", "OK"),
        ("lru mode flat", "OK"),
    ] {
        let told = ask(&mut other, &format!("{said}\r\nmn\r\n"));
        assert_eq!(told, format!("{answer}\r\nMN\r\n"), "{said}");
    }
}

#[test]
fn keys_are_counted_by_prefix_while_that_is_on() {
    let server = Server::local("-t 3");
    let mut stream = server.connect();
    let said = "set a:1 0 0 1\r\nx\r\nset b 0 0 1\r\nx\r\nget a:1 a:2\r\ndelete a:3\r\n";
    // It counts what is asked once it is answered.
    for said in [
        "stats detail on\r\n",
        said,
        "stats detail off\r\n",
        "get a:1\r\n",
    ] {
        ask(&mut stream, &format!("{said}mn\r\n"));
    }
    let told = ask(
        &mut stream,
        "stats detail dump\r\nstats reset\r\nstats detail dump\r\nmn\r\n",
    );
    let expected = "PREFIX a get 2 hit 1 set 1 del 1\r\nEND\r\nRESET\r\nEND\r\nMN\r\n";
    assert_eq!(told, expected);
}
