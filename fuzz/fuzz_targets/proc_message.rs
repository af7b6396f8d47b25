// Longest input: 4096 bytes.
#![no_main]

use cenote_proc::ClientId;
use cenote_proc::message::{Message, Sender};

// Messages of clients, servers and machines: what is read is written the same.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    for sender in [Sender::Client(ClientId(7)), Sender::Server, Sender::Machine] {
        if let Ok(message) = Message::read(bytes, sender) {
            let mut again = Vec::new();
            message.write(&mut again);
            assert_eq!(again, bytes);
        }
    }
});
