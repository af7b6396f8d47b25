//! The kernel's requests over FUSE, each handed to [`Files`] and answered.
//!
//! Many threads serve them, over either transport; a request runs to its end on its thread. Nobody
//! but this kernel changes the files, so it may keep names, attributes and bytes for as long as it
//! likes, and write its cache back when it likes (`FUSE_WRITEBACK_CACHE`). Locks are the kernel's
//! own: there is one machine. Who may do what is the kernel's to decide too.

use std::sync::Arc;

use cenote_fuse::reply::{self, Entries, KEEP_CACHE, Statfs};
use cenote_fuse::request::{List, Malformed, Operation, Request, Setattr};

use super::convert::{attributes, caller, timestamp, when};
use super::open_directories::Listings;
use crate::files::{AttributeMode, Caller, Changed, Files, NewInode, RenameMode, Seek, Write};
use crate::medium::BLOCK_BYTES;
use crate::records::{Ino, Inode};
use crate::{FsError, NAME_BYTES_MAX};

/// What answers the kernel.
pub(super) struct Kernel {
    files: Arc<Files>,
    listings: Listings,
    /// Tells the kernel that attributes of an inode changed when it does not expect that.
    tell: Box<dyn Fn(Ino) + Send + Sync>,
}

/// What a request is answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Answer {
    /// The first bytes of the room that was given.
    Bytes(usize),
    /// An error number.
    Errno(i32),
    /// Nothing: there is no reply to it.
    Nothing,
}

/// An error number.
struct Errno(i32);

impl From<FsError> for Errno {
    fn from(error: FsError) -> Self {
        Self(error.errno())
    }
}

/// How many bytes of the room are the reply.
type Reply = Result<usize, Errno>;

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        match reply {
            Ok(len) => Self::Bytes(len),
            Err(Errno(errno)) => Self::Errno(errno),
        }
    }
}

impl Kernel {
    pub(super) fn new(files: Arc<Files>, tell: impl Fn(Ino) + Send + Sync + 'static) -> Self {
        Self {
            files,
            listings: Listings::default(),
            tell: Box::new(tell),
        }
    }

    /// Answers a request; what the reply holds is written to `room`, which has to be as long as the
    /// longest.
    pub(super) fn answer(&self, request: &Request<'_>, room: &mut [u8]) -> Answer {
        let reply = match request.operation() {
            Ok(Operation::Forget { count }) => {
                self.forget(request.inode(), count);
                return Answer::Nothing;
            }
            Ok(Operation::BatchForget(forgets)) => {
                forgets.for_each(|(ino, count)| self.forget(ino, count));
                return Answer::Nothing;
            }
            Ok(operation) => self.reply(request, operation, room),
            Err(Malformed) => {
                tracing::warn!(?request, "a request that contradicts itself");
                Err(Errno(libc::EINVAL))
            }
        };
        reply.into()
    }

    /// Answers a READ; `room` is as long as it asks for.
    pub(super) fn read(&self, ino: Ino, offset: u64, room: &mut [u8]) -> Answer {
        self.files
            .read(ino, offset, room)
            .map_err(Errno::from)
            .into()
    }

