//! The words that the kernel's FUSE and a ring exchange: `linux/fuse.h`, protocol 7.42, which
//! `fuse_abi` does not have yet.
//!
//! Plain data and constants, no system call. Layouts are the kernel's; the sizes are checked below.

/// What the kernel and the server write beside the payload of a request.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHeader {
    /// `fuse_in_header` of a request, `fuse_out_header` of its reply.
    pub(crate) in_out: [u8; HEADER_BYTES],
    /// The operation's own header, such as `fuse_read_in`.
    pub(crate) op_in: [u8; HEADER_BYTES],
    pub(crate) entry: EntryInOut,
}

impl RequestHeader {
    pub(crate) const EMPTY: Self = Self {
        in_out: [0; HEADER_BYTES],
        op_in: [0; HEADER_BYTES],
        entry: EntryInOut {
            flags: 0,
            commit_id: 0,
            payload_bytes: 0,
            padding: 0,
            reserved: 0,
        },
    };
}

/// `fuse_uring_ent_in_out`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct EntryInOut {
    pub(crate) flags: u64,
    /// Names the request when its reply is handed over.
    pub(crate) commit_id: u64,
    /// Of the request when it comes, of the reply when it goes.
    pub(crate) payload_bytes: u32,
    pub(crate) padding: u32,
    pub(crate) reserved: u64,
}

/// `fuse_uring_cmd_req`, in the last 80 bytes of a large submission entry.
pub(crate) fn command(commit_id: u64, queue: u16) -> [u8; 80] {
    let mut bytes = [0; 80];
    bytes[8..16].copy_from_slice(&commit_id.to_ne_bytes());
    bytes[16..18].copy_from_slice(&queue.to_ne_bytes());
    bytes
}

/// Makes a buffer known, and asks for its first request.
pub(crate) const REGISTER: u32 = 1;
/// Ends a buffer's request, and asks for its next.
pub(crate) const COMMIT_AND_FETCH: u32 = 2;
/// Least payload of a buffer: FUSE_MIN_READ_BUFFER.
pub(crate) const PAYLOAD_BYTES_MIN: usize = 8192;
/// FUSE_URING_IN_OUT_HEADER_SZ and FUSE_URING_OP_IN_OUT_SZ.
pub(crate) const HEADER_BYTES: usize = 128;

const _: () = assert!(size_of::<EntryInOut>() == 32);
const _: () = assert!(size_of::<RequestHeader>() == 288);
