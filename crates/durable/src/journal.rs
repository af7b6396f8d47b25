//! Journals: files of batches, each of which is there whole or not at all.
//!
//! What the records of a batch say is known to whose journal it is: the owner of a volume, the
//! manager of a cache. A journal that was cut off inside its last batch is one that never got that
//! batch; any other damage is an error. Byte tables: `docs/protocols/journal.md`,
//! `docs/formats/cache-journal.md`.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// Bytes in front of a batch: length, checksum of the length, checksum of the rest.
pub const FRAME_BYTES: usize = 12;

/// Where a journal's bytes are kept.
pub trait Log: Send {
    /// All bytes; none where nothing was kept yet.
    ///
    /// # Errors
    /// The system refuses, or what was kept is gone.
    fn read(&mut self) -> io::Result<Vec<u8>>;

    /// Appends; the bytes survive a crash of the machine once this returned.
    ///
    /// # Errors
    /// The system refuses; part of the bytes may be there. [`Superseded`] where they can be
    /// somebody else's.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Puts other bytes in place of all: either those or the earlier ones survive a crash.
    ///
    /// # Errors
    /// The system refuses. [`Superseded`] where they are other ones than were read just before.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;
}

/// A journal in a file, which is made where there is none.
#[derive(Debug)]
pub struct JournalFile {
    path: PathBuf,
    /// For appending: what this process put there. Open, so that no other file gets its number.
    file: Option<File>,
    /// What was read last, and nothing where nothing was there, until it is replaced. Open as well.
    read: Option<Option<File>>,
    /// This process knows what it said, or is to say.
    is_known: bool,
}

/// Far above any journal, which is written again at four times what it has to say: 2^16 regions of
/// a cache take some 3 MiB, 2^20 slabs of a volume 30.
const FILE_BYTES_MAX: u64 = 1 << 30;

impl JournalFile {
    /// The journal at `path`. Nothing is touched yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            read: None,
            is_known: false,
        }
    }

    fn open(&mut self) -> io::Result<&mut File> {
        let file = OpenOptions::new().append(true).open(&self.path)?;
        Ok(self.file.insert(file))
    }
}

impl Log for JournalFile {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let file = find(&self.path)?;
        if let Some(file) = &file {
            file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
        }
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(ErrorKind::FileTooLarge.into());
        }
        // None is ever made so: it was emptied, and what it said is not nothing.
        if file.is_some() && bytes.is_empty() && !self.is_known {
            let what = "the file is empty: what it said is lost";
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        self.read = Some(file);
        self.is_known = true;
        Ok(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        if self.file.is_none() {
            self.open()?;
        }
        let file = self.file.as_mut().expect("just opened");
        let there = File::open(&self.path)?;
        if !is_same(file, &there)? {
            return Err(Superseded.into());
        }
        append_to(file, bytes)
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file = None;
        let read = self.read.take();
        let look = || -> io::Result<()> {
            match (read, find(&self.path)?) {
                (Some(Some(read)), Some(there)) if !is_same(&read, &there)? => {
                    Err(Superseded.into())
                }
                (Some(None), Some(_)) => Err(Superseded.into()),
                _ => Ok(()),
            }
        };
        let (folder, name) = crate::open_folder(&self.path)?;
        crate::replace_after(folder, name, bytes, 0o600, look)?;
        self.open().map(drop)
    }
}

/// The file at a path, if there is one. Opened: of its name alone a shared folder may say what was
/// true a while ago.
fn find(path: &Path) -> io::Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_same(one: &File, other: &File) -> io::Result<bool> {
    let (one, other) = (one.metadata()?, other.metadata()?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// A log, and what is known of what it says, as an image `I` of it.
pub struct KnownLog<I> {
    log: Box<dyn Log>,
    /// Exactly this, in so many bytes. Nothing once a write failed: the log says what it said
    /// before, or what one of the writes since was to make of it, and nothing is appended behind
    /// bytes that may be half there.
    said: Option<(I, u64)>,
}

/// A log is written again when it is longer than this and four times what it has to say.
pub const COMPACT_BYTES: u64 = 64 << 10;

impl<I> KnownLog<I> {
    /// A log that says nobody knows what.
    #[must_use]
    pub fn new(log: Box<dyn Log>) -> Self {
        Self { log, said: None }
    }

    /// What the next process would find, where that is known: no write has failed since.
    #[must_use]
    pub fn said(&self) -> Option<&I> {
        self.said.as_ref().map(|(said, _)| said)
    }

    /// Whether it is to be written again, as what it has to say takes `whole_bytes`.
    #[must_use]
    pub fn is_long(&self, whole_bytes: u64) -> bool {
        let most = COMPACT_BYTES.max(4 * whole_bytes);
        self.said.as_ref().is_some_and(|&(_, len)| len > most)
    }

    /// All bytes that are there.
    ///
    /// # Errors
    /// As [`Log::read`].
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        self.log.read()
    }

    /// Appends a batch, by which what it said becomes what `apply` makes of it.
    ///
    /// # Errors
    /// As [`Log::append`].
    ///
    /// # Panics
    /// If what it says is not known.
    pub fn append(&mut self, batch: &[u8], apply: impl FnOnce(&mut I)) -> io::Result<()> {
        let (mut said, len) = self.said.take().expect("behind what is known");
        self.log.append(batch)?;
        apply(&mut said);
        self.said = Some((said, len + batch.len() as u64));
        Ok(())
    }

    /// Has it say `image`, in these bytes, and nothing else.
    ///
    /// # Errors
    /// As [`Log::replace`].
    pub fn replace(&mut self, bytes: &[u8], image: I) -> io::Result<()> {
        self.said = None;
        self.log.replace(bytes)?;
        self.said = Some((image, bytes.len() as u64));
        Ok(())
    }
}

/// A file whose bytes survive a crash of the machine once they are synced.
trait Synced: Write {
    fn sync(&mut self) -> io::Result<()>;
}

impl Synced for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

fn append_to(file: &mut impl Synced, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    file.sync()
}

/// A journal is not written because a later process of its kind wrote it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the journal is a later process's")]
pub struct Superseded;

impl From<Superseded> for io::Error {
    fn from(superseded: Superseded) -> Self {
        Self::other(superseded)
    }
}

impl Superseded {
    /// Whether a write ended with it.
    #[must_use]
    pub fn is_in(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|source| source.is::<Self>())
    }
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
    /// All of its last batch is there, and is not what was written.
    #[error(
        "journal damaged at byte {at}: its last batch, from there to the end, is not what was \
         written"
    )]
    DamagedEnd {
        /// Where that batch starts.
        at: usize,
    },
}

