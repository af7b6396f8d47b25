//! Reads the catalogue on a thread: a file system that hangs holds up no manager.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::Duration;

use cenote_fabric::{Time, Waker};

use crate::market::Catalogue;

/// Shortest time between two reads.
const READ_EVERY: Duration = Duration::from_secs(1);

type Read = Result<Catalogue, String>;

/// See the module's text.
pub struct Prices {
    asks: Sender<()>,
    read: Receiver<Read>,
    is_asked: bool,
    ask_at: Time,
}

impl Prices {
    /// Its thread wakes `waker` after each read, and ends with this.
    ///
    /// # Errors
    /// The system starts no thread.
    pub fn new(mut read: Box<dyn FnMut() -> Read + Send>, waker: Waker) -> std::io::Result<Self> {
        let (asks, inbox) = channel::<()>();
        let (outbox, results) = channel();
        let work = move || {
            for () in inbox {
                if outbox.send(read()).is_err() {
                    return;
                }
                waker.wake();
            }
        };
        let builder = std::thread::Builder::new().name("cenote-prices".to_owned());
        builder.spawn(work)?;
        Ok(Self {
            asks,
            read: results,
            is_asked: false,
            ask_at: Time(0),
        })
    }

    /// Has it read where that is wanted; what was read since the last call.
    pub fn tend(&mut self, now: Time, is_wanted: bool) -> Option<Read> {
        let read = match self.read.try_recv() {
            Ok(read) => Some(read),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => unreachable!("its thread ends after this"),
        };
        if read.is_some() {
            self.is_asked = false;
        } else if is_wanted && !self.is_asked && now >= self.ask_at {
            self.is_asked = true;
            self.ask_at = now.after(READ_EVERY);
            self.asks.send(()).expect("its thread ends after this");
        }
        read
    }
}
