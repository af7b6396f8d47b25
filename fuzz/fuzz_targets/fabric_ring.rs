// Longest input: 512 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fabric::fuzz::ring(bytes));
