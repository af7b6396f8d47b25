//! Each scheme is what its row in the paper's comparison says, by the messages and verbs that are sent.

use std::sync::Arc;

use cenote_store::client::{ClientError, Command};
use cenote_store::schemes::all;
use cenote_store::{Condition, INLINE_BYTES_MAX};

use crate::lab::{Lab, Options, TRANSPORTS, Transport};

/// Steps of a PUT, and of a GET of what is durable, written out from the paper's table; over TCP
/// eFactory has calls carry what they can.
fn rows(scheme: &str, transport: Transport) -> (&'static [&'static str], &'static [&'static str]) {
    const READS: &[&str] = &["READ entry", "READ object"];
    match scheme {
        "efactory" if matches!(transport, Transport::Tcp) => (&["CALL value"], &["CALL get"]),
        "rpc" => (&["CALL value"], READS),
        "ca" | "erda" | "efactory" => (&["CALL space", "WRITE"], READS),
        "saw" => (&["CALL space", "WRITE", "SEND"], READS),
        "imm" => (&["CALL space", "WRITE_IMM"], READS),
        "forca" | "forca-each" => (&["CALL space", "WRITE"], &["CALL place", "READ object"]),
        other => panic!("{other}"),
    }
}

#[test]
fn each_scheme_sends_what_its_row_says() {
    for transport in TRANSPORTS {
        for scheme in all() {
            let name = scheme.name();
            let lab = Lab::new();
            let options = Options {
                scheme: Arc::from(scheme),
                ..Options::new(transport)
            };
            let server = lab.serve(&options);
            let mut user = lab.client(&server);
            user.0.begin_trace();
            user.put(b"key", b"value");
            let mut put = user.0.end_trace();
            // Of a value that came late on a machine that has much to do, the server is asked.
            put.pop_if(|last| *last == "CALL settle");
            // eFactory's own shape is that of what is durable.
            if name == "efactory" {
                assert_eq!(user.sync(), 0);
            }
            user.0.begin_trace();
            assert_eq!(user.get(b"key"), Some(b"value".to_vec()), "{name}");
            let get = user.0.end_trace();
            assert_eq!(
                (&put[..], &get[..]),
                rows(name, transport),
                "{name} over {transport:?}"
            );
        }
    }
}

fn read_what_is_not_durable(transport: Transport, shortest: usize, shape: &[&str]) {
    let lab = Lab::new();
    let server = lab.serve(&Options::new(transport));
    let mut user = lab.client(&server);
    let mut asked = 0;
    for round in 0..200_u32 {
        user.put(b"key", &round.to_le_bytes());
        user.0.begin_trace();
        assert_eq!(user.get(b"key"), Some(round.to_le_bytes().to_vec()));
        let trace = user.0.end_trace();
        if trace.len() > shortest {
            assert_eq!(trace, shape);
            asked += 1;
        }
    }
    assert!(asked > 0, "the persister was always faster than a GET");
}

#[test]
fn what_is_not_durable_yet_is_asked_for_and_read_then() {
    let shape = ["READ entry", "READ object", "CALL place", "READ object"];
    read_what_is_not_durable(Transport::Shm, 2, &shape);
    read_what_is_not_durable(Transport::Tcp, 1, &["CALL get", "READ object"]);
}

#[test]
fn over_tcp_calls_carry_values_that_fit() {
    let lab = Lab::new();
    let server = lab.serve(&Options::new(Transport::Tcp));
    let mut user = lab.client(&server);
    for (value_bytes, fits) in [
        (0, true),
        (INLINE_BYTES_MAX, true),
        (INLINE_BYTES_MAX + 1, false),
    ] {
        let value = vec![7; value_bytes];
        user.0.begin_trace();
        user.put(b"key", &value);
        let mut put = user.0.end_trace();
        put.pop_if(|last| *last == "CALL settle");
        assert_eq!(user.sync(), 0);
        user.0.begin_trace();
        assert_eq!(user.get(b"key"), Some(value));
        let get = user.0.end_trace();
        let (puts, gets): (&[&str], &[&str]) = match fits {
            true => (&["CALL value"], &["CALL get"]),
            false => (&["CALL space", "WRITE"], &["CALL get", "READ object"]),
        };
        assert_eq!((&put[..], &get[..]), (puts, gets), "{value_bytes} bytes");
    }
    user.0.begin_trace();
    assert_eq!(user.get(b"nothing"), None);
    assert_eq!(user.0.end_trace(), ["CALL get"]);
}

#[test]
fn schemes_that_acknowledge_what_is_durable_keep_it() {
    for name in ["rpc", "saw", "imm"] {
        for transport in TRANSPORTS {
            let lab = Lab::new();
            let scheme = cenote_store::schemes::by_name(name).unwrap();
            let options = Options {
                scheme: Arc::from(scheme),
                ..Options::new(transport)
            };
            let server = lab.serve(&options);
            let mut user = lab.client(&server);
            for index in 0..60_u32 {
                let key = format!("key {}", index % 20);
                user.put(key.as_bytes(), &index.to_le_bytes().repeat(50));
            }
            let copies: Vec<Vec<u8>> = (0..options.shards)
                .map(|shard| lab.folder.path().join(format!("pool.{shard}")))
                .map(|path| std::fs::read(path).unwrap())
                .collect();
            drop((user, server));
            for (shard, copy) in copies.iter().enumerate() {
                std::fs::write(lab.folder.path().join(format!("pool.{shard}")), copy).unwrap();
            }
            let server = lab.serve(&options);
            let mut user = lab.client(&server);
            for index in 40..60_u32 {
                let value = user.get(format!("key {}", index % 20).as_bytes());
                assert_eq!(value, Some(index.to_le_bytes().repeat(50)), "{name}");
            }
        }
    }
}

#[test]
fn a_value_too_large_for_calls_is_refused_and_the_connection_goes_on() {
    for transport in TRANSPORTS {
        let lab = Lab::new();
        let scheme = cenote_store::schemes::by_name("rpc").unwrap();
        let server = lab.serve(&Options {
            scheme: Arc::from(scheme),
            ..Options::new(transport)
        });
        let mut user = lab.client(&server);
        user.put(b"key", &[1; INLINE_BYTES_MAX]);
        for len in [INLINE_BYTES_MAX + 1, 40_000, 65_536, 1 << 20] {
            for is_durable in [false, true] {
                let refused = user.call(Command::Put {
                    key: b"key".to_vec(),
                    value: vec![2; len],
                    condition: Condition::Always,
                    is_durable,
                });
                let refused = refused.unwrap_err();
                assert!(matches!(refused, ClientError::Size { .. }), "{refused}");
                assert!(refused.to_string().contains("up to 32768"), "{refused}");
            }
        }
        assert_eq!(user.get(b"key"), Some(vec![1; INLINE_BYTES_MAX]));
    }
}
