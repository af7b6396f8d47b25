//! The journal's bytes: batches of records, each batch whole or not at all.

use cenote_durable::journal;
use cenote_wire::{Layout, Malformed, Reader, Taken, Text, Writer, messages};

use super::{At, Held, Identity, Image, JournalError, Shape};

/// First eight bytes of a journal; the last one counts formats.
pub(super) const MAGIC: &[u8; 8] = b"cenoteJ1";
/// Sizes of slabs that a volume can have: a page at least, and an extent has fewer than 2^32 pages.
const SLAB_BYTES: std::ops::Range<u64> = 4096..1 << 39;

messages! {
    /// One entry.
    #[derive(Clone, Debug, Eq, PartialEq)]
    pub enum Record | "not a record" {
        /// First in every journal, and only there.
        1 => Begin {
            identity: Identity,
            epoch: u64,
        },
        /// The slab holds the member's current data.
        2 => Hold {
            at: At,
            held: Held,
        },
        /// No slab does.
        3 => Drop(At),
        /// The layout is there, or is not any more.
        4 => Layout {
            layout_id: u8,
            shape: Option<Shape> as ShapeOrNone,
        },
    }

    for Identity {
        volume,
        slab_bytes,
        k,
        r,
    }

    for Held {
        birth,
        host as Text<u8, 255>,
    }
}

/// Data splits and parities; no data split: none.
struct ShapeOrNone;

impl Layout<'_, Option<Shape>> for ShapeOrNone {
    fn put(shape: &Option<Shape>, out: &mut Writer<'_>) {
        out.put(&shape.map_or((0, 0), |shape| (shape.k, shape.r)));
    }

    fn take(input: &mut Reader<'_>) -> Taken<Option<Shape>> {
        match input.take()? {
            (0, 0..=8) => Ok(None),
            (k, r) if is_shape(k, r) => Ok(Some(Shape { k, r })),
            _ => Err(Malformed("no extents have such a shape")),
        }
    }
}

impl Record {
    /// Whether it makes sense wherever it stands.
    fn is_sound(&self) -> bool {
        match self {
            Self::Begin { identity, epoch } => {
                is_shape(identity.k, identity.r)
                    && SLAB_BYTES.contains(&identity.slab_bytes)
                    && *epoch < u64::MAX
            }
            Self::Layout { layout_id, .. } => *layout_id < 2,
            Self::Hold { .. } | Self::Drop(_) => true,
        }
    }

    pub fn apply(&self, image: &mut Image) {
        match self {
            Self::Begin { .. } => {}
            Self::Hold { at, held } => {
                image.held.insert(*at, held.clone());
            }
            Self::Drop(at) => {
                image.held.remove(at);
            }
            Self::Layout { layout_id, shape } => {
                image.layouts[usize::from(layout_id & 1)] = *shape;
            }
        }
    }
}

/// The bytes of a batch.
pub(super) fn batch(records: &[Record]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Writer::new(&mut bytes);
    records.iter().for_each(|record| out.put(record));
    journal::batch(&bytes)
}

/// A whole journal that says no more than `image`.
pub(super) fn whole(image: &Image) -> Vec<u8> {
    let mut records = vec![Record::Begin {
        identity: image.identity,
        epoch: image.epoch,
    }];
    // A volume whose k never changed has none of these, and earlier versions can read it.
    let layouts = (0..).zip(image.layouts).zip(layouts_of(image.identity));
    let layouts = layouts.filter(|((_, shape), usual)| shape != usual);
    records.extend(layouts.map(|((layout_id, shape), _)| Record::Layout { layout_id, shape }));
    let held = image.held.iter();
    records.extend(held.map(|(&at, held)| Record::Hold {
        at,
        held: held.clone(),
    }));
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
    Ok(parse_to_end(bytes)?.0)
}

/// As [`parse`]; and where the last whole batch ends.
pub(super) fn parse_to_end(bytes: &[u8]) -> Result<(Option<Image>, usize), JournalError> {
    let mut image: Option<Image> = None;
    let end = journal::batches(bytes, MAGIC, |records| {
        let mut input = Reader::new(records);
        while input.left() > 0 {
            let record: Record = input.take().map_err(|Malformed(what)| what)?;
            if !record.is_sound() {
                return Err("a record that makes no sense");
            }
            match (record, &mut image) {
                (Record::Begin { identity, epoch }, None) => {
                    image = Some(Image {
                        identity,
                        layouts: layouts_of(identity),
                        epoch,
                        held: std::collections::BTreeMap::new(),
                    });
                }
                (Record::Begin { .. }, Some(_)) => return Err("it begins twice"),
                (_, None) => return Err("it does not say whose it is"),
                (record, Some(image)) => record.apply(image),
            }
        }
        Ok(())
    })?;
    Ok((image, end))
}

/// Whether extents can have so many data splits and parities.
fn is_shape(k: u8, r: u8) -> bool {
    k.is_power_of_two() && k <= 32 && r <= 8
}
