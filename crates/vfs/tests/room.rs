//! Room for metadata that is about to be there: a request waits for it and is not refused.

mod support;

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use cenote_vfs::medium::model::ModelMedium;
use cenote_vfs::{AttributeMode, Changed, Files, FsError, NewInode, ROOT, RenameMode};
use support::{Held, What, caller, new_file};

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let patience = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < patience, "still no {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a thread of this process waits for something.
fn is_asleep(thread: libc::pid_t) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
    let stat = stat.unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    state == Some('S')
}

#[test]
fn a_request_that_finds_room_taken_by_a_commit_under_way_waits_for_its_end() {
    let medium = Held::new(ModelMedium::new(8 << 20), What::Syncs);
    let files = Files::open(medium.clone(), caller()).expect("a file system");
    // What is left has room for the link, unless the rows of a commit are there twice.
    let mut inos = Vec::new();
    while files.usage().free_inodes > 25 {
        let name = inos.len().to_string().into_bytes();
        inos.push(new_file(&files, &name, b"").expect("room"));
        files.commit().expect("a commit");
    }
    for ino in &inos[..10] {
        let changed = Changed::default();
        files.set(&caller(), *ino, changed).expect("a change");
    }
    medium.hold(true);
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| files.commit());
        wait_until("commit", || medium.is_held());
        let (tell, told) = mpsc::channel();
        let files = &files;
        let link = scope.spawn(move || {
            // SAFETY: takes nothing and cannot fail.
            tell.send(unsafe { libc::gettid() })
                .expect("somebody hears");
            let new = NewInode {
                mode: libc::S_IFLNK | 0o777,
                rdev: 0,
                target: Some(&[b't'; 4000]),
            };
            files.make(&caller(), ROOT, b"link", new)
        });
        let thread = told.recv().expect("a thread");
        wait_until("end", || link.is_finished() || is_asleep(thread));
        medium.hold(false);
        commit.join().expect("no panic").expect("a commit");
        link.join().expect("no panic").expect("there is room");
    });
}

#[test]
fn longer_names_stop_where_new_files_do_and_files_can_still_be_deleted() {
    let medium = Arc::new(ModelMedium::new(8 << 20));
    let files = Files::open(medium, caller()).expect("a file system");
    let short = |file: u32| file.to_string().into_bytes();
    let long = |file: u32| format!("{file:0>255}").into_bytes();
    let new = || NewInode {
        mode: libc::S_IFREG | 0o644,
        rdev: 0,
        target: None,
    };
    let mut count = 0;
    while files.make(&caller(), ROOT, &short(count), new()).is_ok() {
        count += 1;
    }
    let rename = |file| {
        let (from, to) = ((ROOT, &*short(file)), (ROOT, &*long(file)));
        files.rename(&caller(), from, to, RenameMode::NoReplace)
    };
    let outcomes: Vec<_> = (0..count).map(rename).collect();
    let refused = (outcomes.iter()).position(|outcome| *outcome == Err(FsError::NoSpace));
    let refused = refused.expect("some names have no room") as u32;
    assert!(outcomes[..refused as usize].iter().all(Result::is_ok));
    files.commit().expect("what was let through can be kept");
    for file in 0..count {
        let name = match outcomes[file as usize] {
            Ok(()) => long(file),
            Err(_) => short(file),
        };
        files.unlink(&caller(), ROOT, &name).expect("a deletion");
    }
    files.commit().expect("deletions can be kept");
}

#[test]
fn every_row_of_a_full_area_can_be_changed_after_deletions_left_its_trees_sparse() {
    for size_mib in [8, 19, 23, 37] {
        sparse_trees_can_be_changed(size_mib << 20);
    }
}

fn sparse_trees_can_be_changed(size_bytes: u64) {
    let medium = Arc::new(ModelMedium::new(size_bytes));
    let files = Files::open(medium, caller()).expect("a file system");
    let mut left = Vec::new();
    for round in 0..4 {
        let mut made = Vec::new();
        let refused = loop {
            let name = format!("{round}-{}", made.len()).into_bytes();
            match new_file(&files, &name, b"") {
                Ok(ino) => made.push((name, ino)),
                Err(error) => break error,
            }
        };
        assert_eq!(refused, FsError::NoSpace);
        files.commit().expect("what was let through can be kept");
        for (at, (name, ino)) in made.into_iter().enumerate() {
            if round == 3 || at % 5 >= 3 {
                left.push(ino);
                continue;
            }
            files.unlink(&caller(), ROOT, &name).expect("a deletion");
            files.forget(ino, 1).expect("a deletion");
        }
        files.commit().expect("deletions can be kept");
    }
    for mode in [0o600, 0o640] {
        let changed = Changed {
            mode: Some(mode),
            ..Changed::default()
        };
        for ino in &left {
            let set = files.set(&caller(), *ino, changed);
            set.expect("a change that adds nothing");
        }
        files.commit().expect("changes can be kept");
    }
}

#[test]
fn what_was_changed_is_committed_before_it_takes_much_memory() {
    let medium = Arc::new(ModelMedium::new(16 << 30));
    let files = Files::open(medium.clone(), caller()).expect("a file system");
    let ino = new_file(&files, b"f", b"").expect("a file");
    let before = medium.steps();
    for number in 0..1024 {
        let name = format!("user.{number}").into_bytes();
        let attribute = (&*name, &[7; 64 << 10][..]);
        let set = files.set_attribute(&caller(), ino, attribute, AttributeMode::Create);
        set.expect("room for 64 MiB");
    }
    assert!(medium.steps() > before, "64 MiB that no commit carried");
}
