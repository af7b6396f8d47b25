//! Directories that are open, and where in them each reader is.
//!
//! A place in a listing is the number of an entry; the handle remembers the names that were handed
//! out last, and goes on after the one before the place. So names that come and go meanwhile do not
//! make a reader miss or repeat others. Of earlier names it remembers a few, and counts from there
//! for one who steps back or begins elsewhere.
//! Invariant: handles remember some `NAMES_MAX` names together, besides what a short reply has.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
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
    /// Names that all of them remember.
    names: Arc<AtomicUsize>,
}

type Name = Box<[u8]>;

/// Names that were handed out.
struct Reader {
    /// The last ones, in order.
    window: VecDeque<Name>,
    /// The number of the first of them; names are counted from 0.
    first: usize,
    /// Names before numbers that are multiples of [`MARK`], from the first one on.
    marks: Vec<Name>,
    /// Names that all readers remember, and how many of them are this one's.
    names: Arc<AtomicUsize>,
    counted: usize,
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
/// Names between two that are remembered for steps back; arbitrary.
const MARK: usize = 1024;
/// Names that a reader remembers of those it was given last: the kernel may throw away a part of a
/// reply, and ask again from there. The lesser one is a reply of 4 KiB.
const WINDOW: [usize; 2] = [128, 1024];
/// Names that all readers remember before each remembers less; arbitrary, some 16 MiB.
const NAMES_MAX: usize = 256 << 10;
/// `.` and `..` come first.
const DOTS: u64 = 2;

impl Listings {
    pub(super) fn open(&self) -> u64 {
        let mut open = lock(&self.open);
        open.next += 1;
        let handle = open.next;
        let reader = Reader::new(&open.names);
        open.readers.insert(handle, Arc::new(Mutex::new(reader)));
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
        let reader = reader.unwrap_or_else(|| Arc::new(Mutex::new(Reader::new(&Arc::default()))));
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
        reader.go_to(read);
        loop {
            let chunk = files.list(directory, reader.last(), CHUNK)?;
            let is_last = chunk.len() < CHUNK;
            for entry in chunk {
                let number = reader.next();
                let listed = Listed {
                    offset: DOTS + number as u64 + 1,
                    name: entry.name,
                    ino: entry.ino,
                    inode: entry.inode,
                };
                if number >= read && add(&listed) {
                    return Ok(());
                }
                reader.push(listed.name);
            }
            if is_last {
                return Ok(());
            }
        }
    }
}

impl Reader {
    /// At the first name; `names` counts what all readers remember.
    fn new(names: &Arc<AtomicUsize>) -> Self {
        Self {
            window: VecDeque::new(),
            first: 0,
            marks: Vec::new(),
            names: Arc::clone(names),
            counted: 0,
        }
    }

    /// Number of the name that comes next.
    fn next(&self) -> usize {
        self.first + self.window.len()
    }

    /// The name before that.
    fn last(&self) -> Option<&[u8]> {
        self.window.back().map(|name| &**name)
    }

    /// Goes on with name `number`, or with an earlier one from which it is to be counted.
    fn go_to(&mut self, number: usize) {
        if number > self.first && number <= self.next() {
            self.window.truncate(number - self.first);
        } else {
            let marks = (number / MARK).min(self.marks.len());
            self.window.clear();
            self.first = 0;
            if let Some(mark) = marks.checked_sub(1) {
                self.first = marks * MARK - 1;
                self.window.push_back(self.marks[mark].clone());
            }
        }
        self.count();
    }

    fn push(&mut self, name: Name) {
        let is_crowded = self.names.load(Ordering::Relaxed) >= NAMES_MAX;
        let after = self.next() + 1;
        if after.is_multiple_of(MARK) {
            let mark = after / MARK - 1;
            if let Some(before) = self.marks.get_mut(mark) {
                before.clone_from(&name);
            } else if mark == self.marks.len() && !is_crowded {
                self.marks.push(name.clone());
            }
        }
        self.window.push_back(name);
        let [least, most] = WINDOW;
        let kept = if is_crowded { least } else { most };
        let excess = self.window.len().saturating_sub(kept);
        self.window.drain(..excess);
        self.first += excess;
        self.count();
    }

    /// Tells the others how many names this one remembers.
    fn count(&mut self) {
        let now = self.window.len() + self.marks.len();
        let before = std::mem::replace(&mut self.counted, now);
        // Wraps around where it is less.
        self.names
            .fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.names.fetch_sub(self.counted, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(number: usize) -> Name {
        number.to_string().into_bytes().into()
    }

    #[test]
    fn a_reader_remembers_what_it_may_and_goes_to_the_nearest_place_before() {
        let names = Arc::new(AtomicUsize::new(0));
        let mut reader = Reader::new(&names);
        const ALL: usize = 100_000;
        (0..ALL).for_each(|number| reader.push(name(number)));
        let marks = ALL / MARK;
        assert_eq!(names.load(Ordering::Relaxed), WINDOW[1] + marks);
        for (wanted, next) in [(ALL, ALL), (ALL - 700, ALL - 700), (5000, 4096), (900, 0)] {
            reader.go_to(wanted);
            assert_eq!(reader.next(), next);
            let before = next.checked_sub(1).map(name);
            assert_eq!(reader.last(), before.as_deref());
        }
        // There are too many in all.
        names.fetch_add(NAMES_MAX, Ordering::Relaxed);
        (0..2 * MARK).for_each(|number| reader.push(name(number)));
        assert_eq!(reader.window.len(), WINDOW[0]);
        assert_eq!(reader.marks.len(), marks);
        drop(reader);
        assert_eq!(names.load(Ordering::Relaxed), NAMES_MAX);
    }
}
