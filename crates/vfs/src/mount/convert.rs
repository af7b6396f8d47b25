//! Between the words of FUSE and those of the file system.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, Request};

use crate::files::Caller;
use crate::medium::BLOCK_BYTES;
use crate::records::{Ino, Inode, Timestamp};

/// Who asks, and when.
pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
        now: now(),
    }
}

pub(super) fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Timestamp {
        seconds: since.as_secs().cast_signed(),
        nanos: since.subsec_nanos(),
    }
}

/// A time that the kernel gave. Of a time before 1970 fuser takes the nanoseconds off where the
/// kernel adds them, so they are taken for what they were.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => Timestamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        Err(before) => Timestamp {
            seconds: i64::try_from(before.duration().as_secs()).map_or(i64::MIN, |past| -past),
            nanos: before.duration().subsec_nanos(),
        },
    }
}

/// A time for the kernel; the epoch where the system has no such time.
fn system_time(time: Timestamp) -> SystemTime {
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = match time.seconds >= 0 {
        true => UNIX_EPOCH.checked_add(seconds),
        false => UNIX_EPOCH.checked_sub(seconds),
    };
    let nanos = Duration::from_nanos(time.nanos.into());
    let exact = whole.and_then(|whole| whole.checked_add(nanos));
    exact.unwrap_or(UNIX_EPOCH)
}

pub(super) fn file_type(mode: u32) -> FileType {
    match mode & libc::S_IFMT {
        libc::S_IFDIR => FileType::Directory,
        libc::S_IFLNK => FileType::Symlink,
        libc::S_IFIFO => FileType::NamedPipe,
        libc::S_IFSOCK => FileType::Socket,
        libc::S_IFCHR => FileType::CharDevice,
        libc::S_IFBLK => FileType::BlockDevice,
        _ => FileType::RegularFile,
    }
}

pub(super) fn file_attr(ino: Ino, inode: &Inode) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino),
        size: match inode.is_directory() {
            // As many as there are entries tells little; programs expect a multiple of a block.
            true => BLOCK_BYTES,
            false => inode.size,
        },
        blocks: inode.blocks.saturating_mul(BLOCK_BYTES / 512),
        atime: system_time(inode.atime),
        mtime: system_time(inode.mtime),
        ctime: system_time(inode.ctime),
        crtime: system_time(inode.ctime),
        kind: file_type(inode.mode),
        perm: (inode.mode & 0o7777) as u16,
        nlink: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

/// Attributes of a name that is not there.
pub(super) fn nothing() -> FileAttr {
    let none = Timestamp::default();
    let inode = Inode {
        mode: libc::S_IFREG,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        parent: 0,
        atime: none,
        mtime: none,
        ctime: none,
    };
    file_attr(0, &inode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_goes_to_the_kernel_as_seconds_and_nanoseconds_after_them() {
        let half_before = Timestamp {
            seconds: -1,
            nanos: 500_000_000,
        };
        let expected = UNIX_EPOCH - Duration::from_millis(500);
        assert_eq!(system_time(half_before), expected);
    }

    #[test]
    fn a_time_that_the_system_does_not_have_is_the_epoch() {
        let late = Timestamp {
            seconds: i64::MAX,
            nanos: 999_999_999,
        };
        // No panic is what counts; Linux has this one.
        let known = system_time(late) >= UNIX_EPOCH;
        assert!(known);
        let early = Timestamp {
            seconds: i64::MIN,
            nanos: 0,
        };
        assert!(system_time(early) <= UNIX_EPOCH);
    }
}
