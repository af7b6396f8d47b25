//! The file system as the real kernel shows it, over a medium in memory.
//!
//! What is quick is done over both transports of the kernel's requests, the rest over the one that
//! is used where there are both.

mod exerciser;
mod gate;
mod mount;
mod suites;
mod switch;

#[path = "."]
mod over_io_uring {
    mod edges;
    mod ends;
    mod programs;

    use crate::mount::Mounted;

    fn mounted(size_bytes: u64) -> Option<Mounted> {
        Mounted::over_io_uring(size_bytes)
    }
}

#[allow(
    clippy::duplicate_mod,
    reason = "the same tests over the other transport"
)]
#[path = "."]
mod over_dev_fuse {
    mod edges;
    mod ends;
    mod programs;

    use crate::mount::Mounted;

    fn mounted(size_bytes: u64) -> Option<Mounted> {
        Mounted::over_dev_fuse(size_bytes)
    }
}
