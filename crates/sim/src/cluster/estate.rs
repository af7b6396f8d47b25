//! What a simulated client leaves to the next: a journal and marks that survive its end. The
//! journal's disk may be full for a while, and the end may come in the middle of writing to it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};

use cenote_measure::random::Random;
use cenote_volume::{Kept, Log, NamedSlab};

/// What survives a client.
pub struct Estate {
    disk: Arc<Mutex<Disk>>,
    marks: File,
    images: File,
    tags: File,
    layouts: File,
}

/// What a journal names, by extent and member.
pub type NamedSlabs = BTreeMap<(u32, u8), NamedSlab>;

/// A disk with one file.
#[derive(Default)]
struct Disk {
    bytes: Vec<u8>,
    /// What they name; `None`: nobody has looked since they changed.
    named: Option<Arc<NamedSlabs>>,
    /// After so many more changes something happens: ...
    fuse: Option<u64>,
    /// ... so many are refused, as by a disk that is full, ...
    refusals: u64,
    /// ... and then the process ends in the middle of one, if it does, ...
    is_last: bool,
    /// ... of which this share is on the disk, in 256ths; appended bytes only.
    share: u64,
    /// It has ended: nothing is written any more.
    is_dead: bool,
}

impl Estate {
    pub fn new() -> Self {
        Self {
            disk: Arc::default(),
            marks: tempfile::tempfile().expect("a file for the marks of a simulated volume"),
            images: tempfile::tempfile().expect("a file for the images of a simulated volume"),
            tags: tempfile::tempfile().expect("a file for the tags of a simulated volume"),
            layouts: tempfile::tempfile().expect("a file for the layouts of a simulated volume"),
        }
    }

    /// For the next owner. Sometimes its journal cannot be written for a while, sometimes it ends
    /// while it writes it.
    pub fn kept(&self, random: &mut Random) -> Kept {
        let mut disk = self.lock();
        disk.is_dead = false;
        disk.fuse = random.percent(40).then(|| 1 + random.below(4));
        disk.refusals = if random.percent(50) {
            // A few seconds: a journal that is refused is tried again four times a second.
            1 + random.below(40)
        } else {
            0
        };
        disk.is_last = random.percent(60);
        disk.share = random.below(256);
        drop(disk);
        Kept {
            journal: Box::new(OnDisk(Arc::clone(&self.disk))),
            marks: self.marks.try_clone().expect("another descriptor"),
            images: self.images.try_clone().expect("another descriptor"),
            tags: Some(self.tags.try_clone().expect("another descriptor")),
            layouts: Some(self.layouts.try_clone().expect("another descriptor")),
            is_given_up: false,
        }
    }

    /// What the journal names.
    pub fn named(&self) -> Arc<NamedSlabs> {
        if let Some(named) = &self.lock().named {
            return Arc::clone(named);
        }
        let named = Kept::named(&mut OnDisk(Arc::clone(&self.disk)));
        let named = Arc::new(named.expect("a journal of ours"));
        self.lock().named = Some(Arc::clone(&named));
        named
    }

    /// Whether the journal names a slab for a member of an extent.
    pub fn names(&self, extent: usize, split: usize) -> bool {
        let extent = u32::try_from(extent).expect("a simulated volume is small");
        let split = u8::try_from(split).expect("at most 40 members");
        self.named().contains_key(&(extent, split))
    }

    /// From now on the disk works.
    pub fn heal(&self) {
        let mut disk = self.lock();
        disk.fuse = None;
        disk.refusals = 0;
    }

    /// Whether the process has ended by itself.
    pub fn is_dead(&self) -> bool {
        self.lock().is_dead
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Disk> {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct OnDisk(Arc<Mutex<Disk>>);

impl OnDisk {
    fn change(
        &self,
        change: impl FnOnce(&mut Vec<u8>, Option<u64>) -> io::Result<()>,
    ) -> io::Result<()> {
        let mut disk = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let disk = &mut *disk;
        if disk.is_dead {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        disk.named = None;
        let is_burnt = disk.fuse == Some(0);
        disk.fuse = disk.fuse.map(|left| left.saturating_sub(1));
        if is_burnt && disk.refusals > 0 {
            disk.refusals -= 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        if is_burnt && disk.is_last {
            disk.is_dead = true;
            change(&mut disk.bytes, Some(disk.share))?;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        change(&mut disk.bytes, None)
    }
}

impl Log for OnDisk {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .bytes
            .clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.change(|disk, share| {
            let len = bytes.len() as u64;
            let written = share.map_or(len, |share| len * share / 255);
            disk.write_all(&bytes[..usize::try_from(written).expect("a part of a slice")])
        })
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.change(|disk, share| {
            // A rename is there or not.
            if share.is_none_or(|share| share >= 128) {
                *disk = bytes.to_vec();
            }
            Ok(())
        })
    }
}
