//! The bytes of replies to FUSE requests.

use fuse_abi::linux as abi;
use zerocopy::{IntoBytes as _, transmute};

use crate::request::Time;

/// What the kernel is told of an inode.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes {
    /// Its number.
    pub inode: u64,
    /// Its size.
    pub size_bytes: u64,
    /// Units of 512 bytes that it takes.
    pub block_count: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of its bytes.
    pub mtime: Time,
    /// Last change of its attributes.
    pub ctime: Time,
    /// Type and permissions, as of `stat(2)`.
    pub mode: u32,
    /// How many names it has.
    pub link_count: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Which device it is, if it is one.
    pub rdev: u32,
    /// Preferred size of a request.
    pub block_bytes: u32,
}

impl Attributes {
    fn abi(&self) -> abi::fuse_attr {
        abi::fuse_attr {
            ino: self.inode,
            size: self.size_bytes,
            blocks: self.block_count,
            atime: self.atime.seconds.cast_unsigned(),
            mtime: self.mtime.seconds.cast_unsigned(),
            ctime: self.ctime.seconds.cast_unsigned(),
            atimensec: self.atime.nanos,
            mtimensec: self.mtime.nanos,
            ctimensec: self.ctime.nanos,
            mode: self.mode,
            nlink: self.link_count,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            blksize: self.block_bytes,
            flags: 0,
        }
    }
}

/// A name's inode, which the kernel may believe in for `ttl_s` seconds; to LOOKUP and whatever makes
/// a name.
#[must_use]
pub fn entry(attributes: &Attributes, ttl_s: u64) -> [u8; ENTRY_BYTES] {
    transmute!(entry_out(attributes, ttl_s))
}

fn entry_out(attributes: &Attributes, ttl_s: u64) -> abi::fuse_entry_out {
    abi::fuse_entry_out {
        nodeid: attributes.inode,
        entry_valid: ttl_s,
        attr_valid: ttl_s,
        attr: attributes.abi(),
        ..Default::default()
    }
}

/// That a name is not there, which the kernel may believe for `ttl_s` seconds; to LOOKUP.
#[must_use]
pub fn no_entry(ttl_s: u64) -> [u8; ENTRY_BYTES] {
    transmute!(abi::fuse_entry_out {
        entry_valid: ttl_s,
        ..Default::default()
    })
}

/// Attributes, which the kernel may believe for `ttl_s` seconds; to GETATTR and SETATTR.
#[must_use]
pub fn attributes(attributes: &Attributes, ttl_s: u64) -> [u8; 104] {
    transmute!(abi::fuse_attr_out {
        attr_valid: ttl_s,
        attr: attributes.abi(),
        ..Default::default()
    })
}

/// To OPEN and OPENDIR; `flags` are FOPEN_*.
#[must_use]
pub fn opened(handle: u64, flags: u32) -> [u8; OPENED_BYTES] {
    transmute!(abi::fuse_open_out {
        fh: handle,
        open_flags: flags,
        ..Default::default()
    })
}

/// To CREATE: [`entry`] and [`opened`].
#[must_use]
pub fn created(
    found: &Attributes,
    ttl_s: u64,
    handle: u64,
    flags: u32,
) -> [u8; ENTRY_BYTES + OPENED_BYTES] {
    let mut bytes = [0; ENTRY_BYTES + OPENED_BYTES];
    let (first, second) = bytes.split_at_mut(ENTRY_BYTES);
    first.copy_from_slice(&entry(found, ttl_s));
    second.copy_from_slice(&opened(handle, flags));
    bytes
}

/// To WRITE and COPY_FILE_RANGE.
#[must_use]
pub fn written(len_bytes: u32) -> [u8; 8] {
    transmute!(abi::fuse_write_out {
        size: len_bytes,
        ..Default::default()
    })
}

/// To GETXATTR and LISTXATTR that ask for a length.
#[must_use]
pub fn length(len_bytes: u32) -> [u8; 8] {
    transmute!(abi::fuse_getxattr_out {
        size: len_bytes,
        ..Default::default()
    })
}

/// To LSEEK.
#[must_use]
pub fn offset(offset: u64) -> [u8; 8] {
    transmute!(abi::fuse_lseek_out { offset })
}

/// What STATFS asks for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Statfs {
    /// All blocks.
    pub block_count: u64,
    /// Those that are free.
    pub free_blocks: u64,
    /// Most files.
    pub file_count: u64,
    /// How many more there may be.
    pub free_files: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Most bytes of a name.
    pub name_bytes_max: u32,
}

/// To STATFS.
#[must_use]
pub fn statfs(found: &Statfs) -> [u8; 80] {
    transmute!(abi::fuse_statfs_out {
        st: abi::fuse_kstatfs {
            blocks: found.block_count,
            bfree: found.free_blocks,
            bavail: found.free_blocks,
            files: found.file_count,
            ffree: found.free_files,
            bsize: found.block_bytes,
            namelen: found.name_bytes_max,
            frsize: found.block_bytes,
            ..Default::default()
        },
    })
}

/// Entries of a directory, written one after the other while there is room.
pub struct Entries<'a> {
    room: &'a mut [u8],
    len: usize,
}

impl<'a> Entries<'a> {
    /// None yet.
    pub fn new(room: &'a mut [u8]) -> Self {
        Self { room, len: 0 }
    }

