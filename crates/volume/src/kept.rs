//! What a volume's owner leaves to the next: the journal of its directory, and the marks of its
//! pages. Whoever opens a volume with them has the right to: a lock keeps others out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::config::VolumeConfig;
use crate::extents::{LayoutId, index_of};
use crate::integrity::Tags;
use crate::journal::{Identity, Image, Journal, JournalFile, Log, Shape};
use crate::layouts::Layouts;
use crate::marks::{Marks, MarksFiles, PageCount};
use crate::scheme::Cut;
use crate::{JournalError, Scheme, VolumeError};
use cenote_codec::PARITY_MAX;

/// What survives a volume's owner.
pub struct Kept {
    /// The journal of the directory; survives a crash of the machine.
    pub journal: Box<dyn Log>,
    /// The marks of the pages, to be mapped; survive the process.
    pub marks: File,
    /// What pages under way will be, to be mapped; survives the process, and is useless without the marks.
    pub images: File,
    /// The tags of the pages, to be mapped; survive the process. Needed where pages are protected.
    pub tags: Option<File>,
    /// Which pages are cut how while the volume's k changes, to be mapped; survives the process. Without
    /// it k does not change in use.
    pub layouts: Option<File>,
    /// Whether the volume is opened to be given back: then nothing of it need be read.
    pub is_given_up: bool,
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
    /// Data splits of its pages: two numbers when it ended while they changed.
    pub cuts: Vec<usize>,
    /// Most bytes that the volume may have, as long as it has these slabs.
    pub size_bytes_max: u64,
}

/// A slab, as a journal names it to the next owner.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NamedSlab {
    /// Its host's name.
    pub host: String,
    /// The first generation that it was granted with.
    pub birth: u64,
}

impl Kept {
    /// Three files, which are made where there are none.
    ///
    /// # Errors
    /// The system refuses.
    pub fn in_files(journal: &Path, marks: &Path, images: &Path) -> io::Result<Self> {
        Ok(Self {
            journal: Box::new(JournalFile::new(journal)),
            marks: open(marks)?,
            images: open(images)?,
            tags: None,
            layouts: None,
            is_given_up: false,
        })
    }

    /// Another file, for what is kept of protected pages.
    ///
    /// # Errors
    /// The system refuses.
    pub fn with_tags(self, tags: &Path) -> io::Result<Self> {
        let tags = Some(open(tags)?);
        Ok(Self { tags, ..self })
    }

    /// Another file, for where pages are while the volume's k changes.
    ///
    /// # Errors
    /// The system refuses.
    pub fn with_layouts(self, layouts: &Path) -> io::Result<Self> {
        let layouts = Some(open(layouts)?);
        Ok(Self { layouts, ..self })
    }

    /// Of a volume that is opened to be given back: hosts that are not listed any more are not missed.
    #[must_use]
    pub fn given_up(self) -> Self {
        let is_given_up = true;
        Self {
            is_given_up,
            ..self
        }
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
                cuts: image
                    .layouts
                    .iter()
                    .flatten()
                    .map(|layout_id| layout_id.k.into())
                    .collect(),
                size_bytes_max: image.size_bytes_max(),
            }
        }))
    }

    /// The slabs with current data that a journal names, by extent and member.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn named(journal: &mut dyn Log) -> Result<BTreeMap<(u32, u8), NamedSlab>, JournalError> {
        let image = Journal::load(journal)?;
        let held = image.into_iter().flat_map(|image| image.held);
        let named = held.map(|(at, held)| {
            let (host, birth) = (held.host, held.birth);
            (at, NamedSlab { host, birth })
        });
        Ok(named.collect())
    }

    /// What the last owner left, if it left anything.
    pub(crate) fn read(&mut self, config: &VolumeConfig) -> Result<Option<Image>, VolumeError> {
        // Slabs that only a damaged batch names would count as lost with their hosts. Who gives all
        // of it up wants those that are known.
        let is_exact = Marks::are_of_this_boot(&self.marks, config.id)? && !self.is_given_up;
        let image = match is_exact {
            true => Journal::load_since_boot(&mut *self.journal)?,
            false => Journal::load(&mut *self.journal)?,
        };
        let Some(image) = image else {
            return Ok(None);
        };
        let k = config.resilience.scheme().k();
        let mut layouts = image.layouts.iter().flatten();
        let has_k = layouts.any(|layout_id| usize::from(layout_id.k) == k);
        // Between two no third can begin; and from one none without a file for it.
        let may_change = self.layouts.is_some() && image.layouts.iter().flatten().count() == 1;
        let is_same = image.identity.volume == config.id && (has_k || may_change);
        let slab_bytes = image.identity.slab_bytes;
        let shape = |extent: usize| image.layouts[LayoutId::of(extent) as usize];
        let fits = |&(extent, member): &(u32, u8)| {
            // How many parities there are may have changed since, for some extents.
            shape(extent as usize)
                .is_some_and(|shape| usize::from(member) < usize::from(shape.k) + PARITY_MAX)
        };
        if !is_same || !image.held.keys().all(fits) {
            return Err(VolumeError::Foreign);
        }
        let size_bytes = config.size_bytes;
        let is_within = |&(extent, _): &(u32, u8)| {
            let extent = extent as usize;
            let k = shape(extent).map_or(1, |shape| u64::from(shape.k));
            let extent_bytes = slab_bytes.saturating_mul(k).max(1);
            (index_of(extent) as u64) < size_bytes.div_ceil(extent_bytes)
        };
        if !image.held.keys().all(is_within) {
            return Err(VolumeError::Beyond { size_bytes });
        }
        match missed(&image, config) {
            Some(hosts) if !self.is_given_up => Err(VolumeError::Unlisted { hosts }),
            _ => Ok(Some(image)),
        }
    }

    /// Begins the next owner's time: its epoch is on the disk once this returned.
    pub(crate) fn begin(
        self,
        config: &VolumeConfig,
        slab_bytes: u64,
        pages: PageCount,
        left: Option<Image>,
    ) -> Result<(Marks, Option<Tags>, Layouts, Journal), VolumeError> {
        let scheme = config.resilience.scheme();
        let shape = shape_of(scheme);
        let identity = Identity {
            volume: config.id,
            slab_bytes,
            k: shape.k,
            r: shape.r,
        };
        let image = left.unwrap_or_else(|| Journal::fresh(identity));
        let mut image = Image { identity, ..image };
        let layouts = restore(&mut image, scheme, pages.max, self.layouts)?;
        let files = MarksFiles {
            pages: &self.marks,
            images: &self.images,
            epoch: image.epoch,
        };
        let marks = if image.held.is_empty() {
            Marks::without_slabs(files, config.id, pages)?
        } else {
            Marks::take_over(files, config.id, pages)?
        };
        let tags = match &self.tags {
            Some(file) => Tags::in_file(file, &config.protection, config.id, pages, &marks)?,
            None => Tags::missing(&config.protection)?,
        };
        image.epoch += 1;
        let journal = Journal::begin(self.journal, image).map_err(JournalError::Io)?;
        Ok((marks, tags, layouts, journal))
    }
}

