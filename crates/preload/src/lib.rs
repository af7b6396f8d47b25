//! The shared object that `cenote run` preloads into programs, as bytes, and its protocol with the
//! process that serves their memory.
//!
//! The object itself is `library.rs`: no `std`, no dependencies, compiled by `build.rs`. Here are
//! the parts that both sides share, and those that can be tested without a program.

pub mod bits;
pub mod stripes;
pub mod wire;

// Never compiled here: named so that `cargo fmt` formats it.
#[cfg(any())]
mod library;

/// The shared object. Empty where there is none: only for x86-64 with glibc.
pub const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libcenote_preload.so"));
