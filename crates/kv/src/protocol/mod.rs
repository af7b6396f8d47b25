//! memcached's protocols: bytes in, [`Request`]s out, replies back in. Text and its meta commands
//! are here, the [`binary`] one beside them.
//!
//! ```text
//! bytes -> Parser::parse -> Step -> Request -> (the caller's store) -> reply::* -> bytes
//! ```
//!
//! Requests borrow from the caller's buffer, so nothing is allocated for one, however many keys it
//! has. What is accepted, refused and answered is what memcached 1.6.18 does, also where its
//! documentation says otherwise; `docs/protocols/kv.md` has the tables and the few places where a
//! server behind this differs. Invariant: how a stream is cut into pieces changes nothing.
//! Not here: sockets, time, values, and who may ask (but see [`authentication`]).

pub mod arithmetic;
pub mod authentication;
pub mod binary;
mod classic;
mod error;
pub mod exptime;
mod key;
mod limits;
mod meta;
mod numbers;
mod parse;
pub mod reply;
mod request;
pub mod udp;
mod words;

pub use error::Error;
pub use exptime::Exptime;
pub use key::{KEY_BYTES_MAX, KeyScratch, MetaKey, encode_base64};
pub use limits::{Dialect, Limits};
pub use meta::{MetaArithmetic, MetaDelete, MetaFlag, MetaFlags, MetaGet, MetaSet};
pub use parse::{CloseReason, Parser, Refusal, Step, whole};
pub use request::{Direction, Request, Retrieval, Store, StoreMode, Tuning};
pub use words::Words;
