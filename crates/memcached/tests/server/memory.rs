//! All memory of a process stays within `-m`, whatever is stored and whoever connects.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use super::process::{Server, ask, read_to, stats};

/// What a process may take beyond `-m`: 4 KiB for each connection come on top.
const BEYOND_BYTES: u64 = 4 << 20;
const MIB: u64 = 1 << 20;

/// Stores numbered items of one length, many at a time, and looks at the memory meanwhile.
fn fill(server: &Server, kind: &str, count: u64, length: usize, limit_bytes: u64) {
    let mut stream = server.connect();
    let value = "v".repeat(length);
    let batch = (200_000 / (length as u64 + 40)).clamp(1, 1000);
    for first in (0..count).step_by(batch as usize) {
        let mut said = String::new();
        for number in first..count.min(first + batch) {
            said += &format!("set {kind}{number:09} 0 0 {length} noreply\r\n{value}\r\n");
        }
        said += "mn\r\n";
        let answer = ask(&mut stream, &said);
        assert!(
            answer == "MN\r\n" || answer.starts_with("SERVER_ERROR out of memory"),
            "{answer}"
        );
    }
    let taken = server.proportional_bytes();
    assert!(
        taken <= limit_bytes + BEYOND_BYTES,
        "{taken} bytes after {kind}"
    );
}

#[test]
fn small_medium_and_large_items_take_turns_within_the_limit() {
    let server = Server::local("-t 2 -m 48");
    let limit = 48 * MIB;
    let items = |kind: &str, count, length| {
        fill(&server, kind, count, length, limit);
        stats(&mut server.connect())["curr_items"]
    };
    let small = items("s", 700_000, 10);
    items("m", 100_000, 1_000);
    items("l", 1_000, 100_000);
    let again = items("t", 700_000, 10);
    assert!(small > 150_000, "{small}");
    // Memory goes back and forth between values and keys.
    assert!(again > small / 2, "{again} of {small}");
    let counted = stats(&mut server.connect());
    assert!(counted["evictions"] > 700_000);
    assert_eq!(counted["evictions"], counted["evicted_unfetched"]);
    assert_eq!(counted["store_no_memory"], 0);
    assert_eq!(counted["limit_maxbytes"], limit);
}

#[test]
fn without_eviction_an_error_is_answered_and_nothing_goes() {
    let server = Server::local("-t 2 -m 32 -M");
    for (kind, length) in [("s", 10), ("l", 100_000)] {
        let value = "v".repeat(length);
        let mut stream = server.connect();
        let mut stored = Vec::new();
        let mut refused = 0;
        for number in 0..2_000_000 {
            if refused > 2_000 / length + 10 {
                break;
            }
            let said = format!("set {kind}{number} 0 0 {length}\r\n{value}\r\nmn\r\n");
            match ask(&mut stream, &said).strip_suffix("MN\r\n") {
                Some("STORED\r\n") => stored.push(number),
                Some("SERVER_ERROR out of memory storing object\r\n") => refused += 1,
                answer => panic!("{answer:?}"),
            }
        }
        assert!(refused > 0 && stored.len() > 40, "{} {kind}", stored.len());
        for number in stored.iter().step_by(stored.len() / 40) {
            let answer = ask(&mut stream, &format!("mg {kind}{number} s\r\nmn\r\n"));
            assert_eq!(answer, format!("HD s{length}\r\nMN\r\n"));
        }
        let counted = stats(&mut stream);
        assert_eq!(
            (counted["evictions"], counted["curr_items"]),
            (0, stored.len() as u64)
        );
        assert!(counted["store_no_memory"] > 0);
        let taken = server.proportional_bytes();
        assert!(taken <= 32 * MIB + BEYOND_BYTES, "{taken}");
        ask(&mut stream, "flush_all\r\nmn\r\n");
    }
}

