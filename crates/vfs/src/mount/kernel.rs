//! The kernel's requests over FUSE, each handed to [`Files`] and answered.
//!
//! Many threads serve them; a request runs to its end on its thread. Nobody but this kernel changes
//! the files, so it may keep names, attributes and bytes for as long as it likes, and write its
//! cache back when it likes (`FUSE_WRITEBACK_CACHE`). Locks are the kernel's own: there is one
//! machine.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use super::convert::{caller, file_attr, file_type, now, timestamp};
use super::listing::Listings;
use super::replies::{self, Reply as _, TTL};
use super::session::{self, REQUEST_BYTES_MAX};
use crate::files::{AttributeMode, Changed, Files, NewInode, RenameMode, Seek, Write};
use crate::medium::BLOCK_BYTES;
use crate::{FsError, NAME_BYTES_MAX};

/// What answers the kernel.
pub(super) struct Kernel {
    files: Arc<Files>,
    listings: Listings,
    notifier: Arc<OnceLock<Notifier>>,
}

thread_local! {
    /// What this thread reads into.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Kernel {
    pub(super) fn new(files: Arc<Files>) -> Self {
        Self {
            files,
            listings: Listings::default(),
            notifier: Arc::default(),
        }
    }

    /// Where the session puts what tells the kernel of changes that it does not expect.
    pub(super) fn notifier(&self) -> Arc<OnceLock<Notifier>> {
        Arc::clone(&self.notifier)
    }

    /// The kernel does not know that a write took rights away.
    fn tell_of_mode(&self, ino: INodeNo) {
        let told = self.notifier.get().map(|notifier| {
            // A negative offset: attributes alone, no bytes.
            notifier.inval_inode(ino, -1, 0)
        });
        if let Some(Err(error)) = told {
            tracing::debug!(%error, ino = ino.0, "have the kernel ask for attributes");
        }
    }

    fn make(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new: NewInode<'_>,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(request), name.as_bytes());
        replies::entry(reply, self.files.make(&caller, parent.0, name, new));
    }
}

fn writes(flags: i32) -> bool {
    flags & libc::O_ACCMODE != libc::O_RDONLY
}

