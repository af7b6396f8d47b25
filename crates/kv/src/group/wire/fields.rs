//! Fields of messages: each is written by a `put_` and read, in its bounds, by a method of [`Reader`].

use bytes::{BufMut, Bytes, BytesMut};

use super::{ADDRESS_END, NoMessage, XID_MAX};
use crate::group::marks::Marks;
use crate::group::message::{Item, Lacks, RUN_UNITS_MAX, Run, UNIT_BYTES};
use crate::group::view::PARTITIONS_MAX;
use crate::memory::allocator::ALIGN_BYTES;
use crate::memory::table::Entry;

/// Longest key.
const KEY_BYTES_MAX: usize = 250;
/// Bytes of an item before its key.
const ITEM_HEAD_BYTES: usize = 35;
/// Bytes of the smallest item.
pub(super) const ITEM_BYTES_MIN: usize = ITEM_HEAD_BYTES + 1;

pub(super) fn put_partition(out: &mut BytesMut, partition: usize) {
    assert!(partition < PARTITIONS_MAX, "partition {partition}");
    out.put_u8(u8::try_from(partition).expect("there are few partitions"));
}

pub(super) fn put_option(out: &mut BytesMut, value: Option<u64>) {
    out.put_u8(value.is_some().into());
    out.put_u64_le(value.unwrap_or(0));
}

pub(super) fn put_lacks(out: &mut BytesMut, lacks: &Lacks) {
    put_option(out, lacks.keys_from);
    put_option(out, lacks.units_from);
}

pub(super) fn put_run(out: &mut BytesMut, run: &Run) {
    out.put_u64_le(run.first);
    out.put_u8(u8::try_from(run.units).expect("a run has at most 64 units"));
}

/// Says whether a run's bytes follow, and gives them back.
pub(super) fn put_content(out: &mut BytesMut, run: &Run, bytes: &Bytes) -> Option<Bytes> {
    assert!(
        bytes.is_empty() || bytes.len() == run.bytes(),
        "{} bytes of {} units",
        bytes.len(),
        run.units
    );
    out.put_u8((!bytes.is_empty()).into());
    (!bytes.is_empty()).then(|| bytes.clone())
}

pub(super) fn put_key_count(out: &mut BytesMut, count: usize) {
    out.put_u32_le(u32::try_from(count).expect("a stretch of a table is short"));
}

pub(super) fn put_item(out: &mut BytesMut, item: &Item) {
    let Item { key, entry } = item;
    assert!(
        (1..=KEY_BYTES_MAX).contains(&key.len()),
        "a key of {} bytes",
        key.len()
    );
    out.put_u8(u8::try_from(key.len()).expect("keys have at most 250 bytes"));
    out.put_u8(entry.marks);
    out.put_u8(entry.was_hit.into());
    out.put_u32_le(entry.client_flags);
    out.put_u32_le(entry.expiry);
    out.put_u32_le(entry.last_use);
    out.put_u32_le(entry.value_bytes);
    out.put_u64_le(entry.cas);
    out.put_u64_le(entry.address);
    out.extend_from_slice(key);
}

/// Whether a value can be where its entry says.
pub(super) fn check_place(entry: &Entry) -> Result<(), NoMessage> {
    let is_inside = entry
        .address
        .checked_add(u64::from(entry.value_bytes))
        .is_some_and(|end| end <= ADDRESS_END);
    if is_inside && entry.address < ADDRESS_END && entry.address.is_multiple_of(ALIGN_BYTES) {
        Ok(())
    } else {
        Err(NoMessage::Field("address"))
    }
}

/// A frame, and how much of it has been read.
pub(super) struct Reader {
    frame: Bytes,
    at: usize,
}

