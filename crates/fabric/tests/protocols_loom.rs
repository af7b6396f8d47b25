//! The fabric's lock-free pieces, in every interleaving of two threads: the table that the SIGBUS handler
//! looks into, who is inside a window, and the rings of calls.
//!
//! They are the fabric's own files, compiled with the atomics of a model checker. Each model is also run
//! with mistakes, which it finds.

#![allow(
    dead_code,
    reason = "the pieces are compiled for the parts that are checked"
)]

#[path = "../src/windows/entrance.rs"]
mod entrance;
#[path = "../src/calls/ring.rs"]
mod ring;
#[path = "../src/memory/sigbus/table.rs"]
mod table;

// Not loom's: a thread that waits for ever is unwound when the model has ended.
use std::sync::Arc;

use cenote_test_kit::atomics as sync;
use entrance::Entrance;
use loom::sync::Notify;
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use memory::View;
use ring::{Memory, Reader, Way, Writer};
use sync::{Mistake, check, with};
use table::Table;

/// What the ring's file takes its memory from.
mod memory {
    use std::sync::Arc;

    use crate::sync::{AtomicU64, Ordering};

    /// The counts and flags of one ring, and the words of its two messages: each is half as long as the ring.
    #[derive(Clone)]
    pub struct View(Arc<Words>);

    struct Words {
        cells: [AtomicU64; 4],
        bytes: [AtomicU64; 4],
    }

    impl View {
        pub fn new() -> Self {
            let zeros = || std::array::from_fn(|_| AtomicU64::new(0));
            Self(Arc::new(Words {
                cells: zeros(),
                bytes: zeros(),
            }))
        }

        pub fn atomic(&self, cell: usize) -> &AtomicU64 {
            &self.0.cells[cell / 64]
        }

        /// Where a header or a body begins is a word of this view: what tells one message from another.
        fn word(&self, place: usize) -> &AtomicU64 {
            let half = (place - 4096) / (256 * 1024);
            let is_body = !(place - 4096).is_multiple_of(256 * 1024);
            &self.0.bytes[2 * half + usize::from(is_body)]
        }

        /// # Safety
        /// `source` is valid for `len` bytes.
        pub unsafe fn write(&self, place: usize, source: *const u8, len: usize) -> Result<(), ()> {
            if len > 0 {
                // SAFETY: headers and bodies have at least 8 bytes.
                let word = unsafe { source.cast::<u64>().read_unaligned() };
                self.word(place).store(word, Ordering::Relaxed);
            }
            Ok(())
        }

        /// # Safety
        /// `target` is valid for `len` bytes.
        pub unsafe fn read(&self, place: usize, target: *mut u8, len: usize) -> Result<(), ()> {
            if len > 0 {
                let word = self.word(place).load(Ordering::Relaxed);
                // SAFETY: headers and bodies have at least 8 bytes.
                unsafe { target.cast::<u64>().write_unaligned(word) };
            }
            Ok(())
        }
    }
}

struct Region(View);

struct Mapping {
    view: View,
}

#[derive(Default)]
struct RegionOptions {}

type Result<T> = std::result::Result<T, Broken>;

#[derive(Debug)]
enum Broken {
    Protocol(&'static str),
}

impl Region {
    fn view(&self) -> &View {
        &self.0
    }