    /// Adds an entry to a reply to READDIR; `offset` is where the listing goes on behind it. False
    /// when there is no room.
    pub fn add(&mut self, found: &Attributes, offset: u64, name: &[u8]) -> bool {
        self.put(&[], found, offset, name)
    }

    /// The same of READDIRPLUS: the entry is looked up as well.
    pub fn add_plus(&mut self, found: &Attributes, ttl_s: u64, offset: u64, name: &[u8]) -> bool {
        self.put(&entry(found, ttl_s), found, offset, name)
    }

    fn put(&mut self, before: &[u8], found: &Attributes, offset: u64, name: &[u8]) -> bool {
        let dirent = abi::fuse_dirent {
            ino: found.inode,
            off: offset,
            namelen: name.len() as u32,
            // S_IFMT without the permissions is what DT_* are.
            type_: (found.mode & libc::S_IFMT) >> 12,
            ..Default::default()
        };
        let parts = [before, dirent.as_bytes(), name];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let padded = len.next_multiple_of(8);
        let Some(mut place) = self.room.get_mut(self.len..self.len + padded) else {
            return false;
        };
        for part in parts {
            let (mine, rest) = place.split_at_mut(part.len());
            mine.copy_from_slice(part);
            place = rest;
        }
        place.fill(0);
        self.len += padded;
        true
    }

    /// Bytes of all entries.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len
    }
}

/// What comes before a reply's bytes on `/dev/fuse`.
pub(crate) fn header(unique: u64, reply: Result<usize, i32>) -> [u8; OUT_HEADER_BYTES] {
    let (len, error) = match reply {
        Ok(len) => (len, 0),
        Err(errno) => (0, -errno),
    };
    transmute!(abi::fuse_out_header {
        len: (OUT_HEADER_BYTES + len) as u32,
        error,
        unique,
    })
}

/// The page cache of a file is kept when it is opened.
pub const KEEP_CACHE: u32 = abi::FOPEN_KEEP_CACHE;
/// A write comes from the page cache, in the name of whoever.
pub const WRITE_IS_CACHED: u32 = abi::FUSE_WRITE_CACHE;
/// A write takes set-user-ID and set-group-ID away.
pub const WRITE_DROPS_PRIVILEGES: u32 = abi::FUSE_WRITE_KILL_SUIDGID;

const ENTRY_BYTES: usize = 128;
const OPENED_BYTES: usize = 16;
/// `fuse_out_header`.
pub(crate) const OUT_HEADER_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    /// Offsets as the C compiler has them for `fuse_attr`.
    #[test]
    fn attributes_are_where_the_kernel_reads_them() {
        let given = Attributes {
            inode: 2,
            size_bytes: 1 << 20,
            mode: libc::S_IFREG | 0o600,
            mtime: Time {
                seconds: -2,
                nanos: 9,
            },
            block_bytes: 4096,
            ..Attributes::default()
        };
        let bytes = attributes(&given, 7);
        assert_eq!(bytes[..8], 7_u64.to_ne_bytes());
        assert_eq!(bytes[16 + 8..16 + 16], (1_u64 << 20).to_ne_bytes());
        assert_eq!(bytes[16 + 32..16 + 40], (-2_i64).to_ne_bytes());
        assert_eq!(bytes[16 + 52..16 + 56], 9_u32.to_ne_bytes());
        assert_eq!(bytes[16 + 60..16 + 64], 0o100_600_u32.to_ne_bytes());
        assert_eq!(entry(&given, 7)[40..], bytes[16..]);
        let made = created(&given, 7, 5, KEEP_CACHE);
        assert_eq!(made[..128], entry(&given, 7));
        assert_eq!(made[128..136], 5_u64.to_ne_bytes());
        assert_eq!(made[136..140], 2_u32.to_ne_bytes());
        assert_eq!(no_entry(7)[..8], [0; 8], "no inode says that there is none");
    }

    #[test]
    fn entries_stop_where_the_room_ends() {
        let found = Attributes {
            inode: 3,
            mode: libc::S_IFDIR | 0o700,
            ..Attributes::default()
        };
        // Two of 24 bytes and a name, in steps of eight.
        let mut room = [0xFF; 24 + 8 + 24 + 16];
        let mut entries = Entries::new(&mut room);
        assert!(entries.add(&found, 1, b"a"));
        assert!(entries.add(&found, 2, b"123456789"));
        assert!(!entries.add(&found, 3, b""));
        assert_eq!(entries.len_bytes(), 72);
        assert_eq!(room[..8], 3_u64.to_ne_bytes());
        assert_eq!(room[8..16], 1_u64.to_ne_bytes());
        assert_eq!(room[16..20], 1_u32.to_ne_bytes());
        assert_eq!(room[20..24], u32::from(libc::DT_DIR).to_ne_bytes());
        assert_eq!(room[24..32], *b"a\0\0\0\0\0\0\0");
        let mut entries = Entries::new(&mut room[..71]);
        assert!(!entries.add_plus(&found, 1, 1, b"a"), "152 bytes and more");
        assert_eq!(entries.len_bytes(), 0);
    }

    #[test]
    fn an_error_has_no_bytes_behind_it() {
        let error = header(9, Err(libc::ENOENT));
        assert_eq!(error[..4], 16_u32.to_ne_bytes());
        assert_eq!(error[4..8], (-libc::ENOENT).to_ne_bytes());
        assert_eq!(error[8..], 9_u64.to_ne_bytes());
        assert_eq!(header(9, Ok(5))[..8], [21, 0, 0, 0, 0, 0, 0, 0]);
    }
}
