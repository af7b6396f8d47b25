//! Stored procedures beside the data of a remote cache.
//!
//! A request names a procedure and brings a state. A server thread steps it on the bytes that are
//! on its machine; where bytes are missing they are brought (DFlow), or the request goes to them
//! (FFlow). What decides is [`executor`], pure; [`Procedures`] runs steps, of native procedures
//! and of WebAssembly modules alike; [`message`] is what travels.
//!
//! Connections and server threads that wait on them belong to the host; [`service`] is what its
//! calls carry, [`remote`] a client's end of them.
//! Paper: `[compucache]`; docs/papers/compucache.md.

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

pub use library::{ECHO, FILTER, LOOKUP, Library, LoadError, MODULE_MAX, WALK, checksum};
pub use native::Native;
pub use procedures::{Access, Grants, Procedures, Registry, RegistryError};
pub use request::{
    CacheId, ClientId, Outcome, ProcedureId, Request, Response, State, Status, Trap,
};
pub use table::{Local, Machine, RegionLocation, Slot, Stores, Table};