    fn create(_: &str, _: u64, _: RegionOptions) -> Result<Self> {
        Ok(Self(View::new()))
    }
}

fn order_stores() {}

const HEADER_BYTES: usize = 8;
const CALL_BYTES_MAX: usize = 256 * 1024 - HEADER_BYTES;

fn encode_header(id: u32, len_bytes: usize) -> [u8; HEADER_BYTES] {
    (u64::from(id) << 32 | len_bytes as u64).to_le_bytes()
}

fn decode_header(header: [u8; HEADER_BYTES]) -> Result<(usize, u32)> {
    let word = u64::from_le_bytes(header);
    let len = word as u32 as usize;
    match len <= CALL_BYTES_MAX {
        true => Ok((len, (word >> 32) as u32)),
        false => Err(Broken::Protocol("a message that is too long")),
    }
}

/// The two ends of a ring, whose messages are half as long as it is, and the sockets of the two sides.
struct Calls {
    writer: Writer,
    reader: Reader,
    /// Readable when the reader, or the writer, is woken.
    sockets: Arc<[Notify; 2]>,
}

impl Calls {
    fn new() -> Self {
        let view = View::new();
        let mapping = Box::new(Mapping { view: view.clone() });
        let (writer, _) = ring::ends(Memory::Client(mapping), Way::Calls);
        let (_, reader) = ring::ends(Memory::Host(Arc::new(Region(view))), Way::Answers);
        let sockets = Arc::new([Notify::new(), Notify::new()]);
        Self {
            writer,
            reader,
            sockets,
        }
    }
}

fn push(writer: &mut Writer, id: u32) -> bool {
    let mut body = vec![0; CALL_BYTES_MAX];
    body[0] = id as u8;
    writer.push(id, &body).unwrap()
}

fn next(reader: &mut Reader) -> Option<u32> {
    let mut body = vec![0; CALL_BYTES_MAX];
    let (id, _) = reader.next(&mut body).unwrap()?;
    assert_eq!(u32::from(body[0]), id, "a message of two");
    Some(id)
}

/// A reader sleeps until a message comes; with `looks`, it looks once more before.
fn reader_sleeps(looks: bool) {
    check(None, move |pair| {
        let Calls {
            mut writer,
            mut reader,
            sockets,
        } = Calls::new();
        let theirs = Arc::clone(&sockets);
        let (taken, ()) = pair.run(
            move || {
                loop {
                    if let Some(id) = next(&mut reader) {
                        break id;
                    }
                    if reader.sleep() || !looks {
                        sockets[0].wait();
                    }
                    reader.wake();
                }
            },
            move || {
                assert!(push(&mut writer, 7));
                if writer.publish() {
                    theirs[0].notify();
                }
            },
        );
        assert_eq!(taken, 7);
    });
}

#[test]
fn no_message_comes_to_a_reader_that_sleeps_on() {
    reader_sleeps(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_reader_that_does_not_look_again_sleeps_on() {
    reader_sleeps(false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_reader_without_the_fences_sleeps_on() {
    with(Mistake::NoFences, || reader_sleeps(true));
}

/// A writer waits until the reader of a full ring makes room; with `looks`, it looks once more before.
fn writer_sleeps(looks: bool) {
    check(Some(3), move |pair| {
        let Calls {
            mut writer,
            mut reader,
            sockets,
        } = Calls::new();
        assert!(push(&mut writer, 1) && push(&mut writer, 2));
        assert!(!writer.publish(), "nobody sleeps");
        let theirs = Arc::clone(&sockets);
        pair.run(
            move || {
                while !push(&mut writer, 3) {
                    if writer.sleep() || !looks {
                        sockets[1].wait();
                    }
                }
                writer.publish();
            },
            move || {
                assert_eq!(next(&mut reader), Some(1));
                if reader.release() {
                    theirs[1].notify();
                }
                assert_eq!(next(&mut reader), Some(2));
            },
        );
    });
}

#[test]
fn no_room_comes_to_a_writer_that_sleeps_on() {
    writer_sleeps(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_writer_that_does_not_look_again_sleeps_on() {
    writer_sleeps(false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_writer_without_the_fences_sleeps_on() {
    with(Mistake::NoFences, || writer_sleeps(true));
}

#[test]
#[should_panic(expected = "a message of two")]
fn a_message_whose_count_is_not_ordered_is_read_before_its_bytes() {
    with(Mistake::RelaxedAccesses, || {
        with_a_reader_that_spins();
    });
}

#[test]
fn a_message_is_read_after_its_bytes_were_written() {
    with_a_reader_that_spins();
}

fn with_a_reader_that_spins() {
    check(None, |pair| {
        let Calls {
            mut writer,
            mut reader,
            ..
        } = Calls::new();
        pair.run(
            move || next(&mut reader),
            move || {
                assert!(push(&mut writer, 7));
                writer.publish();
            },
        );
    });
}

/// A verb writes to a window, which another revokes and gives to somebody else. `enter` says whether the
/// verb is let in, `close` lets nobody in any more.
fn window_is_revoked(enter: fn(&Entrance) -> bool, close: fn(&Entrance)) {
    check(None, move |pair| {
        let entrance = Arc::new(Entrance::new());
        let is_anothers = Arc::new(AtomicBool::new(false));
        entrance.open(1);
        let (theirs, memory) = (Arc::clone(&entrance), Arc::clone(&is_anothers));
        pair.run(
            move || {
                if enter(&entrance) {
                    assert!(!memory.load(Ordering::Relaxed), "memory of somebody else");
                }
                entrance.leave();
            },
            move || {
                close(&theirs);
                is_anothers.store(true, Ordering::Relaxed);
            },
        );
    });
}

fn enter(entrance: &Entrance) -> bool {
    entrance.enter(1)
}

#[test]
fn no_verb_is_in_a_window_that_was_revoked() {
    window_is_revoked(enter, Entrance::close);
}

#[test]
#[should_panic(expected = "memory of somebody else")]
fn a_window_that_is_revoked_at_once_has_verbs_inside() {
    window_is_revoked(enter, |entrance| entrance.open(0));
}

#[test]
#[should_panic(expected = "memory of somebody else")]
fn a_verb_that_looks_before_it_is_counted_comes_too_late() {
    window_is_revoked(
        |entrance| {
            let stood = entrance.generation() == 1;
            entrance.enter(1);
            stood
        },
        Entrance::close,
    );
}

#[test]
#[should_panic(expected = "memory of somebody else")]
fn a_verb_whose_count_is_not_ordered_is_not_waited_for() {
    with(Mistake::WeakAccesses, || {
        window_is_revoked(enter, Entrance::close);
    });
}

/// A thread of the host reads a window that is renewed, and written by those of the next generation. It is
/// held as long as its generation stands, which is looked at after the copy, or first.
fn held_window_is_renewed(looks_first: bool) {
    check(None, move |pair| {
        let entrance = Arc::new(Entrance::new());
        let bytes = Arc::new(AtomicU64::new(1));
        entrance.open(1);
        let (theirs, their_bytes) = (Arc::clone(&entrance), Arc::clone(&bytes));
        pair.run(
            move || {
                let stood = entrance.generation() == 1;
                let read = bytes.load(Ordering::Relaxed);
                sync::fence(Ordering::Acquire);
                if stood && looks_first || entrance.generation() == 1 {
                    assert_eq!(read, 1, "bytes of a later life");
                }
            },
            move || {
                theirs.close();
                theirs.open(2);
                assert!(theirs.enter(2));
                their_bytes.store(2, Ordering::Relaxed);
                theirs.leave();
            },
        );
    });
}

#[test]
fn a_held_window_gives_bytes_of_its_own_life() {
    held_window_is_renewed(false);
}

#[test]
#[should_panic(expected = "bytes of a later life")]
fn a_look_before_the_copy_lets_bytes_of_a_later_life_through() {
    held_window_is_renewed(true);
}

const LEN: usize = 16;
/// Where mappings are, and may be again.
const OURS: usize = 0x100;
const LEFT: usize = 0x200;
const NEXT: usize = 0x300;

/// An access to a mapping of ours faults while the one before it goes, and a longer one comes into its slot.
fn ours_faults() {
    check(None, |pair| {
        let table = Arc::new(Table::new(2));
        let left = table.add(OURS - LEN, LEN).unwrap();
        let ours = table.add(OURS, LEN).unwrap();
        let theirs = Arc::clone(&table);
        pair.run(
            move || {
                let found = table.find(OURS).expect("ours is in the table");
                assert!(std::ptr::eq(found, ours), "another mapping is replaced");
                assert_eq!(found.range(), (OURS, LEN));
            },
            move || {
                theirs.remove(left);
                theirs.add(NEXT, 2 * LEN).unwrap();
            },
        );
    });
}

#[test]
fn a_fault_finds_its_own_mapping_while_others_come_and_go() {
    ours_faults();
}

#[test]
#[should_panic(expected = "another mapping is replaced")]
fn a_table_without_orderings_finds_another_mapping() {
    with(Mistake::RelaxedAccesses, ours_faults);
}

/// Somebody else's mapping faults, where ours was before or where none ever was. Ours `leaves` the table and
/// the memory, and the next comes into its slot, longer than it.
fn foreign_faults(address: usize, leaves: fn(&Table, &'static table::Slot, &AtomicBool)) {
    check(None, move |pair| {
        let table = Arc::new(Table::new(2));
        let left = table.add(LEFT, LEN).unwrap();
        let is_anothers = Arc::new(AtomicBool::new(false));
        let (theirs, memory) = (Arc::clone(&table), Arc::clone(&is_anothers));
        pair.run(
            move || {
                // An access to what is mapped there comes after the mapping.
                if address != LEFT || is_anothers.load(Ordering::Acquire) {
                    assert!(
                        table.find(address).is_none(),
                        "memory of somebody else is replaced"
                    );
                }
            },
            move || {
                leaves(&theirs, left, &memory);
                theirs.add(NEXT, 2 * LEN).unwrap();
            },
        );
    });
}

/// What dropping a view does; then somebody else maps a file there.
fn leave(table: &Table, slot: &'static table::Slot, is_anothers: &AtomicBool) {
    table.remove(slot);
    is_anothers.store(true, Ordering::Release);
}

#[test]
fn a_fault_of_somebody_else_finds_no_mapping_of_ours() {
    foreign_faults(LEFT, leave);
    // Behind ours, and within the length of the next.
    foreign_faults(LEFT + LEN, leave);
    foreign_faults(0, leave);
}

#[test]
#[should_panic(expected = "memory of somebody else is replaced")]
fn a_mapping_that_is_unmapped_first_is_found_when_it_is_somebody_elses() {
    foreign_faults(LEFT, |table, slot, is_anothers| {
        is_anothers.store(true, Ordering::Release);
        table.remove(slot);
    });
}

#[test]
#[should_panic(expected = "memory of somebody else is replaced")]
fn a_table_without_orderings_mixes_a_base_with_the_next_length() {
    with(Mistake::RelaxedAccesses, || {
        foreign_faults(LEFT + LEN, leave);
    });
}

/// One faults on lost memory, another reads the zeros that come in its place: it is told so. `replace` has
/// the slot and the memory.
fn zeros_are_read(replace: fn(&table::Slot, &AtomicUsize)) {
    check(None, move |pair| {
        let table = Table::new(1);
        let slot = table.add(OURS, LEN).unwrap();
        let bytes = Arc::new(AtomicUsize::new(7));
        let theirs = Arc::clone(&bytes);
        pair.run(
            move || {
                let read = bytes.load(Ordering::Relaxed);
                assert!(read == 7 || slot.is_dead(), "zeros are taken for the bytes");
            },
            move || replace(slot, &theirs),
        );
    });
}

/// What the handler does. Mapping takes the kernel's locks.
fn kill_first(slot: &table::Slot, bytes: &AtomicUsize) {
    slot.kill();
    bytes.store(0, Ordering::Release);
}

#[test]
fn zeros_in_place_of_lost_memory_are_known_for_it() {
    zeros_are_read(kill_first);
}

#[test]
#[should_panic(expected = "zeros are taken for the bytes")]
fn memory_that_is_replaced_before_it_counts_as_lost_is_believed() {
    zeros_are_read(|slot, bytes| {
        bytes.store(0, Ordering::Release);
        slot.kill();
    });
}

#[test]
#[should_panic(expected = "zeros are taken for the bytes")]
fn a_flag_that_is_read_before_the_bytes_is_no_answer() {
    with(Mistake::NoFences, || zeros_are_read(kill_first));
}
