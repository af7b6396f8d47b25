//! Real servers and clients over shm and tcp.

mod by_hand;
mod copies;
mod fences;
mod lab;
mod late;

mod hostile;
mod promises;
mod races;
mod schemes;
