//! The thread that brings regions back from a checkpoint into new memory, one after the other.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use cenote_fabric::{Address, Waker};
use cenote_pool::control::Window;

use super::bulk::{self, Bulk};
use super::format::{self, Header, Reader, Saved};
use crate::links::Caller;

/// What is to come back.
#[derive(Clone, Debug)]
pub struct Task {
    /// The owner's number for it.
    pub request: u64,
    /// The region.
    pub region: u32,
    /// Its new host.
    pub address: Address,
    /// Its new memory.
    pub windows: Vec<Window>,
}

/// The end of one: its number, and the time that the region fell back to.
pub type End = (u64, Result<u64, bulk::Error>);

enum Order {
    /// What follows comes from here.
    Use(PathBuf, Header),
    Restore(Task),
}

/// The thread's other end. It ends with what it has in hand when this is dropped.
#[derive(Debug)]
pub struct Restorer {
    orders: Sender<Order>,
    ends: Receiver<End>,
}

/// Reads which regions the checkpoint at `path` has, of a cache with these numbers.
///
/// # Errors
/// It is none, is damaged, or is another cache's.
pub fn look(
    path: &Path,
    cache: u128,
    region_bytes: u64,
) -> Result<(Header, Vec<Saved>), format::Error> {
    let reader = Reader::open(File::open(path)?)?;
    let header = reader.header();
    if (header.cache, header.region_bytes) != (cache, region_bytes) {
        return Err(format::Error::Damaged("it is of another cache"));
    }
    Ok((header, reader.saved().to_vec()))
}

impl Restorer {
    /// Starts the thread; `waker` is woken when there is something to [`Restorer::poll`].
    ///
    /// # Errors
    /// No thread is left.
    pub fn start(caller: Caller, waker: Waker) -> std::io::Result<Self> {
        let (orders, inbox) = channel();
        let (sender, ends) = channel();
        let run = move || {
            let mut source = None;
            while let Ok(order) = inbox.recv() {
                match order {
                    Order::Use(path, header) => source = Some((path, header)),
                    Order::Restore(task) => {
                        let end = match &source {
                            Some((path, header)) => restore(path, *header, &task, &caller),
                            None => Err(format::Error::Foreign.into()),
                        };
                        // Nobody waits for it any more: then there are no more orders.
                        drop(sender.send((task.request, end)));
                        waker.wake();
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("restore".to_owned());
        thread.spawn(run)?;
        Ok(Self { orders, ends })
    }

    /// Has what follows come from a checkpoint that was looked at.
    pub fn use_file(&self, path: &Path, header: Header) {
        self.order(Order::Use(path.to_owned(), header));
    }

    /// Begins to bring a region back; its end comes by [`Restorer::poll`].
    pub fn begin(&self, task: Task) {
        self.order(Order::Restore(task));
    }

    /// The thread ends after this does, or by a panic, which ends the process.
    fn order(&self, order: Order) {
        drop(self.orders.send(order));
    }

    /// The end of one.
    #[must_use]
    pub fn poll(&self) -> Option<End> {
        self.ends.try_recv().ok()
    }
}

fn restore(path: &Path, header: Header, task: &Task, caller: &Caller) -> Result<u64, bulk::Error> {
    let file = File::open(path).map_err(format::Error::from)?;
    let mut reader = Reader::open(file)?;
    let found = reader.header();
    let room: u64 = task.windows.iter().map(|window| window.len_bytes).sum();
    if found.cache != header.cache || found.region_bytes != room {
        return Err(format::Error::Damaged("it was replaced by another cache's").into());
    }
    let mut bulk = Bulk::connect(caller, &task.address)?;
    let mut writing = bulk.write(&task.windows)?;
    let mut failed = None;
    let saved = reader.region(task.region, |at, bytes| {
        // New memory is zeros.
        if bytes.iter().any(|&byte| byte != 0)
            && let Err(error) = writing.put(at, bytes)
        {
            failed = Some(error);
            return Err(format::Error::Damaged("not read to its end"));
        }
        Ok(())
    });
    if let Some(error) = failed {
        return Err(error);
    }
    writing.finish()?;
    Ok(saved?.taken_ms)
}
