//! The NBD server as its clients see it: raw sockets, and the tools people use.

mod client;
mod gate;
mod protocol;
mod robust;
mod tools;
