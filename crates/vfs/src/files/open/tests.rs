use super::*;
use crate::files::{Changed, NewInode, RenameMode, Write};
use crate::medium::model::{ModelMedium, Survival};
use crate::records::Entry;

const SIZE_BYTES: u64 = 16 << 20;

/// A file system of one file that has blocks 0, 1 and 3, as `damage` leaves its rows.
fn opened(damage: impl FnOnce(&mut State, Ino)) -> Result<Files, OpenError> {
    let medium = Arc::new(ModelMedium::new(16 << 20));
    let caller = Caller::default();
    let files = Files::open(medium.clone(), caller).expect("a file system");
    let new = NewInode {
        mode: libc::S_IFREG | 0o600,
        rdev: 0,
        target: None,
    };
    let (ino, _) = files.make(&caller, ROOT, b"f", new).expect("a file");
    for (block, bytes) in [(0, [1; 8192].as_slice()), (3, &[2; 4096])] {
        let offset = block * BLOCK_BYTES;
        let written = files.write(&caller, ino, offset, bytes, Write::default());
        written.expect("bytes");
    }
    files
        .edit(|state| {
            state.sequence += 1;
            damage(state, ino);
            Ok(())
        })
        .expect("damage");
    files.commit().expect("a commit");
    Files::open(Arc::new(medium.crash(Survival::All)), caller)
}

fn put(state: &mut State, ino: Ino, block: u64, extent: (u64, u64, bool)) {
    let (start, len, is_written) = extent;
    let extent = crate::records::Extent {
        start,
        len,
        is_written,
    };
    state.tables.extents.put((ino, block), extent);
}

#[test]
fn extents_that_are_none_or_have_blocks_of_others_are_damage() {
    assert!(opened(|_, _| {}).is_ok());
    assert!(opened(|state, ino| put(state, ino, 5, (100, 2, false))).is_ok());
    let end = (1 << 51) - 1;
    for (block, extent) in [
        // Of no block.
        (5, (100, 0, true)),
        // Beyond the data area, and beyond all numbers.
        (5, (1 << 20, 1, true)),
        (5, (u64::MAX, 1, true)),
        (5, (0, u64::MAX, true)),
        // Beyond the longest file.
        (end, (100, 1, true)),
        (u64::MAX, (100, 1, true)),
        // A block of the data area that another one has, whether bytes are there or not.
        (5, (0, 1, true)),
        (5, (0, 1, false)),
        // A block of the file that another one has: the one before it, and the one behind it.
        (1, (100, 1, true)),
        (2, (100, 2, false)),
    ] {
        let outcome = opened(|state, ino| put(state, ino, block, extent)).map(drop);
        assert_eq!(outcome, Err(OpenError::Damaged), "{block} {extent:?}");
    }
}

#[test]
fn rows_of_inodes_that_are_yet_to_come_are_damage() {
    let damages: [fn(&mut State, Ino); 3] = [
        |state, ino| put(state, ino + 1, 0, (100, 1, true)),
        |state, ino| {
            let name: Box<[u8]> = (*b"security.capability").into();
            state.tables.attributes.put((ino + 1, name), Box::default());
        },
        |state, ino| {
            state.tables.orphans.put(ino + 1, ());
        },
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        assert_eq!(
            opened(damage).map(drop),
            Err(OpenError::Damaged),
            "{number}"
        );
    }
}

#[test]
fn numbers_of_an_inode_that_no_request_leads_to_are_an_error_of_it_alone() {
    let caller = Caller::default();
    let damaged = |change: fn(&mut Inode)| {
        let files = opened(|state, ino| {
            let mut inode = state.tables.inode(ino).expect("a file");
            change(&mut inode);
            state.put_inode(ino, inode);
        });
        let files = files.expect("a file system");
        let root = files.list(ROOT, None, 9).map(|entries| entries.len());
        (files, root)
    };
    let ino = ROOT + 1;
    for change in [
        |inode: &mut Inode| inode.size = u64::MAX,
        |inode: &mut Inode| inode.blocks = u64::MAX,
        |inode: &mut Inode| inode.nlink = u32::MAX,
    ] {
        let (files, root) = damaged(change);
        assert_eq!(root, Err(FsError::Io));
        let read = files.read(ino, 0, &mut [0; 9]);
        assert_eq!(read, Err(FsError::Io));
        let written = files.write(&caller, ino, 0, &[3; 9], Write::default());
        assert_eq!(written, Err(FsError::Io));
        let all = (0, 1 << 20);
        assert_eq!(files.allocate(&caller, ino, all, 0), Err(FsError::Io));
        let looked_up = files.lookup(ROOT, b"f").map(drop);
        assert_eq!(looked_up, Err(FsError::Io));
    }
    // Its extents have more blocks than it counts.
    let (files, root) = damaged(|inode| inode.blocks = 1);
    assert_eq!(root, Ok(1));
    let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let free = files.usage().free_blocks;
    let punched = files.allocate(&caller, ino, (0, 1 << 20), hole);
    assert_eq!(punched, Err(FsError::Io));
    let cut = Changed {
        size: Some(0),
        ..Changed::default()
    };
    let cut = files.set(&caller, ino, cut).map(drop);
    assert_eq!(cut, Err(FsError::Io));
    let mut bytes = [0; 8192];
    assert_eq!(files.read(ino, 0, &mut bytes), Ok(8192));
    assert_eq!(bytes, [1; 8192], "nothing was changed");
    assert_eq!(files.usage().free_blocks, free);
    assert_eq!(files.unlink(&caller, ROOT, b"f"), Ok(()));
    assert_eq!(files.commit(), Ok(()));
    assert_eq!(files.usage().free_blocks, free + 3);
}

