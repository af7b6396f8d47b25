//! A file system over FUSE that hands every request on to a folder: what FUSE costs on this machine
//! with nothing behind it.
//!
//! The same library, threads and features of the kernel as our own; of requests, those that the
//! load makes. Inodes are known by the folder's own numbers, and by their paths.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use cenote_vfs::mount::{Options, Transport, session};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

/// Shows `backing` at `point` until it is unmounted; `shown` is called when it is there.
///
/// # Errors
/// The system refuses to mount.
pub(super) fn serve(point: &Path, backing: &Path, shown: impl FnOnce()) -> anyhow::Result<()> {
    let options = Options {
        name: "passthrough".to_owned(),
        threads: THREADS,
        allow_other: true,
        transport: Transport::DevFuse,
    };
    let known = HashMap::from([(INodeNo::ROOT.0, (backing.to_owned(), 1))]);
    let passthrough = Passthrough {
        known: Mutex::new(known),
        open: RwLock::default(),
    };
    let config = session::config("cenote-bench:", &options);
    let session = fuser::Session::new(passthrough, point, &config)?;
    shown();
    Ok(session.run()?)
}

/// As many as `cenote mount` has.
const THREADS: usize = 8;
const TTL: Duration = Duration::from_secs(24 * 3600);

struct Passthrough {
    /// Where each inode is, and how often the kernel was told of it.
    known: Mutex<HashMap<u64, (PathBuf, u64)>>,
    open: RwLock<Open>,
}

#[derive(Default)]
struct Open {
    last: u64,
    files: HashMap<u64, Arc<File>>,
}

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Passthrough {
    fn known(&self) -> MutexGuard<'_, HashMap<u64, (PathBuf, u64)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, ino: INodeNo) -> io::Result<PathBuf> {
        let known = self.known();
        let found = known.get(&ino.0).map(|(path, _)| path.clone());
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))
    }

    fn child(&self, parent: INodeNo, name: &OsStr) -> io::Result<PathBuf> {
        self.path(parent).map(|path| path.join(name))
    }

    /// Attributes of what is at `path`, which the kernel is told of.
    fn told(&self, path: PathBuf) -> io::Result<FileAttr> {
        let metadata = fs::symlink_metadata(&path)?;
        let mut known = self.known();
        known.entry(metadata.ino()).or_insert((path, 0)).1 += 1;
        Ok(attributes(&metadata))
    }

    fn keep(&self, file: File) -> FileHandle {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.last += 1;
        let handle = open.last;
        open.files.insert(handle, Arc::new(file));
        FileHandle(handle)
    }

    fn file(&self, handle: FileHandle) -> io::Result<Arc<File>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let file = open.files.get(&handle.0).map(Arc::clone);
        file.ok_or_else(|| io::Error::from_raw_os_error(libc::EBADF))
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_i32(error.raw_os_error().unwrap_or(libc::EIO))
}

fn attributes(metadata: &Metadata) -> FileAttr {
    FileAttr {
        ino: INodeNo(metadata.ino()),
        size: metadata.len(),
        blocks: metadata.blocks(),
        atime: metadata.accessed().unwrap_or(SystemTime::UNIX_EPOCH),
        mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        ctime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        crtime: SystemTime::UNIX_EPOCH,
        kind: match metadata.is_dir() {
            true => FileType::Directory,
            false => FileType::RegularFile,
        },
        perm: (metadata.mode() & 0o7777) as u16,
        nlink: metadata.nlink() as u32,
        uid: metadata.uid(),
        gid: metadata.gid(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// As the kernel's cache needs it: whoever writes reads too, and nobody appends.
fn opened(path: &Path, flags: i32, mode: u32) -> io::Result<File> {
    let writes = flags & libc::O_ACCMODE != libc::O_RDONLY;
    let mut options = File::options();
    options.read(true).write(writes).mode(mode);
    options.create(writes && flags & libc::O_CREAT != 0);
    options.open(path)
}

impl Filesystem for Passthrough {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        session::negotiate(config)
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.child(parent, name).and_then(|path| self.told(path)) {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn forget(&self, _: &Request, ino: INodeNo, count: u64) {
        let mut known = self.known();
        if let Some((_, lookups)) = known.get_mut(&ino.0) {
            *lookups = lookups.saturating_sub(count);
            if *lookups == 0 {
                known.remove(&ino.0);
            }
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.path(ino).and_then(fs::symlink_metadata);
        match found {
            Ok(metadata) => reply.attr(&TTL, &attributes(&metadata)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn setattr(
        &self,
        _: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = |path: PathBuf| {
            if let Some(mode) = mode {
                fs::set_permissions(&path, Permissions::from_mode(mode))?;
            }
            if let Some(size) = size {
                File::options().write(true).open(&path)?.set_len(size)?;
            }
            if let Some(mtime) = mtime {
                let time = match mtime {
                    TimeOrNow::SpecificTime(time) => time,
                    TimeOrNow::Now => SystemTime::now(),
                };
                let times = FileTimes::new().set_modified(time);
                File::open(&path)?.set_times(times)?;
            }
            fs::symlink_metadata(&path)
        };
        match self.path(ino).and_then(set) {
            Ok(metadata) => reply.attr(&TTL, &attributes(&metadata)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        let made = self.child(parent, name).and_then(|path| {
            fs::create_dir(&path)?;
            self.told(path)
        });
        match made {
            Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.child(parent, name).and_then(fs::remove_file) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        match self.child(parent, name).and_then(fs::remove_dir) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let made = self.child(parent, name).and_then(|path| {
            let file = opened(&path, flags | libc::O_CREAT, mode)?;
            Ok((self.told(path)?, self.keep(file)))
        });
        match made {
            Ok((attr, handle)) => {
                let keep = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&TTL, &attr, Generation(0), handle, keep);
            }
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.path(ino).and_then(|path| opened(&path, flags.0, 0)) {
            Ok(file) => reply.opened(self.keep(file), FopenFlags::FOPEN_KEEP_CACHE),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BUFFER.with_borrow_mut(|buffer| {
            let len = size as usize;
            if buffer.len() < len {
                buffer.resize(len, 0);
            }
            let file = self.file(handle);
            match file.and_then(|file| file.read_at(&mut buffer[..len], offset)) {
                Ok(got) => reply.data(&buffer[..got]),
                Err(error) => reply.error(errno(&error)),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self
            .file(handle)
            .and_then(|file| file.write_at(data, offset))
        {
            Ok(written) => reply.written(written as u32),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        let closed = open.files.remove(&handle.0);
        drop(open);
        drop(closed);
        reply.ok();
    }

    fn fsync(&self, _: &Request, _: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.file(handle).and_then(|file| file.sync_all()) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(1 << 20, 1 << 19, 1 << 19, 0, 0, 4096, 255, 4096);
    }
}
