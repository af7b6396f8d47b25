//! Chooses a scheme and groups of hosts for a cluster: `cenote plan`.
//!
//! ```text
//!   hosts, racks, failures        scheme k+r, groups
//!            |                          |
//!          [odds] how many fail      [placed] stripes, by the functions that clients call
//!            +-----------+--------------+
//!                        v
//!        [loss] the odds that data goes     [balance] how even memory is used
//!                        +-----------+-----------+
//!                                    v
//!                        [choice] the best schemes        [tco] what lending saves
//! ```
//!
//! Hosts and failures are models. All randomness comes from a seed, so the same options give the
//! same plan on every machine. Paper: \[hydra22\] 5, 7.2, 7.4; what it leaves open: decision 21.

pub mod balance;
pub mod choice;
pub mod loss;
pub mod odds;
pub mod stripes;
pub mod tco;
