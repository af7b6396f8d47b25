//! The thread that reads held regions and writes them to the file, one order after the other.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use cenote_durable::Replacement;
use cenote_fabric::{Address, Waker};
use cenote_pool::control::Window;

use super::bulk::{self, Bulk};
use super::format::{self, CHUNK_BYTES_MAX, Header, Writer};
use crate::links::Caller;

/// What the thread is to do next.
#[derive(Debug)]
pub enum Order {
    /// Copy a region that is held. Answered by [`Told::Saved`].
    Save {
        /// The region.
        region: u32,
        /// When it was held, in milliseconds since 1970.
        taken_ms: u64,
        /// Its host.
        address: Address,
        /// Where it is there.
        windows: Vec<Window>,
    },
    /// It was held all the while, and counts.
    Keep,
    /// It was not.
    Discard,
    /// All regions are there. Answered by [`Told::Finished`].
    Finish,
}

/// What it says.
#[derive(Debug)]
pub enum Told {
    /// The end of a copy.
    Saved(Result<(), bulk::Error>),
    /// The end of the checkpoint: its bytes, on the disk under its name.
    Finished(Result<u64, format::Error>),
    /// The file cannot be written; nothing more comes.
    Broken(format::Error),
}

/// The thread's other end. Dropping it ends the checkpoint, and leaves what was at its path.
#[derive(Debug)]
pub struct Saver {
    orders: Sender<Order>,
    told: Receiver<Told>,
}

/// Only the cache's user reads it.
const MODE: u32 = 0o600;

impl Saver {
    /// Begins a checkpoint at `path`; `waker` is woken when there is something to [`Saver::poll`].
    ///
    /// # Errors
    /// The file cannot be made, or no thread is left.
    pub fn begin(
        path: &Path,
        header: Header,
        caller: Caller,
        waker: Waker,
    ) -> std::io::Result<Self> {
        let mut file = Replacement::begin(path, MODE)?;
        let out = BufWriter::with_capacity(CHUNK_BYTES_MAX, file.file().try_clone()?);
        let writer = Writer::begin(out, header)?;
        let (orders, inbox) = channel();
        let (sender, told) = channel();
        let mut work = Work {
            file,
            caller,
            host: None,
        };
        let run = move || {
            let say = |told| {
                // Nobody waits any more: then the thread ends with its orders.
                drop(sender.send(told));
                waker.wake();
            };
            if let Err(error) = work.run(writer, &inbox, &say) {
                say(Told::Broken(error));
            }
        };
        let thread = std::thread::Builder::new().name("checkpoint".to_owned());
        thread.spawn(run)?;
        Ok(Self { orders, told })
    }

    /// Has the next thing done. One that has broken says so by [`Saver::poll`].
    pub fn order(&self, order: Order) {
        drop(self.orders.send(order));
    }

    /// What it said.
    #[must_use]
    pub fn poll(&self) -> Option<Told> {
        self.told.try_recv().ok()
    }
}

struct Work {
    file: Replacement,
    caller: Caller,
    /// The host that was read last.
    host: Option<(Address, Bulk)>,
}

impl Work {
    fn run(
        &mut self,
        mut writer: Writer<BufWriter<File>>,
        orders: &Receiver<Order>,
        say: &impl Fn(Told),
    ) -> Result<(), format::Error> {
        while let Ok(order) = orders.recv() {
            match order {
                Order::Save {
                    region,
                    taken_ms,
                    address,
                    windows,
                } => {
                    writer.begin_region(region, taken_ms);
                    match self.copy(&mut writer, &address, &windows) {
                        Err(bulk::Error::File(error)) => return Err(error),
                        ended => {
                            if ended.is_err() {
                                self.host = None;
                            }
                            say(Told::Saved(ended));
                        }
                    }
                }
                Order::Keep => writer.keep_region(),
                Order::Discard => writer.discard_region()?,
                Order::Finish => {
                    let (out, len_bytes) = writer.finish()?;
                    drop(out);
                    self.file.file().set_len(len_bytes)?;
                    say(Told::Finished(self.commit(len_bytes)));
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn commit(&mut self, len_bytes: u64) -> Result<u64, format::Error> {
        self.file.commit()?;
        Ok(len_bytes)
    }

    fn copy(
        &mut self,
        writer: &mut Writer<BufWriter<File>>,
        address: &Address,
        windows: &[Window],
    ) -> Result<(), bulk::Error> {
        if self.host.as_ref().is_none_or(|(at, _)| at != address) {
            self.host = None;
            let bulk = Bulk::connect(&self.caller, address)?;
            self.host = Some((address.clone(), bulk));
        }
        let (_, bulk) = self.host.as_mut().expect("connected just now");
        bulk.read(windows, |chunk| {
            let written = writer.chunk(chunk);
            written.map_err(|error| bulk::Error::File(error.into()))
        })
    }
}
