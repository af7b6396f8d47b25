//! Pages that are reclaimed while some of them cannot be read.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cenote_block::disk::Disk;
use cenote_block::swap::{FuseTransport, Options, control, launch};

use super::faulty::FaultyDisk;
use super::leftovers::{assert_nothing_left, wait_until};
use super::program::Program;
use super::{MIB, filled_ram_disk, server_command, swap_on, turn};

/// swapoff succeeds all the same, and the kernel gives such a page up for good.
#[test]
fn pages_stay_out_while_some_of_them_cannot_be_read() {
    let Some(_turn) = turn("pages that cannot be reached when there is memory to spare") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let told = tempfile::tempdir().unwrap();
    let mut command = server_command(dir.path(), FuseTransport::Auto);
    command.env(super::SERVER_SPARE, told.path());
    let started = launch::start(command, dir.path(), |_| ()).unwrap();
    let program = Program::filled(16 * MIB, 48 * MIB);
    let status = || control::status(dir.path()).unwrap();
    wait_until("24 MiB went", || status().used_bytes >= 24 * MIB);
    program.group.set_limit(256 * MIB).unwrap();
    for _ in 0..2 {
        // It may have been asked before that was so.
        drop(fs::remove_file(told.path().join("asked")));
        wait_until("it is asked for", || told.path().join("asked").exists());
    }
    let still = status();
    assert_eq!((still.reclaims, still.reclaims_cut), (0, 0));
    assert!(still.used_bytes >= 24 * MIB, "{}", still.used_bytes);

    fs::write(told.path().join("near"), "").unwrap();
    wait_until("they are back", || status().reclaims > 0);
    program.go_on();
    assert_eq!(program.wait(), 0, "pages that came back wrong");
    let report = control::off(dir.path(), |_| ()).unwrap();
    assert_eq!(report.unreadable_pages, 0);
    assert_nothing_left(dir.path(), &started.device);
}

/// The kernel looks for signals between two programs: one loses its pages, the other none.
#[test]
fn a_reclaim_in_which_a_page_cannot_be_read_goes_on_to_no_other_program() {
    let Some(_turn) = turn("a page that cannot be read when there is memory to spare") else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let faulty = Arc::new(FaultyDisk::new(filled_ram_disk(192 * MIB)));
    let disk: Arc<dyn Disk> = Arc::clone(&faulty) as _;
    let mut device = swap_on(&disk, Options::new(dir.path()));
    let programs = [16, 17].map(|limit| Program::filled(limit * MIB, 48 * MIB));
    let used_bytes = || device.used_bytes().unwrap();
    wait_until("48 MiB went", || used_bytes() >= 48 * MIB);
    for program in &programs {
        program.group.set_limit(256 * MIB).unwrap();
    }
    faulty.state.broken.store(true, Ordering::Relaxed);
    // Some seconds for each program; the failure is seen within milliseconds.
    faulty.state.is_slow.store(true, Ordering::Relaxed);

    assert!(!device.reclaim(|_| true).unwrap());

    assert!(device.is_on() && device.counters().unreadable_pages() > 0);
    let left_bytes = device.used_bytes().unwrap();
    assert!(left_bytes >= 16 * MIB, "{left_bytes} bytes are left");
    faulty.state.is_slow.store(false, Ordering::Relaxed);
}