    fn reply(&self, request: &Request<'_>, operation: Operation<'_>, room: &mut [u8]) -> Reply {
        let (files, ino) = (&*self.files, request.inode());
        let caller = || caller(request);
        match operation {
            Operation::Lookup(name) => match files.lookup(ino, name) {
                // The kernel need not ask again until it makes such a name itself.
                Err(FsError::NotFound) => put(room, &reply::no_entry(TTL_S)),
                found => entry(room, found?),
            },
            Operation::Getattr => told(room, ino, &files.inode(ino)?),
            Operation::Setattr(set) => {
                let changed = changed(&set, &caller());
                told(room, ino, &files.set(&caller(), ino, changed)?)
            }
            Operation::Readlink => put(room, &files.target(ino)?),
            Operation::Symlink { name, target } => {
                let new = new(libc::S_IFLNK | 0o777, 0, Some(target));
                entry(room, files.make(&caller(), ino, name, new)?)
            }
            Operation::Mknod { name, mode, rdev } => {
                let new = new(mode, rdev, None);
                entry(room, files.make(&caller(), ino, name, new)?)
            }
            Operation::Mkdir { name, mode } => {
                let new = new(libc::S_IFDIR | (mode & 0o7777), 0, None);
                entry(room, files.make(&caller(), ino, name, new)?)
            }
            Operation::Create { name, mode, flags } => {
                let new = new(libc::S_IFREG | (mode & 0o7777), 0, None);
                let (made, inode) = files.make(&caller(), ino, name, new)?;
                if writes(flags) {
                    files.opened_to_write(made);
                }
                let found = attributes(made, &inode);
                put(room, &reply::created(&found, TTL_S, 0, KEEP_CACHE))
            }
            Operation::Unlink(name) => done(files.unlink(&caller(), ino, name)),
            Operation::Rmdir(name) => done(files.remove_directory(&caller(), ino, name)),
            Operation::Rename {
                name,
                to_parent,
                to_name,
                flags,
            } => {
                let mode = match flags {
                    0 => RenameMode::Replace,
                    libc::RENAME_NOREPLACE => RenameMode::NoReplace,
                    libc::RENAME_EXCHANGE => RenameMode::Exchange,
                    _ => return Err(FsError::Invalid.into()),
                };
                let (from, to) = ((ino, name), (to_parent, to_name));
                done(files.rename(&caller(), from, to, mode))
            }
            Operation::Link { inode, name } => {
                entry(room, files.link(&caller(), inode, ino, name)?)
            }
            Operation::Statfs => put(room, &reply::statfs(&self.statfs())),
            Operation::Setxattr { name, value, flags } => {
                let mode = match flags {
                    libc::XATTR_CREATE => AttributeMode::Create,
                    libc::XATTR_REPLACE => AttributeMode::Replace,
                    _ => AttributeMode::Set,
                };
                done(files.set_attribute(&caller(), ino, (name, value), mode))
            }
            Operation::Getxattr { name, room: most } => {
                attribute(room, most, &files.attribute(ino, name)?)
            }
            Operation::Listxattr { room: most } => {
                let mut names = Vec::new();
                for name in files.attributes(ino)? {
                    names.extend_from_slice(&name);
                    names.push(0);
                }
                attribute(room, most, &names)
            }
            Operation::Removexattr(name) => done(files.remove_attribute(&caller(), ino, name)),
            operation => self.reply_of_open(request, operation, room),
        }
    }

    /// Operations of files and directories that are open.
    fn reply_of_open(
        &self,
        request: &Request<'_>,
        operation: Operation<'_>,
        room: &mut [u8],
    ) -> Reply {
        let (files, ino) = (&*self.files, request.inode());
        match operation {
            Operation::Open { flags } => {
                if writes(flags) {
                    files.opened_to_write(ino);
                }
                put(room, &reply::opened(0, KEEP_CACHE))
            }
            Operation::Read { offset, len_bytes } => {
                // A shorter reply would be the end of the file.
                let room = room.get_mut(..len_bytes as usize);
                let room = room.ok_or(FsError::Invalid)?;
                Ok(files.read(ino, offset, room)?)
            }
            Operation::Write {
                offset,
                data,
                flags,
            } => {
                let how = Write {
                    is_cached: flags & reply::WRITE_IS_CACHED != 0,
                    drops_privileges: flags & reply::WRITE_DROPS_PRIVILEGES != 0,
                };
                let has_changed_mode = files.write(&caller(request), ino, offset, data, how)?;
                self.tell_of_mode(ino, has_changed_mode);
                put(room, &reply::written(data.len() as u32))
            }
            Operation::Release { flags } => {
                if writes(flags) {
                    files.closed_to_write(ino);
                }
                Ok(0)
            }
            Operation::Fsync | Operation::Fsyncdir => done(files.fsync(ino)),
            Operation::Opendir => put(room, &reply::opened(self.listings.open(), 0)),
            Operation::Readdir(list) => self.list(ino, list, room),
            Operation::Readdirplus(list) => self.list_and_look_up(ino, list, room),
            Operation::Releasedir { handle } => {
                self.listings.close(handle);
                Ok(0)
            }
            Operation::Fallocate {
                offset,
                len_bytes,
                mode,
            } => {
                let range = (offset, len_bytes);
                let changed = files.allocate(&caller(request), ino, range, mode);
                // One that failed half way may have changed it, too.
                self.tell_of_mode(ino, !matches!(changed, Ok(false)));
                changed?;
                Ok(0)
            }
            Operation::Lseek { offset, whence } => {
                let what = match whence.cast_signed() {
                    libc::SEEK_DATA => Seek::Data,
                    libc::SEEK_HOLE => Seek::Hole,
                    _ => return Err(FsError::Invalid.into()),
                };
                if offset > i64::MAX.cast_unsigned() {
                    return Err(FsError::NoOffset.into());
                }
                put(room, &reply::offset(files.seek(ino, offset, what)?))
            }
            Operation::CopyFileRange {
                offset,
                to_inode,
                to_offset,
                len_bytes,
            } => {
                // So that one request does not take minutes; the caller asks for the rest.
                let len = len_bytes.min(COPY_BYTES_MAX);
                let (from, to) = ((ino, offset), (to_inode, to_offset));
                let (copied, has_changed_mode) = files.copy(&caller(request), from, to, len)?;
                self.tell_of_mode(to_inode, has_changed_mode);
                put(room, &reply::written(copied as u32))
            }
            Operation::Destroy => Ok(0),
            // FLUSH: the kernel writes its cache back before; it does not ask again. INTERRUPT: every
            // request ends by itself; it does not tell of others.
            _ => Err(Errno(libc::ENOSYS)),
        }
    }

