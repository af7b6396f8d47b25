//! The conformance suite on the backends of this crate: over two processes, and simulated.

use std::process::ExitCode;

use cenote_fabric::conformance::processes::{Processes, serve_if_host};
use cenote_fabric::conformance::simulated::Simulated;
use cenote_fabric::conformance::{Backend, main as run};
use cenote_fabric::sim::Serving;

fn main() -> ExitCode {
    if serve_if_host() {
        return ExitCode::SUCCESS;
    }
    let directory = tempfile::tempdir().expect("a directory for sockets");
    let backends: [&dyn Backend; 4] = [
        &Processes::shm(directory.path()),
        &Processes::tcp(directory.path()),
        &Simulated::new("sim", Serving::Card),
        &Simulated::new("sim-agent", Serving::Agent),
    ];
    run(&backends)
}