impl Reader {
    pub(super) fn new(frame: Bytes) -> Self {
        Self { frame, at: 0 }
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], NoMessage> {
        let rest = self.frame.get(self.at..).unwrap_or_default();
        let bytes = rest.first_chunk().ok_or(NoMessage::Short)?;
        self.at += N;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, NoMessage> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(super) fn u16(&mut self) -> Result<u16, NoMessage> {
        self.array().map(u16::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, NoMessage> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, NoMessage> {
        self.array().map(u64::from_le_bytes)
    }

    /// How much has not been read.
    fn left(&self) -> usize {
        self.frame.len() - self.at
    }

    /// A part of the frame, not a copy.
    fn bytes(&mut self, count: usize) -> Result<Bytes, NoMessage> {
        if self.left() < count {
            return Err(NoMessage::Short);
        }
        let start = self.at;
        self.at += count;
        Ok(self.frame.slice(start..self.at))
    }

    /// All that is left.
    pub(super) fn rest(&mut self) -> Bytes {
        let start = self.at;
        self.at = self.frame.len();
        self.frame.slice(start..)
    }

    pub(super) fn end(&self) -> Result<(), NoMessage> {
        match self.left() {
            0 => Ok(()),
            more => Err(NoMessage::Trailing(more)),
        }
    }

    pub(super) fn truth(&mut self, field: &'static str) -> Result<bool, NoMessage> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(NoMessage::Field(field)),
        }
    }

    pub(super) fn option(&mut self, field: &'static str) -> Result<Option<u64>, NoMessage> {
        let is_some = self.truth(field)?;
        match (is_some, self.u64()?) {
            (true, value) => Ok(Some(value)),
            (false, 0) => Ok(None),
            (false, _) => Err(NoMessage::Field(field)),
        }
    }

    /// How many of what has at least `bytes_min` bytes each follow.
    pub(super) fn count(&mut self, bytes_min: usize) -> Result<usize, NoMessage> {
        let count = usize::try_from(self.u32()?).map_err(|_| NoMessage::Short)?;
        if count > self.left() / bytes_min {
            return Err(NoMessage::Short);
        }
        Ok(count)
    }

    pub(super) fn partition(&mut self) -> Result<usize, NoMessage> {
        let partition = usize::from(self.u8()?);
        if partition >= PARTITIONS_MAX {
            return Err(NoMessage::Field("partition"));
        }
        Ok(partition)
    }

    pub(super) fn xid(&mut self) -> Result<u64, NoMessage> {
        let xid = self.u64()?;
        if xid > XID_MAX {
            return Err(NoMessage::Field("number of an operation"));
        }
        Ok(xid)
    }

    pub(super) fn lacks(&mut self) -> Result<Lacks, NoMessage> {
        let keys_from = self.option("keys that are lacking")?;
        let units_from = self.option("units that are lacking")?;
        if units_from.is_some_and(|unit| unit >= ADDRESS_END / UNIT_BYTES) {
            return Err(NoMessage::Field("units that are lacking"));
        }
        Ok(Lacks {
            keys_from,
            units_from,
        })
    }

    pub(super) fn run(&mut self) -> Result<Run, NoMessage> {
        let (first, units) = (self.u64()?, u32::from(self.u8()?));
        let aligned = u64::from(RUN_UNITS_MAX);
        let is_run = units > 0 && first % aligned + u64::from(units) <= aligned;
        if !is_run || first >= ADDRESS_END / UNIT_BYTES {
            return Err(NoMessage::Field("run"));
        }
        Ok(Run { first, units })
    }

    /// A run's bytes; none if they are zeroes.
    pub(super) fn content(&mut self, run: &Run) -> Result<Bytes, NoMessage> {
        if self.truth("content")? {
            self.bytes(run.bytes())
        } else {
            Ok(Bytes::new())
        }
    }

    pub(super) fn item(&mut self) -> Result<Item, NoMessage> {
        let key_bytes = usize::from(self.u8()?);
        if !(1..=KEY_BYTES_MAX).contains(&key_bytes) {
            return Err(NoMessage::Field("key"));
        }
        let marks = Marks::from_bits(self.u8()?).ok_or(NoMessage::Field("marks"))?;
        let entry = Entry {
            marks: marks.bits(),
            was_hit: self.truth("use")?,
            client_flags: self.u32()?,
            expiry: self.u32()?,
            last_use: self.u32()?,
            value_bytes: self.u32()?,
            cas: self.u64()?,
            address: self.u64()?,
        };
        check_place(&entry)?;
        Ok(Item {
            key: self.bytes(key_bytes)?,
            entry,
        })
    }
}
