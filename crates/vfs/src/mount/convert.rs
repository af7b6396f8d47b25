//! Between the words of FUSE and those of the file system.

use std::time::{SystemTime, UNIX_EPOCH};

use cenote_fuse::reply::Attributes;
use cenote_fuse::request::{Request, Time, When};

use crate::files::Caller;
use crate::medium::BLOCK_BYTES;
use crate::records::{Ino, Inode, Timestamp};

/// Who asks, and when.
pub(super) fn caller(request: &Request<'_>) -> Caller {
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

/// A time that the kernel gave.
pub(super) fn timestamp(time: Time) -> Timestamp {
    Timestamp {
        seconds: time.seconds,
        nanos: time.nanos,
    }
}

/// The same where it may be that of the request.
pub(super) fn when(when: When, now: Timestamp) -> Timestamp {
    match when {
        When::Now => now,
        When::At(time) => timestamp(time),
    }
}

fn time(time: Timestamp) -> Time {
    Time {
        seconds: time.seconds,
        nanos: time.nanos,
    }
}

pub(super) fn attributes(ino: Ino, inode: &Inode) -> Attributes {
    Attributes {
        inode: ino,
        size_bytes: match inode.is_directory() {
            // As many as there are entries tells little; programs expect a multiple of a block.
            true => BLOCK_BYTES,
            false => inode.size,
        },
        block_count: inode.blocks.saturating_mul(BLOCK_BYTES / 512),
        atime: time(inode.atime),
        mtime: time(inode.mtime),
        ctime: time(inode.ctime),
        mode: inode.mode,
        link_count: inode.nlink,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        block_bytes: BLOCK_BYTES as u32,
    }
}
