//! How a connection ends, and who waits meanwhile: signals, an abort, a server that is killed or
//! panics.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::gate::GATED_BYTES;
use crate::mount::{Mounted, sh, shell};

const CONTENT: [u8; GATED_BYTES] = [5; GATED_BYTES];

/// A file on the medium.
fn written(mounted: &Mounted) {
    fs::write(mounted.at("file"), CONTENT).expect("a file");
    shell(mounted.path(), "sync -f .");
}

/// A program that reads it past the cache.
fn reader(mounted: &Mounted) -> Child {
    let length = format!("bs={GATED_BYTES}");
    Command::new("dd")
        .args(["if=file", "of=/dev/null", "iflag=direct", &length])
        .current_dir(mounted.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("dd")
}

/// The same, held up by the medium.
fn held_reader(mounted: &mut Mounted) -> Child {
    written(mounted);
    mounted.order("hold");
    let reader = reader(mounted);
    wait_until("read that waits", || mounted.order("waiting") == "1");
    reader
}

fn signal(process: u32, signal: i32) {
    // SAFETY: takes numbers alone; the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(process.cast_signed(), signal) }, 0);
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < patience, "still no {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a look at `path` fails with.
fn errno(path: &Path) -> Option<i32> {
    let looked = fs::metadata(path);
    looked.err().and_then(|error| error.raw_os_error())
}

#[test]
fn a_program_that_is_signalled_while_it_waits_harms_nobody() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    let mut reader = held_reader(&mut mounted);
    // The first interrupts the request, the second ends the program once that is replied to.
    signal(reader.id(), libc::SIGUSR1);
    signal(reader.id(), libc::SIGKILL);
    let said = shell(mounted.path(), "echo other > other; cat other");
    assert_eq!(said, "other\n");
    assert_eq!(mounted.order("waiting"), "1");
    mounted.order("pass");
    let status = reader.wait().expect("a child of ours");
    assert_eq!(status.signal(), Some(libc::SIGKILL));
    assert_eq!(fs::read(mounted.at("file")).expect("a file"), CONTENT);
    mounted.again();
    assert_eq!(fs::read(mounted.at("file")).expect("a file"), CONTENT);
}

#[test]
fn an_aborted_connection_ends_every_thread_that_serves_it() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    written(&mounted);
    let serving: usize = mounted.order("threads").parse().expect("a number");
    assert!(serving >= 2, "{serving}");
    let open = File::open(mounted.at("file")).expect("a file");
    // It is in use, and stays where it is; its connection is over.
    let line = format!("umount -f {}", mounted.path().display());
    sh(Path::new("/"), &line);
    // Threads that end while they are listed hide others, so the list alone says little.
    let has_ended = || mounted.order("ended") == "true" && mounted.order("threads") == "0";
    wait_until("end of the threads", has_ended);
    let synced = open.sync_all().err();
    let errno = synced.as_ref().and_then(std::io::Error::raw_os_error);
    let is_over = matches!(errno, Some(libc::ENOTCONN | libc::EIO));
    assert!(is_over, "{synced:?}");
    drop(open);
    mounted.again_after_failure();
    assert_eq!(mounted.order("ended"), "false");
    assert_eq!(fs::read(mounted.at("file")).expect("a file"), CONTENT);
}

#[test]
fn an_aborted_mount_that_is_in_use_is_gone_once_it_has_ended() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    written(&mounted);
    let open = File::open(mounted.at("file")).expect("a file");
    let line = format!("umount -f {}", mounted.path().display());
    sh(Path::new("/"), &line);
    wait_until("end of the mount", || mounted.order("ended") == "true");
    assert_eq!(errno(mounted.path()), Some(libc::ENOTCONN), "left there");
    assert_eq!(mounted.order("end"), "clean");
    let left = fs::read_dir(mounted.path()).expect("a folder");
    assert_eq!(left.count(), 0);
    drop(open);
}

#[test]
fn a_server_that_is_killed_fails_who_waits() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    let mut reader = held_reader(&mut mounted);
    signal(mounted.server(), libc::SIGKILL);
    let status = reader.wait().expect("a child of ours");
    assert_eq!(status.code(), Some(1), "dd says that it failed");
    assert_eq!(mounted.died().signal(), Some(libc::SIGKILL));
    assert_eq!(errno(mounted.path()), Some(libc::ENOTCONN));
}

#[test]
fn a_thread_that_panics_takes_its_process_with_it() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    written(&mounted);
    mounted.order("panic");
    let status = reader(&mounted).wait().expect("a child of ours");
    assert_eq!(status.code(), Some(1), "dd says that it failed");
    assert_eq!(mounted.died().signal(), Some(libc::SIGABRT));
    assert_eq!(errno(mounted.path()), Some(libc::ENOTCONN));
}

#[test]
fn a_mount_whose_folder_was_renamed_ends_where_it_is_now() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    fs::write(mounted.at("file"), CONTENT).expect("a file");
    let outer = mounted.path().parent().expect("a folder above").to_owned();
    let renamed = outer.with_file_name("renamed");
    fs::rename(&outer, &renamed).expect("a mount below may move");
    assert_eq!(mounted.order("end"), "clean");
    let left = fs::read_dir(renamed.join("inner")).expect("a folder");
    assert_eq!(left.count(), 0, "it is still mounted");
    fs::create_dir_all(mounted.path()).expect("a folder for the next mount");
    mounted.again();
    assert_eq!(fs::read(mounted.at("file")).expect("a file"), CONTENT);
}

#[test]
fn a_deleted_file_that_is_still_open_at_the_end_is_left_to_the_next_mount() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    let before: u64 = mounted.order("free").parse().expect("a number");
    written(&mounted);
    let mut open = File::open(mounted.at("file")).expect("a file");
    fs::remove_file(mounted.at("file")).expect("a deletion");
    assert_eq!(mounted.order("end"), "clean");
    let mut found = Vec::new();
    open.read_to_end(&mut found)
        .expect("the file is still served");
    assert_eq!(found, CONTENT);
    let held: u64 = mounted.order("free").parse().expect("a number");
    assert!(held < before, "{held} of {before} blocks are free");
    drop(open);
    mounted.again();
    assert_eq!(mounted.order("free"), before.to_string());
}

#[test]
fn a_mount_that_ends_late_leaves_the_next_one_at_its_folder_alone() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    written(&mounted);
    let open = File::open(mounted.at("file")).expect("a file");
    let of_one: usize = mounted.order("threads").parse().expect("a number");
    mounted.again();
    let both: usize = mounted.order("threads").parse().expect("a number");
    assert!(both > of_one, "the first serves what is still open");
    drop(open);
    let is_one = || mounted.order("threads") == of_one.to_string();
    wait_until("end of the first mount's threads", is_one);
    assert_eq!(mounted.order("ended"), "false");
    fs::write(mounted.at("next"), CONTENT).expect("a file of the second mount");
    mounted.again();
    assert_eq!(fs::read(mounted.at("next")).expect("a file"), CONTENT);
}

#[test]
fn mounts_that_ended_keep_no_descriptor_of_the_device() {
    let Some(mut mounted) = super::mounted(16 << 20) else {
        return;
    };
    written(&mounted);
    let of_one: usize = mounted.order("devices").parse().expect("a number");
    assert!(of_one > 0, "the kernel is served by descriptors");
    for _ in 0..3 {
        mounted.again();
    }
    assert_eq!(mounted.order("devices"), of_one.to_string());
    assert_eq!(mounted.order("end"), "clean");
    assert_eq!(mounted.order("devices"), "0");
}
