//! Hosts that are connected and do not answer what takes them work: slabs and fills.
//!
//! As when the thread that makes memory, or that which copies, hangs: signs of life and books go
//! on.

use std::collections::BTreeSet;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_cache::links::{Arrival, AtOnce, Dial, Linked};
use cenote_cache::owner::HostIndex;
use cenote_fabric::calls::CallerOpener;
use cenote_fabric::{Address, Incoming, Opener, Result, Session, WindowDescriptor};
use cenote_pool::control::{Reply, Request};

/// Whether each host is muffled.
pub type Muffles = Arc<[AtomicBool]>;

/// Connects at once, and has sessions that may be muffled.
pub struct Muffling {
    pub dial: AtOnce,
    pub muffles: Muffles,
}

impl Dial for Muffling {
    fn dial(&mut self, host: HostIndex, address: &Address) {
        self.dial.dial(host, address);
    }

    fn poll(&mut self) -> Option<Arrival> {
        let arrival = self.dial.poll()?;
        let host = arrival.host;
        let muffle = |linked: Linked| Linked {
            session: Box::new(Muffled {
                session: linked.session,
                renewals: BTreeSet::new(),
                host,
                muffles: Arc::clone(&self.muffles),
            }),
            ..linked
        };
        Some(Arrival {
            linked: arrival.linked.map(muffle),
            ..arrival
        })
    }
}

struct Muffled {
    session: Box<dyn Session>,
    /// Answered by the thread that hangs not.
    renewals: BTreeSet<u64>,
    host: HostIndex,
    muffles: Muffles,
}

impl Muffled {
    fn is_kept_back(&mut self, message: &[u8]) -> bool {
        let is_muffled = self.muffles[self.host].load(Ordering::Relaxed);
        match Reply::decode(message) {
            Ok(Reply::Mapped { request, .. }) => !self.renewals.remove(&request) && is_muffled,
            Ok(Reply::Filled { .. }) => is_muffled,
            _ => false,
        }
    }
}

impl Session for Muffled {
    fn send(&mut self, message: &[u8]) -> Result<()> {
        if let Ok(Request::Renew { request, .. }) = Request::decode(message) {
            self.renewals.insert(request);
        }
        self.session.send(message)
    }

    fn attach(&mut self, window: WindowDescriptor) -> Result<()> {
        self.session.attach(window)
    }

    fn receive(&mut self) -> Result<Option<Incoming>> {
        loop {
            match self.session.receive()? {
                Some(Incoming::Message(message)) if self.is_kept_back(&message) => {}
                other => return Ok(other),
            }
        }
    }

    fn opener(&self) -> Opener {
        self.session.opener()
    }

    fn caller_opener(&self) -> CallerOpener {
        self.session.caller_opener()
    }

    fn fd(&self) -> Option<RawFd> {
        self.session.fd()
    }

    fn wants_write(&self) -> bool {
        self.session.wants_write()
    }

    fn version(&self) -> u16 {
        self.session.version()
    }
}
