//! What the journal says of a directory, on a disk that refuses now and then.

use std::sync::Mutex;

use super::*;
use crate::directory::{Directory, Unreachable};
use crate::journal::{Identity, Image, Log};
use crate::{Resilience, Scheme};

/// A log in memory that refuses while it is told to, having written all or half of what it was given.
#[derive(Clone, Default)]
struct Disk(Arc<Mutex<(Vec<u8>, Refusal)>>);

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
enum Refusal {
    #[default]
    None,
    /// Nothing is written.
    Before,
    /// Half of it is.
    Within,
    /// All of it is, as when a sync fails.
    After,
}

impl Disk {
    fn refuse(&self, how: Refusal) {
        self.0.lock().unwrap().1 = how;
    }

    fn says(&self) -> Image {
        Journal::load(&mut self.clone()).unwrap().unwrap()
    }
}

impl Log for Disk {
    fn read(&mut self) -> io::Result<Vec<u8>> {
        Ok(self.0.lock().unwrap().0.clone())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, how) = &mut *self.0.lock().unwrap();
        let len = match how {
            Refusal::Before => 0,
            Refusal::Within => bytes.len() / 2,
            Refusal::None | Refusal::After => bytes.len(),
        };
        kept.extend(&bytes[..len]);
        match how {
            Refusal::None => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (kept, how) = &mut *self.0.lock().unwrap();
        if matches!(how, Refusal::None | Refusal::After) {
            *kept = bytes.to_vec();
        }
        match how {
            Refusal::None => Ok(()),
            _ => Err(io::ErrorKind::StorageFull.into()),
        }
    }
}

const REFUSALS: [Refusal; 3] = [Refusal::Before, Refusal::Within, Refusal::After];

fn record(disk: &Disk) -> Record {
    let identity = Identity {
        volume: 7,
        slab_bytes: 1 << 20,
        k: 1,
        r: 1,
    };
    Record::new(Journal::begin(Box::new(disk.clone()), Journal::fresh(identity)).unwrap())
}

fn directory() -> Directory {
    Directory::new([4, 0], Resilience::of(Scheme::PLAIN), true)
}

/// Gives an extent one slab of this birth, or none.
fn map(directory: &Directory, extent: usize, birth: Option<u64>) {
    directory.publish(|next| {
        next.extents[extent] = birth.map(|birth| {
            let slab = Unreachable { host: 3, birth };
            Arc::new(Stripe {
                members: vec![None],
                unreachable: vec![Some(slab)],
                ..Stripe::default()
            })
        });
        true
    });
}

fn note(record: &mut Record, directory: &Directory, now: Time) -> bool {
    record.describe(&directory.snapshot(), &|host| format!("h{host}"));
    record.write(now)
}

/// The time of a turn by which a journal that failed in the last one is tried again.
fn turn(number: u32) -> Time {
    Time(0).after(RETRY * number)
}

#[test]
fn what_a_failed_attempt_wanted_is_forgotten_with_the_directory() {
    for how in REFUSALS {
        let (disk, directory) = (Disk::default(), directory());
        let mut record = record(&disk);
        map(&directory, 1, Some(10));
        assert!(note(&mut record, &directory, turn(0)));
        disk.refuse(how);
        map(&directory, 2, Some(20));
        assert!(!note(&mut record, &directory, turn(1)), "{how:?}");
        assert!(!record.is_known());
        // The extent goes before the disk has room again.
        map(&directory, 2, None);
        assert!(!note(&mut record, &directory, turn(2)), "{how:?}");
        disk.refuse(Refusal::None);
        assert!(note(&mut record, &directory, turn(3)), "{how:?}");
        assert!(record.is_known());
        let held: Vec<At> = disk.says().held.into_keys().collect();
        assert_eq!(held, [(1, 0)], "{how:?}");
    }
}

#[test]
fn a_slab_or_a_layout_that_was_not_noted_is_not_noted_later() {
    for how in REFUSALS {
        let (disk, directory) = (Disk::default(), directory());
        let mut record = record(&disk);
        map(&directory, 0, Some(10));
        assert!(note(&mut record, &directory, turn(0)));
        let before = disk.says();
        disk.refuse(how);
        let held = Held {
            host: "h9".into(),
            birth: 99,
        };
        assert!(!record.write_ahead(turn(1), (0, 0), held));
        let shape = Some(Shape { k: 4, r: 2 });
        assert!(!record.write_layout(turn(2), LayoutId::Second, shape));
        disk.refuse(Refusal::None);
        assert!(note(&mut record, &directory, turn(3)));
        assert_eq!(disk.says(), before, "{how:?}");
    }
}

#[test]
fn a_disk_that_refuses_is_left_alone_for_a_while_and_said_to() {
    let (disk, directory) = (Disk::default(), directory());
    let mut record = record(&disk);
    assert_eq!(record.status(turn(0)).error, None);
    disk.refuse(Refusal::Before);
    map(&directory, 0, Some(10));
    assert!(!note(&mut record, &directory, turn(1)));
    disk.refuse(Refusal::None);
    assert!(!note(&mut record, &directory, turn(1)), "too early");
    let status = record.status(turn(41));
    assert_eq!(status.failing_s, Some(10));
    assert!(status.error.is_some_and(|error| !error.is_empty()));
    assert!(note(&mut record, &directory, turn(2)));
    assert_eq!(record.status(turn(41)).error, None);
}
