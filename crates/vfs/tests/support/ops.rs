//! The requests.

use cenote_vfs::RenameMode;
use proptest::prelude::*;

/// A request. Files and directories are chosen from those that there are, by number.
#[derive(Clone, Debug)]
pub enum Op {
    Make(u8, u8, Kind),
    Link(u8, u8, u8),
    Remove(u8, u8),
    Rename(u8, u8, u8, u8, RenameMode),
    Write(u8, u32, u32),
    Cut(u8, u32),
    Allocate(u8, u32, u32, i32),
    Copy(u8, u32, u8, u32, u32),
    Attribute(u8, u8, Option<u8>),
    /// Keeps a file in use although its names may go.
    Hold(u8),
    Release,
    Sync(u8),
    Commit,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    File,
    Directory,
    Link,
}

/// Largest files of the tests, in bytes.
const FILE_BYTES: u32 = 48 << 10;
pub const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;

/// Lists of up to `count` requests, more of those that change bytes.
pub fn ops(count: usize) -> impl Strategy<Value = Vec<Op>> {
    proptest::collection::vec(op(), 1..count)
}

pub fn op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        4 => Just(Kind::File),
        2 => Just(Kind::Directory),
        1 => Just(Kind::Link)
    ];
    let mode = prop_oneof![
        3 => Just(RenameMode::Replace),
        1 => Just(RenameMode::NoReplace),
        1 => Just(RenameMode::Exchange)
    ];
    let flags = prop_oneof![
        Just(0),
        Just(KEEP),
        Just(libc::FALLOC_FL_PUNCH_HOLE | KEEP),
        Just(libc::FALLOC_FL_ZERO_RANGE),
        Just(libc::FALLOC_FL_ZERO_RANGE | KEEP),
    ];
    let (dir, name) = (0..4_u8, 0..6_u8);
    let (at, len) = (offset(), 1..20_000_u32);
    prop_oneof![
        6 => (dir.clone(), name.clone(), kind).prop_map(|(d, n, k)| Op::Make(d, n, k)),
        1 => (any::<u8>(), dir.clone(), name.clone()).prop_map(|(f, d, n)| Op::Link(f, d, n)),
        4 => (dir.clone(), name.clone()).prop_map(|(d, n)| Op::Remove(d, n)),
        2 => (dir.clone(), name.clone(), dir, name, mode)
            .prop_map(|(a, b, c, d, m)| Op::Rename(a, b, c, d, m)),
        10 => (any::<u8>(), at.clone(), len.clone()).prop_map(|(f, o, l)| Op::Write(f, o, l)),
        3 => (any::<u8>(), at.clone()).prop_map(|(f, o)| Op::Cut(f, o)),
        3 => (any::<u8>(), at.clone(), len.clone(), flags)
            .prop_map(|(f, o, l, m)| Op::Allocate(f, o, l, m)),
        1 => (any::<u8>(), at.clone(), any::<u8>(), at, len)
            .prop_map(|(f, a, t, b, l)| Op::Copy(f, a, t, b, l)),
        1 => (any::<u8>(), 0..3_u8, proptest::option::of(any::<u8>()))
            .prop_map(|(f, n, v)| Op::Attribute(f, n, v)),
        1 => any::<u8>().prop_map(Op::Hold),
        1 => Just(Op::Release),
        2 => any::<u8>().prop_map(Op::Sync),
        1 => Just(Op::Commit),
    ]
}

/// Offsets, often at or beside the ends of blocks.
fn offset() -> impl Strategy<Value = u32> + Clone {
    prop_oneof![
        0..FILE_BYTES,
        (0..FILE_BYTES / 4096, -2..3_i64)
            .prop_map(|(block, by)| (i64::from(block) * 4096 + by).max(0) as u32),
    ]
}

/// A name, by number.
pub fn name_of(number: u8) -> Vec<u8> {
    match number {
        // Bytes that are no text, and as many as there may be.
        0 => vec![0xFF, b' ', b'\n', 0x80],
        1 => vec![b'n'; 255],
        other => vec![b'a' + other],
    }
}

/// One of those that there are, by any number.
pub fn pick(from: &[u32], number: u8) -> Option<u32> {
    (!from.is_empty()).then(|| from[usize::from(number) % from.len()])
}
