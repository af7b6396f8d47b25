//! A simple model of a file system, the requests that tests make of it and of the real one, and how
//! the two are compared.

#![allow(
    dead_code,
    unused_imports,
    reason = "each test program uses a part of it"
)]

mod compare;
mod held;
mod model;
mod ops;
mod pair;

use std::collections::BTreeMap;

use cenote_vfs::{Caller, Files, FsError, Ino, NewInode, ROOT, Timestamp, Write};

pub use compare::{compare, same_bytes};
pub use held::{Held, What};
pub use model::Model;
pub use ops::{Op, ops};
pub use pair::Pair;

pub fn caller() -> Caller {
    Caller {
        uid: 1000,
        gid: 1000,
        now: Timestamp {
            seconds: 1_000_000,
            nanos: 5,
        },
    }
}

/// A file in the root, with these bytes.
pub fn new_file(files: &Files, name: &[u8], bytes: &[u8]) -> Result<Ino, FsError> {
    let new = NewInode {
        mode: libc::S_IFREG | 0o644,
        rdev: 0,
        target: None,
    };
    let (ino, _) = files.make(&caller(), ROOT, name, new)?;
    files.write(&caller(), ino, 0, bytes, Write::default())?;
    Ok(ino)
}

/// All bytes of a file.
pub fn content(files: &Files, ino: Ino) -> Result<Vec<u8>, FsError> {
    let mut bytes = vec![0; files.inode(ino)?.size as usize];
    let len = files.read(ino, 0, &mut bytes)?;
    bytes.truncate(len);
    Ok(bytes)
}

/// Blocks of all files that have a name.
pub fn blocks_of_names(files: &Files) -> Result<u64, FsError> {
    let mut blocks = BTreeMap::new();
    let mut open = vec![ROOT];
    while let Some(directory) = open.pop() {
        for entry in files.list(directory, None, usize::MAX)? {
            blocks.insert(entry.ino, entry.inode.blocks);
            if entry.inode.is_directory() {
                open.push(entry.ino);
            }
        }
    }
    Ok(blocks.values().sum())
}
