//! A remote cache over the memory that hosts lend.
//!
//! Paper: \[redy22\], \[compucache22\]; see `docs/papers/`.
