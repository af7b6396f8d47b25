//! `cenote-memcached` as a process: how it is started, what it is asked over, and what it bears.

mod binary;
mod clients;
mod counts;
mod daemon;
mod memory;
mod process;
mod stalls;
mod watch;

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use process::{PATIENCE, Server, ask, run, until};

#[test]
fn a_unix_socket_has_the_permissions_that_are_asked_for_and_goes_with_the_server() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let server = Server::start(&["-s", path.to_str().unwrap(), "-a", "0750"]);
    until("the socket is there", || UnixStream::connect(&path).is_ok());
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o750);
    let mut stream = UnixStream::connect(&path).unwrap();
    assert_eq!(
        ask(&mut stream, "set a 0 0 1\r\nx\r\nget a\r\nmn\r\n"),
        "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\nMN\r\n"
    );
    assert_eq!(server.stop(), Some(0));
    assert!(!path.exists());
}

#[test]
fn datagrams_are_answered_one_reply_each() {
    let server = Server::start(&["-p", "-1", "-U", "-1", "-l", "127.0.0.1", "-t", "3"]);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.connect(("127.0.0.1", server.udp_port())).unwrap();
    let value = "v".repeat(5000);
    let asked = |id: u8, text: &str| {
        let mut datagram = vec![7, id, 0, 0, 0, 1, 0, 0];
        datagram.extend_from_slice(text.as_bytes());
        socket.send(&datagram).unwrap();
    };
    let received = || {
        let (mut parts, mut buffer) = (Vec::<Vec<u8>>::new(), [0; 2048]);
        loop {
            let length = socket.recv(&mut buffer).unwrap();
            assert!(length <= 1400);
            let count = usize::from(u16::from_be_bytes([buffer[4], buffer[5]]));
            parts.resize(count, Vec::new());
            parts[usize::from(buffer[3])] = buffer[8..length].to_vec();
            if parts.iter().all(|part| !part.is_empty()) {
                return (buffer[1], String::from_utf8(parts.concat()).unwrap());
            }
        }
    };
    asked(1, &format!("set a 0 0 5000\r\n{value}\r\n"));
    assert_eq!(received(), (1, "STORED\r\n".to_owned()));
    asked(2, "get a b\r\n");
    assert_eq!(
        received(),
        (2, format!("VALUE a 0 5000\r\n{value}\r\nEND\r\n"))
    );
    // Two in one datagram; parts of a longer request and what is no frame are passed over.
    socket.send(&[1, 2, 3]).unwrap();
    socket.send(b"\0\x09\0\0\0\x02\0\0mn\r\n").unwrap();
    asked(3, "version\r\nmn\r\n");
    let mut both = [received(), received()];
    both.sort();
    assert_eq!(both[0], (3, "MN\r\n".to_owned()));
    assert!(both[1].1.starts_with("VERSION 1.6."));
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn clients_say_who_they_are_where_that_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "ada:secret\n").unwrap();
    let server = Server::local(&format!("-Y {}", users.display()));
    let mut stream = server.connect();
    let said =
        "get a\r\nset x 0 0 10\r\nada Secret\r\nset x 0 0 10\r\nada secret\r\nget a\r\nmn\r\n";
    let expected = "CLIENT_ERROR unauthenticated\r\nCLIENT_ERROR authentication failure\r\nSTORED\r\nEND\r\nMN\r\n";
    assert_eq!(ask(&mut stream, said), expected);
    let stats = ask(&mut stream, "stats\r\nmn\r\n");
    assert!(stats.contains("STAT auth_cmds 3\r\n") && stats.contains("STAT auth_errors 2\r\n"));
    // A file that has changed is read again on SIGHUP; who is in stays in.
    fs::write(&users, "bob:other\n").unwrap();
    server.signal("HUP");
    until("the new user is known", || {
        let mut stream = server.connect();
        stream.write_all(b"set x 0 0 9\r\nbob other\r\n").unwrap();
        process::read_to(&mut stream, "\r\n") == "STORED\r\n"
    });
    assert_eq!(ask(&mut stream, "mn\r\n"), "MN\r\n");
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn full_memory_drops_the_oldest_or_refuses() {
    let value = "v".repeat(100_000);
    let fill = |stream: &mut TcpStream| {
        let mut refused = 0;
        for index in 0..200 {
            let answer = ask(
                stream,
                &format!("set key{index} 0 0 100000\r\n{value}\r\nmn\r\n"),
            );
            refused += usize::from(answer == "SERVER_ERROR out of memory storing object\r\nMN\r\n");
            assert!(answer.starts_with("STORED") || answer.starts_with("SERVER_ERROR"));
        }
        refused
    };
    let server = Server::local("-m 8 -t 2");
    let mut stream = server.connect();
    assert_eq!(fill(&mut stream), 0);
    let stats = process::stats(&mut stream);
    assert!(stats["evictions"] > 100 && stats["bytes"] <= stats["limit_maxbytes"]);
    assert!(ask(&mut stream, "get key199\r\nmn\r\n").starts_with("VALUE"));
    assert_eq!(ask(&mut stream, "get key0\r\nmn\r\n"), "END\r\nMN\r\n");

    let server = Server::local("-m 8 -M -t 2");
    let mut stream = server.connect();
    assert!(fill(&mut stream) > 100);
    let stats = process::stats(&mut stream);
    assert_eq!(stats["evictions"], 0);
    assert!(stats["store_no_memory"] > 100);
    assert!(ask(&mut stream, "get key0\r\nmn\r\n").starts_with("VALUE"));
    // A set that was refused leaves nothing older behind.
    let again = ask(
        &mut stream,
        &format!(
            "set key0 0 0 1000000\r\n{}\r\nget key0\r\nmn\r\n",
            "w".repeat(1_000_000)
        ),
    );
    assert_eq!(
        again,
        "SERVER_ERROR out of memory storing object\r\nEND\r\nMN\r\n"
    );
}

