//! Stores of objects that are served, asked by one connection each for as long as it holds: a store
//! sets memory aside for each client that comes.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use cenote_cli::failure::chain;
use cenote_fabric::{Address, ClientId, ClusterKey, connector};
use cenote_store::client::Client;

use super::snapshot::{StoreFigures, StoreView};
use crate::ask::{random_u128, side_by_side};

/// The stores that are watched.
pub struct Stores {
    key: ClusterKey,
    those: Vec<Store>,
}

struct Store {
    address: Address,
    client: Mutex<Option<Client>>,
}

impl Stores {
    /// At these addresses, with the cluster's key.
    pub fn new(addresses: Vec<Address>, key: ClusterKey) -> Self {
        let store = |address| Store {
            address,
            client: Mutex::new(None),
        };
        Self {
            key,
            those: addresses.into_iter().map(store).collect(),
        }
    }

    /// Asks each of them.
    pub fn ask(&self, limit: Duration) -> Vec<StoreView> {
        side_by_side(&self.those, |store| {
            let answer = store.ask(&self.key, limit);
            let (why, figures) = match answer {
                Ok(figures) => (None, Some(figures)),
                Err(error) => (Some(chain(&error)), None),
            };
            StoreView {
                address: store.address.to_string(),
                answers: figures.is_some(),
                why,
                figures,
            }
        })
    }
}

impl Store {
    fn ask(&self, key: &ClusterKey, limit: Duration) -> Result<StoreFigures> {
        let mut kept = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let mut client = match kept.take() {
            Some(client) => client,
            None => {
                let id = ClientId(random_u128()?);
                Client::connect(&connector(key.clone()), &self.address, id, limit)?
            }
        };
        let shards = client
            .figures(limit)
            .context("its figures: it may run an older version")?;
        let mut figures = StoreFigures {
            scheme: client.scheme().name().to_owned(),
            shards: shards.len(),
            ..StoreFigures::default()
        };
        for shard in shards {
            figures.used_bytes += shard.log_bytes.0;
            figures.log_bytes += shard.log_bytes.1;
            figures.backlog += shard.backlog;
            figures.cleaning += u64::from(shard.is_cleaning);
            figures.put_bytes += shard.put_bytes;
            figures.written_bytes += shard.written_bytes;
        }
        // One that failed to answer is connected to again the next time.
        *kept = Some(client);
        Ok(figures)
    }
}
