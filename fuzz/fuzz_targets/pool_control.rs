// Longest input: 2048 bytes.
#![no_main]

use cenote_pool::control::{Reply, Request};
use cenote_pool::ledger::Handover;

// Messages between a client and a host, and what a host tells the one that takes its place: what is
// read is written the same.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut again = Vec::new();
    if let Ok(request) = Request::decode(bytes) {
        request.encode_as(bytes[0], &mut again);
        assert_eq!(again, bytes);
    }
    again.clear();
    if let Ok(reply) = Reply::decode(bytes) {
        reply.encode_as(bytes[0], &mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(handover) = Handover::decode(bytes) {
        assert_eq!(Handover::decode(&handover.encode()), Ok(handover));
    }
});
