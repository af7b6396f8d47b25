use std::sync::{Arc, Mutex};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A log in memory that fails when it is told to, having written what it likes.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<(Vec<u8>, Option<usize>)>>);

impl Memory {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().0.clone()
    }

    fn fail_after(&self, bytes: usize) {
        self.0.lock().unwrap().1 = Some(bytes);
    }
}

impl Log for Memory {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, fails) = &mut *self.0.lock().unwrap();
        if let Some(after) = fails.take() {
            kept.extend(&bytes[..after.min(bytes.len())]);
            return Err(io::ErrorKind::StorageFull.into());
        }
        kept.extend(bytes);
        Ok(())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().0 = bytes.to_vec();
        Ok(())
    }
}

fn image() -> Image {
    let identity = Identity {
        volume: 0x0102,
        slab_bytes: 1 << 20,
        k: 8,
        r: 2,
    };
    Image {
        epoch: 3,
        ..Journal::fresh(identity)
    }
}

fn change() -> impl Strategy<Value = Change> {
    let at = || (0_u32..6, 0_u8..3);
    prop_oneof![
        3 => (at(), "h[0-9]{1,3}", any::<u64>())
            .prop_map(|(at, host, birth)| Change::Hold(at, Held { host, birth })),
        2 => at().prop_map(Change::Drop),
        1 => (0_u8..2, prop::option::of((0_u32..6, 0_u8..9))).prop_map(|(side, shape)| {
            Change::Side(side, shape.map(|(log2, r)| Shape { k: 1 << log2, r }))
        }),
    ]
}

fn load(bytes: &[u8]) -> Result<Option<Image>, JournalError> {
    format::parse(bytes)
}

proptest! {
    #[test]
    fn a_journal_says_what_was_noted_wherever_its_last_batch_is_cut(
        batches in vec(vec(change(), 1..5), 1..12), cut in any::<prop::sample::Index>()
    ) {
        let log = Memory::default();
        let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
        let mut before = (log.bytes().len(), journal.image().clone());
        for batch in batches {
            before = (log.bytes().len(), journal.image().clone());
            journal.note(batch).unwrap();
        }
        let bytes = log.bytes();
        let read = load(&bytes).unwrap();
        prop_assert_eq!(read.as_ref(), Some(journal.image()));
        let cut = before.0 + cut.index(bytes.len() - before.0 + 1);
        let expected = if cut == bytes.len() { journal.image() } else { &before.1 };
        let cut_off = load(&bytes[..cut]).unwrap();
        prop_assert_eq!(cut_off.as_ref(), Some(expected));
    }

    #[test]
    fn a_damaged_byte_is_an_error_or_the_end(
        batches in vec(vec(change(), 1..5), 2..6), at in any::<prop::sample::Index>(), bit in 0_u32..8
    ) {
        let log = Memory::default();
        let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
        let mut images = vec![journal.image().clone()];
        for batch in batches {
            let before = log.bytes().len();
            journal.note(batch).unwrap();
            if log.bytes().len() > before {
                images.push(journal.image().clone());
            }
        }
        prop_assume!(images.len() > 1);
        let mut bytes = log.bytes();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        // Damage inside the last batch looks as if that had been cut off.
        if let Ok(Some(image)) = load(&bytes) {
            prop_assert_eq!(image, images[images.len() - 2].clone());
        }
    }

    #[test]
    fn any_bytes_parse_without_a_panic(mut bytes in vec(any::<u8>(), 0..200), framed: bool) {
        if framed {
            let body = bytes.clone();
            bytes = b"cenoteJ1".to_vec();
            let len = u32::try_from(body.len()).unwrap().to_le_bytes();
            bytes.extend(len);
            bytes.extend(cenote_codec::crc32c(&len).to_le_bytes());
            bytes.extend(cenote_codec::crc32c(&body).to_le_bytes());
            bytes.extend(body);
        }
        drop(load(&bytes));
    }
}

#[test]
fn a_failed_append_is_made_good_by_the_next() {
    let log = Memory::default();
    let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
    let hold = |extent, birth| {
        let host = "h".to_owned();
        Change::Hold((extent, 0), Held { host, birth })
    };
    journal.note(vec![hold(0, 1)]).unwrap();
    log.fail_after(5);
    assert!(journal.note(vec![hold(1, 2)]).is_err());
    journal.note(vec![hold(1, 2)]).unwrap();
    journal.note(vec![Change::Drop((0, 0))]).unwrap();
    let read = load(&log.bytes()).unwrap().unwrap();
    assert_eq!(&read, journal.image());
    assert_eq!(read.held.len(), 1);
}

/// Earlier versions read the journal of a volume whose k never changed.
#[test]
fn a_side_is_named_only_where_it_is_not_the_usual() {
    let log = Memory::default();
    let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
    let before = log.bytes();
    let usual = Shape { k: 8, r: 2 };
    journal
        .note(vec![Change::Side(0, Some(usual)), Change::Side(1, None)])
        .unwrap();
    assert_eq!(log.bytes(), before);
    let other = Shape { k: 4, r: 1 };
    journal.note(vec![Change::Side(1, Some(other))]).unwrap();
    journal.note(vec![Change::Side(0, None)]).unwrap();
    let read = load(&log.bytes()).unwrap().unwrap();
    assert_eq!(read.sides, [None, Some(other)]);
    let next = Journal::begin(Box::new(log.clone()), read).unwrap();
    let read = load(&log.bytes()).unwrap();
    assert_eq!(
        read.as_ref(),
        Some(next.image()),
        "written anew it says the same"
    );
}

#[test]
fn a_long_journal_is_written_anew() {
    let log = Memory::default();
    let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
    for birth in 0..10_000 {
        let host = "a-host".to_owned();
        let held = Held { host, birth };
        journal.note(vec![Change::Hold((0, 0), held)]).unwrap();
    }
    assert!(log.bytes().len() < 2 * COMPACT_BYTES as usize);
    assert_eq!(
        load(&log.bytes()).unwrap().unwrap().held[&(0, 0)].birth,
        9_999
    );
}

#[test]
fn a_file_keeps_what_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("v.journal");
    let mut log = JournalFile::new(&path);
    assert!(Journal::load(&mut log).unwrap().is_none());
    let mut journal = Journal::begin(Box::new(log), image()).unwrap();
    let held = Held {
        host: "h".into(),
        birth: 9,
    };
    journal.note(vec![Change::Hold((1, 2), held)]).unwrap();
    let read = Journal::load(&mut JournalFile::new(&path)).unwrap();
    assert_eq!(read.as_ref(), Some(journal.image()));
    journal.clear().unwrap();
    let read = Journal::load(&mut JournalFile::new(&path))
        .unwrap()
        .unwrap();
    assert_eq!((read.epoch, read.held.len()), (3, 0));
}
