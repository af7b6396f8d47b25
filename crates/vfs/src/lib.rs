//! A POSIX file system on a volume, served over FUSE.
//!
//! [`Files`] is the file system itself: inodes, names, extents and space, with no FUSE and no
//! volume in it. It keeps metadata in redb (`database`), changed in memory first and committed in
//! batches (`table`), and bytes in extents of a [`medium::Medium`]. [`mount`] serves it to the
//! kernel; [`volume`] implements the medium on a volume.
//!
//! Guarantee: a crash at any point leaves a file system that mounts, with all fsynced data, and
//! otherwise in its state after some request. Data is on the medium before the metadata that points
//! to it; freed blocks are reused once the commit that freed them is durable.
//!
//! Decision 121.

mod area;
mod database;
mod error;
mod files;
pub mod injected_faults;
pub mod label;
pub mod medium;
pub mod mount;
mod range_locks;
mod records;
mod space;
mod table;
pub mod volume;

pub use error::{FsError, Result};
pub use files::{
    AttributeMode, Caller, Changed, DirectoryEntry, Files, NewInode, OpenError, RenameMode, Seek,
    Usage, Write,
};
pub use records::{Entry, Ino, Inode, ROOT, Timestamp};

/// Most bytes of a file: the kernel's own limit, less a block.
pub const FILE_BYTES_MAX: u64 = (1 << 63) - 4096;
/// Most bytes of a name.
pub const NAME_BYTES_MAX: usize = 255;
/// Most bytes of a symbolic link's target.
pub const TARGET_BYTES_MAX: usize = 4095;
