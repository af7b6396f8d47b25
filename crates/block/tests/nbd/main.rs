//! The NBD server as its clients see it: raw sockets, and the tools people use.

mod client;
mod extended_headers;
mod gate;
mod huge;
mod order;
mod protocol;
mod robust;
mod slots;
mod thread_end;
mod tls;
mod tools;
