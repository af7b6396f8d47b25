//! A relay in front of a host's TCP port: it loses what the host answers, and is cut.
//!
//! So a host carries out what it is asked and its client never hears of it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use cenote_fabric::Address;

/// Relays connections until it is dropped.
pub struct Relay {
    here: SocketAddr,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    host: SocketAddr,
    /// Answers of data connections are lost: of all but the first connection of those that there are.
    loses_answers: AtomicBool,
    /// Bytes that were.
    lost_bytes: AtomicUsize,
    /// There is no way through.
    is_cut: AtomicBool,
    is_over: AtomicBool,
    /// Both ends of every connection.
    ends: Mutex<Vec<TcpStream>>,
}

impl Relay {
    /// One in front of a host.
    pub fn before(host: &Address) -> Self {
        let Address::Tcp(host) = host else {
            panic!("{host} is no TCP port");
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let here = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            host: host.to_string().parse().unwrap(),
            loses_answers: AtomicBool::new(false),
            lost_bytes: AtomicUsize::new(0),
            is_cut: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            ends: Mutex::default(),
        });
        let accepts = Arc::clone(&shared);
        let accepting = Some(std::thread::spawn(move || accepts.accept(&listener)));
        Self {
            here,
            shared,
            accepting,
        }
    }

    pub fn address(&self) -> Address {
        format!("tcp:{}", self.here).parse().unwrap()
    }

    /// From now on what the host answers to verbs is lost.
    pub fn lose_answers(&self) {
        self.shared.loses_answers.store(true, Ordering::SeqCst);
    }

    /// Bytes of answers that were lost: the host has carried out what they answer.
    pub fn lost_bytes(&self) -> usize {
        self.shared.lost_bytes.load(Ordering::SeqCst)
    }

    /// Ends every connection, and makes no other.
    pub fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
        self.shared.end_all();
    }

    /// Makes connections again, and loses nothing.
    pub fn mend(&self) {
        self.shared.loses_answers.store(false, Ordering::SeqCst);
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        let mut pumps = Vec::new();
        for client in listener.incoming() {
            if self.is_over.load(Ordering::SeqCst) {
                break;
            }
            let client = client.unwrap();
            let mut ends = self.ends.lock().unwrap();
            if self.is_cut.load(Ordering::SeqCst) {
                continue;
            }
            let Ok(host) = TcpStream::connect(self.host) else {
                continue;
            };
            for end in [&client, &host] {
                end.set_nodelay(true).unwrap();
            }
            let is_data = !ends.is_empty();
            ends.extend([client.try_clone().unwrap(), host.try_clone().unwrap()]);
            drop(ends);
            let ways = [
                (
                    client.try_clone().unwrap(),
                    host.try_clone().unwrap(),
                    false,
                ),
                (host, client, is_data),
            ];
            for (from, to, may_lose) in ways {
                let shared = Arc::clone(self);
                pumps.push(std::thread::spawn(move || shared.pump(from, to, may_lose)));
            }
        }
        self.end_all();
        for pump in pumps {
            pump.join().unwrap();
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, may_lose: bool) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut bytes) {
            if may_lose && self.loses_answers.load(Ordering::SeqCst) {
                self.lost_bytes.fetch_add(count, Ordering::SeqCst);
            } else if to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        // The other end hears of it; it may have gone already.
        for end in [from, to] {
            drop(end.shutdown(Shutdown::Both));
        }
    }

    fn end_all(&self) {
        for end in self.ends.lock().unwrap().drain(..) {
            drop(end.shutdown(Shutdown::Both));
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.shared.end_all();
        // Whom it wakes has nothing to relay.
        drop(TcpStream::connect(self.here));
        if let Some(accepting) = self.accepting.take() {
            accepting.join().unwrap();
        }
    }
}
