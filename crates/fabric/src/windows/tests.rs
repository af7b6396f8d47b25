use std::os::fd::{AsFd, AsRawFd, FromRawFd};
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::memory::RegionOptions;

fn region(len_bytes: u64) -> Arc<Region> {
    Arc::new(Region::create("test", len_bytes, RegionOptions::default()).unwrap())
}

fn refusal(entered: std::result::Result<WindowGuard<'_>, Status>) -> Status {
    entered.err().expect("refused")
}

#[test]
fn slots_are_laid_end_to_end() {
    let mut expected = 0;
    for chunk in 0..4 {
        for index in 0..CHUNK_SLOTS_FIRST << chunk {
            assert_eq!(place(WindowId(expected)), (chunk, index));
            expected += 1;
        }
    }
    assert_eq!(
        place(WindowId(WINDOW_COUNT_MAX as u32 - 1)).0,
        CHUNK_COUNT - 1
    );
    assert_eq!(place(WindowId(WINDOW_COUNT_MAX as u32)).0, CHUNK_COUNT);
    assert!(WindowTable::new().slot(WindowId(u32::MAX)).is_none());
}

#[test]
fn a_verb_must_name_life_rights_and_range() {
    let table = WindowTable::new();
    let w = table.register(region(8192), Rights::READ).unwrap();
    let enter = |generation, need, offset, len| table.enter(w.id, generation, need, offset, len);
    let guard = enter(w.generation, Rights::READ, 4096, 4096).unwrap();
    assert!(!guard.is_dead());
    assert_eq!(
        refusal(enter(Generation(w.generation.0 ^ 1), Rights::READ, 0, 1)),
        Status::StaleGeneration
    );
    assert_eq!(
        refusal(enter(Generation(0), Rights::READ, 0, 1)),
        Status::StaleGeneration
    );
    assert_eq!(
        refusal(enter(w.generation, Rights::WRITE, 0, 1)),
        Status::NoRights
    );
    assert_eq!(
        refusal(enter(w.generation, Rights::READ, 4096, 4097)),
        Status::OutOfBounds
    );
    assert_eq!(
        refusal(enter(w.generation, Rights::READ, u64::MAX, 2)),
        Status::OutOfBounds
    );
    let other = table.enter(WindowId(7), w.generation, Rights::READ, 0, 1);
    assert_eq!(refusal(other), Status::StaleGeneration);
    drop(guard);
    assert_eq!(
        table.slot(w.id).unwrap().entrance.inside(),
        0,
        "refusals count nobody in"
    );
}

#[test]
fn a_revoked_id_comes_back_with_another_generation() {
    let table = WindowTable::new();
    let first = table.register(region(4096), Rights::ALL).unwrap();
    table.revoke(first.id).unwrap();
    assert!(matches!(table.revoke(first.id), Err(Error::StaleWindow)));
    let second = table.register(region(4096), Rights::ALL).unwrap();
    assert_eq!(first.id, second.id);
    assert_ne!(first.generation.0 >> 32, second.generation.0 >> 32);
    let late = table.enter(first.id, first.generation, Rights::READ, 0, 1);
    assert_eq!(refusal(late), Status::StaleGeneration);
    assert!(table.attach(first.id, first.generation).is_err());
    assert_eq!(
        table.attach(second.id, second.generation).unwrap().1,
        second
    );
}

#[test]
fn a_region_truncated_by_a_peer_is_revoked_for_verbs() {
    let table = WindowTable::new();
    let region = region(4096);
    let w = table.register(region.clone(), Rights::ALL).unwrap();
    region.truncate().unwrap();
    assert_eq!(
        refusal(table.enter(w.id, w.generation, Rights::READ, 0, 1)),
        Status::Revoked
    );
    assert!(matches!(
        table.register(region, Rights::ALL),
        Err(Error::StaleWindow)
    ));
}

#[test]
fn revoke_waits_for_the_verb_inside() {
    let table = WindowTable::new();
    let w = table.register(region(4096), Rights::ALL).unwrap();
    let left = AtomicBool::new(false);
    let guard = table
        .enter(w.id, w.generation, Rights::WRITE, 0, 4096)
        .unwrap();
    thread::scope(|scope| {
        let revoker = scope.spawn(|| {
            table.revoke(w.id).unwrap();
            assert!(
                left.load(Ordering::SeqCst),
                "revoke returned while a verb was inside"
            );
        });
        while !guard.is_dead() {
            thread::yield_now();
        }
        left.store(true, Ordering::SeqCst);
        drop(guard);
        revoker.join().unwrap();
    });
}