#[test]
fn items_end_when_their_time_has_come() {
    let server = Server::local("-t 2");
    let mut stream = server.connect();
    let said = "set a 0 2 1\r\nx\r\nset b 0 -1 1\r\nx\r\nset c 0 1000 1\r\nx\r\nget b\r\nmn\r\n";
    assert_eq!(
        ask(&mut stream, said),
        "STORED\r\nSTORED\r\nSTORED\r\nEND\r\nMN\r\n"
    );
    until("its time has come", || {
        ask(&mut stream, "get a\r\nmn\r\n") == "END\r\nMN\r\n"
    });
    assert!(ask(&mut stream, "get c\r\nmn\r\n").starts_with("VALUE c"));
    ask(&mut stream, "flush_all 1\r\nmn\r\n");
    until("it is flushed", || {
        ask(&mut stream, "get c\r\nmn\r\n") == "END\r\nMN\r\n"
    });
}

#[test]
fn a_thousand_connections_are_served_and_the_next_is_told() {
    let server = Server::local("-c 1000");
    let mut streams: Vec<TcpStream> = (0..1000).map(|_| server.connect()).collect();
    for (index, stream) in streams.iter_mut().enumerate() {
        write!(
            stream,
            "set key{index} 0 0 1\r\nx\r\nget key{index}\r\nmn\r\n"
        )
        .unwrap();
    }
    for (index, stream) in streams.iter_mut().enumerate() {
        let expected = format!("STORED\r\nVALUE key{index} 0 1\r\nx\r\nEND\r\nMN\r\n");
        assert_eq!(process::read_to(stream, "MN\r\n"), expected);
    }
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ERROR Too many open connections\r\n");
    streams.truncate(999);
    until("there is room again", || {
        let mut stream = server.connect();
        stream.write_all(b"mn\r\n").is_ok() && {
            let mut said = [0; 4];
            stream.read_exact(&mut said).is_ok() && &said == b"MN\r\n"
        }
    });
}

