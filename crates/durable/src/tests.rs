use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::Command;

use super::*;

/// Names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_is_replaced_whole_and_nothing_stays_beside_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    replace(&path, b"first and longer", 0o600).unwrap();
    replace(&path, b"second", 0o600).unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"second");
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    assert_eq!(names(folder.path()), ["state"]);
}

#[test]
fn a_long_file_is_put_in_place_whole_or_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let mut first = Replacement::begin(&path, 0o600).unwrap();
    first.file().write_all(b"first").unwrap();
    assert!(!path.exists(), "not before it is whole");
    first.commit().unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let mut second = Replacement::begin(&path, 0o600).unwrap();
    second.file().write_all(b"sec").unwrap();
    drop(second);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    let mut third = Replacement::begin(&path, 0o600).unwrap();
    third.file().write_all(b"third").unwrap();
    third.commit().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"third");
    assert_eq!(names(folder.path()), ["state"]);
}

#[test]
fn a_file_that_is_there_is_not_created_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    create(&path, b"first", 0o644).unwrap();
    let again = create(&path, b"second", 0o644).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(&path).unwrap(), b"first");
    assert_eq!(names(folder.path()), ["state"]);
}

#[test]
fn a_file_is_written_in_a_folder_that_is_only_good_for_names() {
    let folder = tempfile::tempdir().unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let handle = rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap();
    create_in(&handle, "state", b"first", 0o600).unwrap();
    replace_in(&handle, "state", b"second", 0o600).unwrap();
    let again = create_in(&handle, "state", b"third", 0o600).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists);
    assert_eq!(fs::read(folder.path().join("state")).unwrap(), b"second");
    assert_eq!(names(folder.path()), ["state"]);
}

#[test]
fn what_is_no_name_of_a_file_is_refused() {
    for path in ["/", ".."] {
        let refused = replace(Path::new(path), b"", 0o600).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    assert!(open_folder(Path::new("state")).is_ok(), "of this folder");
}

#[test]
fn room_is_kept_for_holes_too_and_bytes_stay() {
    let file = tempfile::tempfile().unwrap();
    (&file).write_all(b"kept").unwrap();
    file.set_len(1 << 20).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 < 1 << 20);
    allocate(&file, 1 << 20).unwrap();
    assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
    let mut bytes = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"kept");
}

#[test]
fn holes_are_filled_by_hand_where_the_file_system_cannot() {
    let file = tempfile::tempfile().unwrap();
    (&file).write_all(b"kept").unwrap();
    fill_holes(&file, 0..100_000).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), 100_000);
    assert!(metadata.blocks() * 512 >= 100_000);
    let mut bytes = [0; 6];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"kept\0\0");
}

/// A file system of one size in memory, unmounted when dropped.
struct SmallDisk(PathBuf, tempfile::TempDir);

impl SmallDisk {
    /// `None`, and says so, where nothing may be mounted.
    fn mount(bytes: u64) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        fs::create_dir(&path).unwrap();
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={bytes}"), "small"])
            .arg(&path)
            .output();
        if mounted.is_ok_and(|mounted| mounted.status.success()) {
            return Some(Self(path, folder));
        }
        eprintln!("skipped: mounting a small tmpfs needs root");
        None
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(&self.0).status();
        assert!(
            unmounted.is_ok_and(|status| status.success()),
            "{:?}",
            self.1
        );
    }
}

#[test]
fn a_copy_takes_the_place_of_a_file_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let bytes = vec![7; 100 << 10];
    fs::write(at("made"), &bytes).unwrap();
    fs::write(at("older"), b"older").unwrap();
    std::os::unix::fs::symlink("older", at("link")).unwrap();
    copy(&at("made"), &at("link")).unwrap();
    assert_eq!(fs::read(at("older")).unwrap(), bytes);
    assert!(fs::symlink_metadata(at("link")).unwrap().is_symlink());
    // What is no file has no place that could be taken.
    copy(&at("made"), Path::new("/dev/null")).unwrap();
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
    // Itself, by either name.
    std::os::unix::fs::symlink("made", at("too")).unwrap();
    for to in ["made", "too"] {
        copy(&at("made"), &at(to)).unwrap();
        assert_eq!(fs::read(at("made")).unwrap(), bytes, "{to}");
    }
    assert_eq!(names(folder.path()), ["link", "made", "older", "too"]);
    let Some(disk) = SmallDisk::mount(64 << 10) else {
        return;
    };
    let kept = disk.0.join("kept");
    fs::write(&kept, b"kept").unwrap();
    let refused = copy(&at("made"), &kept).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert_eq!(fs::read(&kept).unwrap(), b"kept");
    assert_eq!(names(&disk.0), ["kept"]);
}

#[test]
fn a_full_disk_leaves_what_was_there_and_nothing_else() {
    let Some(disk) = SmallDisk::mount(64 << 10) else {
        return;
    };
    let (old, new) = (disk.0.join("old"), disk.0.join("new"));
    replace(&old, b"kept", 0o600).unwrap();
    let large = vec![7; 128 << 10];
    for refused in [replace(&old, &large, 0o600), create(&new, &large, 0o600)] {
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::StorageFull);
    }
    assert_eq!(fs::read(&old).unwrap(), b"kept");
    assert_eq!(names(&disk.0), ["old"]);
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let file = options.open(disk.0.join("mapped")).unwrap();
    file.set_len(1 << 20).unwrap();
    let refused = allocate(&file, 1 << 20).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::StorageFull);
    assert_eq!(
        fill_holes(&file, 0..1 << 20).unwrap_err().kind(),
        ErrorKind::StorageFull
    );
}

/// Whoever grows a file that is mapped must not write old bytes over what others store meanwhile.
#[test]
fn filling_a_range_touches_nothing_before_it() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(64 << 10).unwrap();
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
    assert_eq!(blocks(), 0, "a hole");
    fill_holes(&file, (32 << 10) + 100..64 << 10).unwrap();
    assert_eq!(blocks(), 64, "the first half is a hole still");
}

/// A process that is killed takes nothing away; who comes after it does, and nothing else.
#[test]
fn drafts_that_were_left_go_and_other_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let others = [
        "kept",
        ".kept.new",
        ".kept.1-.new",
        ".kept.1-2-3.new",
        ".kept.1-2.old",
        ".kept.x-2.new",
        ".other.1-2.new",
    ];
    for name in others.iter().chain(&[".kept.1-0.new", ".kept.22-17.new"]) {
        fs::write(folder.path().join(name), b"bytes").unwrap();
    }
    remove_drafts_in(File::open(folder.path()).unwrap(), "kept").unwrap();
    let mut expected = others.map(str::to_owned);
    expected.sort();
    assert_eq!(names(folder.path()), expected);
}
