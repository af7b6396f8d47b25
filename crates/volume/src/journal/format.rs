//! The journal's bytes: batches of records, each batch whole or not at all.

use cenote_durable::journal;

use super::{Change, Held, Identity, Image, JournalError, Shape};

/// First eight bytes of a journal; the last one counts formats.
pub(super) const MAGIC: &[u8; 8] = b"cenoteJ1";
/// Sizes of slabs that a volume can have: a page at least, and an extent has fewer than 2^32 pages.
const SLAB_BYTES: std::ops::Range<u64> = 4096..1 << 39;
/// Longest name of a host.
const NAME_BYTES_MAX: usize = 255;

/// One entry.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Record {
    /// First in every journal, and only there.
    Begin(Identity, u64),
    Change(Change),
}

impl Record {
    pub fn apply(&self, image: &mut Image) {
        match self {
            Self::Begin(..) => {}
            Self::Change(Change::Hold(at, held)) => {
                image.held.insert(*at, held.clone());
            }
            Self::Change(Change::Drop(at)) => {
                image.held.remove(at);
            }
            Self::Change(Change::Layout(layout_id, shape)) => {
                image.layouts[usize::from(layout_id & 1)] = *shape;
            }
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Begin(identity, epoch) => {
                out.push(1);
                out.extend(identity.volume.to_le_bytes());
                out.extend(identity.slab_bytes.to_le_bytes());
                out.extend([identity.k, identity.r]);
                out.extend(epoch.to_le_bytes());
            }
            Self::Change(Change::Hold((extent, member), held)) => {
                let name = held.host.as_bytes();
                assert!(name.len() <= NAME_BYTES_MAX, "a host's name is short");
                out.push(2);
                out.extend(extent.to_le_bytes());
                out.push(*member);
                out.extend(held.birth.to_le_bytes());
                out.push(u8::try_from(name.len()).expect("just checked"));
                out.extend(name);
            }
            Self::Change(Change::Drop((extent, member))) => {
                out.push(3);
                out.extend(extent.to_le_bytes());
                out.push(*member);
            }
            Self::Change(Change::Layout(layout_id, shape)) => {
                let (k, r) = shape.map_or((0, 0), |shape| (shape.k, shape.r));
                out.extend([4, *layout_id, k, r]);
            }
        }
    }
}

/// The bytes of a batch.
pub(super) fn batch(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for record in records {
        record.write(&mut bytes);
    }
    journal::batch(&bytes)
}

/// A whole journal that says no more than `image`.
pub(super) fn whole(image: &Image) -> Vec<u8> {
    let mut records = vec![Record::Begin(image.identity, image.epoch)];
    // A volume whose k never changed has none of these, and earlier versions can read it.
    let layouts = (0..).zip(image.layouts).zip(layouts_of(image.identity));
    let layouts = layouts.filter(|((_, shape), usual)| shape != usual);
    records.extend(
        layouts.map(|((layout_id, shape), _)| Record::Change(Change::Layout(layout_id, shape))),
    );
    let held = image.held.iter();
    records.extend(held.map(|(&at, held)| Record::Change(Change::Hold(at, held.clone()))));
    let mut bytes = MAGIC.to_vec();
    bytes.extend(batch(&records));
    bytes
}

/// The layouts of a volume of which nothing else is said.
pub(super) fn layouts_of(identity: Identity) -> [Option<Shape>; 2] {
    let Identity { k, r, .. } = identity;
    [Some(Shape { k, r }), None]
}

/// About how long [`whole`] would be.
pub(super) fn size(image: &Image) -> u64 {
    64 * image.held.len() as u64
}

/// What the bytes of a journal say; `None` when there are none.
pub(super) fn parse(bytes: &[u8]) -> Result<Option<Image>, JournalError> {
    let mut image: Option<Image> = None;
    journal::batches(bytes, MAGIC, |records| {
        let mut input = Input(records);
        while !input.0.is_empty() {
            match (input.record().ok_or("not a record")?, &mut image) {
                (Record::Begin(identity, epoch), None) => {
                    image = Some(Image {
                        identity,
                        layouts: layouts_of(identity),
                        epoch,
                        held: std::collections::BTreeMap::new(),
                    });
                }
                (Record::Begin(..), Some(_)) => return Err("it begins twice"),
                (_, None) => return Err("it does not say whose it is"),
                (record, Some(image)) => record.apply(image),
            }
        }
        Ok(())
    })?;
    Ok(image)
}

/// Whether extents can have so many data splits and parities.
fn is_shape(k: u8, r: u8) -> bool {
    k.is_power_of_two() && k <= 32 && r <= 8
}

/// Takes fields off the front; `None` past the end.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn record(&mut self) -> Option<Record> {
        match self.u8()? {
            1 => {
                let identity = Identity {
                    volume: self.take().map(u128::from_le_bytes)?,
                    slab_bytes: self.u64()?,
                    k: self.u8()?,
                    r: self.u8()?,
                };
                let epoch = self.u64()?;
                let is_one = is_shape(identity.k, identity.r)
                    && SLAB_BYTES.contains(&identity.slab_bytes)
                    && epoch < u64::MAX;
                is_one.then_some(Record::Begin(identity, epoch))
            }
            2 => {
                let (at, birth) = ((self.u32()?, self.u8()?), self.u64()?);
                let len = usize::from(self.u8()?);
                let (name, rest) = self.0.split_at_checked(len)?;
                self.0 = rest;
                let host = str::from_utf8(name).ok()?.to_owned();
                Some(Record::Change(Change::Hold(at, Held { host, birth })))
            }
            3 => Some(Record::Change(Change::Drop((self.u32()?, self.u8()?)))),
            4 => {
                let (layout_id, k, r) = (self.u8()?, self.u8()?, self.u8()?);
                let shape = (k != 0).then_some(Shape { k, r });
                let is_one = layout_id < 2 && (k == 0 && r <= 8 || is_shape(k, r));
                is_one.then_some(Record::Change(Change::Layout(layout_id, shape)))
            }
            _ => None,
        }
    }
}
