use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use cenote_durable::journal::COMPACT_BYTES;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// A disk with one log, which fails as it is told to and works again after that.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    bytes: Vec<u8>,
    /// Writes from here on that fail, oldest first; `None` works.
    faults: VecDeque<Option<Fault>>,
    /// Length of the last write in bytes.
    last_bytes: usize,
}

/// What a write that failed left.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// So many of its bytes; of one that replaces all, none or all.
    Torn(usize),
    /// So many, and zeros where the others were to be.
    Zeros(usize),
    /// All of it, with an error all the same, as when a sync fails.
    Unsynced,
}

impl Disk {
    fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().bytes.clone()
    }

    fn says(&self) -> Image {
        load(&self.bytes()).unwrap().unwrap()
    }

    fn fail(&self, faults: impl IntoIterator<Item = Option<Fault>>) {
        self.0.lock().unwrap().faults = faults.into_iter().collect();
    }

    fn last_bytes(&self) -> usize {
        self.0.lock().unwrap().last_bytes
    }

    fn refused() -> io::Result<()> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

impl Log for Disk {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.bytes())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.lock().unwrap();
        state.last_bytes = bytes.len();
        let fault = state.faults.pop_front().flatten();
        let written = match fault {
            Some(Fault::Torn(len) | Fault::Zeros(len)) => len.min(bytes.len()),
            Some(Fault::Unsynced) | None => bytes.len(),
        };
        state.bytes.extend(&bytes[..written]);
        if matches!(fault, Some(Fault::Zeros(_))) {
            state.bytes.extend(vec![0; bytes.len() - written]);
        }
        fault.map_or(Ok(()), |_| Self::refused())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let state = &mut *self.0.lock().unwrap();
        state.last_bytes = bytes.len();
        let fault = state.faults.pop_front().flatten();
        if matches!(fault, None | Some(Fault::Unsynced)) {
            state.bytes = bytes.to_vec();
        }
        fault.map_or(Ok(()), |_| Self::refused())
    }
}

/// Has a journal say what changed.
fn note(journal: &mut Journal, changes: impl IntoIterator<Item = Record>) -> io::Result<()> {
    for change in changes {
        match change {
            Record::Hold { at, held } => journal.set(at, Some(held)),
            Record::Drop(at) => journal.set(at, None),
            Record::Layout { layout_id, shape } => journal.set_layout(layout_id, shape),
            Record::Begin { .. } => unreachable!("a journal begins once"),
        }
    }
    journal.write()
}

fn hold(extent: u32, member: u8, birth: u64) -> Record {
    let host = format!("h{}", birth % 7);
    Record::Hold {
        at: (extent, member),
        held: Held { host, birth },
    }
}

fn layout(layout_id: u8, shape: Option<Shape>) -> Record {
    Record::Layout { layout_id, shape }
}

