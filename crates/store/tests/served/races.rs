//! A reader beside a writer, on two threads: what is read is whole, whichever byte was read when.

use std::sync::atomic::{AtomicBool, Ordering};

use cenote_store::schemes::EFactory;
use cenote_store::{InjectedFault, inject};

use crate::lab::{Lab, Options, TRANSPORTS, Transport};

/// Reads of values that are becoming durable, until so many were read or one is not whole.
fn race(transport: Transport, reads: u32, mistake: Option<InjectedFault>) -> Result<(), String> {
    let lab = Lab::new();
    let options = Options {
        pool_bytes: 64 << 20,
        scheme: std::sync::Arc::new(EFactory),
        shards: 1,
        ..Options::new(transport)
    };
    // The persister of a mapped file does not wait for a disk between values.
    let server = lab.serve_pm(&options);
    let mut writer = lab.client(&server);
    let mut reader = lab.client(&server);
    let is_over = AtomicBool::new(false);
    let value = |round: u32| round.to_le_bytes().repeat(64 << 10);
    writer.put_durable(b"key", &value(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(Ordering::Relaxed) {
                round += 1;
                writer.put(b"key", &value(round));
            }
        });
        inject(mistake);
        let mut result = Ok(());
        for _ in 0..reads {
            let read = reader.get(b"key").unwrap();
            let first = &read[..4];
            if let Some(at) = read.chunks(4).position(|word| word != first) {
                result = Err(format!("a value that is another from byte {}", at * 4));
                break;
            }
        }
        inject(None);
        is_over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn a_value_is_read_whole_while_it_becomes_durable() {
    for transport in TRANSPORTS {
        race(transport, 400, None).unwrap();
    }
}

/// The trap of one READ for both: the value is fetched, becomes durable, and then the flag is fetched.
#[test]
fn a_client_that_reads_the_value_before_the_flag_is_found() {
    let found = race(
        Transport::Shm,
        500_000,
        Some(InjectedFault::ValueBeforeFlag),
    );
    assert!(found.is_err());
}
