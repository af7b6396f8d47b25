//! Why a volume cannot be opened or changed.

use std::io::ErrorKind;

use crate::integrity::TagsError;
use crate::journal::JournalError;
use crate::limits::WORKERS_MAX;
use crate::marks::MarksError;
use crate::{IoError, Scheme};

/// Why a volume cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    /// Too few hosts answer.
    #[error(
        "{scheme} needs at least {needed} hosts in different failure domains, but {answered} \
         answered; start more hosts or choose another scheme{complaint}"
    )]
    TooFewHosts {
        /// The scheme asked for.
        scheme: Scheme,
        /// Domains needed to store anything.
        needed: usize,
        /// Domains that answered.
        answered: usize,
        /// What the first host that did not answer said, or nothing.
        complaint: String,
    },
    /// The size is zero, not whole pages, or more than a volume can have.
    #[error(
        "size {size_bytes}: must be a positive multiple of 4096 bytes, at most {size_bytes_max}"
    )]
    Size {
        /// The size asked for.
        size_bytes: u64,
        /// The most that is possible.
        size_bytes_max: u64,
    },
    /// More than what an open volume was laid out for; it may have more once it is opened again.
    #[error("size {size_bytes} bytes: an open volume can grow to {size_bytes_max} bytes")]
    Growth {
        /// The size asked for.
        size_bytes: u64,
        /// The most that is possible while it is open.
        size_bytes_max: u64,
    },
    /// An open volume does not shrink: pages beyond the new end may be on their way.
    #[error(
        "size {size_bytes} bytes: the volume has {size_bytes_now} bytes, and an open volume can \
         only grow"
    )]
    Shrink {
        /// The size asked for.
        size_bytes: u64,
        /// The size that it has.
        size_bytes_now: u64,
    },
    /// Slabs of the hosts are too small for the scheme's splits, or for the volume's size.
    #[error(
        "hosts lend slabs of {slab_bytes} bytes, too small for {scheme} or for so large a volume; start hosts with a larger --slab"
    )]
    Slab {
        /// Smallest slab of any host.
        slab_bytes: u64,
        /// The scheme asked for.
        scheme: Scheme,
    },
    /// The slabs that hold its data are too small for the size that it is to have.
    #[error(
        "size {size_bytes}: the volume has data in slabs of {slab_bytes} bytes, and can have at most \
         {size_bytes_max} bytes with these"
    )]
    Outgrown {
        /// The size asked for.
        size_bytes: u64,
        /// The most that is possible.
        size_bytes_max: u64,
        /// Size of its slabs.
        slab_bytes: u64,
    },
    /// Pages cannot be cut so while the volume is open.
    #[error(
        "{to} has another K than {from}: K cannot change while another change of K is in progress, \
         or if the volume is too large for its slabs"
    )]
    Cut {
        /// The scheme that it has.
        from: Scheme,
        /// The scheme asked for.
        to: Scheme,
    },
    /// The cluster is too small for more parities.
    #[error(
        "{scheme} needs hosts in {needed} failure domains, but the cluster file has {domains} that \
         lend: add hosts, or choose a scheme with fewer splits"
    )]
    TooFewDomains {
        /// The scheme asked for.
        scheme: Scheme,
        /// Its splits.
        needed: usize,
        /// Domains of hosts that lend.
        domains: usize,
    },
    /// Hosts that an earlier owner's slabs are on do not answer, and without them data is lost.
    #[error(
        "hosts {hosts} do not answer and have slabs that the volume needs; start them and try again"
    )]
    Unreachable {
        /// Their names.
        hosts: String,
    },
    /// Writes that an earlier owner did not end cannot be completed now, and pages hold data that only they have.
    #[error(
        "{left} writes that were under way when the volume was last in use cannot be completed yet \
         ({source}); start the hosts that are missing, or add memory, and try again"
    )]
    Unfinished {
        /// Pages that they are of.
        left: usize,
        /// Why the first of them cannot be completed.
        source: IoError,
    },
    /// Hosts that an earlier owner's slabs are on are none of those given, and without them data is lost.
    #[error("hosts {hosts} are not listed and have slabs that the volume needs")]
    Unlisted {
        /// Their names.
        hosts: String,
    },
    /// Another owner has taken the volume over.
    #[error("another owner has taken the volume over; only its journal is current")]
    Superseded,
    /// What the earlier owner left describes another volume, or one of another scheme.
    #[error("the last owner's state belongs to another volume or scheme")]
    Foreign,
    /// The earlier owner left more than the volume has room for by now.
    #[error(
        "the last owner's state extends beyond the volume's size of {size_bytes} bytes: enlarge \
         the volume again"
    )]
    Beyond {
        /// The size that it was opened with.
        size_bytes: u64,
    },
    /// The earlier owner's journal cannot be read.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// Its list of pages cannot be.
    #[error(transparent)]
    Marks(#[from] MarksError),
    /// Its tags cannot be, or the volume was made with another protection or key.
    #[error(transparent)]
    Tags(#[from] TagsError),
    /// Mapping ran out of hosts with memory.
    #[error(
        "no space: {mapped} of {wanted} extents mapped; add hosts or memory, or make the volume \
         smaller"
    )]
    NoSpace {
        /// Extents mapped.
        mapped: usize,
        /// Extents of the volume.
        wanted: usize,
    },
    /// [`WORKERS_MAX`] workers exist.
    #[error("a volume has at most {WORKERS_MAX} workers")]
    TooManyWorkers,
    /// The control thread is gone.
    #[error("volume closed")]
    Closed,
    /// The operating system refused.
    #[error("{what}: {source}")]
    Os {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
}

impl VolumeError {
    /// Whether the disk of what owners leave to each other is full: once there is room the volume
    /// can be opened as it was.
    #[must_use]
    pub fn is_for_want_of_room(&self) -> bool {
        let source = match self {
            Self::Journal(JournalError::Io(source))
            | Self::Marks(MarksError::Io(source))
            | Self::Tags(TagsError::Io(source)) => source,
            _ => return false,
        };
        matches!(
            source.kind(),
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        )
    }
}
