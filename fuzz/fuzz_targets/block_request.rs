// Longest input: 64 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_block::fuzz::request(bytes));
