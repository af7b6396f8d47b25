// Longest input: 1024 bytes.
#![no_main]

use cenote_fuse::request::{Operation, Request};

// A request of the kernel: whatever it asks for lies in it.
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Ok(request) = Request::of_bytes(bytes) else {
        return;
    };
    if let Ok(Operation::BatchForget(forgets)) = request.operation() {
        assert!(forgets.count() <= bytes.len() / 16, "more than were sent");
    }
});
