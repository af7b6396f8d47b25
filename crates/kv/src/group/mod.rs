//! The protocol of a group: K partitions, M parities, and how they survive.
//!
//! Pure: a [`Member`](member::Member) takes events and gives messages; server and simulator drive
//! the same type.
//!
//! ```text
//! request -> Owner --Update--> Parity --Ack--> Owner: committed -> reply
//!              |                  |
//!           Replica            Replica      keys, facts, space: equal
//!           Region             Region       values; their sum, coded
//! ```

mod adoption;
mod alone;
mod arrival;
pub mod audit;
mod backlog;
mod backup;
pub mod change;
mod counts;
pub mod debts;
mod exchange;
mod horizon;
mod lookup;
pub mod marks;
pub mod member;
pub mod message;
pub mod operation;
pub mod owner;
pub mod pace;
mod parity;
pub mod process;
pub mod progress;
mod recovery;
pub mod replica;
mod room;
mod sender;
mod settlement;
mod status;
mod takeover;
pub mod units;
pub mod view;
pub mod wire;

pub use counts::Counts;
pub use room::{Bound, SWEEP_NS};
pub use sender::LEASE_NS;
pub use status::Memory;
pub use takeover::Takeover;
