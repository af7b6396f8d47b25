//! A crash-consistent object store: clients write values, the store makes them durable in the
//! background.
//!
//! A [`Pool`] is a log of versions and an index on one [`Medium`]. A client asks for space, writes
//! its value into a [`Landing`] and is done. Later the store verifies the value, writes it to the
//! log and sets the version's durability flag; a read of a version that is not durable yet first
//! makes it durable. Values that were read or acknowledged as durable survive a crash; values that
//! were only written may be lost.
//!
//! The value is copied out of its landing before it is verified. In the paper it is verified in
//! memory that the client can still write, so the verified bytes and the durable ones may differ.
//!
//! A [`Server`] serves pools to [`client::Client`]s, which write and read one-sided; the steps of
//! that are a [`schemes::Scheme`], of which there are seven. A folder of pools on ordinary files is
//! what `cenote store` works with. Paper: eFactory, ICPP 2021; `docs/papers/efactory.md`. Bytes:
//! `docs/formats/store.md`.

#![deny(unsafe_code)]

pub mod client;
pub mod copies;
mod format;
#[cfg(feature = "fuzz")]
#[doc(hidden)]
pub mod fuzz;
mod index;
mod injected_faults;
mod landing;
mod medium;
#[cfg(test)]
mod no_threads;
mod pool;
mod protocol;
pub mod schemes;
mod sequence_set;
mod sequenced;
mod server;

pub use format::{ENTRY_COUNT_MAX, KEY_BYTES_MAX, POOL_BYTES_MAX, Secret, VALUE_BYTES_MAX};
#[cfg(feature = "injected-faults")]
pub use injected_faults::inject;
pub use injected_faults::{InjectedFault, MISTAKES};
pub use medium::{FileMedium, Medium, ModelMedium, PmMedium};
pub use pool::{
    Allocation, Batch, Cleaned, Condition, Group, Identity, Landing, Located, Pool, PoolConfig,
    Recovered, Settled, Source, StoreError, Taking, Version, VersionLocation, identify,
};
pub use protocol::{INLINE_BYTES_MAX, Malformed, Refusal, SHARD_COUNT_MAX};
pub use server::{Figures, ServeError, Server, ServerConfig, ServerParts, shard_of};
