//! Stored procedures beside the data of a remote cache.
//!
//! A request names a procedure and carries a state. A server thread steps it on the bytes that are
//! on its machine; missing bytes are fetched (DFlow), or the request moves to them (FFlow).
//! [`executor`] is the pure core that decides; [`Procedures`] runs the steps of native procedures
//! and WebAssembly modules; [`message`] is the protocol.
//!
//! Connections and server threads belong to the host; [`service`] is the content of its calls,
//! [`remote`] the client's end. Paper: `[compucache]`; docs/papers/compucache.md.

#![forbid(unsafe_code)]

pub mod client;
pub mod executor;
pub mod injected_faults;
mod library;
pub mod message;
mod native;
pub mod orders;
mod procedures;
pub mod remote;
mod request;
pub mod service;
pub mod spread;
mod table;
#[cfg(feature = "wasm")]
pub mod wasm;
mod write_set;

pub use library::{Compiled, ECHO, FILTER, LOOKUP, Library, LoadError, MODULE_MAX, WALK, checksum};
pub use native::Native;
pub use procedures::{Access, Grants, Procedures, Registry, RegistryError};
pub use request::{
    CacheId, ClientId, Outcome, ProcedureId, Request, Response, State, Status, Trap,
};
pub use table::{Life, Local, Machine, RegionLocation, Slot, Stores, Table};
