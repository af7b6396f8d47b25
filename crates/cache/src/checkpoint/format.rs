//! The file of a checkpoint: its regions, each chunk with a checksum, and an index at the end.
//!
//! `docs/formats/checkpoint.md` has the bytes. What is read may have been damaged: sizes and places are
//! checked before they are used, and a chunk is given out once its checksum fits.

use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};

use crc_fast::{CrcAlgorithm, Digest};

use crate::owner::{REGION_BYTES_MAX, REGIONS_MAX};

/// Longest chunk.
pub const CHUNK_BYTES_MAX: usize = 1 << 20;

const MAGIC: [u8; 8] = *b"CENOTECP";
const MAGIC_END: [u8; 8] = *b"CENOTECE";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 48;
const CHUNK_HEADER_BYTES: usize = 12;
const SAVED_BYTES: usize = 20;
const END_BYTES: usize = 24;

/// What a checkpoint is of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Header {
    /// The cache.
    pub cache: u128,
    /// Bytes of each region.
    pub region_bytes: u64,
    /// When it was begun, in milliseconds since 1970.
    pub begun_ms: u64,
}

/// A region of the file.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Saved {
    /// The region.
    pub region: u32,
    /// When its bytes were as they are in the file, in milliseconds since 1970.
    pub taken_ms: u64,
    offset: u64,
}

/// Why a file is no checkpoint, or a region cannot be had from it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system refuses.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// Not a checkpoint of this version.
    #[error("not a checkpoint that this program reads")]
    Foreign,
    /// Its bytes contradict each other.
    #[error("the checkpoint is damaged: {0}")]
    Damaged(&'static str),
}

impl Header {
    fn bytes(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        // Four bytes are zero.
        bytes[16..32].copy_from_slice(&self.cache.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.region_bytes.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.begun_ms.to_le_bytes());
        bytes
    }

