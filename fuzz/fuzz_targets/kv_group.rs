// Longest input: 8192 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_kv::fuzz::group(bytes));
