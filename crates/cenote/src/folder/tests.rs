//! Folders that others may change, in every place where that matters.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use super::*;

const NOBODY: u32 = 65_534;

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Gives something to another user; false where only root could.
fn give_away(path: &Path) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    } else {
        eprintln!("skipped: only root can give a file to another user");
    }
    is_root
}

#[track_caller]
fn expect_shared<T: std::fmt::Debug>(outcome: Result<T>, at: &Path) {
    match outcome {
        Err(error @ FolderError::Shared { .. }) => {
            let at = at.canonicalize().unwrap();
            assert!(
                error
                    .to_string()
                    .starts_with(&format!("{}: ", at.display())),
                "{error}"
            );
            assert!(error.remedy().unwrap().contains("chmod go-w"), "{error:?}");
        }
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn expect_foreign<T: std::fmt::Debug>(outcome: Result<T>, at: &Path) {
    match outcome {
        Err(FolderError::Foreign { path, owner }) => {
            assert_eq!((path.as_path(), owner), (at, NOBODY));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_folder_that_others_may_write_to_is_refused_sticky_or_not() {
    let place = temporary();
    for mode in [0o777, 0o775, 0o722, 0o1777] {
        set_mode(place.path(), mode);
        expect_shared(Folder::open(place.path()), place.path());
        expect_shared(Folder::create(place.path()), place.path());
    }
    for mode in [0o700, 0o755, 0o750] {
        set_mode(place.path(), mode);
        Folder::open(place.path()).unwrap();
    }
}

#[test]
fn a_folder_below_one_that_others_may_write_to_is_refused_unless_that_is_sticky() {
    let place = temporary();
    let (above, inner) = (place.path().join("above"), place.path().join("above/a/b"));
    fs::create_dir_all(&inner).unwrap();
    set_mode(&above, 0o777);
    expect_shared(Folder::open(&inner), &above);
    expect_shared(Folder::create(&above.join("new")), &above);
    assert!(!above.join("new").exists(), "nothing is made there");
    expect_shared(Folder::check_for_socket(&above.join("socket")), &above);
    set_mode(&above, 0o1777);
    Folder::open(&inner).unwrap();
    Folder::create(&above.join("new/er")).unwrap();
    Folder::check_for_socket(&above.join("socket")).unwrap();
    let mode = fs::metadata(above.join("new"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn what_belongs_to_somebody_else_is_refused_wherever_it_stands() {
    let place = temporary();
    let well = place.path().join("well");
    fs::create_dir(&well).unwrap();
    set_mode(place.path(), 0o755);
    let folder = Folder::open(&well).unwrap();
    folder.make("hosts").unwrap();
    folder.write("pid", "1\n").unwrap();
    symlink(&well, place.path().join("link")).unwrap();
    if !give_away(&well.join("pid")) {
        return;
    }
    expect_foreign(folder.read("pid"), &well.join("pid"));
    expect_foreign(folder.empty_file("pid"), &well.join("pid"));
    assert_eq!(
        fs::read_to_string(well.join("pid")).unwrap(),
        "1\n",
        "as it was"
    );
    give_away(&well.join("hosts"));
    expect_foreign(folder.sub("hosts"), &well.join("hosts"));
    expect_foreign(folder.make("hosts"), &well.join("hosts"));
    Folder::open(&place.path().join("link")).unwrap();
    std::os::unix::fs::lchown(place.path().join("link"), Some(NOBODY), None).unwrap();
    expect_foreign(
        Folder::open(&place.path().join("link")),
        &place.path().join("link"),
    );
    give_away(&well);
    expect_foreign(Folder::open(&well), &well);
    expect_foreign(Folder::open(&well.join("hosts")), &well);
    expect_foreign(Folder::check_for_socket(&well.join("socket")), &well);
}

#[test]
fn links_lead_to_a_folder_and_never_to_a_file_or_out_of_it() {
    let place = temporary();
    let root = place.path().canonicalize().unwrap();
    fs::create_dir_all(root.join("a/b")).unwrap();
    symlink("a/b", root.join("to-b")).unwrap();
    symlink("../to-b", root.join("a/there")).unwrap();
    symlink("loop", root.join("loop")).unwrap();
    let open = |path: &str| Folder::open(&root.join(path));
    assert_eq!(open("a/there").unwrap().path(), root.join("a/b"));
    // Up from where the link leads, as the kernel goes.
    assert_eq!(open("to-b/../there").unwrap().path(), root.join("a/b"));
    assert!(matches!(open("loop"), Err(FolderError::Os { .. })));
    assert!(open("nothing").unwrap_err().is_missing());

    let folder = open("a").unwrap();
    fs::write(root.join("secret"), "secret").unwrap();
    symlink("../secret", root.join("a/file")).unwrap();
    for outcome in [
        folder.read("file").map(drop),
        folder.open_file("file").map(drop),
        folder.empty_file("file").map(drop),
        folder.sub("there").map(drop),
        folder.make("there").map(drop),
    ] {
        assert!(
            matches!(outcome, Err(FolderError::Kind { .. })),
            "{outcome:?}"
        );
    }
    assert!(matches!(folder.read("b"), Err(FolderError::Kind { .. })));
    // Writing puts a file in the link's place.
    folder.write("file", "ours").unwrap();
    assert_eq!(fs::read_to_string(root.join("secret")).unwrap(), "secret");
    assert_eq!(folder.read("file").unwrap().unwrap(), "ours");
}

#[test]
fn a_file_that_others_may_write_to_or_that_is_a_pipe_is_not_read() {
    let place = temporary();
    let folder = Folder::open(place.path()).unwrap();
    assert_eq!(folder.read("file").unwrap(), None);
    folder.write("file", "1").unwrap();
    set_mode(&folder.join("file"), 0o666);
    expect_shared(folder.read("file"), &folder.join("file"));
    set_mode(&folder.join("file"), 0o644);
    assert_eq!(folder.read("file").unwrap().unwrap(), "1");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        folder.join("pipe"),
        FileType::Fifo,
        FILE,
        0,
    )
    .unwrap();
    // It is not waited for, either.
    let read = folder.read("pipe");
    assert!(
        matches!(
            read,
            Err(FolderError::Kind {
                found: "a pipe",
                ..
            })
        ),
        "{read:?}"
    );
    let long = folder.open_file("long").unwrap();
    long.set_len(FILE_BYTES_MAX + 1).unwrap();
    assert!(matches!(folder.read("long"), Err(FolderError::Long { .. })));
}

#[test]
fn a_file_is_written_as_a_whole_or_not_at_all() {
    let place = temporary();
    let folder = Folder::open(place.path()).unwrap();
    folder.write_new("file", "one").unwrap();
    assert!(folder.write_new("file", "two").unwrap_err().is_taken());
    assert_eq!(folder.read("file").unwrap().unwrap(), "one");
    folder.write("file", "three").unwrap();
    assert_eq!(folder.read("file").unwrap().unwrap(), "three");
    assert_eq!(
        folder.names().unwrap(),
        ["file"],
        "nothing is left beside it"
    );
    folder.remove("file").unwrap();
    folder.remove("file").unwrap();
    assert!(!folder.has("file").unwrap());
}
