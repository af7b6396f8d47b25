//! A value that came with its call.

use std::sync::Arc;

use crate::format::checksum;
use crate::landing::Area;
use crate::pool::Source;

/// Such a value, out of the call. It is made before the shard is locked: it costs more than what is done
/// with the lock.
pub(super) struct Arrival {
    pub value_bytes: usize,
    pub checksum: u32,
    /// Where it waits for the persister; `None`: there is no room for it now.
    pub source: Option<Source>,
    /// Its client's landing fills up.
    pub is_short: bool,
}

impl Arrival {
    /// It waits in its client's landing, as values do that were written there: memory that is in use
    /// anyway, and of which a client has so much and no more. Without one that is large enough it waits on
    /// the heap.
    pub fn new(key: &[u8], value: &[u8], area: Option<&Arc<Area>>) -> Self {
        let area = area.filter(|area| value.len() as u64 <= area.region().len_bytes());
        let source = match area {
            None => Some(Source::Landing(Box::new(value.to_vec()))),
            // Memory that is gone takes no value.
            Some(area) => area.take(value.len() as u32).and_then(|slot| {
                let put = slot.write(value);
                put.ok().map(|()| Source::Landing(Box::new(slot)))
            }),
        };
        Self {
            value_bytes: value.len(),
            checksum: checksum(&[key, value]),
            is_short: source.is_none() || area.is_some_and(|area| area.is_short()),
            source,
        }
    }
}
