//! Stored procedures beside the data of a remote cache.
//!
//! A request names a procedure and brings a state. A server thread steps it on the bytes that are
//! on its machine; where bytes are missing they are brought (DFlow), or the request goes to them
//! (FFlow). What decides is [`executor`], pure; [`Procedures`] runs steps, of native procedures
//! and of WebAssembly modules alike; [`message`] is what travels.
//!
//! Connections and server threads that wait on them belong to the host.
//! Paper: `[compucache]`; docs/papers/compucache.md.

#![forbid(unsafe_code)]

pub mod client;
pub mod executor;
pub mod message;
mod native;
pub mod planted;
mod procedures;
mod request;
pub mod spread;
mod table;
pub mod wasm;

pub use native::Native;
pub use procedures::{Access, Grants, Procedures, Registry, RegistryError};
pub use request::{CacheId, ClientId, Outcome, ProcedureId, Request, Response, Status, Trap};
pub use table::{Machine, Place, Slot, Table};
