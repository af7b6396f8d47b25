//! Debian's memcached, for tests that need a real one.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Killed when dropped.
pub struct Memcached {
    process: Child,
    address: SocketAddr,
}

impl Memcached {
    /// `None` where it is not installed.
    pub fn start() -> Option<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let port = address.port().to_string();
        let process = Command::new("memcached")
            .args(["-u", "root", "-U", "0", "-l", "127.0.0.1", "-p", &port])
            .stdin(Stdio::null())
            .spawn()
            .ok()?;
        let server = Self { process, address };
        let patience = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < patience, "memcached does not listen");
            std::thread::yield_now();
        }
        Some(server)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        self.process.kill().expect("it runs until here");
        self.process.wait().expect("it was killed");
    }
}