#[test]
fn without_maxconns_fast_the_next_connection_waits() {
    let server = Server::local("-c 2 -o no_maxconns_fast");
    let mut first = server.connect();
    let mut second = server.connect();
    assert_eq!(
        ask(&mut first, "mn\r\n") + &ask(&mut second, "mn\r\n"),
        "MN\r\nMN\r\n"
    );
    let mut third = server.connect();
    third.write_all(b"mn\r\n").unwrap();
    until("accepting has stopped", || {
        process::stats(&mut first)["accepting_conns"] == 0
    });
    drop(second);
    assert_eq!(process::read_to(&mut third, "MN\r\n"), "MN\r\n");
}

#[test]
fn who_has_closed_one_half_gets_all_answers() {
    let server = Server::local("-t 3");
    let mut stream = server.connect();
    let mut expected = String::new();
    let mut said = String::new();
    for index in 0..500 {
        said += &format!("set k{index} 0 0 3\r\nabc\r\nget k{index} none\r\n");
        expected += &format!("STORED\r\nVALUE k{index} 0 3\r\nabc\r\nEND\r\n");
    }
    said += "get unfinis";
    stream.write_all(said.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, expected);
}

#[test]
fn hostile_streams_end_no_server() {
    let server = Server::local("-t 2");
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut noise = || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u8
    };
    for round in 0..60 {
        let mut stream = server.connect();
        let start: &[u8] = [
            &b""[..],
            b"set a 0 0 1000000\r\n",
            b"get ",
            b"ms a 2147483640\r\n",
            b"\x80\x0a\0\0",
        ][round % 5];
        let bytes: Vec<u8> = (0..3000).map(|_| noise()).collect();
        // It may have been closed by then.
        stream
            .write_all(start)
            .and_then(|()| stream.write_all(&bytes))
            .ok();
    }
    assert_eq!(ask(&mut server.connect(), "mn\r\n"), "MN\r\n");
    until("all have been dropped", || {
        process::stats(&mut server.connect())["curr_connections"] == 1
    });
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn who_does_not_read_does_not_cost_memory() {
    let server = Server::local("-t 2 -m 1024");
    let big = "v".repeat(1_000_000);
    for key in ["a", "b", "c", "d"] {
        assert_eq!(
            ask(
                &mut server.connect(),
                &format!("set {key} 0 0 1000000\r\n{big}\r\nmn\r\n")
            ),
            "STORED\r\nMN\r\n"
        );
    }
    let before = server.resident_bytes();
    let mut streams = Vec::new();
    for _ in 0..4 {
        let mut stream = server.connect();
        stream.set_nonblocking(true).unwrap();
        // 20 GB of answers, unless it stops reading.
        let said = "get a b c d a b c d\r\nget a\r\nget c\r\n".repeat(2000);
        let mut rest = said.as_bytes();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(length) => rest = &rest[length..],
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    break;
                }
            }
        }
        streams.push(stream);
    }
    // Others are served meanwhile, and what is read in the end is whole.
    for _ in 0..100 {
        assert_eq!(ask(&mut server.connect(), "mn\r\n"), "MN\r\n");
    }
    let grown = server.resident_bytes().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes");
    let mut stream = streams.remove(0);
    stream.set_nonblocking(false).unwrap();
    let mut answer = vec![0; 8 * (19 + 1_000_000 + 2) + 5];
    stream.read_exact(&mut answer).unwrap();
    assert!(answer.ends_with(b"v\r\nEND\r\n"));
}

#[test]
fn the_silent_are_dropped_where_that_is_asked() {
    let server = Server::local("-o idle_timeout=5");
    let mut stream = server.connect();
    assert_eq!(ask(&mut stream, "mn\r\n"), "MN\r\n");
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, []);
    assert_eq!(process::stats(&mut server.connect())["idle_kicks"], 1);
}

