//! The thread that keeps a node's registration.
//!
//! A thread of its own, since etcd may take seconds to answer and the node's has none. It keeps it for lanes that
//! go on: a node that serves nothing is missed like one that has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_memcached::threads;

use super::super::NodeId;
use super::super::backoff::Backoff;
use super::super::config::{DocumentKeys, Registration};
use super::super::etcd::Etcd;
use super::super::lane::now_ns;
use super::super::registrar::{RENEWAL, Registrar, RegistrarError, Turned};
use super::board::Shared;

/// The first pause, at the most, after a turn that came to nothing ...
const PAUSE_LEAST: Duration = Duration::from_millis(250);
/// ... and all later ones: several fit into what is left of a lease.
const PAUSE_MOST: Duration = Duration::from_secs(2);
/// How long a lane may stand still. A busy machine does not take so long; arbitrary beyond that.
const STILL_MAX: Duration = Duration::from_secs(3);

/// The registration; dropping it takes it back.
pub(super) struct Keeper {
    /// What is to be written from now on.
    changed: Option<Sender<Registration>>,
    is_replaced: Arc<AtomicBool>,
    /// The registration had to be written again since this was last asked.
    is_rewritten: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Registers, and keeps it so.
    ///
    /// # Errors
    /// See [`RegistrarError`].
    pub(super) fn start(
        etcd: &Etcd,
        keys: &DocumentKeys,
        node: NodeId,
        registration: &Registration,
        shared: &Arc<Shared>,
    ) -> Result<Self, RegistrarError> {
        let (etcd, shared) = (etcd.clone(), Arc::clone(shared));
        let registration_lease = Arc::clone(&shared.registration_lease);
        let mut registrar =
            Registrar::new(keys.node(node), registration.clone(), registration_lease);
        registrar.turn(&etcd, now_ns(), true)?;
        let is_replaced = Arc::new(AtomicBool::new(false));
        let is_rewritten = Arc::new(AtomicBool::new(false));
        let (tells, tells_rewritten) = (Arc::clone(&is_replaced), Arc::clone(&is_rewritten));
        let (changed, changes) = mpsc::channel();
        let seed = u64::from(node.0) << 32 | registration.incarnation;
        let keep = move || {
            let mut due = Instant::now() + RENEWAL;
            let mut backoff = Backoff::new(PAUSE_LEAST, PAUSE_MOST, seed);
            loop {
                match changes.recv_timeout(due.saturating_duration_since(Instant::now())) {
                    Ok(changed) => {
                        registrar.change(changed);
                        continue;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let stillness = shared.stillness();
                let serves = stillness < STILL_MAX;
                if !serves {
                    tracing::error!(
                        ?stillness,
                        "a lane stands still: the registration is not renewed"
                    );
                }
                let pause = match registrar.turn(&etcd, now_ns(), serves) {
                    Ok(Turned::Kept | Turned::Left) => RENEWAL,
                    Ok(Turned::Written) => {
                        tells_rewritten.store(true, Ordering::SeqCst);
                        shared.wake();
                        RENEWAL
                    }
                    Err(RegistrarError::Replaced(_)) => {
                        tells.store(true, Ordering::SeqCst);
                        shared.wake();
                        return;
                    }
                    Err(error) => {
                        let pause = backoff.pause();
                        tracing::warn!(%error, ?pause, "keep the registration");
                        due = Instant::now() + pause;
                        continue;
                    }
                };
                backoff.reset();
                due = Instant::now() + pause;
            }
            // Others need not wait for the lease to run out.
            if let Some(lease) = registrar.lease()
                && let Err(error) = etcd.revoke(lease)
            {
                tracing::info!(%error, "give the lease back");
            }
        };
        let thread = threads::spawn("registrar", keep).expect("a thread can be started");
        Ok(Self {
            changed: Some(changed),
            is_replaced,
            is_rewritten,
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

    /// Whether the registration had to be written again since this was last asked.
    pub(super) fn take_rewritten(&self) -> bool {
        self.is_rewritten.swap(false, Ordering::SeqCst)
    }

    /// Whether a later process has the node's name.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::SeqCst)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.changed = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the registrar panicked");
        }
    }
}
