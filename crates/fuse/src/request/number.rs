//! Operations by their numbers, as patterns have them, and how long their headers are.

use fuse_abi::linux as abi;
use fuse_abi::linux::fuse_opcode as opcode;

macro_rules! numbers {
    ($($name:ident = $opcode:ident,)*) => {
        $(pub(super) const $name: u32 = opcode::$opcode as u32;)*
        /// All of them.
        #[cfg(test)]
        pub(super) const ALL: &[u32] = &[$($name),*];
    };
}

numbers! {
    LOOKUP = FUSE_LOOKUP,
    FORGET = FUSE_FORGET,
    GETATTR = FUSE_GETATTR,
    SETATTR = FUSE_SETATTR,
    READLINK = FUSE_READLINK,
    SYMLINK = FUSE_SYMLINK,
    MKNOD = FUSE_MKNOD,
    MKDIR = FUSE_MKDIR,
    UNLINK = FUSE_UNLINK,
    RMDIR = FUSE_RMDIR,
    RENAME = FUSE_RENAME,
    LINK = FUSE_LINK,
    OPEN = FUSE_OPEN,
    READ = FUSE_READ,
    WRITE = FUSE_WRITE,
    STATFS = FUSE_STATFS,
    RELEASE = FUSE_RELEASE,
    FSYNC = FUSE_FSYNC,
    SETXATTR = FUSE_SETXATTR,
    GETXATTR = FUSE_GETXATTR,
    LISTXATTR = FUSE_LISTXATTR,
    REMOVEXATTR = FUSE_REMOVEXATTR,
    FLUSH = FUSE_FLUSH,
    OPENDIR = FUSE_OPENDIR,
    READDIR = FUSE_READDIR,
    RELEASEDIR = FUSE_RELEASEDIR,
    FSYNCDIR = FUSE_FSYNCDIR,
    CREATE = FUSE_CREATE,
    INTERRUPT = FUSE_INTERRUPT,
    DESTROY = FUSE_DESTROY,
    BATCH_FORGET = FUSE_BATCH_FORGET,
    FALLOCATE = FUSE_FALLOCATE,
    READDIRPLUS = FUSE_READDIRPLUS,
    RENAME2 = FUSE_RENAME2,
    LSEEK = FUSE_LSEEK,
    COPY_FILE_RANGE = FUSE_COPY_FILE_RANGE,
}

/// How long an operation's own header is; `None` when there is no such operation here.
pub(super) fn op_header_bytes(opcode: u32) -> Option<usize> {
    Some(match opcode {
        LOOKUP | READLINK | SYMLINK | UNLINK | RMDIR | STATFS | REMOVEXATTR | DESTROY => 0,
        FORGET => size_of::<abi::fuse_forget_in>(),
        BATCH_FORGET => size_of::<abi::fuse_batch_forget_in>(),
        GETATTR => size_of::<abi::fuse_getattr_in>(),
        SETATTR => size_of::<abi::fuse_setattr_in>(),
        MKNOD => size_of::<abi::fuse_mknod_in>(),
        MKDIR => size_of::<abi::fuse_mkdir_in>(),
        RENAME => size_of::<abi::fuse_rename_in>(),
        RENAME2 => size_of::<abi::fuse_rename2_in>(),
        LINK => size_of::<abi::fuse_link_in>(),
        CREATE => size_of::<abi::fuse_create_in>(),
        OPEN | OPENDIR => size_of::<abi::fuse_open_in>(),
        READ | READDIR | READDIRPLUS => size_of::<abi::fuse_read_in>(),
        WRITE => size_of::<abi::fuse_write_in>(),
        RELEASE | RELEASEDIR => size_of::<abi::fuse_release_in>(),
        FSYNC | FSYNCDIR => size_of::<abi::fuse_fsync_in>(),
        // As long as before FUSE_SETXATTR_EXT, which nobody here asks for.
        SETXATTR => size_of::<[u32; 2]>(),
        GETXATTR | LISTXATTR => size_of::<abi::fuse_getxattr_in>(),
        FLUSH => size_of::<abi::fuse_flush_in>(),
        INTERRUPT => size_of::<abi::fuse_interrupt_in>(),
        FALLOCATE => size_of::<abi::fuse_fallocate_in>(),
        LSEEK => size_of::<abi::fuse_lseek_in>(),
        COPY_FILE_RANGE => size_of::<abi::fuse_copy_file_range_in>(),
        _ => return None,
    })
}
