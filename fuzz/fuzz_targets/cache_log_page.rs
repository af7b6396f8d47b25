// Longest input: 1024 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_cache::fuzz::log_page(bytes));
