//! The service for caches: server threads that carry out batches of reads and writes.
//!
//! Each thread answers the calls of the connections that the listener gave it, and blocks when
//! there are none. A client reaches the slabs that were granted to it, and no others: the control
//! thread keeps [`Owners`], and the window's generation is checked when the operation runs. Pages
//! of volumes and grants never wait for these threads. A panic ends the process (decision 65).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;

use cenote_fabric::calls::{Answered, Answerer, Call, Spin};
use cenote_fabric::{ClientId, Generation, Status, Waker, WindowId, Windows};
use cenote_pool::batch::{BATCH_BYTES_MAX, Item, Items, Outcome, begin_answer};
use cenote_pool::control::{Malformed, Window};

use crate::{Error, Result};

/// Which client holds which window: what the control thread has granted. A life of a window has
/// one owner, so an entry that is a little old is refused by its generation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Owners(Arc<RwLock<HashMap<u32, (u64, u128)>>>);

impl Owners {
    /// The window is this client's from here on.
    pub(crate) fn grant(&self, window: &Window, client: u128) {
        let mut owners = self.0.write().unwrap_or_else(PoisonError::into_inner);
        owners.insert(window.id, (window.generation, client));
    }

    /// The window is nobody's.
    pub(crate) fn forget(&self, window: u32) {
        let mut owners = self.0.write().unwrap_or_else(PoisonError::into_inner);
        owners.remove(&window);
    }

    fn holds(&self, client: ClientId, window: u32, generation: u64) -> bool {
        let owners = self.0.read().unwrap_or_else(PoisonError::into_inner);
        owners.get(&window) == Some(&(generation, client.0))
    }
}

/// The threads. Dropping it ends them.
pub(crate) struct CacheThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<(Waker, JoinHandle<()>)>,
}

impl CacheThreads {
    /// No thread.
    pub(crate) fn none() -> Self {
        Self {
            stop: Arc::default(),
            threads: Vec::new(),
        }
    }

    /// One thread for each of `answerers`.
    ///
    /// # Errors
    /// `Os`: the system has no thread left.
    pub(crate) fn start(
        answerers: Vec<Answerer>,
        windows: &Windows,
        owners: &Owners,
    ) -> Result<Self> {
        let mut all = Self::none();
        for mut answerer in answerers {
            let waker = answerer.waker();
            let stop = Arc::clone(&all.stop);
            let (windows, owners) = (windows.clone(), owners.clone());
            let serve = move || {
                let mut handler = |call: Call<'_>, answer: &mut Vec<u8>| {
                    answer_call(&call, answer, &windows, &owners)
                };
                if let Err(error) = answerer.run(&stop, Spin::default(), &mut handler) {
                    panic!("a server thread for caches: {error}");
                }
            };
            let thread = std::thread::Builder::new()
                .name("cache-server".into())
                .spawn(serve)
                .map_err(|source| Error::Os {
                    what: "start a server thread for caches",
                    source,
                })?;
            all.threads.push((waker, thread));
        }
        Ok(all)
    }
}

impl Drop for CacheThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        for (waker, thread) in self.threads.drain(..) {
            waker.wake();
            if thread.join().is_err() {
                tracing::error!("a server thread for caches panicked");
            }
        }
    }
}

/// Carries a call out.
fn answer_call(
    call: &Call<'_>,
    answer: &mut Vec<u8>,
    windows: &Windows,
    owners: &Owners,
) -> Answered {
    begin_answer(answer);
    let done = carry_out(call.request, answer, |id, generation| {
        let holds = owners.holds(call.client, id, generation);
        holds.then_some(Slab {
            windows,
            name: (WindowId(id), Generation(generation)),
        })
    });
    match done {
        Ok(()) => Answered::Now,
        Err(malformed) => Answered::Never(malformed.0),
    }
}

/// A slab that the caller holds.
struct Slab<'w> {
    windows: &'w Windows,
    name: (WindowId, Generation),
}

fn carry_out<'w>(
    batch: &[u8],
    answer: &mut Vec<u8>,
    find: impl Fn(u32, u64) -> Option<Slab<'w>>,
) -> std::result::Result<(), Malformed> {
    let mut items = Items::new(batch)?;
    let mut slab = None;
    while let Some(item) = items.next_item()? {
        match item {
            Item::Window(id, generation) => slab = find(id, generation),
            Item::Read(offset, len_bytes) => {
                if answer.len() + 1 + len_bytes > BATCH_BYTES_MAX {
                    return Err(Malformed("a batch whose answer is too long"));
                }
                let place = answer.len();
                answer.push(Outcome::Stale as u8);
                if let Some(slab) = &slab {
                    let read = slab.windows.read(slab.name, offset, len_bytes, answer);
                    answer[place] = outcome(read) as u8;
                }
            }
            Item::Write(offset, bytes) => {
                let outcome = slab.as_ref().map_or(Outcome::Stale, |slab| {
                    outcome(slab.windows.write(slab.name, offset, bytes))
                });
                answer.push(outcome as u8);
            }
        }
        if answer.len() > BATCH_BYTES_MAX {
            return Err(Malformed("a batch whose answer is too long"));
        }
    }
    Ok(())
}

fn outcome(ended: std::result::Result<(), Status>) -> Outcome {
    match ended {
        Ok(()) => Outcome::Done,
        Err(Status::OutOfBounds) => Outcome::OutOfBounds,
        Err(Status::NoRights) => Outcome::NoRights,
        Err(Status::Revoked) => Outcome::Revoked,
        Err(_) => Outcome::Stale,
    }
}