#[test]
fn no_write_lands_after_revoke_returned() {
    let table = WindowTable::new();
    for _ in 0..200 {
        let region = region(4096);
        let w = table.register(region.clone(), Rights::ALL).unwrap();
        thread::scope(|scope| {
            let writer = scope.spawn(|| {
                let mut landed = 0_u32;
                while let Ok(guard) = table.enter(w.id, w.generation, Rights::WRITE, 0, 8) {
                    // SAFETY: the guard covers 8 bytes, and a lost mapping is replaced by zeros.
                    unsafe { guard.ptr().cast::<u64>().write_volatile(7) };
                    landed += u32::from(!guard.is_dead());
                }
                landed
            });
            while region.read(0, &mut [0; 8]).is_ok()
                && table.slot(w.id).unwrap().entrance.inside() == 0
                && !writer.is_finished()
            {
                thread::yield_now();
            }
            table.revoke(w.id).unwrap();
            writer.join().unwrap();
        });
        assert!(region.is_dead());
    }
}

/// As when a host's process is replaced by another: the same memory under the same names.
#[test]
fn a_window_stands_again_under_its_name_and_no_generation_is_given_twice() {
    let first = WindowTable::new();
    let windows: Vec<_> = (0..3)
        .map(|_| first.register(region(4096), Rights::ALL).unwrap())
        .collect();
    let (kept, gone) = (windows[2], windows[1]);
    let (memory, _) = first.attach(kept.id, kept.generation).unwrap();
    memory.write(8, b"kept").unwrap();

    let copy = memory.as_fd().try_clone_to_owned().unwrap();
    let inherited = Region::inherit(copy, 4096, false).unwrap();
    let second = WindowTable::new();
    // The earlier process may have counted further than the clock.
    let ahead = WindowDescriptor {
        generation: Generation(kept.generation.0 + (1 << 40)),
        ..kept
    };
    second.restore(Arc::new(inherited), ahead).unwrap();

    let guard = second.enter(kept.id, ahead.generation, Rights::READ, 8, 4);
    assert!(guard.is_ok());
    drop(guard);
    let stale = |window: WindowDescriptor| {
        refusal(second.enter(window.id, window.generation, Rights::READ, 0, 1))
    };
    assert_eq!(stale(kept), Status::StaleGeneration, "the life before");
    assert_eq!(
        stale(gone),
        Status::StaleGeneration,
        "one that was not kept"
    );
    let (memory, _) = second.attach(ahead.id, ahead.generation).unwrap();
    let mut bytes = [0; 4];
    memory.read(8, &mut bytes).unwrap();
    assert_eq!(&bytes, b"kept");

    let mut ids = vec![kept.id];
    for _ in 0..3 {
        let window = second.register(region(4096), Rights::ALL).unwrap();
        assert!(window.generation.0 > ahead.generation.0);
        assert!(!ids.contains(&window.id), "{ids:?} and {window:?}");
        ids.push(window.id);
    }
    assert!(
        matches!(
            second.restore(region(4096), ahead),
            Err(Error::Bound("windows"))
        ),
        "one name, one window"
    );
}

#[test]
fn only_memory_that_a_host_made_is_taken_over() {
    let whole = region(8192);
    let copy = || whole.as_fd().try_clone_to_owned().unwrap();
    let inherit = |fd, len| Region::inherit(fd, len, false).map(drop);
    inherit(copy(), 8192).unwrap();
    assert!(matches!(inherit(copy(), 4096), Err(Error::StaleWindow)));
    let file = tempfile::tempfile().unwrap();
    file.set_len(8192).unwrap();
    let refused = inherit(file.into(), 8192);
    assert!(matches!(refused, Err(Error::StaleWindow)), "no seals");
    whole.truncate().unwrap();
    assert!(matches!(inherit(copy(), 8192), Err(Error::StaleWindow)));
}

#[test]
fn memory_on_a_machine_without_executable_memfds_is_taken_over() {
    // What memfd_create adds there by itself.
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | libc::MFD_NOEXEC_SEAL;
    // SAFETY: the name ends with a zero byte; a non-negative result is a new descriptor of ours.
    let fd = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), flags);
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        std::os::fd::OwnedFd::from_raw_fd(fd)
    };
    std::fs::File::from(fd.try_clone().unwrap())
        .set_len(8192)
        .unwrap();
    let seals = libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: no pointers.
    let sealed = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals) };
    assert_eq!(sealed, 0);
    Region::inherit(fd, 8192, false).unwrap();
}

#[test]
fn memory_that_was_taken_over_stays_if_nobody_was_served_with_it() {
    for is_served in [false, true] {
        let whole = region(8192);
        let first = WindowTable::new();
        let window = first.register(whole.clone(), Rights::ALL).unwrap();
        let copy = whole.as_fd().try_clone_to_owned().unwrap();
        let inherited = Region::inherit(copy, 8192, false).unwrap();
        let table = WindowTable::new();
        table.restore(Arc::new(inherited), window).unwrap();
        if is_served {
            table.note_serving();
        }
        drop(table);
        let copy = whole.as_fd().try_clone_to_owned().unwrap();
        let len_bytes = std::fs::File::from(copy).metadata().unwrap().len();
        assert_eq!(len_bytes, if is_served { 0 } else { 8192 });
    }
}
