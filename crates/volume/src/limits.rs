//! How much of everything a volume has at most.

/// Workers of one volume.
pub const WORKERS_MAX: usize = 64;

/// Requests that one worker accepts before it wants to be polled.
pub const REQUESTS_MAX: usize = 256;

/// Page operations in flight per worker; fewer than an endpoint's queue, so that a post always fits.
pub const OPS_MAX: usize = 256;

/// Those of them that only reads use: writes may be unable to end for as long as a disk is full.
pub const READ_OPS: usize = 32;

/// Pages in flight: of every operation of every worker.
pub const IN_FLIGHT_MAX: usize = WORKERS_MAX * OPS_MAX;

/// The places of a worker's operations in the list of pages in flight.
pub fn slots_of(worker: usize) -> std::ops::Range<usize> {
    worker * OPS_MAX..(worker + 1) * OPS_MAX
}
