// Longest input: 1024 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_kv_cluster::fuzz::link(bytes));
