//! Keeps a node's registration in etcd: writes it under a lease, and again where the lease was lost.
//!
//! A thread of its own, since etcd may take seconds to answer and the loop has none.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use super::super::NodeId;
use super::super::config::{Place, Registration};
use super::super::etcd::{Etcd, EtcdError, Lease};

/// How long a registration stays when nobody keeps it: links tell of a death, this only tidies up.
const LEASE: Duration = Duration::from_secs(10);
/// Between two looks whether it still stands, and two tries to make it anew.
const PAUSE: Duration = Duration::from_secs(1);

/// The registration; dropping it takes it back.
#[derive(Debug)]
pub(super) struct Registrar {
    /// What is to be written from now on.
    changed: Option<Sender<Registration>>,
    thread: Option<JoinHandle<()>>,
}

impl Registrar {
    /// Registers, and keeps it so.
    ///
    /// # Errors
    /// See [`EtcdError`].
    pub(super) fn start(
        etcd: &Etcd,
        place: &Place,
        node: NodeId,
        registration: &Registration,
    ) -> Result<Self, EtcdError> {
        let (etcd, key) = (etcd.clone(), place.node(node));
        let mut registration = registration.clone();
        let mut lease = Some(register(&etcd, &key, &registration)?);
        let (changed, changes) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("registrar".to_owned())
            .spawn(move || {
                loop {
                    match changes.recv_timeout(PAUSE) {
                        Ok(changed) => registration = changed,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => break,
                    }
                    if lease.as_ref().is_none_or(Lease::is_lost) {
                        lease = register(&etcd, &key, &registration)
                            .inspect_err(|error| tracing::warn!(%error, "register anew"))
                            .ok();
                    }
                }
                // Others need not wait for the lease to run out.
                if let Some(lease) = lease
                    && let Err(error) = lease.revoke()
                {
                    tracing::info!(%error, "give the lease back");
                }
            })
            .expect("a thread can be started");
        Ok(Self {
            changed: Some(changed),
            thread: Some(thread),
        })
    }

    /// What is to be written should it have to be written again.
    pub(super) fn change(&self, registration: &Registration) {
        let changed = self.changed.as_ref().expect("there until it is dropped");
        if changed.send(registration.clone()).is_err() {
            tracing::warn!("the registrar has ended");
        }
    }
}

impl Drop for Registrar {
    fn drop(&mut self) {
        self.changed = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the registrar panicked");
        }
    }
}

fn register(etcd: &Etcd, key: &str, registration: &Registration) -> Result<Lease, EtcdError> {
    let lease = Lease::take(etcd, LEASE, || ())?;
    etcd.put(key, &registration.to_bytes(), Some(&lease))?;
    Ok(lease)
}