#[test]
fn shutdown_is_served_only_where_that_is_allowed() {
    let server = Server::local("");
    assert_eq!(
        ask(&mut server.connect(), "shutdown\r\nmn\r\n"),
        "ERROR: shutdown not enabled\r\nMN\r\n"
    );
    for (said, graceful) in [("shutdown\r\n", false), ("shutdown graceful\r\n", true)] {
        let server = Server::local("-A");
        let mut stream = server.connect();
        assert_eq!(
            ask(&mut stream, "shutdown now\r\nmn\r\n"),
            "CLIENT_ERROR invalid shutdown mode\r\nMN\r\n"
        );
        stream.write_all(said.as_bytes()).unwrap();
        let (status, log) = server.wait();
        assert_eq!(status, Some(0));
        assert_eq!(log.contains("Gracefully stopping"), graceful, "{log}");
    }
}

#[test]
fn options_are_refused_as_memcached_refuses_them() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (arguments, status, text) in [
        (&["--nonsense"][..], 1, "--nonsense"),
        (&["-o", "nonsense"], 1, "Illegal suboption \"nonsense\""),
        (&["-B", "x"], 64, "Invalid value for binding protocol: x"),
        (&["-t", "0"], 1, "Number of threads must be greater than 0"),
        (
            &["-I", "100"],
            64,
            "Item max size cannot be less than 1024 bytes.",
        ),
        (&["-I", "40m"], 64, "1/2 of memory max"),
        (&["-e", "/tmp/x"], 64, "items do not outlive this process"),
        (&["-S"], 64, "-S needs users"),
        (
            &["-S", "-U", "11211"],
            64,
            "Cannot enable UDP while using binary SASL",
        ),
        (
            &["-S", "-B", "auto"],
            64,
            "You cannot allow the ASCII protocol",
        ),
        (
            &["-Y", "/nonexistent", "-u", "root"],
            1,
            "Could not open authfile",
        ),
        (&["-Z", "-u", "root"], 64, "ssl_chain_cert"),
        (
            &["-p", &port, "-l", "127.0.0.1", "-u", "root"],
            71,
            "failed to listen on TCP port",
        ),
        (&["-V"], 0, "memcached 1.6.18"),
        (&["-h"], 0, "--memory-limit"),
    ] {
        let (ended, said) = run(arguments);
        assert_eq!(ended, Some(status), "{arguments:?}: {said}");
        assert!(said.contains(text), "{arguments:?}: {said}");
    }
    let (_, help) = run(&["-h"]);
    assert!(help.starts_with("memcached 1.6.18"), "{help}");
    let server = Server::local(
        "-B ascii -f 1.1 -L -o tail_repair_time=9,hashpower=20,relaxed_privileges -v",
    );
    assert_eq!(ask(&mut server.connect(), "mn\r\n"), "MN\r\n");
    server.signal("TERM");
    let (status, log) = server.wait();
    assert_eq!(status, Some(0));
    for option in [
        "-f",
        "-L",
        "-o tail_repair_time",
        "-o hashpower",
        "-o relaxed_privileges",
    ] {
        assert!(
            log.contains(&format!("{option} is accepted and ignored")),
            "{log}"
        );
    }
}

