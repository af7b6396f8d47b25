//! What a volume's owner leaves to the next: the journal of its directory, and the marks of its
//! pages. Whoever opens a volume with them has the right to: a lock keeps others out.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::integrity::Tags;
use crate::journal::{Identity, Image, Journal, JournalFile, Log};
use crate::marks::Marks;
use crate::scheme::Cut;
use crate::{JournalError, VolumeConfig, VolumeError};

/// What survives a volume's owner.
pub struct Kept {
    /// The journal of the directory; survives a crash of the machine.
    pub journal: Box<dyn Log>,
    /// The marks of the pages, to be mapped; survive the process.
    pub marks: File,
    /// The tags of the pages, to be mapped; survive the process. Needed where pages are protected.
    pub tags: Option<File>,
}

/// What an owner left, in short.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Left {
    /// Owners so far.
    pub owners: u64,
    /// Slabs with current data.
    pub slabs: usize,
    /// Extents that they are of.
    pub extents: usize,
    /// Hosts that they are on, by name.
    pub hosts: Vec<String>,
}

impl Kept {
    /// Two files, which are made where there are none.
    ///
    /// # Errors
    /// The system refuses.
    pub fn in_files(journal: &Path, marks: &Path) -> io::Result<Self> {
        Ok(Self {
            journal: Box::new(JournalFile::new(journal)),
            marks: open(marks)?,
            tags: None,
        })
    }

    /// A third file, for what is kept of protected pages.
    ///
    /// # Errors
    /// The system refuses.
    pub fn with_tags(self, tags: &Path) -> io::Result<Self> {
        let tags = Some(open(tags)?);
        Ok(Self { tags, ..self })
    }

    /// What the last owner left, in short; `None` when there is no journal.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn summary(journal: &mut dyn Log) -> Result<Option<Left>, JournalError> {
        Ok(Journal::load(journal)?.map(|image| {
            let extents: BTreeSet<u32> = image.held.keys().map(|&(extent, _)| extent).collect();
            let hosts: BTreeSet<&str> =
                image.held.values().map(|held| held.host.as_str()).collect();
            Left {
                owners: image.epoch,
                slabs: image.held.len(),
                extents: extents.len(),
                hosts: hosts.into_iter().map(str::to_owned).collect(),
            }
        }))
    }

    /// Extents and members of which a journal names a slab with current data.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn named(journal: &mut dyn Log) -> Result<BTreeSet<(u32, u8)>, JournalError> {
        let image = Journal::load(journal)?;
        Ok(image
            .into_iter()
            .flat_map(|image| image.held.into_keys())
            .collect())
    }

    /// What the last owner left, if it left anything.
    pub(crate) fn read(&mut self, config: &VolumeConfig) -> Result<Option<Image>, VolumeError> {
        let Some(image) = Journal::load(&mut *self.journal)? else {
            return Ok(None);
        };
        let scheme = config.resilience.scheme();
        // How many parities there are may have changed since, for some extents.
        let splits_max = Cut::of(scheme).splits_max();
        let is_same =
            image.identity.volume == config.id && usize::from(image.identity.k) == scheme.k();
        let extent_bytes = image
            .identity
            .slab_bytes
            .saturating_mul(scheme.k() as u64)
            .max(1);
        let extents = config.size_bytes.div_ceil(extent_bytes);
        let fits = |&(extent, member): &(u32, u8)| {
            u64::from(extent) < extents && usize::from(member) < splits_max
        };
        if !is_same || !image.held.keys().all(fits) {
            return Err(VolumeError::Foreign);
        }
        Ok(Some(image))
    }

    /// Begins the next owner's time: its epoch is on the disk once this returned.
    pub(crate) fn begin(
        self,
        config: &VolumeConfig,
        slab_bytes: u64,
        page_count: u64,
        left: Option<Image>,
    ) -> Result<(Marks, Option<Tags>, Journal), VolumeError> {
        let identity = Identity {
            volume: config.id,
            slab_bytes,
            k: u8::try_from(config.resilience.scheme().k()).expect("at most 32"),
            r: u8::try_from(config.resilience.scheme().r()).expect("at most 8"),
        };
        let image = left.unwrap_or(Image {
            identity,
            epoch: 0,
            held: std::collections::BTreeMap::new(),
        });
        let marks = if image.held.is_empty() {
            Marks::without_slabs(&self.marks, config.id, page_count)?
        } else {
            Marks::take_over(&self.marks, config.id, page_count)?
        };
        let tags = match &self.tags {
            Some(file) => Tags::in_file(file, &config.protection, config.id, page_count, &marks)?,
            None => Tags::missing(&config.protection)?,
        };
        let image = Image {
            identity,
            epoch: image.epoch + 1,
            ..image
        };
        let journal = Journal::begin(self.journal, image).map_err(JournalError::Io)?;
        Ok((marks, tags, journal))
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .mode(0o600)
        .open(path)
}