    fn read(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Error> {
        if bytes[..8] != MAGIC || u32_at(bytes, 8) != VERSION {
            return Err(Error::Foreign);
        }
        if u32_at(bytes, 12) != 0 {
            return Err(Error::Damaged("its header"));
        }
        let header = Self {
            cache: u128::from_le_bytes(bytes[16..32].try_into().expect("16 bytes")),
            region_bytes: u64_at(bytes, 32),
            begun_ms: u64_at(bytes, 40),
        };
        if !(1..=REGION_BYTES_MAX).contains(&header.region_bytes) {
            return Err(Error::Damaged("a region's size"));
        }
        Ok(header)
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

/// Writes a checkpoint, region by region in ascending order.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    header: Header,
    saved: Vec<Saved>,
    /// Where the next byte goes.
    offset: u64,
    /// The region that is being written, and bytes of it so far.
    current: Option<(Saved, u64)>,
}

impl<W: Write + Seek> Writer<W> {
    /// Begins a checkpoint.
    ///
    /// # Errors
    /// The system refuses.
    pub fn begin(mut out: W, header: Header) -> io::Result<Self> {
        out.write_all(&header.bytes())?;
        Ok(Self {
            out,
            header,
            saved: Vec::new(),
            offset: HEADER_BYTES as u64,
            current: None,
        })
    }

    /// Begins a region, after those before it.
    ///
    /// # Panics
    /// If one is being written, or the region is not above the last: a caller's bug.
    pub fn begin_region(&mut self, region: u32, taken_ms: u64) {
        assert!(self.current.is_none(), "one region at a time");
        let is_next = self.saved.last().is_none_or(|last| last.region < region);
        assert!(is_next && region < REGIONS_MAX, "region {region}");
        let saved = Saved {
            region,
            taken_ms,
            offset: self.offset,
        };
        self.current = Some((saved, 0));
    }

    /// Appends bytes of the region, 1 to [`CHUNK_BYTES_MAX`]. Zeros take no room.
    ///
    /// # Errors
    /// The system refuses.
    ///
    /// # Panics
    /// If no region is being written, or it is longer than the header says: a caller's bug.
    pub fn chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        assert!((1..=CHUNK_BYTES_MAX).contains(&bytes.len()), "a chunk");
        let (saved, len) = self.current.as_mut().expect("a region was begun");
        let is_zero = bytes.iter().all(|&byte| byte == 0);
        let kind = if is_zero { Kind::Zeros } else { Kind::Bytes };
        let chunk = ChunkHeader {
            len_bytes: u32::try_from(bytes.len()).expect("at most 1 MiB"),
            kind,
        };
        let data = if is_zero { &[] } else { bytes };
        self.out.write_all(&chunk.bytes(saved.region, *len, data))?;
        self.out.write_all(data)?;
        self.offset += (CHUNK_HEADER_BYTES + data.len()) as u64;
        *len += bytes.len() as u64;
        assert!(*len <= self.header.region_bytes, "a long region");
        Ok(())
    }

    /// The region is whole and counts.
    ///
    /// # Panics
    /// If it is not: a caller's bug.
    pub fn keep_region(&mut self) {
        let (saved, len) = self.current.take().expect("a region was begun");
        assert_eq!(len, self.header.region_bytes, "all of the region");
        self.saved.push(saved);
    }

    /// Takes back what there is of the region.
    ///
    /// # Errors
    /// The system refuses.
    pub fn discard_region(&mut self) -> io::Result<()> {
        if let Some((saved, _)) = self.current.take() {
            self.offset = saved.offset;
            self.out.seek(SeekFrom::Start(self.offset))?;
        }
        Ok(())
    }

    /// Ends the checkpoint; what was written beyond its end, and taken back, is for the caller to cut off.
    /// Returns the output, and the checkpoint's length.
    ///
    /// # Errors
    /// The system refuses.
    pub fn finish(mut self) -> io::Result<(W, u64)> {
        let mut index = Vec::with_capacity(self.saved.len() * SAVED_BYTES);
        for saved in &self.saved {
            index.extend(saved.region.to_le_bytes());
            index.extend(saved.taken_ms.to_le_bytes());
            index.extend(saved.offset.to_le_bytes());
        }
        let count = u32::try_from(self.saved.len()).expect("at most 2^16 regions");
        let mut end = [0; END_BYTES];
        end[..8].copy_from_slice(&self.offset.to_le_bytes());
        end[8..12].copy_from_slice(&count.to_le_bytes());
        let crc = end_crc(&self.header, &index, &end[..12]);
        end[12..16].copy_from_slice(&crc.to_le_bytes());
        end[16..].copy_from_slice(&MAGIC_END);
        self.out.write_all(&index)?;
        self.out.write_all(&end)?;
        self.out.flush()?;
        let len_bytes = self.offset + (index.len() + END_BYTES) as u64;
        Ok((self.out, len_bytes))
    }
}

fn end_crc(header: &Header, index: &[u8], end: &[u8]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    digest.update(&header.bytes());
    digest.update(index);
    digest.update(end);
    u32::try_from(digest.finalize()).expect("32 bits")
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
enum Kind {
    Zeros = 0,
    Bytes = 1,
}

struct ChunkHeader {
    len_bytes: u32,
    kind: Kind,
}

impl ChunkHeader {
    fn bytes(&self, region: u32, at: u64, data: &[u8]) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.len_bytes.to_le_bytes());
        bytes[4..8].copy_from_slice(&(self.kind as u32).to_le_bytes());
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        // So that no chunk is taken for another.
        digest.update(&region.to_le_bytes());
        digest.update(&at.to_le_bytes());
        digest.update(&bytes[..8]);
        digest.update(data);
        let crc = u32::try_from(digest.finalize()).expect("32 bits");
        bytes[8..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }
}

/// Reads a checkpoint.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    saved: Vec<Saved>,
    index_offset: u64,
}

impl<R: Read + Seek> Reader<R> {
    /// Reads header and index.
    ///
    /// # Errors
    /// It is no checkpoint, or a damaged one.
    pub fn open(mut input: R) -> Result<Self, Error> {
        let len_bytes = input.seek(SeekFrom::End(0))?;
        if len_bytes < (HEADER_BYTES + END_BYTES) as u64 {
            return Err(Error::Foreign);
        }
        input.rewind()?;
        let mut header = [0; HEADER_BYTES];
        input.read_exact(&mut header)?;
        let header = Header::read(&header)?;
        input.seek(SeekFrom::Start(len_bytes - END_BYTES as u64))?;
        let mut end = [0; END_BYTES];
        input.read_exact(&mut end)?;
        let (index_offset, count) = (u64_at(&end, 0), u32_at(&end, 8));
        let index_bytes = u64::from(count) * SAVED_BYTES as u64;
        let fits = index_offset
            .checked_add(index_bytes)
            .and_then(|bytes| bytes.checked_add(END_BYTES as u64));
        if end[16..] != MAGIC_END || count > REGIONS_MAX || fits != Some(len_bytes) {
            return Err(Error::Damaged("its end"));
        }
        input.seek(SeekFrom::Start(index_offset))?;
        let mut index = vec![0; usize::try_from(index_bytes).expect("at most 2^16 entries")];
        input.read_exact(&mut index)?;
        if u32_at(&end, 12) != end_crc(&header, &index, &end[..12]) {
            return Err(Error::Damaged("its index"));
        }
        let saved: Vec<Saved> = index
            .chunks_exact(SAVED_BYTES)
            .map(|bytes| Saved {
                region: u32_at(bytes, 0),
                taken_ms: u64_at(bytes, 4),
                offset: u64_at(bytes, 12),
            })
            .collect();
        let in_order = saved.windows(2).all(|two| two[0].region < two[1].region);
        let is_place = |saved: &Saved| {
            (HEADER_BYTES as u64..index_offset).contains(&saved.offset)
                && saved.region < REGIONS_MAX
        };
        if !in_order || !saved.iter().all(is_place) {
            return Err(Error::Damaged("its index"));
        }
        Ok(Self {
            input,
            header,
            saved,
            index_offset,
        })
    }

