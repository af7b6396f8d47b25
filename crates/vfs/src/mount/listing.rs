//! Directories that are open, and where in them each reader is.
//!
//! A place in a listing is the number of an entry; the handle remembers the names that were handed
//! out, and goes on after the last of them. So names that come and go meanwhile do not make a
//! reader miss or repeat others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::Result;
use crate::area::lock;
use crate::files::Files;
use crate::records::{Ino, Inode};

/// All directories that are open.
#[derive(Default)]
pub(super) struct Listings {
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    readers: HashMap<u64, Arc<Mutex<Reader>>>,
}

/// Names that were handed out, in order.
#[derive(Default)]
struct Reader {
    names: Vec<Box<[u8]>>,
}

/// An entry of a listing.
pub(super) struct Listed {
    pub(super) name: Box<[u8]>,
    pub(super) ino: Ino,
    pub(super) inode: Inode,
    /// Where the listing goes on after it.
    pub(super) offset: u64,
}

/// Entries read at a time; arbitrary, a few kernel buffers.
const CHUNK: usize = 128;
/// `.` and `..` come first.
const DOTS: u64 = 2;

impl Listings {
    pub(super) fn open(&self) -> u64 {
        let mut open = lock(&self.open);
        open.next += 1;
        let handle = open.next;
        open.readers.insert(handle, Arc::default());
        handle
    }

    pub(super) fn close(&self, handle: u64) {
        lock(&self.open).readers.remove(&handle);
    }

    /// Hands entries from `offset` on to `add`, until it says that it is full.
    pub(super) fn read(
        &self,
        files: &Files,
        handle: u64,
        directory: Ino,
        offset: u64,
        mut add: impl FnMut(&Listed) -> bool,
    ) -> Result<()> {
        let reader = lock(&self.open).readers.get(&handle).cloned();
        let reader = reader.unwrap_or_default();
        let mut reader = lock(&reader);
        let inode = files.inode(directory)?;
        for (at, name) in [&b"."[..], b".."].into_iter().enumerate() {
            if at as u64 >= offset {
                let ino = if at == 0 { directory } else { inode.parent };
                let dot = Listed {
                    name: name.into(),
                    ino,
                    // What the kernel takes of it is the kind.
                    inode,
                    offset: at as u64 + 1,
                };
                if add(&dot) {
                    return Ok(());
                }
            }
        }
        let read = offset.saturating_sub(DOTS) as usize;
        reader.names.truncate(read);
        loop {
            let after = reader.names.last().cloned();
            let chunk = files.list(directory, after.as_deref(), CHUNK)?;
            let is_last = chunk.len() < CHUNK;
            for entry in chunk {
                let listed = Listed {
                    offset: DOTS + reader.names.len() as u64 + 1,
                    name: entry.name,
                    ino: entry.ino,
                    inode: entry.inode,
                };
                if add(&listed) {
                    return Ok(());
                }
                reader.names.push(listed.name);
            }
            if is_last {
                return Ok(());
            }
        }
    }
}
