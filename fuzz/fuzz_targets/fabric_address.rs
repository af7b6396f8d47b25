// Longest input: 256 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_fabric::fuzz::address(bytes));