fn crc32c(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("32 bits")
}

/// A batch of these records, of which there is at least one.
///
/// # Panics
/// If they have 4 GiB.
#[must_use]
pub fn batch(records: &[u8]) -> Vec<u8> {
    let len = u32::try_from(records.len()).expect("a journal has far less than 4 GiB");
    let mut bytes = Vec::with_capacity(FRAME_BYTES + records.len());
    bytes.extend(len.to_le_bytes());
    bytes.extend(crc32c(&len.to_le_bytes()).to_le_bytes());
    bytes.extend(crc32c(records).to_le_bytes());
    bytes.extend(records);
    bytes
}

/// Hands out the records of each batch of a journal that begins with `magic`; where the last whole
/// one ends. No bytes have no batch; any others have one.
///
/// # Errors
/// [`JournalError::Damaged`]: what `handle` says of a batch, too.
pub fn batches(
    bytes: &[u8],
    magic: &[u8],
    mut handle: impl FnMut(&[u8]) -> Result<(), &'static str>,
) -> Result<usize, JournalError> {
    let damaged = |at, what| JournalError::Damaged { at, what };
    if bytes.is_empty() {
        return Ok(0);
    }
    if !bytes.starts_with(magic) {
        return Err(damaged(0, "it is of another kind, or of another version"));
    }
    let mut at = magic.len();
    while let Some(records) = whole_batch(&bytes[at..]) {
        handle(records).map_err(|what| damaged(at, what))?;
        at += FRAME_BYTES + records.len();
    }
    // Nothing is appended behind a batch that is not on the disk: this one never was, and what is
    // there of it may be any part of it.
    if is_followed(bytes, at) {
        return Err(damaged(at, "a batch that is not whole, with one behind it"));
    }
    if at == magic.len() {
        return Err(damaged(at, "its first batch is not whole"));
    }
    Ok(at)
}

/// Whether what is behind the last whole batch, which ends at `end`, may be the beginning of another
/// one, as a process that is killed leaves it: none of that was told to anybody. If it is not, and
/// the machine has not crashed since, the batch was written, and is damaged. After a crash of the
/// machine any part of a batch may be there.
#[must_use]
pub fn is_cut_off(bytes: &[u8], end: usize) -> bool {
    let rest = &bytes[end..];
    let Some((len, rest)) = rest.split_first_chunk::<4>() else {
        return true;
    };
    let Some((len_sum, rest)) = rest.split_first_chunk::<4>() else {
        return true;
    };
    let (whole, sum_bytes) = (u32::from_le_bytes(*len), FRAME_BYTES - 8);
    u32::from_le_bytes(*len_sum) == crc32c(len)
        && usize::try_from(whole).is_ok_and(|whole| rest.len() < whole.saturating_add(sum_bytes))
}

/// Whether a whole batch begins somewhere behind `at`.
///
/// What has the frame of a batch and is none is met by chance at one place of 2^32: where there is
/// more of it than there are bytes, somebody made it, and it is not summed for ever to find out
/// that it is torn.
fn is_followed(bytes: &[u8], at: usize) -> bool {
    let mut budget = bytes.len();
    for next in at + 1..bytes.len() {
        let Some((records, sum)) = framed(&bytes[next..]) else {
            continue;
        };
        match budget.checked_sub(records.len()) {
            Some(left) if crc32c(records) != sum => budget = left,
            _ => return true,
        }
    }
    false
}

/// The records of the batch at the start of `bytes`, if it is whole.
fn whole_batch(bytes: &[u8]) -> Option<&[u8]> {
    let (records, sum) = framed(bytes)?;
    (crc32c(records) == sum).then_some(records)
}

/// What the frame at the start of `bytes` says are its records, and their checksum, if there is so
/// much.
fn framed(bytes: &[u8]) -> Option<(&[u8], u32)> {
    let (frame, rest) = bytes.split_first_chunk::<FRAME_BYTES>()?;
    let number = |at: usize| {
        let bytes = frame[at..].first_chunk().expect("three numbers");
        u32::from_le_bytes(*bytes)
    };
    let (len, len_sum, sum) = (number(0), number(4), number(8));
    if len == 0 || crc32c(&len.to_le_bytes()) != len_sum {
        return None;
    }
    Some((rest.get(..usize::try_from(len).ok()?)?, sum))
}

#[cfg(test)]
mod tests;
