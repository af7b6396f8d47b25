//! A client that keeps to a node which others have given up: it is told nothing stale and nothing false.

use std::net::SocketAddr;
use std::time::Instant;

use super::memcached::{Client, connect, with_value};
use super::well::PATIENCE;

/// Enough that every partition has some.
const KEYS: usize = 100;

/// Stores a value for all keys; whatever was lost is taken over meanwhile.
pub fn store(client: &mut Client, value: &[u8]) {
    for key in 0..KEYS {
        let request = with_value(&format!("set key{key}"), value, "");
        let deadline = Instant::now() + PATIENCE;
        while let said = client.ask(&request).unwrap()
            && said != "STORED"
        {
            // It had been passed on to who is given up.
            assert!(said.ends_with("outcome unknown"), "key{key}: {said}");
            assert!(Instant::now() < deadline, "key{key}: {said}");
        }
    }
}

/// See the [module](self).
pub struct Kept(Client);

impl Kept {
    /// One to whom all values have been told.
    pub fn at(address: SocketAddr) -> Self {
        let mut client = connect(address).unwrap();
        for key in 0..KEYS {
            assert!(client.get(&format!("key{key}")).unwrap().is_some());
        }
        Self(client)
    }

    /// Asks for all values, and stores others.
    pub fn ask(&mut self) {
        for key in 0..KEYS {
            self.0.send(format!("get key{key}\r\n").as_bytes()).unwrap();
            let request = with_value(&format!("set late{key}"), b"late", "");
            self.0.send(&request).unwrap();
        }
    }

    /// Whatever is answered is the value that others have stored, and what is acknowledged others have.
    pub fn expect(mut self, value: &[u8], other: &mut Client) {
        let mut acknowledged = Vec::new();
        for key in 0..KEYS {
            let Ok(found) = self.0.value() else {
                break;
            };
            if let Ok(found) = found {
                let found = found.map(|(_, value)| value);
                assert_eq!(found.as_deref(), Some(value), "key{key}");
            }
            match self.0.line() {
                Ok(said) if said == "STORED" => acknowledged.push(key),
                Ok(said) => assert!(said.starts_with("SERVER_ERROR"), "late{key}: {said}"),
                Err(_) => break,
            }
        }
        for key in acknowledged {
            let found = other.get(&format!("late{key}")).unwrap();
            assert_eq!(found.as_deref(), Some(&b"late"[..]), "late{key}");
        }
    }
}
