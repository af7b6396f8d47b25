//! The conformance suite on the backends of this crate, over two processes.

use std::process::ExitCode;

use cenote_fabric::conformance::processes::{Processes, serve_if_host};
use cenote_fabric::conformance::{Backend, main as run};

fn main() -> ExitCode {
    if serve_if_host() {
        return ExitCode::SUCCESS;
    }
    let directory = tempfile::tempdir().expect("a directory for sockets");
    let backends = [
        Processes::shm(directory.path()),
        Processes::tcp(directory.path()),
    ];
    run(&backends.each_ref().map(|backend| backend as &dyn Backend))
}
