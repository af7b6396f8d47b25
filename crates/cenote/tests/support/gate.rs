//! A way to a server that can be shut: what goes through it then is cut off, and nothing new gets through.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// See the [module](self). Its threads end with the test.
pub struct Gate {
    address: SocketAddr,
    shared: Arc<Mutex<Shared>>,
}

#[derive(Default)]
struct Shared {
    is_shut: bool,
    through: Vec<TcpStream>,
}

impl Gate {
    /// An open one, on loopback.
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self::at(listener, server, None)
    }

    /// An open one where somebody has listened until now, and perhaps let one in.
    pub fn at(listener: TcpListener, server: SocketAddr, first: Option<TcpStream>) -> Self {
        let address = listener.local_addr().expect("its address");
        let shared: Arc<Mutex<Shared>> = Arc::default();
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for near in first.into_iter().chain(listener.incoming().flatten()) {
                // One that is shut lets the connection break.
                let mut shared = of_thread.lock().expect("nobody panics with it");
                if !shared.is_shut
                    && let Ok(far) = TcpStream::connect(server)
                {
                    shared.through.extend([clone(&near), clone(&far)]);
                    copy(clone(&near), clone(&far));
                    copy(far, near);
                }
            }
        });
        Self { address, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn shut(&self) {
        let mut shared = self.shared.lock().expect("nobody panics with it");
        shared.is_shut = true;
        for stream in shared.through.drain(..) {
            // It may have ended by itself.
            stream.shutdown(Shutdown::Both).ok();
        }
    }

    pub fn open(&self) {
        self.shared.lock().expect("nobody panics with it").is_shut = false;
    }
}

fn clone(stream: &TcpStream) -> TcpStream {
    stream.try_clone().expect("a descriptor")
}

fn copy(mut from: TcpStream, mut to: TcpStream) {
    std::thread::spawn(move || {
        // However it ends, it ends both ways.
        io::copy(&mut from, &mut to).ok();
        from.shutdown(Shutdown::Both).ok();
        to.shutdown(Shutdown::Both).ok();
    });
}
