//! The procedure `Echo` as a WebAssembly module.

#![cfg_attr(target_arch = "wasm32", no_std)]
#![cfg_attr(not(target_arch = "wasm32"), forbid(unsafe_code))]

cenote_proc_sdk::export!(cenote_proc_sdk::procedures::Echo);
