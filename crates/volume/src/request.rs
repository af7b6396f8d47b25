//! Requests of a front end with many in flight, and their ends.

/// Bytes in a page, the unit of access of a volume.
pub const PAGE_BYTES: usize = 4096;

/// Longest single request in bytes; front ends split or refuse longer ones.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;

/// What to do. Buffers are owned by the request while it runs and come back in [`Done`].
#[derive(Debug)]
pub enum Op {
    /// Fills the buffer from the volume.
    Read(Vec<u8>),
    /// Writes the buffer to the volume.
    Write(Vec<u8>),
    /// Makes `len_bytes` read as zeros; whole pages give their memory back, edges are written.
    Discard {
        /// Length in bytes.
        len_bytes: u64,
    },
}

/// One request. Any offset and length inside the volume; whole pages are fastest.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the caller, returned in [`Done`].
    pub tag: u64,
    /// First byte.
    pub offset: u64,
    /// What to do.
    pub op: Op,
}

/// The end of a request. An acknowledged write survives r host losses.
#[derive(Debug)]
pub struct Done {
    /// As in the request.
    pub tag: u64,
    /// The request's operation, with its buffer.
    pub op: Op,
    /// Whether every byte of it succeeded.
    pub result: Result<(), IoError>,
}

/// Why a request failed. No wrong byte is ever returned instead.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum IoError {
    /// More hosts of a stripe were lost than the scheme survives, or so many do not answer for 30 s. Pages of
    /// hosts that are silent are there again when these answer.
    #[error("lost: more hosts failed, or do not answer, than the scheme survives")]
    Lost,
    /// Splits of the page disagree, and which of them are right cannot be told.
    #[error(
        "corrupt: what hosts hold of the page disagrees, and nothing tells which of it is right"
    )]
    Corrupt,
    /// Too few hosts are left (or have memory left) to hold the extent; may succeed later.
    #[error("no space: too few hosts have memory left")]
    NoSpace,
    /// The range passes the volume's end.
    #[error("out of range")]
    OutOfRange,
    /// The backing store's disk failed, and no host has the page.
    #[error("backing store: the disk failed, and no host has the page")]
    Disk,
    /// The volume was closed while the request ran.
    #[error("volume closed")]
    Closed,
}
