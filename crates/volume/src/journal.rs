//! The journal of a volume's directory: what the next owner must know to take the volume over.
//!
//! Which slabs hold current data, and how often the volume changed its owner. It is written, and
//! on the disk, before the first acknowledgement that depends on it. Byte table:
//! `docs/protocols/journal.md`.
//!
//! It is written as the difference between what the log says and what it is to say, so that an
//! attempt that failed leaves nothing behind: what it wanted counts only if it is wanted still.
//!
//! Invariants: every slab that the journal names is current, but for pages that are listed as in
//! flight ([`crate::marks`]); a journal that was cut off inside its last batch is one that never
//! got that batch; any other damage is an error.

mod format;
#[cfg(feature = "fuzz")]
pub(crate) mod fuzz;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use cenote_durable::journal::{KnownLog, is_cut_off};

use crate::layout::Layout;
use crate::scheme::Cut;
use format::{Record, batch};

pub use cenote_durable::journal::{JournalError, JournalFile, Log};

/// What does not change in the life of a volume's contents.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Identity {
    /// The volume.
    pub volume: u128,
    /// Size of its slabs.
    pub slab_bytes: u64,
    /// Data splits.
    pub k: u8,
    /// Parity splits.
    pub r: u8,
}

/// A slab that holds current data.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Held {
    /// Name of the host.
    pub host: String,
    /// Its first generation.
    pub birth: u64,
}

/// Extent and member.
pub type At = (u32, u8);

/// Data splits and parities of the extents of one layout.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    pub k: u8,
    pub r: u8,
}

/// What a journal says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Image {
    pub identity: Identity,
    /// The layouts that slabs may be of; both while the volume's k changes.
    pub layouts: [Option<Shape>; 2],
    /// Owners so far.
    pub epoch: u64,
    pub held: BTreeMap<At, Held>,
}

impl Image {
    /// Most bytes that the volume may have in each of its layouts.
    pub fn size_bytes_max(&self) -> u64 {
        let layouts = self.layouts.iter().flatten();
        let most = layouts.map(|shape| {
            let cut = Cut::of_log2(u8::try_from(shape.k.ilog2()).expect("below 8"));
            Layout::new(cut, self.identity.slab_bytes).size_bytes_max()
        });
        most.min().unwrap_or(u64::MAX)
    }
}

/// An open journal: what its log is to say, and what is known of what it says.
pub struct Journal {
    log: KnownLog<Image>,
    wanted: Image,
    /// Where `wanted` may differ from what a log says that is known.
    touched: BTreeSet<At>,
}

impl Journal {
    /// What a log says; `None` when it is empty.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn load(log: &mut dyn Log) -> Result<Option<Image>, JournalError> {
        format::parse(&log.read()?)
    }

    /// As [`Journal::load`], where the machine runs since the journal was written: a last batch that
    /// is not whole is one that a killed process had begun, or damage.
    ///
    /// # Errors
    /// As [`Journal::load`].
    pub fn load_since_boot(log: &mut dyn Log) -> Result<Option<Image>, JournalError> {
        let bytes = log.read()?;
        let (image, end) = format::parse_to_end(&bytes)?;
        if !is_cut_off(&bytes, end) {
            return Err(JournalError::DamagedEnd { at: end });
        }
        Ok(image)
    }

    /// Starts from `image`, which is on the disk once this returned.
    ///
    /// # Errors
    /// The system refuses.
    pub fn begin(log: Box<dyn Log>, image: Image) -> io::Result<Self> {
        let mut journal = Self {
            log: KnownLog::new(log),
            wanted: image,
            touched: BTreeSet::new(),
        };
        journal.rewrite()?;
        Ok(journal)
    }

    /// What a journal says that begins.
    pub fn fresh(identity: Identity) -> Image {
        Image {
            identity,
            layouts: format::layouts_of(identity),
            epoch: 0,
            held: BTreeMap::new(),
        }
    }

    /// What it is to say.
    pub fn wanted(&self) -> &Image {
        &self.wanted
    }

    /// Has it say, from the next [`Journal::write`] on, which slab holds a member's current data.
    pub fn set(&mut self, at: At, held: Option<Held>) {
        self.touched.insert(at);
        match held {
            Some(held) => self.wanted.held.insert(at, held),
            None => self.wanted.held.remove(&at),
        };
    }

    /// Has it say, from the next [`Journal::write`] on, that a layout is there, or is not.
    pub fn set_layout(&mut self, layout_id: u8, shape: Option<Shape>) {
        self.wanted.layouts[usize::from(layout_id & 1)] = shape;
    }

    /// Has it say, from the next [`Journal::write`] on, that no slab holds anything.
    pub fn clear(&mut self) {
        self.touched.extend(self.wanted.held.keys());
        self.wanted.held.clear();
    }

    /// Whether the next owner would find exactly what was written last: no write has failed since.
    pub fn is_known(&self) -> bool {
        self.log.said().is_some()
    }

    /// Brings the difference between what the log says and what it is to say to the disk. What
    /// fails is made good by the next call, whatever is wanted by then.
    ///
    /// # Errors
    /// The system refuses; the log may say either.
    pub fn write(&mut self) -> io::Result<()> {
        let Some(said) = self.log.said() else {
            return self.rewrite();
        };
        let news = difference(said, &self.wanted, &self.touched);
        if !news.is_empty() {
            if self.log.is_long(format::size(&self.wanted)) {
                return self.rewrite();
            }
            let apply = |said: &mut Image| news.iter().for_each(|record| record.apply(said));
            self.log.append(&batch(&news), apply)?;
        }
        self.touched.clear();
        Ok(())
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let bytes = format::whole(&self.wanted);
        self.log.replace(&bytes, self.wanted.clone())?;
        self.touched.clear();
        Ok(())
    }
}

/// What brings a log that says `said` to say what is `wanted`, which differs at `touched` at most.
fn difference(said: &Image, wanted: &Image, touched: &BTreeSet<At>) -> Vec<Record> {
    let layouts = (0..).zip(said.layouts.iter().zip(&wanted.layouts));
    let layouts = layouts.filter(|(_, (said, wanted))| said != wanted);
    let layouts = layouts.map(|(layout_id, (_, &shape))| Record::Layout { layout_id, shape });
    let slabs = touched.iter().filter_map(|&at| {
        let wanted = wanted.held.get(&at);
        (said.held.get(&at) != wanted).then(|| match wanted.cloned() {
            Some(held) => Record::Hold { at, held },
            None => Record::Drop(at),
        })
    });
    layouts.chain(slabs).collect()
}

#[cfg(test)]
mod tests;
