//! An export as a file system over `/dev/fuse`: a root with the disk's file in it.
//!
//! The threads of `fuser` call in here, one request at a time each. Where rings are announced
//! (`fuse_rings`), it only mounts and agrees on them: all but FORGET comes over the rings then.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use cenote_volume::IoError;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyStatfs, ReplyWrite, WriteFlags,
};

use super::area::PAGE_BYTES;
use super::export::{DISK, Export, TTL_S};

/// The file system that `fuser` serves.
pub(super) struct DevFuse {
    pub(super) export: Arc<Export>,
    /// Longest write to be asked for.
    pub(super) write_bytes_max: usize,
    /// Where it is to be noted that the kernel takes rings; none: they are not asked for.
    pub(super) rings: Option<Arc<AtomicBool>>,
}

impl DevFuse {
    /// Attributes of an inode; `None` when there is no such inode.
    fn attributes(&self, ino: INodeNo) -> Option<FileAttr> {
        let (size, mode) = self.export.stat(ino.0)?;
        let kind = match mode & libc::S_IFMT {
            libc::S_IFDIR => FileType::Directory,
            _ => FileType::RegularFile,
        };
        Some(FileAttr {
            ino,
            size,
            blocks: size / 512,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind,
            perm: (mode & 0o777) as u16,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: PAGE_BYTES as u32,
            flags: 0,
        })
    }
}

impl Filesystem for DevFuse {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Not worth failing for: the kernel then sends smaller or fewer requests at once.
        if let Some(granted) = &self.rings {
            let asked = config.add_capabilities(InitFlags::FUSE_OVER_IO_URING);
            granted.store(asked.is_ok(), Ordering::Relaxed);
        }
        if config.set_max_write(self.write_bytes_max as u32).is_err()
            || config.set_max_background(BACKGROUND_MAX).is_err()
            || config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_err()
        {
            tracing::warn!("the kernel's FUSE lacks large or asynchronous direct I/O");
        }
        Ok(())
    }

    fn lookup(&self, _: &fuser::Request, _parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let ino = self.export.inode_of(name.as_bytes());
        match ino.and_then(|ino| self.attributes(INodeNo(ino))) {
            Some(attributes) => reply.entry(&TTL, &attributes, Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&TTL, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(ino.0), open_flags());
    }

    fn read(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino.0 != DISK {
            return reply.error(Errno::EINVAL);
        }
        let len = u64::from(size).min(self.export.size_bytes().saturating_sub(offset)) as usize;
        let mut worker = self.export.worker();
        match self.export.read_pages(&mut worker, offset, len) {
            Ok(good) => reply.data(&worker.data()[..good]),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn write(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.export.is_warm(ino.0) {
            // Only the first part of a request that the kernel had to split.
            if offset == 0 {
                let worker = self.export.worker();
                self.export.warm.wait();
                drop(worker);
            }
            return reply.written(data.len() as u32);
        }
        if ino.0 != DISK || offset + data.len() as u64 > self.export.size_bytes() {
            return reply.error(Errno::EINVAL);
        }
        let mut worker = self.export.worker();
        worker.room(data.len()).copy_from_slice(data);
        let outcome = self.export.write_pages(&mut worker, offset);
        // Nobody moves this worker on until it has another request, and others may wait for its pages.
        worker.land(None);
        match outcome {
            Ok(()) => reply.written(data.len() as u32),
            Err(IoError::NoSpace) => reply.error(Errno::ENOSPC),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fallocate(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let zeroes = mode & (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE) != 0;
        if ino.0 != DISK || !zeroes {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let len_bytes = length.min(self.export.size_bytes().saturating_sub(offset));
        let mut worker = self.export.worker();
        let outcome = self.export.discard(&mut worker, offset, len_bytes);
        worker.land(None);
        match outcome {
            Ok(()) => reply.ok(),
            Err(_) => reply.error(Errno::EIO),
        }
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // An acknowledged write is as safe as it will ever be.
        reply.ok();
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        // The loop device takes its discard granularity from the block size given here.
        let block_bytes = PAGE_BYTES as u32;
        let blocks = self.export.size_bytes() / u64::from(block_bytes);
        reply.statfs(blocks, 0, 0, 2, 0, block_bytes, 255, block_bytes);
    }
}

/// How every file is opened: past the kernel's page cache, by many writers at a time.
pub(super) fn open_flags() -> FopenFlags {
    FopenFlags::FOPEN_DIRECT_IO
        | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES
        | FopenFlags::FOPEN_NOFLUSH
}

/// Asynchronous requests that the kernel may have open at once; arbitrary, above what one
/// machine's reclaim has in flight.
const BACKGROUND_MAX: u16 = 128;
const TTL: Duration = Duration::from_secs(TTL_S);
