//! Systematic Reed-Solomon over GF(2^8) for page splits, and CRC32C.
//!
//! A block of `k` equal data splits gets `r` parity splits; any `k` of the `k + r` suffice to
//! decode it. [`Code`] encodes, rebuilds in place, updates a parity from a change, compares more
//! than `k` splits and finds wrong ones. One of four kernels ([`Kernel`]) does the work; it is
//! picked at run time, by measurement if two could be the fastest. All give the same bytes.
//!
//! Invariants: parity row `i`, column `j` is the inverse of `(k + i) ^ j` over
//! the polynomial 0x11d, which is ISA-L's `gf_gen_cauchy1_matrix`; stored bytes
//! never depend on the machine that wrote them.
//! Not here: I/O, page geometry, and who keeps which split.

mod cache;
mod checksum;
mod choice;
mod code;
mod error;
mod gf;
pub mod kernel;
mod locate;
mod transform;

pub use checksum::{crc32c, crc64, xxh3};
pub use code::{Code, DATA_MAX, PARITY_MAX};
pub use error::CodeError;
pub use kernel::Kernel;
