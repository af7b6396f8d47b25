//! What outlives a manager of its cache's machines.

use std::fmt;

use cenote_wire::messages;

use crate::links::HostConfig;
use crate::providers::Machine;

/// Names an order, and the machine that came of it, for good.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub struct Order {
    /// Of the manager that gave it.
    pub epoch: u64,
    /// Among those of that manager.
    pub number: u32,
}

impl Order {
    /// As providers know it: no other cache has one of that name.
    #[must_use]
    pub fn name(self, cache: u128) -> String {
        format!("{cache:032x}-{}-{}", self.epoch, self.number)
    }
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.number)
    }
}

messages! {
    /// How far a machine is.
    #[derive(Clone, Copy, Debug, Eq, PartialEq)]
    #[repr(u8)]
    pub enum Stage | "no known stage of a machine" {
        /// Its provider may have been asked. Nobody knows what it did.
        1 => Ordered,
        /// It was got.
        2 => Used,
        /// It is to go back.
        3 => Releasing,
    }
}

/// A machine, or an order for one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeptMachine {
    /// Its name for good.
    pub order: Order,
    /// How far it is.
    pub stage: Stage,
    /// In the catalogue.
    pub machine_type: String,
    /// Who has it.
    pub provider: String,
    /// Whether its owner may want it back.
    pub is_spot: bool,
    /// What it cost when it was ordered, in millionths per hour.
    pub price_micros: u64,
    /// Memory that was asked for.
    pub memory_bytes: u64,
    /// What its provider calls it; empty: nobody knows.
    pub id: String,
    /// Where its host listens; empty as the id is.
    pub address: String,
    /// What fails together with it; empty as the id is.
    pub domain: String,
    /// The number of its host, while it is used.
    pub host: Option<u16>,
}

impl KeptMachine {
    /// As its provider knows it, if it was got.
    #[must_use]
    pub fn machine(&self, cache: u128) -> Option<Machine> {
        if self.id.is_empty() {
            return None;
        }
        let host = HostConfig {
            name: self.id.clone(),
            address: self.address.parse().ok()?,
            domain: self.domain.clone(),
        };
        let (order, id) = (self.order.name(cache), self.id.clone());
        Some(Machine { order, id, host })
    }
}