/// Writes as much as the server takes; says how much that was.
fn push(stream: &mut TcpStream, said: &[u8]) -> usize {
    let mut done = 0;
    while done < said.len() {
        match stream.write(&said[done..]) {
            Ok(length) => done += length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    done
}

#[test]
fn clients_that_stop_in_the_middle_do_not_take_more() {
    let server = Server::local("-t 2 -m 48 -c 2000");
    let mut stream = server.connect();
    let big = "v".repeat(1_000_000);
    ask(
        &mut stream,
        &format!("set big 0 0 1000000\r\n{big}\r\nmn\r\n"),
    );
    fill(&server, "m", 60_000, 1_000, 48 * MIB);
    let mut clients = Vec::new();
    for number in 0..24 {
        let mut client = server.connect();
        client.set_nonblocking(true).expect("a socket");
        let said = if number % 2 == 0 {
            format!("set half{number} 0 0 1000000\r\n{}", &big[..600_000])
        } else {
            "get big\r\n".repeat(500)
        };
        push(&mut client, said.as_bytes());
        clients.push(client);
    }
    // They hold what there is for clients, until they are found to keep others from it.
    let answer = ask(
        &mut stream,
        &format!("set new 0 0 1000000\r\n{big}\r\nget new\r\nmn\r\n"),
    );
    assert!(
        answer.starts_with("STORED\r\nVALUE new 0 1000000\r\n"),
        "{:.80}",
        answer
    );
    let taken = server.proportional_bytes();
    let limit = 48 * MIB + BEYOND_BYTES + 4096 * clients.len() as u64;
    assert!(
        taken <= limit,
        "{taken} bytes with {} clients",
        clients.len()
    );
    assert!(stats(&mut stream)["read_buf_bytes"] <= 10 * MIB);
}

/// Each could be answered by much at once, and nobody knows by how much before it is.
#[test]
fn clients_that_ask_for_large_values_and_read_nothing_do_not_take_more() {
    const CLIENTS: usize = 300;
    let server = Server::local("-m 64 -c 2000");
    let mut stream = server.connect();
    let big = "v".repeat(900_000);
    for number in 0..60 {
        ask(
            &mut stream,
            &format!("set big{number} 0 0 900000\r\n{big}\r\nmn\r\n"),
        );
    }
    let before = server.proportional_bytes();
    let keys: String = (0..1000)
        .map(|number| format!(" big{}", number % 60))
        .collect();
    let connect = |_| {
        let mut client = server.connect();
        client.set_nonblocking(true).expect("a socket");
        push(&mut client, format!("get{keys}\r\n").as_bytes());
        client
    };
    let clients: Vec<TcpStream> = (0..CLIENTS).map(connect).collect();
    // Until others are served beside them, on each thread.
    let mut most = 0;
    for _ in 0..16 {
        let mut other = server.connect_from(Ipv4Addr::new(127, 0, 0, 2));
        let counted = stats(&mut other);
        most = most.max(counted["read_buf_bytes"]);
    }
    // A sixteenth, 8 MiB at least, and for each thread what is exceeded by one.
    assert!(most <= 14 * MIB, "{most} bytes for clients");
    let taken = server.proportional_bytes() - before;
    let limit = 32 * MIB + 4096 * CLIENTS as u64;
    assert!(taken <= limit, "{taken} bytes more");
    drop(clients);
}

#[test]
fn large_requests_of_many_clients_wait_for_each_other() {
    let server = Server::local("-t 2 -m 160");
    let big = "v".repeat(1_000_000);
    let mut clients: Vec<_> = (0..64).map(|_| server.connect()).collect();
    std::thread::scope(|scope| {
        for (number, client) in clients.iter_mut().enumerate() {
            let big = &big;
            scope.spawn(move || {
                let said = format!("set k{number} 0 0 1000000\r\n{big}\r\nget k{number}\r\n");
                client.write_all(said.as_bytes()).expect("it reads");
                let answer = read_to(client, "END\r\n");
                assert!(answer.starts_with("STORED\r\nVALUE"), "{:.80}", answer);
                assert_eq!(
                    answer.len(),
                    8 + 9 + 10 + number.to_string().len() + 1_000_000 + 7
                );
            });
        }
    });
    let taken = server.proportional_bytes();
    assert!(taken <= 160 * MIB + BEYOND_BYTES, "{taken}");
    assert!(clients.iter_mut().all(|client| {
        client.set_nonblocking(true).expect("a socket");
        client
            .read(&mut [0])
            .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    }));
}
