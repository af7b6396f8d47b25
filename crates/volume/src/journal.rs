//! The journal of a volume's directory: what the next owner must know to take the volume over.
//!
//! Which slabs hold current data, and how often the volume changed its owner. It is written, and
//! on the disk, before the first acknowledgement that depends on it. Byte table:
//! `docs/protocols/journal.md`.
//!
//! Invariants: every slab that the journal names is current, but for pages that are listed as in
//! flight ([`crate::marks`]); a journal that was cut off inside its last batch is one that never
//! got that batch; any other damage is an error.

mod file;
mod format;

use std::collections::BTreeMap;
use std::io;

use format::{Record, batch};

pub use file::JournalFile;

/// Where a journal's bytes are kept.
pub trait Log: Send {
    /// All bytes.
    ///
    /// # Errors
    /// The system refuses.
    fn read(&mut self) -> io::Result<Vec<u8>>;

    /// Appends; the bytes survive a crash of the machine once this returned.
    ///
    /// # Errors
    /// The system refuses. Part of the bytes may be there.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Puts other bytes in place of all: either those or the earlier ones survive a crash.
    ///
    /// # Errors
    /// The system refuses.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

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

/// Data splits and parities of the extents of one side.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Shape {
    pub k: u8,
    pub r: u8,
}

/// What a journal says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Image {
    pub identity: Identity,
    /// The sides that slabs may be of; both while the volume's k changes.
    pub sides: [Option<Shape>; 2],
    /// Owners so far.
    pub epoch: u64,
    pub held: BTreeMap<At, Held>,
}

/// A change of what a journal says.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Change {
    /// The slab holds the member's current data.
    Hold(At, Held),
    /// No slab does.
    Drop(At),
    /// The side is there, or is not any more.
    Side(u8, Option<Shape>),
}

/// An open journal.
pub struct Journal {
    log: Box<dyn Log>,
    image: Image,
    len_bytes: u64,
    // An append failed: what is at the end is unknown until all is written anew.
    is_broken: bool,
}

/// Why a journal is of no use.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused.
    #[error("journal: {0}")]
    Io(#[from] io::Error),
    /// It makes no sense.
    #[error("journal damaged at byte {at}: {what}")]
    Damaged {
        /// Where the batch starts that makes no sense.
        at: usize,
        /// What is wrong with it.
        what: &'static str,
    },
}

/// A journal is written anew when it is longer than this and four times what it has to say.
const COMPACT_BYTES: u64 = 64 << 10;

impl Journal {
    /// What a log says; `None` when it is empty.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn load(log: &mut dyn Log) -> Result<Option<Image>, JournalError> {
        format::parse(&log.read()?)
    }

    /// Starts from `image`, which is on the disk once this returned.
    ///
    /// # Errors
    /// The system refuses.
    pub fn begin(log: Box<dyn Log>, image: Image) -> io::Result<Self> {
        let mut journal = Self {
            log,
            image,
            len_bytes: 0,
            is_broken: true,
        };
        journal.rewrite()?;
        Ok(journal)
    }

    /// What a journal says that begins.
    pub fn fresh(identity: Identity) -> Image {
        Image {
            identity,
            sides: format::sides_of(identity),
            epoch: 0,
            held: BTreeMap::new(),
        }
    }

    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Notes what changed. Returns once it is on the disk; what says nothing new is left out.
    ///
    /// # Errors
    /// The system refuses; to be called again with the same changes.
    pub fn note(&mut self, changes: Vec<Change>) -> io::Result<()> {
        let is_news = |change: &Change| match change {
            Change::Hold(at, held) => self.image.held.get(at) != Some(held),
            Change::Drop(at) => self.image.held.contains_key(at),
            Change::Side(side, shape) => self.image.sides[usize::from(side & 1)] != *shape,
        };
        let news: Vec<Record> = changes
            .into_iter()
            .filter(is_news)
            .map(Record::Change)
            .collect();
        if news.is_empty() && !self.is_broken {
            return Ok(());
        }
        for record in &news {
            record.apply(&mut self.image);
        }
        if self.is_broken || self.len_bytes > COMPACT_BYTES.max(4 * format::size(&self.image)) {
            return self.rewrite();
        }
        let bytes = batch(&news);
        self.is_broken = true;
        self.log.append(&bytes)?;
        self.is_broken = false;
        self.len_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Says that nothing is held any more.
    ///
    /// # Errors
    /// The system refuses.
    pub fn clear(&mut self) -> io::Result<()> {
        self.image.held.clear();
        self.rewrite()
    }

    fn rewrite(&mut self) -> io::Result<()> {
        let bytes = format::whole(&self.image);
        self.is_broken = true;
        self.log.replace(&bytes)?;
        self.is_broken = false;
        self.len_bytes = bytes.len() as u64;
        Ok(())
    }
}

#[cfg(test)]
mod tests;
