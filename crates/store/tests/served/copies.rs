//! Objects in several stores: clients beside each other, some of which die between two stores.

use std::sync::atomic::{AtomicBool, Ordering};

use cenote_store::client::ClientError;
use cenote_store::copies::{Copies, CopiesError, CopyError};
use cenote_store::schemes::Erda;
use cenote_store::{Condition, FileMedium, Refusal, Server};

use crate::lab::{LIMIT, Lab, Options, TRANSPORTS, Transport};

/// Some stores, each with a lab of its own.
struct Row(Vec<(Lab, Server<FileMedium>)>);

impl Row {
    fn new(count: usize, transport: Transport) -> Self {
        Self::with(count, &Options::new(transport))
    }

    fn with(count: usize, options: &Options) -> Self {
        let store = |_| {
            let lab = Lab::new();
            let server = lab.serve(options);
            (lab, server)
        };
        Self((0..count).map(store).collect())
    }

    /// A client of some of them, in this order.
    fn client(&self, places: &[usize]) -> Copies {
        let client = |place: &usize| {
            let (lab, server) = &self.0[*place];
            lab.client(server).0
        };
        Copies::new(places.iter().map(client).collect(), LIMIT).unwrap()
    }
}

fn is_passed(error: &CopiesError) -> bool {
    let refused = CopyError::Client(ClientError::Refused(Refusal::Condition(None)));
    let kind = |error| std::mem::discriminant(error);
    error.store == 0 && kind(&error.error) == kind(&refused)
}

fn count(copies: &mut Copies) -> (Option<u64>, u64) {
    match copies.get(b"count").unwrap() {
        None => (None, 0),
        Some(version) => {
            let value = version.value.as_slice().try_into().unwrap();
            (Some(version.sequence), u64::from_le_bytes(value))
        }
    }
}

/// Adds one, if nobody did in between.
fn add(copies: &mut Copies) -> bool {
    let (version, count) = count(copies);
    let condition = version.map_or(Condition::Absent, Condition::Sequence);
    match copies.put(b"count", &(count + 1).to_le_bytes(), condition) {
        Ok(_) => true,
        Err(error) if is_passed(&error) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn additions_are_counted_once_also_of_clients_that_die_on_the_way() {
    const ADDITIONS: u64 = 25;
    for transport in TRANSPORTS {
        let row = Row::new(3, transport);
        let is_over = AtomicBool::new(false);
        let added = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3)
                .map(|thread: u64| {
                    let row = &row;
                    scope.spawn(move || {
                        let mut copies = row.client(&[0, 1, 2]);
                        // Whose client dies behind the first store, or the second.
                        let mut first = row.client(&[0]);
                        let mut second = row.client(&[0, 1]);
                        let mut added = 0;
                        while added < ADDITIONS {
                            let way = match (added + thread) % 5 {
                                0 => &mut first,
                                1 => &mut second,
                                _ => &mut copies,
                            };
                            added += u64::from(add(way));
                        }
                        added
                    })
                })
                .collect();
            let reader = scope.spawn(|| {
                let mut copies = row.client(&[0, 1, 2]);
                let mut last = (None, 0);
                while !is_over.load(Ordering::Relaxed) {
                    let seen = count(&mut copies);
                    assert!(seen >= last, "{seen:?} after {last:?}");
                    last = seen;
                }
            });
            let ends = threads.into_iter().map(|one| one.join().unwrap());
            let added: u64 = ends.sum();
            is_over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
            added
        });
        // The last of them may have been left behind.
        assert_eq!(row.client(&[0, 1, 2]).bring(), Ok(1));
        for places in [&[0][..], &[1], &[2], &[0, 1, 2]] {
            assert_eq!(count(&mut row.client(places)).1, added, "{places:?}");
        }
    }
}