impl Filesystem for Kernel {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        session::negotiate(config)
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        replies::entry_or_none(reply, self.files.lookup(parent.0, name.as_bytes()));
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        Self::forget(self, ino.0, count);
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        replies::attributes(reply, ino.0, self.files.inode(ino.0));
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let time = |given: Option<TimeOrNow>| {
            given.map(|time| match time {
                TimeOrNow::SpecificTime(time) => timestamp(time),
                TimeOrNow::Now => now(),
            })
        };
        let is_chown = uid.is_some() || gid.is_some();
        let changed = Changed {
            mode,
            uid,
            gid,
            size,
            atime: time(atime),
            mtime: time(mtime),
            ctime: ctime.map(timestamp),
            // Whoever may set these bits keeps them when it cuts a file.
            drops_privileges: is_chown || (size.is_some() && request.uid() != 0),
        };
        let set = self.files.set(&caller(request), ino.0, changed);
        replies::attributes(reply, ino.0, set);
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        reply.give(self.files.target(ino.0), |reply, target| {
            reply.data(&target)
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let new = NewInode {
            mode,
            rdev,
            target: None,
        };
        self.make(request, parent, name, new, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        let new = NewInode {
            mode: libc::S_IFDIR | (mode & 0o7777),
            rdev: 0,
            target: None,
        };
        self.make(request, parent, name, new, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let caller = caller(request);
        replies::done(reply, self.files.unlink(&caller, parent.0, name.as_bytes()));
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes());
        replies::done(reply, self.files.remove_directory(&caller, parent.0, name));
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = NewInode {
            mode: libc::S_IFLNK | 0o777,
            rdev: 0,
            target: Some(target.as_os_str().as_bytes()),
        };
        self.make(request, parent, name, new, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::RENAME_NOREPLACE => RenameMode::NoReplace,
            RenameFlags::RENAME_EXCHANGE => RenameMode::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let from = (parent.0, name.as_bytes());
        let to = (to_parent.0, to_name.as_bytes());
        replies::done(reply, self.files.rename(&caller(request), from, to, mode));
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: ReplyEntry,
    ) {
        let caller = caller(request);
        let linked = self.files.link(&caller, ino.0, parent.0, name.as_bytes());
        replies::entry(reply, linked);
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if writes(flags.0) {
            self.files.opened_to_write(ino.0);
        }
        reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let len = size.min(REQUEST_BYTES_MAX * 2) as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let read = self.files.read(ino.0, offset, &mut buffer[..len]);
            reply.give(read, |reply, got| reply.data(&buffer[..got]));
        });
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let how = Write {
            is_cached: write_flags.contains(WriteFlags::FUSE_WRITE_CACHE),
            drops_privileges: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        let written = self.files.write(&caller(request), ino.0, offset, data, how);
        reply.give(written, |reply, is_mode_changed| {
            if is_mode_changed {
                self.tell_of_mode(ino);
            }
            reply.written(data.len() as u32);
        });
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // The kernel writes its cache back before; it does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        flags: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        if writes(flags.0) {
            self.files.closed_to_write(ino.0);
        }
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        replies::done(reply, self.files.fsync(ino.0));
    }

    fn fsyncdir(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        replies::done(reply, self.files.fsync(ino.0));
    }

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(self.listings.open()), FopenFlags::empty());
    }

    fn readdir(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self
            .listings
            .read(&self.files, handle.0, ino.0, offset, |entry| {
                let (kind, name) = (file_type(entry.inode.mode), OsStr::from_bytes(&entry.name));
                reply.add(INodeNo(entry.ino), entry.offset, kind, name)
            });
        reply.give(listed, |reply, ()| reply.ok());
    }

    fn readdirplus(
        &self,
        _: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self
            .listings
            .read(&self.files, handle.0, ino.0, offset, |entry| {
                let attr = file_attr(entry.ino, &entry.inode);
                let name = OsStr::from_bytes(&entry.name);
                let number = INodeNo(entry.ino);
                let is_dot = matches!(&*entry.name, b"." | b"..");
                if !is_dot {
                    // Before it may be forgotten.
                    self.files.remember(entry.ino);
                }
                let is_full = reply.add(number, entry.offset, name, &TTL, &attr, Generation(0));
                if is_full && !is_dot {
                    Self::forget(self, entry.ino, 1);
                }
                is_full
            });
        reply.give(listed, |reply, ()| reply.ok());
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.listings.close(handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let usage = self.files.usage();
        let block_bytes = BLOCK_BYTES as u32;
        reply.statfs(
            usage.total_blocks,
            usage.free_blocks,
            usage.free_blocks,
            usage.total_inodes,
            usage.free_inodes,
            block_bytes,
            NAME_BYTES_MAX as u32,
            block_bytes,
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let mode = match flags {
            libc::XATTR_CREATE => AttributeMode::Create,
            libc::XATTR_REPLACE => AttributeMode::Replace,
            _ => AttributeMode::Set,
        };
        let attribute = (name.as_bytes(), value);
        let caller = caller(request);
        replies::done(
            reply,
            self.files.set_attribute(&caller, ino.0, attribute, mode),
        );
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        replies::attribute(reply, size, self.files.attribute(ino.0, name.as_bytes()));
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let listed = self.files.attributes(ino.0).map(|names| {
            let mut listed = Vec::new();
            for name in names {
                listed.extend_from_slice(&name);
                listed.push(0);
            }
            listed
        });
        replies::attribute(reply, size, listed);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes());
        replies::done(reply, self.files.remove_attribute(&caller, ino.0, name));
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = NewInode {
            mode: libc::S_IFREG | (mode & 0o7777),
            rdev: 0,
            target: None,
        };
        let name = name.as_bytes();
        let made = self.files.make(&caller(request), parent.0, name, new);
        if let Ok((ino, _)) = made
            && writes(flags)
        {
            self.files.opened_to_write(ino);
        }
        replies::created(reply, made);
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let range = (offset, length);
        let done = self.files.allocate(&caller(request), ino.0, range, mode);
        replies::done(reply, done);
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let found = u64::try_from(offset).map_err(|_| FsError::NoOffset);
        let found = found.and_then(|offset| self.files.seek(ino.0, offset, what));
        reply.give(found, |reply, at| reply.offset(at.cast_signed()));
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        _: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        _: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        // So that one request does not take minutes; the caller asks for the rest.
        let len = len.min(COPY_BYTES_MAX);
        let (from, to) = ((ino_in.0, offset_in), (ino_out.0, offset_out));
        let copied = self.files.copy(&caller(request), from, to, len);
        reply.give(copied, |reply, copied| reply.written(copied as u32));
    }
}

/// Bytes of one copy at most; arbitrary.
const COPY_BYTES_MAX: u64 = 64 << 20;

impl Kernel {
    fn forget(&self, ino: u64, count: u64) {
        if let Err(error) = self.files.forget(ino, count) {
            tracing::warn!(%error, ino, "delete a file without a name");
        }
    }
}