/// Hosts that the volume is opened without, of extents that could be read with them and cannot be without.
/// A host that is left out by mistake is none that is gone for good.
fn missed(image: &Image, config: &VolumeConfig) -> Option<String> {
    let listed: BTreeSet<&str> = config.hosts.iter().map(|host| host.name.as_str()).collect();
    // By extent: slabs on hosts that are listed, and the names of the others.
    let mut extents: BTreeMap<u32, (usize, Vec<&str>)> = BTreeMap::new();
    for (&(extent, _), held) in &image.held {
        let (there, others) = extents.entry(extent).or_default();
        match listed.contains(held.host.as_str()) {
            true => *there += 1,
            false => others.push(&held.host),
        }
    }
    let is_missed = |&(extent, (there, others)): &(&u32, &(usize, Vec<&str>))| {
        let shape = image.layouts[LayoutId::of(*extent as usize) as usize];
        let k = shape.map_or(0, |shape| usize::from(shape.k));
        *there < k && there + others.len() >= k
    };
    let missed = extents.iter().filter(is_missed);
    let names: BTreeSet<&str> = missed.flat_map(|(_, (_, others))| others.clone()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// The layouts that the last owner left, with all pages to go where they are cut as `wanted`. One that
/// is to be left is left as it was.
fn restore(
    image: &mut Image,
    wanted: Scheme,
    page_count: u64,
    file: Option<File>,
) -> Result<Layouts, VolumeError> {
    let is_wanted = |shape: &Shape| usize::from(shape.k) == wanted.k();
    let there = |layout_id: &LayoutId| image.layouts[*layout_id as usize].is_some();
    let wanted_is = |layout_id: &LayoutId| {
        image.layouts[*layout_id as usize]
            .as_ref()
            .is_some_and(is_wanted)
    };
    let target = LayoutId::BOTH.into_iter().find(wanted_is);
    let home = target.or_else(|| LayoutId::BOTH.into_iter().find(there));
    let home = home.ok_or(VolumeError::Foreign)?;
    let slot = &mut image.layouts[home as usize];
    if target.is_some() {
        *slot = Some(shape_of(wanted));
    }
    let shape = slot.expect("just found");
    let (slab_bytes, volume) = (image.identity.slab_bytes, image.identity.volume);
    let mut layouts = Layouts::new(home, scheme_of(shape), slab_bytes, page_count);
    if let Some(file) = file {
        layouts = layouts.keep(file, volume);
    }
    let other = &mut image.layouts[home.other() as usize];
    if image.held.is_empty() {
        // No page is anywhere, whatever the bits say.
        *other = None;
    }
    if let Some(other) = *other {
        layouts.take_over(scheme_of(other))?;
    }
    Ok(layouts)
}

/// As the journal says it.
pub(crate) fn shape_of(scheme: Scheme) -> Shape {
    Shape {
        k: u8::try_from(scheme.k()).expect("at most 32"),
        r: u8::try_from(scheme.r()).expect("at most 8"),
    }
}

fn scheme_of(shape: Shape) -> Scheme {
    let cut = Cut::of_log2(u8::try_from(shape.k.ilog2()).expect("below 8"));
    cut.with_parities(shape.r.into())
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
