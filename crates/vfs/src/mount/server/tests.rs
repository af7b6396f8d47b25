use std::fs::{self, File};
use std::path::PathBuf;

use super::*;
use crate::medium::model::ModelMedium;
use crate::mount::{PointError, this_process};

/// FUSE over io_uring allowed by the kernel, as long as this lives.
struct Switch {
    was_off: bool,
}

impl Switch {
    /// `None` where that cannot be.
    fn on() -> Option<Self> {
        // SAFETY: takes nothing and cannot fail.
        if unsafe { libc::geteuid() } != 0 {
            return None;
        }
        let was_off = match cenote_fuse::state() {
            cenote_fuse::State::On => false,
            cenote_fuse::State::Off => fs::write(cenote_fuse::SWITCH, "Y")
                .is_ok()
                .then_some(true)?,
            cenote_fuse::State::Missing => return None,
        };
        Some(Self { was_off })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        if self.was_off {
            fs::write(cenote_fuse::SWITCH, "N").expect("the switch can be turned back");
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1).map(Path::new) == Some(path))
}

#[test]
fn a_ring_that_the_kernel_refuses_takes_its_mount_away_and_dev_fuse_serves_the_next() {
    let Some(_switch) = Switch::on() else {
        println!("skipped: needs root, and FUSE over io_uring in the kernel");
        return;
    };
    let medium = Arc::new(ModelMedium::new(16 << 20));
    let files = Arc::new(Files::open(medium, this_process()).expect("a file system"));
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().canonicalize().expect("a folder");
    let options = Options {
        name: "test".to_owned(),
        threads: 2,
        allow_other: false,
        transport: Transport::DevFuse,
    };
    // The last of the queues is of a processor that will never come.
    let queue_count = cenote_fuse::queue_count().expect("processors") + 1;
    let shape = Shape::new(queue_count, 2).expect("few processors");
    let refused = Served::over_rings(&files, &path, &options, shape);
    match refused.map(|_| "served") {
        Err(Refused::Rings(error)) => assert_eq!(error.raw_os_error(), Some(libc::EINVAL)),
        other => panic!("{other:?}"),
    }
    assert!(!is_mounted(&path));
    assert_eq!(Arc::strong_count(&files), 1, "no thread has it any more");
    let served = Served::start(&files, &path, &options).expect("a mount");
    assert!(is_mounted(&path) && !served.has_rings());
    point::abort(&path).expect("an end");
    served.join();
    assert!(!is_mounted(&path));
}

/// Both had looked at the directory before.
#[test]
fn of_two_that_mount_at_one_place_at_once_the_second_is_refused() {
    if File::open("/dev/fuse").is_err() {
        println!("skipped: needs /dev/fuse");
        return;
    }
    let files = || {
        let medium = Arc::new(ModelMedium::new(16 << 20));
        Arc::new(Files::open(medium, this_process()).expect("a file system"))
    };
    let folder = tempfile::tempdir().expect("a folder");
    let path: PathBuf = folder.path().canonicalize().expect("a folder");
    let options = Options {
        name: "test".to_owned(),
        threads: 1,
        allow_other: false,
        transport: Transport::DevFuse,
    };
    let refused = || {
        let refused = Served::start(&files(), &path, &options).map(|_| "served");
        let error = refused.expect_err("another is first");
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        error
            .into_inner()
            .expect("a reason")
            .downcast::<PointError>()
    };
    let other = File::open(&path).expect("a folder");
    other.lock().expect("a lock");
    let claimed = refused().expect("of the directory");
    assert!(matches!(*claimed, PointError::Claimed(_)), "{claimed}");
    drop(other);
    let opened_before = File::open(&path).expect("a folder");
    let Ok(served) = Served::start(&files(), &path, &options) else {
        println!("skipped: needs the right to mount");
        return;
    };
    let mounted = refused().expect("of the directory");
    assert!(matches!(*mounted, PointError::Mounted(_)), "{mounted}");
    let mounted = point::hold(&opened_before, &path).expect_err("another is first");
    assert!(matches!(mounted, PointError::Mounted(_)), "{mounted}");
    point::abort(&path).expect("an end");
    served.join();
    assert!(!is_mounted(&path));
}

#[test]
fn there_are_workers_for_as_many_threads_as_will_serve() {
    assert_eq!(threads_max(Transport::DevFuse, 8), 8);
    let many = Shape::new(100, 8).expect("not too many");
    assert_eq!(many.thread_count(), 100);
}
