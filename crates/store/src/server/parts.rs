//! A store's server without threads: what each of them does, for whoever calls it in turn.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cenote_fabric::calls::Answering;
use cenote_fabric::{Error, Listen, Rights, Time, Waker};

use super::calls::{Calls, Clients};
use super::desk::Desk;
use super::fence::Fencer;
use super::outbox::{Outbox, Outboxes};
use super::persister::Persister;
use super::shard::Shard;
use super::times::Times;
use super::{ServeError, ServerConfig};
use crate::medium::Medium;
use crate::pool::{Pool, StoreError};
use crate::protocol::{SHARD_COUNT_MAX, ShardView};
use crate::schemes::PutStep;

/// The parts of a server, over any listener and its ends for calls.
///
/// A [`Server`](super::Server) gives each a thread of its own; a simulator calls [`turn`](Self::turn) and
/// [`persist`](Self::persist) as time goes on.
pub struct ServerParts<M, L, A> {
    pub(super) shards: Vec<Arc<Shard<M>>>,
    pub(super) desk: Desk<M, L>,
    pub(super) calls: Vec<Calls<M, A>>,
    pub(super) persisters: Vec<Persister<M>>,
    /// What each thread that serves clients has timed.
    pub(super) times: Vec<Arc<Times>>,
}

impl<M: Medium, L: Listen, A: Answering> ServerParts<M, L, A> {
    /// Serves the pools, a shard each, all of one seed, as `config` says but for its addresses and its key:
    /// those are the listener's. Each end for calls comes with what wakes it.
    ///
    /// # Errors
    /// [`ServeError`].
    pub fn new(
        pools: Vec<Pool<M>>,
        listener: L,
        answerers: Vec<(A, Waker)>,
        config: &ServerConfig,
    ) -> Result<Self, ServeError> {
        let seed = pools.first().map(|pool| pool.hashing().0);
        let is_one = pools.iter().all(|pool| Some(pool.hashing().0) == seed);
        let Some(seed) = seed.filter(|_| is_one && pools.len() <= SHARD_COUNT_MAX) else {
            return Err(ServeError::Shards);
        };
        let writes_log = !config.scheme.lands_beside_log()
            && config.scheme.put_steps().contains(&PutStep::CallForSpace);
        let log_rights = match writes_log {
            true => Rights::READ.with(Rights::WRITE),
            false => Rights::READ,
        };
        let mut views = Vec::new();
        for pool in &pools {
            let log = pool.medium().memory().ok_or(ServeError::Medium)?;
            pool.index_memory().seal(Rights::READ)?;
            log.seal(log_rights)?;
            views.push(ShardView {
                entry_count: pool.hashing().1,
                index: listener.register(Arc::clone(pool.index_memory()), Rights::READ)?,
                log: listener.register(Arc::clone(log), log_rights)?,
            });
        }
        let (answerers, wakers): (Vec<A>, Vec<Waker>) = answerers.into_iter().unzip();
        let outboxes = Arc::new(Outboxes {
            threads: wakers.into_iter().map(Outbox::new).collect(),
            peers: Outbox::new(listener.waker()),
        });
        let shards: Vec<_> = pools
            .into_iter()
            .enumerate()
            .map(|(number, pool)| {
                let (scheme, outboxes) = (&config.scheme, Arc::clone(&outboxes));
                Arc::new(Shard::new(pool, scheme, outboxes, number as u16))
            })
            .collect();
        let clients: Clients = Arc::default();
        let persister = |shard: &Arc<Shard<M>>| Persister::new(Arc::clone(shard), config.patience);
        let calls = |(index, answerer)| Calls {
            index,
            answerer,
            seed,
            shards: shards.clone(),
            clients: Arc::clone(&clients),
            outboxes: Arc::clone(&outboxes),
            times: Arc::default(),
        };
        let calls: Vec<_> = answerers.into_iter().enumerate().map(calls).collect();
        let own: Arc<Times> = Arc::default();
        let mut times = vec![Arc::clone(&own)];
        times.extend(calls.iter().map(|calls| Arc::clone(&calls.times)));
        let windows = views.iter().enumerate();
        Ok(Self {
            persisters: shards.iter().map(persister).collect(),
            calls,
            desk: Desk {
                listener,
                shards: shards.clone(),
                shard_of_log: windows.map(|(shard, view)| (view.log.id, shard)).collect(),
                clients: Arc::clone(&clients),
                peers: HashMap::new(),
                parting: Vec::new(),
                outboxes: Arc::clone(&outboxes),
                times: own,
                landing_bytes: config.landing_bytes,
                scheme: config.scheme.name(),
                seed,
                views,
            },
            times,
            shards,
        })
    }

    /// Takes what clients have sent, without waiting. `clock` is the listener's.
    ///
    /// # Errors
    /// The fabric's: the process is over.
    pub fn turn(&mut self, clock: fn() -> Time) -> Result<(), Error> {
        self.desk.turn(Some(Duration::ZERO), clock)?;
        for calls in &mut self.calls {
            calls.turn(Some(Duration::ZERO), clock)?;
        }
        Ok(())
    }

    /// Makes durable what is there, and cleans a little, once for each shard. A disk's fence is over the
    /// next time.
    ///
    /// # Errors
    /// The medium's: the store ends.
    pub fn persist(&mut self, now: Time) -> Result<(), StoreError> {
        for persister in &mut self.persisters {
            let shard = Arc::clone(&persister.shard);
            if persister.is_in_fence() {
                shard.end_fence();
            }
            drop(persister.turn(&shard, shard.lock(), &Fencer::Later, now)?);
        }
        Ok(())
    }

    /// The media, a shard each.
    pub fn media(&self) -> impl Iterator<Item = &Arc<M>> {
        self.shards.iter().map(|shard| &shard.medium)
    }
}
