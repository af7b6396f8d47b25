//! What a measurement can turn off in the page path, to see what it is worth.
//!
//! For laboratories and benchmarks: no volume has an option for it. Each off is what would be done
//! otherwise, and no delay. All are looked at where a decision is made anyway.
//!
//! Paper: \[hydra22\] 4.1.1 to 4.1.4, Figure 10.

/// What is on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Switches {
    /// Reads ask for delta more splits than they need. Off: for k, data splits first.
    pub late_binding: bool,
    /// Data splits fly while parities are encoded. Off: nothing is posted before.
    pub async_encode: bool,
    /// Splits land in the caller's page and are sent from it. Off: in one of the worker's, copied.
    pub in_place: bool,
    /// A request runs to its end on the thread that asked. Off: that thread waits for each arrival
    /// in the kernel; and a laboratory has requests handed to it by another, which it wakes.
    pub run_to_completion: bool,
}

/// What the processor does for a page besides posting and polling.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Work {
    /// Makes the parities of a page.
    Encode,
    /// Makes data splits that did not come.
    Decode,
    /// Copies a page from one buffer to another.
    Copy,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            late_binding: true,
            async_encode: true,
            in_place: true,
            run_to_completion: true,
        }
    }
}
