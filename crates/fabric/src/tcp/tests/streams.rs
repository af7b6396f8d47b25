//! Bytes that no well-behaved peer sends.

use std::io::{Read, Write};

use proptest::prelude::*;

use super::*;
use crate::tcp::wire::{Request, Response, Verb};
use crate::{Generation, WindowId};

/// Well-formed requests, most of them on the window, as raw bytes.
fn stream(window: &RemoteWindow) -> impl Strategy<Value = Vec<u8>> + use<> {
    let descriptor = window.descriptor;
    let request = (1..=5_u8, 0..6000_u32, 0..9000_u64, any::<u8>()).prop_map(
        move |(verb, len, offset, byte)| {
            let mut request = Request {
                verb: Verb::Read,
                len_bytes: len,
                window: descriptor.id.0,
                immediate: None,
                generation: descriptor.generation.0 ^ u64::from(byte == 0),
                offset,
                operand: u64::from(byte),
                swap: 1,
            };
            match verb {
                1 => {}
                2 => {
                    (request.verb, request.immediate) = (Verb::Write, (byte & 1 == 1).then_some(5))
                }
                3 => request.verb = Verb::Send,
                4 => (request.verb, request.len_bytes) = (Verb::CompareSwap, 8),
                _ => (request.verb, request.len_bytes) = (Verb::FetchAdd, 8),
            }
            let mut bytes = request.encode().to_vec();
            bytes.resize(bytes.len() + request.payload_bytes() as usize, byte);
            bytes
        },
    );
    proptest::collection::vec(request, 0..12).prop_map(|requests| requests.concat())
}

#[test]
fn no_byte_stream_harms_the_agent_or_another_connection() {
    let rig = Rig::new(64);
    let (_, target) = rig.window(8192, Rights::ALL);
    let (witness_region, witness_window) = rig.window(4096, Rights::ALL);
    let mark = pattern(4096, 11);
    witness_region.write(0, &mark).unwrap();
    let witness = std::cell::RefCell::new(rig.client());
    let edits = proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let noise = proptest::collection::vec(any::<u8>(), 0..300);
    let config = ProptestConfig {
        cases: 300,
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    runner
        .run(
            &(stream(&target), edits, noise, any::<bool>()),
            |(mut bytes, edits, noise, tail)| {
                for (at, value) in edits {
                    if !bytes.is_empty() {
                        let at = at.index(bytes.len());
                        bytes[at] = value;
                    }
                }
                bytes.extend(noise);
                let (mut ours, theirs) = sockets();
                rig.agent.adopt(theirs, ClientId(99), None);
                // The agent may close in the middle: then the rest is refused, which is fine.
                let sent = ours
                    .write_all(&bytes)
                    .and_then(|()| ours.shutdown(std::net::Shutdown::Write));
                if sent.is_ok() && tail {
                    ours.set_read_timeout(Some(Duration::from_secs(20)))
                        .unwrap();
                    if let Err(error) = ours.read_to_end(&mut Vec::new()) {
                        prop_assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
                    }
                }
                drop(ours);
                while rig.events.try_recv().is_ok() {}
                let mut landing = vec![0; 4096];
                let mut witness = witness.borrow_mut();
                witness.read(&witness_window, 0, &mut landing, 1);
                prop_assert_eq!(witness.next().status, Status::Ok);
                prop_assert!(landing == mark, "the witness reads other bytes");
                Ok(())
            },
        )
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_byte_stream_harms_a_client(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        magic: bool,
        reads in 1..20_usize,
    ) {
        let window = RemoteWindow::new(crate::WindowDescriptor {
                id: WindowId(0),
                generation: Generation(1),
                len_bytes: 4096,
                rights: Rights::ALL,
            }, None);
        let (ours, mut host) = sockets();
        let mut client = Client::new(ours);
        let mut landings = vec![0; 32 * reads];
        for (i, part) in landings.chunks_mut(16).enumerate() {
            client.read(&window, 0, part, i as u64);
        }
        let start = if magic { Response { status: Status::Ok, len_bytes: 16, value: 0 }.encode().to_vec() } else { vec![] };
        host.write_all(&[&[0; 16], &start[..], &bytes].concat()).unwrap();
        drop(host);
        for token in 0..2 * reads as u64 {
            let completion = client.next();
            prop_assert_eq!(completion.token, token);
            let is_first_good = token == 0 && magic;
            prop_assert!(is_first_good || completion.status != Status::Ok);
        }
        prop_assert!(client.endpoint.is_dead());
    }
}
