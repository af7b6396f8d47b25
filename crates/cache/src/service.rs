//! A cache as a service: the process of its manager, and the handle by which programs use it.
//!
//! | file | owns |
//! |---|---|
//! | `server` | the manager's process: owner, journal, clients |
//! | `server/leadership` | whether the manager can prove that no other one followed it |
//! | `server/flow` | whether a client reads what it is told, and hears anything |
//! | `server/herald` | words to hosts about slabs, for procedures |
//! | `journal` | what one manager leaves to the next |
//! | `outbox` | what a client is still to be told, bounded |
//! | `allowance` | how much of the manager's time a client may take |
//! | `message` | what the two say to each other |
//! | `question` | status, size, duration, end, as JSON |
//! | `handle` | [`Cache`]: reads and writes, many under way or one at a time |
//! | `correspondent` | a handle's connection to the manager |
//! | `greeting` | its first words |
//! | `asker` | a question of one who is no client |
//! | `injected` | mistakes made on purpose, for tests of the tests |
//! | `bench` | a closed loop over handles |
//!
//! A client reaches the manager over the fabric's control connections (`shm` on its machine, `tcp` from
//! others), so it proves the cluster's key first. Bytes: `docs/protocols/cache.md`, `docs/formats/cache-journal.md`.
//!
//! Not here: the lock that keeps a second manager of a cache out, and folders. They are the caller's.

mod allowance;
mod asker;
pub mod bench;
mod correspondent;
mod greeting;
mod handle;
mod injected_faults;
pub mod journal;
pub mod message;
mod outbox;
pub mod question;
mod server;

pub use asker::{CallError, ask, ask_while};
pub use greeting::{OpenError, Options};
pub use handle::Cache;
pub use server::{
    Agreement, Claim, Claimed, Config, End, MakeProvider, Market, PROOF_LEASE, ReadHosts, Server,
    StartError, Supply, Terms,
};
