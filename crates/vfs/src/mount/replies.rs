//! What a request is answered: what was asked for, or the errno of why not.

use std::time::Duration;

use fuser::{
    Errno, FileHandle, FopenFlags, Generation, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyWrite, ReplyXattr,
};

use super::convert::{file_attr, nothing};
use crate::records::{Ino, Inode};
use crate::{FsError, Result};

/// For how long the kernel may believe what it is told: nobody else changes anything.
pub(super) const TTL: Duration = Duration::from_secs(24 * 3600);

/// A reply that can be an error.
pub(super) trait Reply: Sized {
    fn error(self, errno: Errno);

    /// Hands what was asked for to `give`, or says why there is none.
    fn give<T>(self, outcome: Result<T>, give: impl FnOnce(Self, T)) {
        match outcome {
            Ok(found) => give(self, found),
            Err(error) => self.error(Errno::from_i32(error.errno())),
        }
    }
}

macro_rules! replies {
    ($($reply:ty),* $(,)?) => {
        $(impl Reply for $reply {
            fn error(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

replies!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyWrite,
    ReplyXattr,
);

/// That it is done.
pub(super) fn done(reply: ReplyEmpty, outcome: Result<()>) {
    reply.give(outcome, |reply, ()| reply.ok());
}

/// What has a name now.
pub(super) fn entry(reply: ReplyEntry, outcome: Result<(Ino, Inode)>) {
    reply.give(outcome, |reply, (ino, inode)| {
        reply.entry(&TTL, &file_attr(ino, &inode), Generation(0));
    });
}

/// What has a name, or that nothing has: the kernel need not ask again until it makes such a name
/// itself.
pub(super) fn entry_or_none(reply: ReplyEntry, outcome: Result<(Ino, Inode)>) {
    match outcome {
        // Inode 0 says so.
        Err(FsError::NotFound) => reply.entry(&TTL, &nothing(), Generation(0)),
        outcome => entry(reply, outcome),
    }
}

/// A file that was made and opened in one.
pub(super) fn created(reply: ReplyCreate, outcome: Result<(Ino, Inode)>) {
    reply.give(outcome, |reply, (ino, inode)| {
        let (attr, keep) = (file_attr(ino, &inode), FopenFlags::FOPEN_KEEP_CACHE);
        reply.created(&TTL, &attr, Generation(0), FileHandle(0), keep);
    });
}

/// Attributes.
pub(super) fn attributes(reply: ReplyAttr, ino: Ino, outcome: Result<Inode>) {
    reply.give(outcome, |reply, inode| {
        reply.attr(&TTL, &file_attr(ino, &inode));
    });
}

/// An extended attribute or the names of all, or how long that is where there is no `room` yet.
pub(super) fn attribute(reply: ReplyXattr, room: u32, outcome: Result<impl AsRef<[u8]>>) {
    reply.give(outcome, |reply, bytes| {
        let bytes = bytes.as_ref();
        match room {
            0 => reply.size(bytes.len() as u32),
            room if bytes.len() <= room as usize => reply.data(bytes),
            _ => reply.error(Errno::ERANGE),
        }
    });
}