#[test]
fn any_store_that_is_left_has_all_that_was_acknowledged_and_no_deletion_is_undone() {
    let row = Row::new(4, Transport::Shm);
    let mut all = row.client(&[0, 1, 2]);
    assert_eq!(all.put(b"a", b"1", Condition::Absent), Ok(1));
    assert_eq!(all.put(b"b", b"1", Condition::Always), Ok(1));
    assert_eq!(all.put(b"a", b"2", Condition::Sequence(1)), Ok(2));
    assert_eq!(all.delete(b"b", Condition::Always), Ok(2));
    assert_eq!(all.delete(b"b", Condition::Always), Ok(2), "it is gone");
    assert_eq!(all.delete(b"c", Condition::Always), Ok(0), "never was");
    assert!(is_passed(
        &all.put(b"b", b"3", Condition::Sequence(1)).unwrap_err()
    ));
    for left in [&[0][..], &[1], &[2], &[1, 2], &[0, 2]] {
        let mut left = row.client(left);
        assert_eq!(left.get(b"a").unwrap().unwrap().value, b"2");
        assert_eq!(left.get(b"b"), Ok(None));
        assert_eq!(left.keys(b"").unwrap(), [b"a"]);
    }
    // The first is lost, another comes in front of the last, gets what is new, and what was there.
    let mut without = row.client(&[1, 3, 2]);
    assert_eq!(without.put(b"b", b"again", Condition::Absent), Ok(3));
    assert_eq!(row.client(&[1, 3]).bring(), Ok(2));
    let mut new = row.client(&[1, 2, 3]);
    assert_eq!(new.keys(b"").unwrap(), [b"a", b"b"]);
    assert_eq!(new.get(b"b").unwrap().unwrap().sequence, 3);
    // The lost one comes back as if nothing had been: what it has is older, and gives way.
    assert_eq!(row.client(&[1, 0]).bring(), Ok(2));
    assert_eq!(row.client(&[0]).get(b"b").unwrap().unwrap().value, b"again");
}

#[test]
fn stores_that_went_different_ways_and_objects_of_one_store_are_told() {
    let row = Row::new(2, Transport::Tcp);
    for place in [0, 1] {
        let value = [place as u8; 3];
        row.client(&[place])
            .put(b"key", &value, Condition::Always)
            .unwrap();
    }
    let said = row.client(&[0, 1]).bring().unwrap_err();
    assert_eq!((said.store, said.error), (1, CopyError::Diverged));
    let (lab, server) = &row.0[0];
    lab.client(server)
        .put_durable(b"alone", b"of one store alone");
    let said = row.client(&[0, 1]).put(b"alone", b"", Condition::Always);
    let said = said.unwrap_err();
    assert_eq!((said.store, said.error), (0, CopyError::Foreign));
    let lab = Lab::new();
    let server = lab.serve(&Options {
        scheme: std::sync::Arc::new(Erda),
        ..Options::new(Transport::Shm)
    });
    let said = Copies::new(vec![lab.client(&server).0], LIMIT).err();
    assert_eq!(said.map(|said| said.error), Some(CopyError::Scheme));
    let long = vec![0; 1 << 20];
    let said = row.client(&[0, 1]).put(b"long", &long, Condition::Always);
    assert!(said.unwrap_err().to_string().starts_with("copy 1: a key"));
}

/// Where one store is left, what is ordered there could be read before the new one has it.
#[test]
fn what_is_read_while_a_store_joins_the_last_one_is_in_both() {
    let row = Row::new(2, Transport::Shm);
    let mut joining = row.client(&[0, 1, 0]);
    // Clients that died behind the first.
    let mut dying = row.client(&[0]);
    dying.put(b"key", b"value", Condition::Always).unwrap();
    dying.put(b"listed", b"value", Condition::Always).unwrap();
    let mut new = row.client(&[1]);
    assert_eq!(new.get(b"key"), Ok(None));
    let read = joining.get(b"key").unwrap().expect("it is in one store");
    assert_eq!(new.get(b"key"), Ok(Some(read)));
    assert_eq!(joining.keys(b"l").unwrap(), [b"listed"]);
    assert_eq!(new.keys(b"l").unwrap(), [b"listed"]);
    // A deletion that is seen is not undone.
    dying.delete(b"key", Condition::Always).unwrap();
    assert_eq!(joining.get(b"key"), Ok(None));
    assert_eq!(new.get(b"key"), Ok(None));
}

/// A deletion is a small value in each store, which keeps older copies away.
#[test]
fn stores_that_are_full_of_copies_are_emptied_by_deletions() {
    let options = Options {
        pool_bytes: 256 << 10,
        shards: 1,
        ..Options::new(Transport::Shm)
    };
    let row = Row::with(2, &options);
    let mut copies = row.client(&[0, 1]);
    let key = |number: u32| format!("key {number}").into_bytes();
    let mut count = 0;
    // Those without a value take no more room than deletions.
    for value in [&[7; 1000][..], &[]] {
        let full = loop {
            match copies.put(&key(count), value, Condition::Always) {
                Ok(_) => count += 1,
                Err(error) => break error,
            }
        };
        let refused = CopyError::Client(ClientError::Refused(Refusal::Full));
        assert_eq!((full.store, full.error), (0, refused));
    }
    assert!(count > 80, "{count} values");
    for number in 0..count {
        let deleted = copies.delete(&key(number), Condition::Always);
        assert_eq!(deleted, Ok(2), "{number} of {count}");
    }
    assert_eq!(copies.keys(b""), Ok(Vec::new()));
    assert_eq!(copies.put(b"new", &[7; 50_000], Condition::Always), Ok(1));
}