#[test]
fn directories_that_are_in_each_other_are_an_error_and_no_endless_walk() {
    let files = opened(|state, ino| {
        let directory = |parent| Inode {
            mode: libc::S_IFDIR | 0o700,
            nlink: 2,
            size: 0,
            blocks: 0,
            parent,
            ..state.tables.inode(ino).expect("a file")
        };
        let made = [(11, 12), (12, 13), (13, 11), (14, ROOT)];
        let made = made.map(|(ino, parent)| (ino, directory(parent)));
        for (ino, inode) in made {
            state.put_inode(ino, inode);
        }
        let kind = libc::S_IFDIR;
        let name: Box<[u8]> = (*b"d").into();
        let entry = Entry { ino: 14, kind };
        state.tables.entries.put((ROOT, name), entry);
    });
    let files = files.expect("a file system");
    let moved = |to| {
        let (from, to) = ((ROOT, &b"d"[..]), (to, &b"d"[..]));
        files.rename(&Caller::default(), from, to, RenameMode::Replace)
    };
    assert_eq!(moved(11), Err(FsError::Io));
    assert_eq!(moved(14), Err(FsError::Invalid), "into itself");
}

/// A file system of 200 files that came to its end.
fn closed() -> ModelMedium {
    let medium = Arc::new(ModelMedium::new(SIZE_BYTES));
    let files = Files::open(medium.clone(), Caller::default()).expect("a file system");
    let new = NewInode {
        mode: libc::S_IFREG | 0o600,
        rdev: 0,
        target: None,
    };
    for number in 0..200 {
        let name = format!("file {number}");
        let made = files.make(&Caller::default(), ROOT, name.as_bytes(), new);
        made.expect("a file");
    }
    files.close().expect("a clean end");
    drop(files);
    medium.crash(Survival::All)
}

/// Pages of the metadata's area, with a medium each that has something there.
fn pages() -> impl Iterator<Item = (u64, ModelMedium)> {
    let area = Label::of_size(SIZE_BYTES);
    let all = area.metadata_offset()..area.data_offset();
    let media = all
        .step_by(BLOCK_BYTES as usize)
        .map(|page| (page, closed()));
    media.filter(|(page, medium)| medium.allocation(*page, page + BLOCK_BYTES).0)
}

fn damage(medium: &ModelMedium, page: u64) {
    for at in (page..page + BLOCK_BYTES).step_by(512) {
        medium.write(at + 9, &[0xA5; 256]).expect("a write");
    }
}

#[test]
fn a_database_with_a_damaged_page_is_an_error_and_no_panic() {
    let mut refused = 0;
    for (page, medium) in pages() {
        damage(&medium, page);
        // What is damaged may be no part of it any more.
        match Files::open(Arc::new(medium), Caller::default()) {
            Ok(files) => {
                let listed = files.list(ROOT, None, 1000).expect("a listing");
                assert_eq!(listed.len(), 200, "page {page}");
            }
            Err(OpenError::Metadata | OpenError::Damaged) => refused += 1,
            Err(other) => panic!("page {page}: {other}"),
        }
    }
    assert!(refused > 5, "{refused} pages were refused");
}

#[test]
fn a_page_that_is_damaged_under_a_mount_is_an_error_and_no_panic_and_no_other_rows() {
    crate::database::cache::turn_off();
    let mut met = 0;
    for (page, medium) in pages() {
        let medium = Arc::new(medium);
        let files = Files::open(medium.clone(), Caller::default()).expect("a file system");
        let expected = files.list(ROOT, None, 1000).expect("a listing");
        damage(&medium, page);
        match files.list(ROOT, None, 1000) {
            Ok(listed) => assert_eq!(listed, expected, "page {page}"),
            Err(FsError::Io) => met += 1,
            Err(other) => panic!("page {page}: {other}"),
        }
        for number in 0..200 {
            let name = format!("file {number}");
            let found = files.lookup(ROOT, name.as_bytes());
            let is_right = |ino| expected.iter().any(|one| one.ino == ino);
            assert!(
                found.map_or_else(|error| error == FsError::Io, |(ino, _)| is_right(ino)),
                "page {page}: {found:?}"
            );
        }
        let new = NewInode {
            mode: libc::S_IFREG | 0o600,
            rdev: 0,
            target: None,
        };
        let made = files.make(&Caller::default(), ROOT, b"one more", new);
        let committed = made.and_then(|_| files.commit());
        assert!(matches!(committed, Ok(()) | Err(FsError::Io)));
    }
    assert!(met > 2, "{met} pages were met");
}

#[test]
fn an_inode_whose_number_was_never_given_is_damage() {
    let new = NewInode {
        mode: libc::S_IFREG | 0o600,
        rdev: 0,
        target: None,
    };
    for (ino, is_damaged) in [(INO_END - 1, false), (INO_END, true), (Ino::MAX - 1, true)] {
        let medium = Arc::new(ModelMedium::new(16 << 20));
        let caller = Caller::default();
        let files = Files::open(medium.clone(), caller).expect("a file system");
        files.state().next_ino = ino;
        files.make(&caller, ROOT, b"f", new).expect("a file");
        files.commit().expect("a commit");
        let again = Files::open(Arc::new(medium.crash(Survival::All)), caller);
        assert_eq!(
            matches!(again, Err(OpenError::Damaged)),
            is_damaged,
            "{ino}"
        );
    }
}