    fn list(&self, ino: Ino, list: List, room: &mut [u8]) -> Reply {
        let mut entries = Entries::new(within(room, list.room));
        let read = self
            .listings
            .read(&self.files, list.handle, ino, list.offset, |entry| {
                let found = attributes(entry.ino, &entry.inode);
                !entries.add(&found, entry.offset, &entry.name)
            });
        listed(&entries, read)
    }

    fn list_and_look_up(&self, ino: Ino, list: List, room: &mut [u8]) -> Reply {
        let mut entries = Entries::new(within(room, list.room));
        let read = self
            .listings
            .read(&self.files, list.handle, ino, list.offset, |entry| {
                let found = attributes(entry.ino, &entry.inode);
                let is_dot = matches!(&*entry.name, b"." | b"..");
                if !is_dot {
                    // Before it may be forgotten.
                    self.files.remember(entry.ino);
                }
                let is_full = !entries.add_plus(&found, TTL_S, entry.offset, &entry.name);
                if is_full && !is_dot {
                    self.forget(entry.ino, 1);
                }
                is_full
            });
        listed(&entries, read)
    }

    /// The kernel does not know that a change of bytes took rights away.
    fn tell_of_mode(&self, ino: Ino, has_changed: bool) {
        if has_changed {
            (self.tell)(ino);
        }
    }

    fn statfs(&self) -> Statfs {
        let usage = self.files.usage();
        Statfs {
            block_count: usage.total_blocks,
            free_blocks: usage.free_blocks,
            file_count: usage.total_inodes,
            free_files: usage.free_inodes,
            block_bytes: BLOCK_BYTES as u32,
            name_bytes_max: NAME_BYTES_MAX as u32,
        }
    }

    fn forget(&self, ino: Ino, count: u64) {
        if let Err(error) = self.files.forget(ino, count) {
            tracing::warn!(%error, ino, "delete a file without a name");
        }
    }
}

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

fn new(mode: u32, rdev: u32, target: Option<&[u8]>) -> NewInode<'_> {
    NewInode { mode, rdev, target }
}

fn changed(set: &Setattr, caller: &Caller) -> Changed {
    let is_chown = set.uid.is_some() || set.gid.is_some();
    Changed {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size: set.size_bytes,
        atime: set.atime.map(|atime| when(atime, caller.now)),
        mtime: set.mtime.map(|mtime| when(mtime, caller.now)),
        ctime: set.ctime.map(timestamp),
        // Whoever may set these bits keeps them when it cuts a file.
        drops_privileges: is_chown || (set.size_bytes.is_some() && caller.drops_privileges()),
    }
}

/// What was listed before an error, which the next request tells: the kernel hears of every entry that
/// was looked up for it, and forgets it some day.
fn listed(entries: &Entries<'_>, read: Result<(), FsError>) -> Reply {
    match entries.len_bytes() {
        0 => done(read),
        len => Ok(len),
    }
}

/// That it is done.
fn done(outcome: Result<(), FsError>) -> Reply {
    Ok(outcome.map(|()| 0)?)
}

/// A reply's bytes. There is room for the longest that this kernel asks for.
fn put(room: &mut [u8], bytes: &[u8]) -> Reply {
    let place = room.get_mut(..bytes.len()).ok_or(FsError::Invalid)?;
    place.copy_from_slice(bytes);
    Ok(bytes.len())
}

/// What has a name now.
fn entry(room: &mut [u8], (ino, inode): (Ino, Inode)) -> Reply {
    put(room, &reply::entry(&attributes(ino, &inode), TTL_S))
}

fn told(room: &mut [u8], ino: Ino, inode: &Inode) -> Reply {
    put(room, &reply::attributes(&attributes(ino, inode), TTL_S))
}

/// An extended attribute or the names of all, or how long that is where `most` is nothing yet.
fn attribute(room: &mut [u8], most: u32, bytes: &[u8]) -> Reply {
    match most as usize {
        0 => put(room, &reply::length(bytes.len() as u32)),
        most if bytes.len() <= most => put(room, bytes),
        _ => Err(Errno(libc::ERANGE)),
    }
}

/// At most so many bytes of it.
fn within(room: &mut [u8], most: u32) -> &mut [u8] {
    let len = room.len().min(most as usize);
    &mut room[..len]
}

/// For how long the kernel may believe what it is told, in seconds: nobody else changes anything.
const TTL_S: u64 = 24 * 3600;
/// Bytes of one copy at most; arbitrary.
const COPY_BYTES_MAX: u64 = 64 << 20;

#[cfg(test)]
mod tests;