#[test]
fn what_is_no_request_of_this_protocol_closes_the_connection() {
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    fs::write(&users, "ada:secret\n").unwrap();
    let server = Server::local("");
    let asking = Server::local(&format!("-Y {}", users.display()));
    let answer = |server: &Server, said: &[u8]| {
        let mut stream = server.connect();
        stream.write_all(said).unwrap();
        let mut answer = Vec::new();
        // What was not read of it may be told as a reset.
        stream.read_to_end(&mut answer).ok();
        String::from_utf8_lossy(&answer).into_owned()
    };
    let long = [&b"set "[..], &[b'k'; 2100]].concat();
    // Commands behind the head of a request of HTTP are not done.
    let http = b"POST / HTTP/1.1\r\nHost: a\r\n\r\nset a 0 0 1\r\nx\r\n";
    assert_eq!(answer(&server, http), "");
    assert_eq!(answer(&server, b"mn\r\nGET / HTTP/1.1\r\n"), "MN\r\n");
    assert_eq!(answer(&server, &long), "");
    // A message of the binary protocol, and behind it none.
    let get = [&b"\x80"[..], &[0; 23]].concat();
    assert!(answer(&server, &get).ends_with("Invalid arguments"));
    assert!(answer(&asking, &get).ends_with("Auth failure."));
    let mut stream = server.connect();
    assert_eq!(ask(&mut stream, "get a\r\nmn\r\n"), "END\r\nMN\r\n");
    // Later it is a word like others.
    stream.write_all(b"\x80\r\n").unwrap();
    assert_eq!(process::read_to(&mut stream, "\r\n"), "ERROR\r\n");
}

#[test]
fn requests_of_one_connection_do_not_hold_up_another() {
    let server = Server::local("-t 1 -R 1");
    let mut busy = server.connect();
    let writer = busy.try_clone().unwrap();
    let said = "set a 0 0 1\r\nx\r\nget a\r\n".repeat(20_000) + "quit\r\n";
    std::thread::scope(|scope| {
        let mut writer = &writer;
        scope.spawn(move || writer.write_all(said.as_bytes()).unwrap());
        for _ in 0..20 {
            assert_eq!(ask(&mut server.connect(), "mn\r\n"), "MN\r\n");
        }
        let mut answer = String::new();
        busy.read_to_string(&mut answer).unwrap();
        assert_eq!(
            answer,
            "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n".repeat(20_000)
        );
    });
    let stats = process::stats(&mut server.connect());
    assert!(stats["conn_yields"] > 1000);
}

#[test]
fn a_udp_port_alone_is_the_tcp_port_as_well() {
    // A port that was free a moment ago: another program may take it, then one more is tried.
    let server = (0..50).find_map(|_| {
        let free = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let server = Server::try_start(&["-U", &port.to_string(), "-l", "127.0.0.1"])?;
        Some((server, port))
    });
    let (server, port) = server.expect("some port is free for both");
    assert_eq!((server.udp_port(), server.tcp_port()), (port, port));
}

#[test]
fn who_may_read_and_change_everything_is_said_when_it_starts() {
    let open = "Anyone who can reach the ports can read and change every item";
    let server = Server::local("");
    assert!(server.said().contains(open), "{}", server.said());
    assert_eq!(server.stop(), Some(0));
    let folder = tempfile::tempdir().unwrap();
    let users = folder.path().join("users");
    std::fs::write(&users, "who:secret\n").unwrap();
    let server = Server::local(&format!("-Y {}", users.display()));
    let said = server.said();
    assert!(
        !said.contains(open) && said.contains("unencrypted"),
        "{said}"
    );
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn who_knows_its_ports_can_end_it() {
    let (server, free) = Server::start_held(&["-p", "-1", "-l", "127.0.0.1"]);
    until("it minds SIGTERM, and waits to tell", || {
        server.minds_the_end()
    });
    server.signal("TERM");
    // It reads on: a pipe that nobody reads ends who writes.
    let _pipe = free();
    assert_eq!(server.wait().0, Some(0));
}

#[test]
fn a_server_whose_lines_find_no_room_serves_on() {
    let server = Server::start_on_a_full_disk(&["-p", "-1", "-l", "127.0.0.1", "-vv"]);
    for _ in 0..2 {
        let said = ask(&mut server.connect(), "set a 0 0 1\r\nx\r\nmn\r\n");
        assert_eq!(said, "STORED\r\nMN\r\n");
    }
    assert_eq!(server.stop(), Some(0));
}
