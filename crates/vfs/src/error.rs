//! Why a request of a file system failed, as the errno that programs see.

/// An outcome of a request.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FsError {
    /// No entry of that name, or no such inode.
    #[error("no such file or directory")]
    NotFound,
    /// There is an entry of that name.
    #[error("file exists")]
    Exists,
    /// A directory is needed.
    #[error("not a directory")]
    NotDirectory,
    /// A directory will not do.
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries.
    #[error("directory not empty")]
    NotEmpty,
    /// More than 255 bytes, or a target of more than 4095.
    #[error("name too long")]
    NameTooLong,
    /// The request makes no sense: an empty name, a directory moved into itself.
    #[error("invalid argument")]
    Invalid,
    /// A file would be larger than [`FILE_BYTES_MAX`](crate::FILE_BYTES_MAX).
    #[error("file too large")]
    TooLarge,
    /// No room for data or for metadata.
    #[error("no space left")]
    NoSpace,
    /// Hard links of one inode are exhausted.
    #[error("too many links")]
    TooManyLinks,
    /// The caller may not do this to this kind of file.
    #[error("operation not permitted")]
    NotPermitted,
    /// The file system has no such feature.
    #[error("not supported")]
    Unsupported,
    /// No attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// There is no data, or no hole, at or after the offset.
    #[error("no such offset")]
    NoOffset,
    /// What the volume holds cannot be read or written, or metadata could not be committed.
    #[error("input or output error")]
    Io,
}

impl FsError {
    /// The number that the system knows it by.
    #[must_use]
    pub fn errno(self) -> i32 {
        match self {
            Self::NotFound => libc::ENOENT,
            Self::Exists => libc::EEXIST,
            Self::NotDirectory => libc::ENOTDIR,
            Self::IsDirectory => libc::EISDIR,
            Self::NotEmpty => libc::ENOTEMPTY,
            Self::NameTooLong => libc::ENAMETOOLONG,
            Self::Invalid => libc::EINVAL,
            Self::TooLarge => libc::EFBIG,
            Self::NoSpace => libc::ENOSPC,
            Self::TooManyLinks => libc::EMLINK,
            Self::NotPermitted => libc::EPERM,
            Self::Unsupported => libc::EOPNOTSUPP,
            Self::NoAttribute => libc::ENODATA,
            Self::NoOffset => libc::ENXIO,
            Self::Io => libc::EIO,
        }
    }
}