/// The life of a small volume, batch by batch.
fn life() -> Vec<Vec<Record>> {
    let other = Some(Shape { k: 4, r: 1 });
    let on_other = 1 << 31;
    vec![
        vec![hold(0, 0, 1), hold(0, 1, 2)],
        vec![hold(1, 0, 3)],
        vec![Record::Drop((0, 1))],
        vec![hold(0, 1, 4), Record::Drop((1, 0))],
        vec![layout(1, other)],
        vec![hold(on_other, 0, 5), hold(on_other, 1, 6)],
        vec![Record::Drop((0, 0)), Record::Drop((0, 1))],
        vec![layout(0, None)],
        vec![hold(on_other, 2, 7)],
    ]
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

fn change() -> impl Strategy<Value = Record> {
    let at = || (0_u32..6, 0_u8..3);
    prop_oneof![
        3 => (at(), "h[0-9]{1,3}", any::<u64>())
            .prop_map(|(at, host, birth)| Record::Hold { at, held: Held { host, birth } }),
        2 => at().prop_map(Record::Drop),
        1 => (0_u8..2, prop::option::of((0_u32..6, 0_u8..9))).prop_map(|(layout_id, shape)| {
            layout(layout_id, shape.map(|(log2, r)| Shape { k: 1 << log2, r }))
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
        let log = Disk::default();
        let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
        let mut before = (log.bytes().len(), journal.wanted().clone());
        for batch in batches {
            before = (log.bytes().len(), journal.wanted().clone());
            note(&mut journal, batch).unwrap();
        }
        let bytes = log.bytes();
        let read = load(&bytes).unwrap();
        prop_assert_eq!(read.as_ref(), Some(journal.wanted()));
        let cut = before.0 + cut.index(bytes.len() - before.0 + 1);
        let expected = if cut == bytes.len() { journal.wanted() } else { &before.1 };
        let cut_off = load(&bytes[..cut]).unwrap();
        prop_assert_eq!(cut_off.as_ref(), Some(expected));
    }

    #[test]
    fn a_damaged_byte_is_an_error_or_the_end(
        batches in vec(vec(change(), 1..5), 2..6), at in any::<prop::sample::Index>(), bit in 0_u32..8
    ) {
        let log = Disk::default();
        let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
        let mut images = vec![journal.wanted().clone()];
        for batch in batches {
            let before = log.bytes().len();
            note(&mut journal, batch).unwrap();
            if log.bytes().len() > before {
                images.push(journal.wanted().clone());
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

/// Lives through `life` on a disk whose writes from the `at`-th on fail so, and looks at the disk after
/// every write, as the next owner would after a crash right there.
fn live(at: usize, faults: &[Option<Fault>]) {
    let disk = Disk::default();
    let mut journal = Journal::begin(Box::new(disk.clone()), image()).unwrap();
    // What the disk may say: what was last written, and what failed attempts since wanted.
    let mut possible = vec![journal.wanted().clone()];
    for (number, batch) in life().into_iter().enumerate() {
        if number == at {
            disk.fail(faults.iter().copied());
        }
        let outcome = note(&mut journal, batch);
        let said = disk.says();
        let told = format!("write {number}, {faults:?} from {at} on: {outcome:?}");
        if outcome.is_ok() {
            possible = vec![journal.wanted().clone()];
        } else {
            possible.push(journal.wanted().clone());
            assert!(!journal.is_known(), "{told}");
        }
        assert!(possible.contains(&said), "{told}: {said:?}");
    }
    assert!(journal.is_known());
    // And the next owner begins with it.
    let said = disk.says();
    assert_eq!(&said, journal.wanted());
    Journal::begin(Box::new(disk.clone()), said).unwrap();
}

#[test]
fn a_write_may_fail_anywhere_and_a_crash_may_follow() {
    let kinds = |cut: usize| [Fault::Torn(cut), Fault::Zeros(cut), Fault::Unsynced];
    // The last write works: only then is anything promised.
    for at in 0..life().len() - 1 {
        let len = {
            let disk = Disk::default();
            let mut journal = Journal::begin(Box::new(disk.clone()), image()).unwrap();
            for batch in life().into_iter().take(at + 1) {
                note(&mut journal, batch).unwrap();
            }
            disk.last_bytes()
        };
        for cut in 0..=len {
            for first in kinds(cut) {
                live(at, &[Some(first)]);
                if at + 2 < life().len() {
                    for second in kinds(0) {
                        live(at, &[Some(first), Some(second)]);
                    }
                }
                if at + 3 < life().len() {
                    live(at, &[Some(first), None, Some(first)]);
                }
            }
        }
    }
}

#[test]
fn what_a_failed_attempt_wanted_is_not_written_later() {
    let disk = Disk::default();
    let mut journal = Journal::begin(Box::new(disk.clone()), image()).unwrap();
    note(&mut journal, [hold(0, 0, 1)]).unwrap();
    disk.fail([Some(Fault::Torn(5))]);
    assert!(note(&mut journal, [hold(1, 0, 2)]).is_err());
    // It came to nothing meanwhile.
    note(&mut journal, [Record::Drop((1, 0)), hold(2, 0, 3)]).unwrap();
    let held: Vec<At> = disk.says().held.into_keys().collect();
    assert_eq!(held, [(0, 0), (2, 0)]);
}

#[test]
fn what_is_said_already_is_not_written_again() {
    let disk = Disk::default();
    let mut journal = Journal::begin(Box::new(disk.clone()), image()).unwrap();
    note(&mut journal, [hold(0, 0, 1)]).unwrap();
    let before = disk.bytes();
    note(&mut journal, [hold(0, 0, 1), Record::Drop((4, 4))]).unwrap();
    note(&mut journal, [hold(3, 0, 1), Record::Drop((3, 0))]).unwrap();
    assert_eq!(disk.bytes(), before);
}

/// Earlier versions read the journal of a volume whose k never changed.
#[test]
fn a_layout_is_named_only_where_it_is_not_the_usual() {
    let log = Disk::default();
    let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
    let before = log.bytes();
    let usual = Shape { k: 8, r: 2 };
    note(&mut journal, [layout(0, Some(usual)), layout(1, None)]).unwrap();
    assert_eq!(log.bytes(), before);
    let other = Shape { k: 4, r: 1 };
    note(&mut journal, [layout(1, Some(other))]).unwrap();
    note(&mut journal, [layout(0, None)]).unwrap();
    let read = load(&log.bytes()).unwrap().unwrap();
    assert_eq!(read.layouts, [None, Some(other)]);
    let next = Journal::begin(Box::new(log.clone()), read).unwrap();
    let read = load(&log.bytes()).unwrap();
    assert_eq!(
        read.as_ref(),
        Some(next.wanted()),
        "written again it says the same"
    );
}

#[test]
fn a_long_journal_is_rewritten() {
    let log = Disk::default();
    let mut journal = Journal::begin(Box::new(log.clone()), image()).unwrap();
    for birth in 0..10_000 {
        let host = "a-host".to_owned();
        let held = Held { host, birth };
        note(&mut journal, [Record::Hold { at: (0, 0), held }]).unwrap();
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
    note(&mut journal, [Record::Hold { at: (1, 2), held }]).unwrap();
    let read = Journal::load(&mut JournalFile::new(&path)).unwrap();
    assert_eq!(read.as_ref(), Some(journal.wanted()));
    journal.clear();
    journal.write().unwrap();
    let read = Journal::load(&mut JournalFile::new(&path))
        .unwrap()
        .unwrap();
    assert_eq!((read.epoch, read.held.len()), (3, 0));
}

#[test]
fn a_beginning_that_no_volume_has_is_damage() {
    let begun = |identity, epoch| {
        let records = [Record::Begin { identity, epoch }];
        load(&[&format::MAGIC[..], &format::batch(&records)].concat())
    };
    let right = image().identity;
    assert!(begun(right, u64::MAX - 1).is_ok());
    let with = |k, r, slab_bytes| Identity {
        slab_bytes,
        k,
        r,
        ..right
    };
    let wrong = [
        (0, 2, 1 << 20),
        (3, 2, 1 << 20),
        (64, 2, 1 << 20),
        (8, 9, 1 << 20),
    ];
    let slabs = [(8, 2, 0), (8, 2, 4095), (8, 2, 1 << 39), (8, 2, u64::MAX)];
    for (k, r, slab_bytes) in wrong.into_iter().chain(slabs) {
        let read = begun(with(k, r, slab_bytes), 3);
        assert!(
            matches!(read, Err(JournalError::Damaged { .. })),
            "k={k}, r={r}, slabs of {slab_bytes} bytes: {read:?}"
        );
    }
    let read = begun(right, u64::MAX);
    assert!(
        matches!(read, Err(JournalError::Damaged { .. })),
        "no epoch follows"
    );
}
