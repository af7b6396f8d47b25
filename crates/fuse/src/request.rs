//! FUSE requests as their server sees them, over whichever transport they came.
//!
//! The layouts are those of `fuse_abi`, protocol 7.40; what later ones add is asked for in INIT
//! before it comes. Invariant: whatever a request names is checked against what came, so that no
//! header leads outside of it; a request that contradicts itself is [`Malformed`].

mod number;

use fuse_abi::linux as abi;
use zerocopy::FromBytes;

use number::op_header_bytes;

/// A request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    header: abi::fuse_in_header,
    /// Begins with the operation's own header, where it has one.
    op: &'a [u8],
    /// Names and data behind it.
    payload: &'a [u8],
}

/// A request whose headers contradict each other, or what came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Malformed;

/// What a request asks for. Inodes and handles are those that replies named.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Operation<'a> {
    /// The inode of a name in the directory.
    Lookup(&'a [u8]),
    /// The kernel forgot so many lookups of the inode. No reply.
    Forget {
        /// How many.
        count: u64,
    },
    /// The same of many inodes. No reply.
    BatchForget(Forgets<'a>),
    /// Attributes of the inode.
    Getattr,
    /// Changes of attributes.
    Setattr(Setattr),
    /// The target of a symbolic link.
    Readlink,
    /// A symbolic link.
    Symlink {
        /// Its name in the directory.
        name: &'a [u8],
        /// What it points to.
        target: &'a [u8],
    },
    /// A file of any kind but a directory.
    Mknod {
        /// Its name in the directory.
        name: &'a [u8],
        /// Kind and permissions.
        mode: u32,
        /// Which device it is, if it is one.
        rdev: u32,
    },
    /// A directory.
    Mkdir {
        /// Its name in the directory.
        name: &'a [u8],
        /// Permissions.
        mode: u32,
    },
    /// Takes a name of a file away.
    Unlink(&'a [u8]),
    /// Takes an empty directory away.
    Rmdir(&'a [u8]),
    /// Another name for what has one in the directory.
    Rename {
        /// The name.
        name: &'a [u8],
        /// The directory of the new one.
        to_parent: u64,
        /// The new one.
        to_name: &'a [u8],
        /// RENAME_*.
        flags: u32,
    },
    /// Another name, in the directory, for an inode.
    Link {
        /// Which.
        inode: u64,
        /// The name.
        name: &'a [u8],
    },
    /// Opens the inode.
    Open {
        /// O_*.
        flags: i32,
    },
    /// Bytes of the file.
    Read {
        /// Where they begin.
        offset: u64,
        /// How many at most.
        len_bytes: u32,
    },
    /// Bytes for the file.
    Write {
        /// Where they go.
        offset: u64,
        /// All of them.
        data: &'a [u8],
        /// FUSE_WRITE_*.
        flags: u32,
    },
    /// Of the file system.
    Statfs,
    /// The last descriptor of an open file is closed.
    Release {
        /// With which it was opened.
        flags: i32,
    },
    /// What was acknowledged is to stay.
    Fsync,
    /// The same of a directory.
    Fsyncdir,
    /// Sets an extended attribute.
    Setxattr {
        /// Its name.
        name: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// XATTR_*.
        flags: i32,
    },
    /// An extended attribute.
    Getxattr {
        /// Its name.
        name: &'a [u8],
        /// How long it may be; 0: its length is asked for.
        room: u32,
    },
    /// Names of all extended attributes, each with a zero behind it.
    Listxattr {
        /// As of [`Operation::Getxattr`].
        room: u32,
    },
    /// Takes an extended attribute away.
    Removexattr(&'a [u8]),
    /// A descriptor is closed.
    Flush,
    /// Opens a directory.
    Opendir,
    /// Entries of a directory.
    Readdir(List),
    /// Entries of a directory, each looked up as well.
    Readdirplus(List),
    /// The last descriptor of an open directory is closed.
    Releasedir {
        /// Of the directory.
        handle: u64,
    },
    /// Makes a file and opens it.
    Create {
        /// Its name in the directory.
        name: &'a [u8],
        /// Its permissions.
        mode: u32,
        /// O_*.
        flags: i32,
    },
    /// Who asked for something no longer waits for it.
    Interrupt,
    /// The connection ends.
    Destroy,
    /// Space of a range.
    Fallocate {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        len_bytes: u64,
        /// As of `fallocate(2)`.
        mode: i32,
    },
    /// The next data or hole.
    Lseek {
        /// From where on.
        offset: u64,
        /// SEEK_*.
        whence: u32,
    },
    /// Copies from the inode to another.
    CopyFileRange {
        /// Where it begins.
        offset: u64,
        /// The other.
        to_inode: u64,
        /// Where it goes there.
        to_offset: u64,
        /// How much.
        len_bytes: u64,
    },
    /// Anything else, by its number.
    Other(u32),
}

/// Where a listing goes on.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct List {
    /// Of the open directory.
    pub handle: u64,
    /// Behind the entry that named it.
    pub offset: u64,
    /// Bytes of entries at most.
    pub room: u32,
}

/// What SETATTR changes.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Setattr {
    /// Permissions.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size_bytes: Option<u64>,
    /// Last access.
    pub atime: Option<When>,
    /// Last change of its bytes.
    pub mtime: Option<When>,
    /// Last change of its attributes.
    pub ctime: Option<Time>,
}

/// A time to be set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// That of the request.
    Now,
    /// This one.
    At(Time),
}

/// A time of a file.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Time {
    /// Since 1970; negative before.
    pub seconds: i64,
    /// After those, below a second.
    pub nanos: u32,
}

