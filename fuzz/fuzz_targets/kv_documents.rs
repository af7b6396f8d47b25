// Longest input: 2048 bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| cenote_kv_cluster::fuzz::documents(bytes));
