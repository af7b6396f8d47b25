//! A request that waits for the medium's metadata holds nobody up.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cenote_vfs::medium::model::{ModelMedium, Survival};
use cenote_vfs::{AttributeMode, Files, FsError, Ino, ROOT};
use support::{Held, What, caller, new_file};

/// Whether it comes true: what does not in this time is held up, also on a busy machine.
fn becomes(is_so: impl Fn() -> bool) -> bool {
    let patience = Instant::now() + Duration::from_secs(40);
    while !is_so() && Instant::now() < patience {
        std::thread::sleep(Duration::from_millis(1));
    }
    is_so()
}

/// Requests of a file with many long attributes.
type Request = fn(&Files, Ino) -> Result<(), FsError>;

const REQUESTS: [(&str, Request); 4] = [
    ("values", |files, file| {
        (0..COUNT).try_for_each(|number| files.attribute(file, &name(number)).map(drop))
    }),
    ("names", |files, file| files.attributes(file).map(drop)),
    ("new values", |files, file| {
        (0..COUNT).try_for_each(|number| {
            let attribute = (&*name(number), &b"short"[..]);
            files.set_attribute(&caller(), file, attribute, AttributeMode::Replace)
        })
    }),
    ("deletion", |files, file| {
        files.lookup(ROOT, b"file")?;
        files.unlink(&caller(), ROOT, b"file")?;
        files.forget(file, 1)
    }),
];

/// As many as the database's cache cannot hold.
const COUNT: usize = 1500;

fn name(number: usize) -> Vec<u8> {
    format!("user.{number}").into_bytes()
}

#[test]
fn a_request_that_waits_for_metadata_does_not_keep_others_from_what_is_in_memory() {
    let medium = Arc::new(ModelMedium::new(16 << 30));
    let files = Files::open(medium.clone(), caller()).expect("a file system");
    let file = new_file(&files, b"file", b"bytes").expect("a file");
    for number in 0..COUNT {
        let attribute = (&*name(number), &[1; 60_000][..]);
        let set = files.set_attribute(&caller(), file, attribute, AttributeMode::Set);
        set.expect("an attribute");
    }
    files.commit().expect("a commit");
    drop(files);
    let mut held_up = Vec::new();
    for (name, request) in REQUESTS {
        let slow = Held::new(medium.crash(Survival::All), What::Reads);
        let files = Files::open(slow.clone(), caller()).expect("a file system");
        slow.hold(true);
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| request(&files, file));
            assert!(becomes(|| slow.is_held()), "{name}");
            let other = scope.spawn(|| files.usage());
            if !becomes(|| other.is_finished()) {
                held_up.push(name);
            }
            slow.hold(false);
            asked.join().expect("no panic").expect(name);
        });
    }
    assert!(held_up.is_empty(), "others waited for {held_up:?}");
}
