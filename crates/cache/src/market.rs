//! Machines, what they cost, and which of them a cache takes.
