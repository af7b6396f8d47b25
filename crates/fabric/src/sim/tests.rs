//! Behaviour of the simulated network.