/// Inodes that the kernel forgot, each with how many lookups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<Self::Item> {
        let (one, rest) = abi::fuse_forget_one::read_from_prefix(self.0).ok()?;
        self.0 = rest;
        Some((one.nodeid, one.nlookup))
    }
}

impl<'a> Request<'a> {
    /// From the parts of a ring's entry.
    pub(crate) fn of_parts(
        header: &[u8; crate::abi::HEADER_BYTES],
        op: &'a [u8; crate::abi::HEADER_BYTES],
        payload: &'a [u8],
    ) -> Self {
        let read = abi::fuse_in_header::read_from_prefix(header);
        let (header, _) = read.expect("128 bytes have room for the 40 of a header");
        Self {
            header,
            op,
            payload,
        }
    }

    /// From what a read of `/dev/fuse` gave.
    ///
    /// # Errors
    /// When that is no request of the length that it says.
    pub fn of_bytes(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let read = abi::fuse_in_header::read_from_prefix(bytes);
        let (header, rest) = read.map_err(|_| Malformed)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed);
        }
        // Of what is not known the header's length is not either: nobody looks at it.
        let op_bytes = op_header_bytes(header.opcode).unwrap_or(0);
        let (op, payload) = rest.split_at_checked(op_bytes).ok_or(Malformed)?;
        Ok(Self {
            header,
            op,
            payload,
        })
    }

    /// The inode that it is about.
    #[must_use]
    pub fn inode(&self) -> u64 {
        self.header.nodeid
    }

    /// Who asks: the user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.header.uid
    }

    /// Who asks: the group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.header.gid
    }

    /// Names the request in its reply.
    #[must_use]
    pub fn unique(&self) -> u64 {
        self.header.unique
    }

    /// What it asks for.
    ///
    /// # Errors
    /// When the request contradicts itself.
    pub fn operation(&self) -> Result<Operation<'a>, Malformed> {
        let extension_bytes = usize::from(self.header.total_extlen) * 8;
        let end = self.payload.len().checked_sub(extension_bytes);
        let payload = &self.payload[..end.ok_or(Malformed)?];
        let name = || names::<1>(payload).map(|[name]| name);
        Ok(match self.header.opcode {
            number::LOOKUP => Operation::Lookup(name()?),
            number::FORGET => {
                let count = self.op::<abi::fuse_forget_in>()?.nlookup;
                Operation::Forget { count }
            }
            number::BATCH_FORGET => {
                let count = self.op::<abi::fuse_batch_forget_in>()?.count as usize;
                let len = count.checked_mul(size_of::<abi::fuse_forget_one>());
                if len != Some(payload.len()) {
                    return Err(Malformed);
                }
                Operation::BatchForget(Forgets(payload))
            }
            number::GETATTR => Operation::Getattr,
            number::SETATTR => Operation::Setattr(setattr(&self.op()?)),
            number::READLINK => Operation::Readlink,
            number::SYMLINK => {
                let [name, target] = names(payload)?;
                Operation::Symlink { name, target }
            }
            number::MKNOD => {
                let op: abi::fuse_mknod_in = self.op()?;
                let (name, mode, rdev) = (name()?, op.mode, op.rdev);
                Operation::Mknod { name, mode, rdev }
            }
            number::MKDIR => {
                let mode = self.op::<abi::fuse_mkdir_in>()?.mode;
                Operation::Mkdir {
                    name: name()?,
                    mode,
                }
            }
            number::UNLINK => Operation::Unlink(name()?),
            number::RMDIR => Operation::Rmdir(name()?),
            number::RENAME | number::RENAME2 => self.rename(payload)?,
            number::LINK => {
                let inode = self.op::<abi::fuse_link_in>()?.oldnodeid;
                Operation::Link {
                    inode,
                    name: name()?,
                }
            }
            number::CREATE => {
                let op: abi::fuse_create_in = self.op()?;
                let (name, mode, flags) = (name()?, op.mode, op.flags.cast_signed());
                Operation::Create { name, mode, flags }
            }
            number::STATFS => Operation::Statfs,
            number::REMOVEXATTR => Operation::Removexattr(name()?),
            number::INTERRUPT => Operation::Interrupt,
            number::DESTROY => Operation::Destroy,
            _ => return self.of_open_file(payload),
        })
    }

    /// Operations of files and directories that are open, and of attributes.
    fn of_open_file(&self, payload: &'a [u8]) -> Result<Operation<'a>, Malformed> {
        Ok(match self.header.opcode {
            number::OPEN => {
                let flags = self.op::<abi::fuse_open_in>()?.flags.cast_signed();
                Operation::Open { flags }
            }
            number::READ => {
                let op: abi::fuse_read_in = self.op()?;
                let (offset, len_bytes) = (op.offset, op.size);
                Operation::Read { offset, len_bytes }
            }
            number::WRITE => {
                let op: abi::fuse_write_in = self.op()?;
                if op.size as usize != payload.len() {
                    return Err(Malformed);
                }
                Operation::Write {
                    offset: op.offset,
                    data: payload,
                    flags: op.write_flags,
                }
            }
            number::RELEASE => {
                let flags = self.op::<abi::fuse_release_in>()?.flags.cast_signed();
                Operation::Release { flags }
            }
            number::FSYNC => Operation::Fsync,
            number::FSYNCDIR => Operation::Fsyncdir,
            number::SETXATTR => self.setxattr(payload)?,
            number::GETXATTR => {
                let room = self.op::<abi::fuse_getxattr_in>()?.size;
                let [name] = names(payload)?;
                Operation::Getxattr { name, room }
            }
            number::LISTXATTR => {
                let room = self.op::<abi::fuse_getxattr_in>()?.size;
                Operation::Listxattr { room }
            }
            number::FLUSH => Operation::Flush,
            number::OPENDIR => Operation::Opendir,
            number::READDIR => Operation::Readdir(self.list()?),
            number::READDIRPLUS => Operation::Readdirplus(self.list()?),
            number::RELEASEDIR => {
                let handle = self.op::<abi::fuse_release_in>()?.fh;
                Operation::Releasedir { handle }
            }
            number::FALLOCATE => {
                let op: abi::fuse_fallocate_in = self.op()?;
                Operation::Fallocate {
                    offset: op.offset,
                    len_bytes: op.length,
                    mode: op.mode.cast_signed(),
                }
            }
            number::LSEEK => {
                let op: abi::fuse_lseek_in = self.op()?;
                let (offset, whence) = (op.offset, op.whence);
                Operation::Lseek { offset, whence }
            }
            number::COPY_FILE_RANGE => {
                let op: abi::fuse_copy_file_range_in = self.op()?;
                Operation::CopyFileRange {
                    offset: op.off_in,
                    to_inode: op.nodeid_out,
                    to_offset: op.off_out,
                    len_bytes: op.len,
                }
            }
            other => Operation::Other(other),
        })
    }

    fn rename(&self, payload: &'a [u8]) -> Result<Operation<'a>, Malformed> {
        let (to_parent, flags) = match self.header.opcode {
            number::RENAME => (self.op::<abi::fuse_rename_in>()?.newdir, 0),
            _ => {
                let op: abi::fuse_rename2_in = self.op()?;
                (op.newdir, op.flags)
            }
        };
        let [name, to_name] = names(payload)?;
        Ok(Operation::Rename {
            name,
            to_parent,
            to_name,
            flags,
        })
    }

    fn setxattr(&self, payload: &'a [u8]) -> Result<Operation<'a>, Malformed> {
        let [len, flags]: [u32; 2] = self.op()?;
        let (name, value) = name_of(payload)?;
        if len as usize != value.len() {
            return Err(Malformed);
        }
        let flags = flags.cast_signed();
        Ok(Operation::Setxattr { name, value, flags })
    }

    fn list(&self) -> Result<List, Malformed> {
        let op: abi::fuse_read_in = self.op()?;
        Ok(List {
            handle: op.fh,
            offset: op.offset,
            room: op.size,
        })
    }

    /// The operation's own header.
    fn op<T: FromBytes>(&self) -> Result<T, Malformed> {
        let read = T::read_from_prefix(self.op);
        read.map(|(op, _)| op).map_err(|_| Malformed)
    }
}

/// A name up to its zero, and what is behind.
fn name_of(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = bytes.iter().position(|byte| *byte == 0).ok_or(Malformed)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// So many names, each with a zero behind it, and nothing else.
fn names<const COUNT: usize>(mut bytes: &[u8]) -> Result<[&[u8]; COUNT], Malformed> {
    let mut names = [&[][..]; COUNT];
    for name in &mut names {
        (*name, bytes) = name_of(bytes)?;
    }
    match bytes {
        [] => Ok(names),
        _ => Err(Malformed),
    }
}

fn setattr(op: &abi::fuse_setattr_in) -> Setattr {
    let has = |flag: u32| op.valid & flag != 0;
    let time = |seconds: u64, nanos: u32| Time {
        seconds: seconds.cast_signed(),
        nanos: nanos.min(NANOS_MAX),
    };
    let when = |flag, now, at| match (has(flag), has(now)) {
        (false, _) => None,
        (true, true) => Some(When::Now),
        (true, false) => Some(When::At(at)),
    };
    Setattr {
        mode: has(abi::FATTR_MODE).then_some(op.mode),
        uid: has(abi::FATTR_UID).then_some(op.uid),
        gid: has(abi::FATTR_GID).then_some(op.gid),
        size_bytes: has(abi::FATTR_SIZE).then_some(op.size),
        atime: when(
            abi::FATTR_ATIME,
            abi::FATTR_ATIME_NOW,
            time(op.atime, op.atimensec),
        ),
        mtime: when(
            abi::FATTR_MTIME,
            abi::FATTR_MTIME_NOW,
            time(op.mtime, op.mtimensec),
        ),
        ctime: has(abi::FATTR_CTIME).then(|| time(op.ctime, op.ctimensec)),
    }
}

const NANOS_MAX: u32 = 999_999_999;

#[cfg(test)]
mod tests;