    /// What it is of.
    #[must_use]
    pub fn header(&self) -> Header {
        self.header
    }

    /// The regions that it has, ascending.
    #[must_use]
    pub fn saved(&self) -> &[Saved] {
        &self.saved
    }

    /// Gives out the bytes of a region, chunk by chunk from its first, each with its place.
    ///
    /// # Errors
    /// It has no such region, a chunk is damaged, or `take` fails. What was given out before was sound.
    pub fn region(
        &mut self,
        region: u32,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), Error>,
    ) -> Result<Saved, Error> {
        let found = self.saved.binary_search_by_key(&region, |one| one.region);
        let Ok(found) = found else {
            return Err(Error::Damaged("it has no such region"));
        };
        let saved = self.saved[found];
        let room = self.index_offset - saved.offset;
        self.input.seek(SeekFrom::Start(saved.offset))?;
        let mut input = BufReader::with_capacity(CHUNK_BYTES_MAX, &mut self.input).take(room);
        let mut data = Vec::new();
        let mut at = 0;
        while at < self.header.region_bytes {
            let mut bytes = [0; CHUNK_HEADER_BYTES];
            input.read_exact(&mut bytes)?;
            let len_bytes = u32_at(&bytes, 0);
            let len = len_bytes as usize;
            let fits = (1..=CHUNK_BYTES_MAX).contains(&len)
                && u64::from(len_bytes) <= self.header.region_bytes - at;
            let kind = match u32_at(&bytes, 4) {
                0 => Kind::Zeros,
                1 => Kind::Bytes,
                _ => return Err(Error::Damaged("a chunk")),
            };
            if !fits {
                return Err(Error::Damaged("a chunk"));
            }
            data.clear();
            data.resize(len, 0);
            let chunk = ChunkHeader { len_bytes, kind };
            if kind == Kind::Bytes {
                input.read_exact(&mut data)?;
            }
            let summed = if kind == Kind::Bytes { &data[..] } else { &[] };
            if chunk.bytes(region, at, summed) != bytes {
                return Err(Error::Damaged("a chunk"));
            }
            take(at, &data)?;
            at += u64::from(len_bytes);
        }
        Ok(saved)
    }
}

