//! Stores that stop half way, and answers that are not read, keep nobody else from being served.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::process::{Server, ask, stats};

/// Says as much as the server takes now.
fn push(stream: &mut TcpStream, mut said: &[u8]) {
    while !said.is_empty() {
        match stream.write(said) {
            Ok(length) => said = &said[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Connections that have said so much of a store of 1 MB, or of what the server takes of it.
fn stalled(server: &Server, count: usize, bytes: usize) -> Vec<TcpStream> {
    let value = vec![b'v'; bytes];
    let connect = |number| {
        let mut stream = server.connect();
        stream.set_nonblocking(true).expect("a socket");
        push(
            &mut stream,
            format!("set half{number} 0 0 1000000\r\n").as_bytes(),
        );
        push(&mut stream, &value);
        stream
    };
    (0..count).map(connect).collect()
}

fn still_stand(streams: &mut [TcpStream]) -> usize {
    let reads = streams.iter_mut().map(|stream| stream.read(&mut [0]));
    let waits = |read: &std::io::Result<usize>| {
        let error = read.as_ref().err();
        error.is_some_and(|error| error.kind() == ErrorKind::WouldBlock)
    };
    reads.filter(waits).count()
}

fn others_go_on(arguments: &str, count: usize, bytes: usize) {
    let server = Server::local(&format!("-c 4000 {arguments}"));
    let mut client = server.connect();
    assert_eq!(
        ask(&mut client, "set a 0 0 1\r\nx\r\nmn\r\n"),
        "STORED\r\nMN\r\n"
    );
    let mut stalled = stalled(&server, count, bytes);
    let value = "v".repeat(50_000);
    // One client for each thread, and those that come again.
    for round in 0..8 {
        let mut client = server.connect();
        let read = ask(&mut client, "get a\r\nmn\r\n");
        assert_eq!(read, "VALUE a 0 1\r\nx\r\nEND\r\nMN\r\n");
        let stored = ask(
            &mut client,
            &format!("set s{round} 0 0 50000\r\n{value}\r\nmn\r\n"),
        );
        assert_eq!(stored, "STORED\r\nMN\r\n");
        let read = ask(&mut client, &format!("get s{round}\r\nmn\r\n"));
        assert_eq!(
            read,
            format!("VALUE s{round} 0 50000\r\n{value}\r\nEND\r\nMN\r\n")
        );
        stalled.iter_mut().for_each(|stream| {
            // Those that were closed refuse it.
            stream.write_all(b"v").ok();
        });
    }
    let standing = still_stand(&mut stalled);
    assert!(
        standing > count / 2,
        "others were served when only {standing} of {count} stalled stores were left"
    );
    assert_eq!(server.stop(), Some(0));
}

/// `count` of one address stall after so many bytes; large stores of another are answered while most of them
/// stand.
fn another_address_goes_on(arguments: &str, count: usize, bytes: usize) {
    let server = Server::local(&format!("-c 4000 {arguments}"));
    let mut stalled = stalled(&server, count, bytes);
    let value = "v".repeat(900_000);
    // One client for each thread.
    for round in 0..4 {
        let mut client = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
        let set = format!("set s{round} 0 0 900000\r\n{value}\r\nmn\r\n");
        assert_eq!(ask(&mut client, &set), "STORED\r\nMN\r\n");
        let read = ask(&mut client, &format!("get s{round}\r\nmn\r\n"));
        let found = format!("VALUE s{round} 0 900000\r\n{value}\r\nEND\r\nMN\r\n");
        assert!(read == found, "{} bytes", read.len());
    }
    let standing = still_stand(&mut stalled);
    assert!(
        standing > count / 2,
        "another address was served when only {standing} of {count} stalled stores were left"
    );
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn many_of_one_address_that_stop_late_and_large_stores_of_another() {
    another_address_goes_on("-m 64", 300, 900_000);
}

#[test]
fn many_of_one_address_that_stop_late_on_one_thread_and_large_stores_of_another() {
    another_address_goes_on("-m 64 -t 1", 300, 900_000);
}

/// They wait for each other, and those of another address for none of them.
#[test]
fn many_of_one_address_that_trickle_and_all_requests_of_another() {
    let server = Server::local("-m 1024 -t 1");
    let mut stalled = stalled(&server, 100, 200_000);
    let value = "v".repeat(900_000);
    for round in 0..8 {
        let mut client = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
        let set = format!("set s{round} 0 0 900000\r\n{value}\r\nget s\r\nmn\r\n");
        assert_eq!(ask(&mut client, &set), "STORED\r\nEND\r\nMN\r\n");
        for stream in &mut stalled {
            // Those that were closed refuse it.
            stream.write_all(b"v").ok();
        }
    }
    let standing = still_stand(&mut stalled);
    assert!(standing > 50, "only {standing} were left");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn many_that_stop_early_in_little_memory() {
    others_go_on("-m 64", 300, 200_000);
}

#[test]
fn many_that_stop_late_on_one_thread() {
    others_go_on("-m 128 -t 1", 600, 900_000);
}

/// `count` of one address ask for more than there is memory for, and read nothing. Small requests of that
/// address and large ones of another are answered while most of them stand.
fn unread_answers_delay_nobody(arguments: &str, count: usize) {
    let server = Server::local(&format!("-c 4000 {arguments}"));
    let mut client = server.connect();
    let value = "v".repeat(500_000);
    for number in 0..20 {
        let set = format!("set big{number} 0 0 500000\r\n{value}\r\nmn\r\n");
        assert_eq!(ask(&mut client, &set), "STORED\r\nMN\r\n");
    }
    let keys: String = (0..10_000)
        .map(|number| format!(" big{}", number % 20))
        .collect();
    let ask_much = |_| {
        let mut stream = server.connect();
        stream.set_nonblocking(true).expect("a socket");
        push(&mut stream, format!("get{keys}\r\n").as_bytes());
        stream
    };
    let unread: Vec<TcpStream> = (0..count).map(ask_much).collect();
    for round in 0..16 {
        let mut same = server.connect();
        let mut other = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
        for (name, client) in [("same", &mut same), ("other", &mut other)] {
            let said = format!(
                "set {name}{round} 0 0 1\r\nx\r\nget {name}{round}\r\nmg {name}{round} v\r\nmn\r\n"
            );
            let expected =
                format!("STORED\r\nVALUE {name}{round} 0 1\r\nx\r\nEND\r\nVA 1\r\nx\r\nMN\r\n");
            assert_eq!(ask(client, &said), expected);
        }
        let read = ask(&mut other, &format!("get big{round}\r\nmn\r\n"));
        let found = format!("VALUE big{round} 0 500000\r\n{value}\r\nEND\r\nMN\r\n");
        assert!(read == found, "{} bytes", read.len());
    }
    let mut other = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
    let standing = stats(&mut other)["curr_connections"] as usize - 2;
    assert!(
        standing > count / 2,
        "others were served when only {standing} of {count} that do not read were left"
    );
    drop(unread);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn many_of_one_address_that_do_not_read_and_requests_of_all() {
    unread_answers_delay_nobody("-m 64", 100);
}

#[test]
fn many_of_one_address_that_do_not_read_on_one_thread_and_requests_of_all() {
    unread_answers_delay_nobody("-m 64 -t 1", 100);
}

#[test]
fn large_stores_go_on_when_those_that_stall_are_let_go() {
    let server = Server::local("-m 64 -t 1");
    let mut stalled = stalled(&server, 8, 900_000);
    let mut client = server.connect();
    let value = "v".repeat(1_000_000);
    let stored = ask(
        &mut client,
        &format!("set a 0 0 1000000\r\n{value}\r\nmn\r\n"),
    );
    assert_eq!(stored, "STORED\r\nMN\r\n");
    assert!(still_stand(&mut stalled) < 8, "some were in its way");
}
