//! The conformance suite on the backends of this crate: over two processes, and simulated.
//!
//! `rdma` has its turn where `CENOTE_CONFORMANCE_RDMA` is set, to the IP address of a port that
//! has a device: `scripts/test-rdma.sh` runs it so in a guest.

use std::process::ExitCode;

use cenote_fabric::sim::Serving;
use cenote_fabric::{Batch, WireProtection};
use cenote_test_kit::conformance::processes::{Processes, serve_if_host};
use cenote_test_kit::conformance::sim::Simulated;
use cenote_test_kit::conformance::{Backend, main as run};

fn main() -> ExitCode {
    if serve_if_host() {
        return ExitCode::SUCCESS;
    }
    let directory = tempfile::tempdir().expect("a directory for sockets");
    let mut backends: Vec<Box<dyn Backend>> = vec![
        Box::new(Processes::shm(directory.path())),
        Box::new(Simulated::new("sim", Serving::Card)),
        Box::new(Simulated::new("sim-agent", Serving::Agent)),
    ];
    let has_ring = Batch::new().is_on();
    if !has_ring {
        println!("skipped: tcp-ring, this system has no io_uring for tcp");
    }
    for page_traffic in WireProtection::ALL {
        let directory = directory.path();
        backends.push(Box::new(Processes::tcp(page_traffic, directory)));
        backends.push(Box::new(Processes::tcp_by_calls(page_traffic, directory)));
        if has_ring {
            backends.push(Box::new(Processes::tcp_by_ring(page_traffic, directory)));
        }
    }
    if let Ok(ip) = std::env::var("CENOTE_CONFORMANCE_RDMA") {
        let ip = ip.parse().expect("an IP address");
        backends.push(Box::new(Processes::rdma(ip, directory.path())));
    }
    let backends: Vec<&dyn Backend> = backends.iter().map(|backend| &**backend).collect();
    run(&backends)
}