/// Makes the checksums right of what stands there, so that a fuzz target gets behind them.
#[cfg(feature = "fuzz")]
pub(crate) fn seal(bytes: &mut [u8]) -> Option<()> {
    let header = Header::read(bytes.first_chunk()?).ok()?;
    let end_at = bytes.len().checked_sub(END_BYTES)?;
    let index_at = usize::try_from(u64_at(bytes, end_at)).ok()?;
    let index = bytes.get(index_at..end_at)?.to_vec();
    for saved in index.chunks_exact(SAVED_BYTES) {
        let (region, mut place) = (u32_at(saved, 0), usize::try_from(u64_at(saved, 12)).ok()?);
        let mut at = 0;
        while at < header.region_bytes {
            let data_at = place.checked_add(CHUNK_HEADER_BYTES)?;
            let head = bytes.get(place..data_at)?;
            let (len_bytes, kind) = (u32_at(head, 0), u32_at(head, 4));
            let kind = if kind == 0 { Kind::Zeros } else { Kind::Bytes };
            let there = if kind == Kind::Zeros {
                0
            } else {
                len_bytes as usize
            };
            let data = bytes.get(data_at..data_at.checked_add(there)?)?;
            let head = ChunkHeader { len_bytes, kind }.bytes(region, at, data);
            bytes[place..data_at].copy_from_slice(&head);
            (place, at) = (data_at + there, at + u64::from(len_bytes.max(1)));
        }
    }
    let sum = end_crc(&header, &index, &bytes[end_at..end_at + 12]);
    bytes[end_at + 12..end_at + 16].copy_from_slice(&sum.to_le_bytes());
    Some(())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    const HEADER: Header = Header {
        cache: 7,
        region_bytes: 3 << 14,
        begun_ms: 1_700_000_000_000,
    };

    fn region_bytes(seed: u8) -> Vec<u8> {
        let mut bytes = vec![0; 3 << 14];
        // The second third is zeros.
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from(at >> 14 != 1) * ((at as u8) ^ seed | 1);
        }
        bytes
    }

    fn written() -> Vec<u8> {
        let mut writer = Writer::begin(Cursor::new(Vec::new()), HEADER).unwrap();
        for (region, seed, is_kept) in [(0, 1, true), (2, 9, false), (2, 2, true), (5, 3, true)] {
            writer.begin_region(region, 100 + u64::from(region));
            for chunk in region_bytes(seed).chunks(1 << 14) {
                writer.chunk(chunk).unwrap();
            }
            if is_kept {
                writer.keep_region();
            } else {
                writer.discard_region().unwrap();
            }
        }
        let (out, len) = writer.finish().unwrap();
        let bytes = out.into_inner();
        assert_eq!(bytes.len() as u64, len);
        bytes
    }

    /// All that can be read of it: each region's bytes.
    fn read(bytes: &[u8]) -> Result<Vec<(Saved, Vec<u8>)>, Error> {
        let mut reader = Reader::open(Cursor::new(bytes))?;
        let saved = reader.saved().to_vec();
        let mut all = Vec::new();
        for one in saved {
            let mut bytes = Vec::new();
            let of = reader.region(one.region, |at, chunk| {
                assert_eq!(at, bytes.len() as u64);
                bytes.extend(chunk);
                Ok(())
            })?;
            all.push((of, bytes));
        }
        Ok(all)
    }

    #[test]
    fn a_checkpoint_gives_back_what_was_kept() {
        let bytes = written();
        assert!(bytes.len() < 7 << 14, "zeros take no room");
        let reader = Reader::open(Cursor::new(&bytes[..])).unwrap();
        assert_eq!(reader.header(), HEADER);
        let all = read(&bytes).unwrap();
        let regions: Vec<_> = all.iter().map(|(s, _)| (s.region, s.taken_ms)).collect();
        assert_eq!(regions, [(0, 100), (2, 102), (5, 105)]);
        for ((_, bytes), seed) in all.iter().zip([1, 2, 3]) {
            assert!(*bytes == region_bytes(seed));
        }
    }

    #[test]
    fn a_checkpoint_with_any_byte_of_its_header_changed_is_refused() {
        let sound = written();
        for at in 0..HEADER_BYTES {
            let mut bytes = sound.clone();
            bytes[at] ^= 1;
            let opened = Reader::open(Cursor::new(&bytes[..]));
            assert!(opened.is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_region_that_is_not_there_is_refused() {
        let bytes = written();
        let mut reader = Reader::open(Cursor::new(&bytes[..])).unwrap();
        assert!(reader.region(1, |_, _| Ok(())).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever happens to its bytes, what is read is what was written, or an error.
        #[test]
        fn damage_is_an_error_and_never_other_bytes(
            places in proptest::collection::vec((any::<prop::sample::Index>(), 1..=255_u8), 0..4),
            near_end in any::<bool>(),
            cut in prop_oneof![Just(0_usize), 1..100_usize, 0..120_000_usize],
        ) {
            let mut bytes = written();
            let sound = read(&bytes).unwrap();
            let len = bytes.len();
            for (place, change) in &places {
                // Headers and the index are small: look there half of the time.
                let at = if near_end { len - 1 - place.index(100) } else { place.index(len) };
                bytes[at] ^= change;
            }
            bytes.truncate(len - cut.min(len));
            if let Ok(found) = read(&bytes) {
                prop_assert!(found == sound);
            }
        }

        #[test]
        fn random_bytes_are_no_checkpoint(mut bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            prop_assert!(read(&bytes).is_err());
            // With the right frame around them, too.
            if bytes.len() > HEADER_BYTES + END_BYTES {
                bytes[..HEADER_BYTES].copy_from_slice(&HEADER.bytes());
                let end = bytes.len() - 8;
                bytes[end..].copy_from_slice(&MAGIC_END);
                prop_assert!(read(&bytes).is_err());
            }
        }
    }
}
